"""What a legacy model did around each call by itself, written out at the call sites.

Optimum Neuron's models took CPU tensors, ran without gradient and gave CPU tensors back. A native model
wants its inputs on the device, records gradients, and answers on the device. All model families share
this one piece of code.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.flow import UseKind
from neuronmigrate.names import dotted_name
from neuronmigrate.site import Group, Site

NO_GRAD = frozenset(
    {"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode"}
)
# What a tensor tells on any device.
_TOLD = frozenset({"device", "dim", "dtype", "ndim", "numel", "shape", "size"})
_MAPPING = frozenset({"get", "items", "keys", "pop", "values"})
_TOKENIZERS = (
    "Tokenizer",
    "TokenizerFast",
    "Processor",
    "ImageProcessor",
    "FeatureExtractor",
    "ImageProcessorFast",
)


@dataclass
class Moved:
    """What came of one call site."""

    refused: str = ""
    """Why it cannot be rewritten; nothing of it was edited then."""
    todo: tuple[str, ...] = ()
    """What is left to look at."""


def move_forward(site: Site, group: Group, call: cst.Call, *, bfloat16: bool) -> Moved:
    """Move the inputs of a direct call of a model, switch gradients off, bring the outputs back.

    `bfloat16` says that the model is loaded in bfloat16: the old outputs were float32 tensors, and
    numpy has no bfloat16, so they are brought back as float32.
    """
    where = _no_grad_place(site, call)
    if where is _NOWHERE:
        return Moved("it is called where no `with torch.no_grad()` can be put around it")
    todo: list[str] = []
    arguments: list[tuple[cst.Arg, cst.BaseExpression]] = []
    device = _device_of(group, call.func)
    for arg in call.args:
        if arg.star == "*":
            return Moved(f"its inputs come as `*{edits.short(arg.value)}`")
        if arg.keyword is not None and arg.keyword.value == "labels":
            todo.append("`labels` was ignored before; now a loss is computed and comes first in the output")
        if edits.is_literal(arg.value):
            continue
        moved = _moved(site, group, arg, device)
        if moved is not None:
            arguments.append((arg, moved))
    outputs, left = _bring_back(site, group, call, bfloat16)
    for arg, value in arguments:
        group.replace(arg.value, value)
    for old, new in outputs:
        group.replace(old, new)
    if isinstance(where, cst.BaseSmallStatement) and where not in site.notes.setdefault("no-grad", set()):
        site.notes["no-grad"].add(where)
        with_line = group.statements("with torch.no_grad():\n    pass\n")[0]
        assert isinstance(with_line, cst.With)
        body = cst.IndentedBlock(body=[cst.SimpleStatementLine(body=[where])])
        group.replace_statement(where, [with_line.with_changes(body=body)])
    return Moved(todo=(*todo, *left))


# Where gradients are switched off.

_NOWHERE = cst.Pass()


def _no_grad_place(site: Site, node: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The small statement to put under `torch.no_grad()`; None when it runs without gradient already."""
    small: cst.BaseSmallStatement | None = None
    for around in site.ancestors(node):
        if isinstance(around, cst.BaseSmallStatement) and small is None:
            small = around
        elif isinstance(around, cst.With) and any(_switches_off(site, item.item) for item in around.items):
            return None
        elif isinstance(around, cst.FunctionDef):
            if any(_switches_off(site, decorator.decorator) for decorator in around.decorators):
                return None
            break
        elif isinstance(around, cst.Lambda) and small is None:
            return _NOWHERE
    if small is None:
        return _NOWHERE
    return small


def _switches_off(site: Site, node: cst.BaseExpression) -> bool:
    return site.name_of(node.func if isinstance(node, cst.Call) else node) in NO_GRAD


# Inputs.


def _device_of(group: Group, model: cst.BaseExpression) -> cst.BaseExpression:
    if dotted_name(model):
        return cst.Attribute(model.deep_clone(), cst.Name("device"))
    return edits.string("neuron")


def _moved(site: Site, group: Group, arg: cst.Arg, device: cst.BaseExpression) -> cst.BaseExpression | None:
    """The value of an argument on the device; None when it needs no move."""
    value = arg.value
    if _is_moved(value):
        return None
    if arg.star == "**":
        if isinstance(value, cst.Dict):
            return None
        if is_encoding(site, value) and not _read_elsewhere(site, value):
            return edits.expression("{value}.to({device})", value=value, device=device.deep_clone())
        return edits.expression(
            "{{key: tensor.to({device}) for key, tensor in {value}.items()}}",
            value=value,
            device=device.deep_clone(),
        )
    return edits.expression("{value}.to({device})", value=value, device=device.deep_clone())


def _is_moved(value: cst.BaseExpression) -> bool:
    return (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and value.func.attr.value == "to"
    )


def is_encoding(site: Site, value: cst.BaseExpression) -> bool:
    """Whether a value is certainly what a tokenizer or processor gave: a mapping with its own `.to()`."""
    origins = site.flow.origin_of(value)
    return origins.certain and all(
        producer.called and _makes_encodings(producer.name) for producer in origins.producers
    )


def _makes_encodings(name: str) -> bool:
    """`transformers.AutoTokenizer.from_pretrained()`, called again, and what its methods give."""
    maker, called, method = name.rpartition("()")
    parts = maker.partition("(")[0].split(".")
    return (
        bool(called)
        and parts[0] == "transformers"
        and any(part.endswith(_TOKENIZERS) for part in parts)
        and method in ("", ".batch_encode_plus", ".encode_plus", ".pad")
    )


def _read_elsewhere(site: Site, value: cst.BaseExpression) -> bool:
    """Whether anything but this place reads the value: moving it in place would move it there too."""
    if isinstance(value, cst.Call):
        return False
    if not isinstance(value, cst.Name):
        return True
    bindings = site.names.bindings_at(value)
    return any(reader is not value for binding in bindings for reader in site.names.references(binding))


# Outputs.


def _bring_back(
    site: Site, group: Group, call: cst.Call, bfloat16: bool
) -> tuple[list[tuple[cst.BaseExpression, cst.BaseExpression]], list[str]]:
    """Edits that bring the tensors of an output to the CPU, and what could not be followed."""
    found = site.flow.uses_of(call)
    changes: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
    todo: list[str] = []
    for use in found.uses:
        parent = site.parent(use.node)
        if use.kind is UseKind.ATTRIBUTE and isinstance(parent, cst.Attribute):
            if parent.attr.value in _MAPPING:
                todo.append(_said(site, use.node, "its tensors are read through the mapping"))
            elif parent.attr.value in ("hidden_states", "attentions"):
                todo.append(
                    _said(site, use.node, f"`{parent.attr.value}` is a tuple of tensors on the device")
                )
            elif parent.attr.value != "loss" and not _goes_home(site, parent, bfloat16):
                changes.append((parent, _home(parent, bfloat16)))
        elif isinstance(parent, cst.Subscript) and parent.value is use.node:
            if not _goes_home(site, parent, bfloat16):
                changes.append((parent, _home(parent, bfloat16)))
        elif use.kind in (UseKind.BOUND, UseKind.DISCARDED):
            continue
        else:
            todo.append(_said(site, use.node, "the whole output is passed on"))
    for node, why in found.lost:
        todo.append(_said(site, node, why))
    return changes, [f"{text}: its tensors are on the device now" for text in dict.fromkeys(todo)]


def _said(site: Site, node: cst.CSTNode, what: str) -> str:
    return f"line {site.positions.span(node).line}: {what}"


def _goes_home(site: Site, node: cst.CSTNode, bfloat16: bool) -> bool:
    """Whether what follows works on the device, or brings the tensor to the CPU as it should be."""
    seen: list[str] = []
    parent = site.parent(node)
    current = node
    while True:
        if isinstance(parent, cst.Attribute) and parent.value is current:
            seen.append(parent.attr.value)
        elif not (isinstance(parent, cst.Call) and parent.func is current):
            break
        current, parent = parent, site.parent(parent)
    if seen and seen[0] in _TOLD:
        return True
    before = seen[: seen.index("cpu")] if "cpu" in seen else []
    return (
        "cpu" in seen
        and all(name in ("detach", "float") for name in before)
        and (not bfloat16 or "float" in before)
    )


def _home(node: cst.BaseExpression, bfloat16: bool) -> cst.BaseExpression:
    return edits.expression("{x}.float().cpu()" if bfloat16 else "{x}.cpu()", x=node)
