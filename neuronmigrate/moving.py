"""What a legacy model did around each call by itself, written out at the call sites.

Optimum Neuron's models took CPU tensors, ran without gradient and gave CPU tensors back. A native model
wants its inputs on the device, records gradients, and answers on the device. All model families share
this one piece of code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.flow import UseKind
from neuronmigrate.names import Kind, dotted_name
from neuronmigrate.site import Group, Site

NO_GRAD = frozenset(
    {"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode"}
)
_SETS_GRAD = frozenset({"torch.set_grad_enabled", "torch.autograd.set_grad_enabled"})
_RECORDS = frozenset({"torch.enable_grad", "torch.autograd.enable_grad"})
# What a tensor tells on any device.
_TOLD = frozenset({"device", "dim", "dtype", "ndim", "numel", "shape", "size"})
# Fields of an output that hold tuples of tensors.
TUPLES = frozenset({"attentions", "cross_attentions", "hidden_states", "past_key_values"})
# Parameters of a forward that are no tensors.
_FLAGS = frozenset({"output_attentions", "output_hidden_states", "return_dict", "use_cache"})
_LOOKERS = frozenset(
    {"builtins.hasattr", "builtins.id", "builtins.isinstance", "builtins.len", "builtins.type"}
)
# What runs through a generator at once.
_CONSUMERS = frozenset(
    {"builtins.dict", "builtins.frozenset", "builtins.list", "builtins.max", "builtins.min"}
    | {"builtins.all", "builtins.any", "builtins.set", "builtins.sorted", "builtins.sum", "builtins.tuple"}
)
_TOKENIZERS = (
    "Tokenizer",
    "TokenizerFast",
    "Processor",
    "ImageProcessor",
    "FeatureExtractor",
    "ImageProcessorFast",
)
_LABELS = "`labels` was ignored before; now a loss is computed and comes first in the output"


@dataclass
class Moved:
    """What came of one call site."""

    refused: str = ""
    """Why it cannot be rewritten; nothing of it was edited then."""
    todo: tuple[str, ...] = ()
    """What is left to look at."""
    why: str = "inputs are moved and outputs brought back"
    """What was done, in words."""


class _Refused(Exception):
    """A call cannot be rewritten. Its text says why."""


def move_forward(site: Site, group: Group, call: cst.Call, *, as_float32: bool) -> Moved:
    """Move the inputs of a direct call of a model, switch gradients off, bring the outputs back.

    `as_float32` says that the model is loaded in half precision where float32 answered before, so
    outputs are brought back as float32; numpy has no bfloat16. All models that may be called here have
    to share the group: what another of them has moved already is not moved again.
    """
    moved = site.notes.setdefault("moved", set())
    if call in moved:
        return Moved()
    try:
        inputs = _Inputs(site, group, model_of(call))
        inputs.add(call)
        where = _no_grad_place(site, call)
    except _Refused as refused:
        return Moved(str(refused))
    outputs, left = _bring_back(site, group, call, as_float32, unseen=inputs.unseen)
    for old, new in [*inputs.changes, *outputs]:
        if old not in moved:
            moved.add(old)
            group.replace(old, new)
    moved.add(call)
    if where is not None and where not in moved:
        moved.add(where)
        with_line = group.statements("with torch.no_grad():\n    pass\n")[0]
        assert isinstance(with_line, cst.With)
        alone = where.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        body = cst.IndentedBlock(body=[cst.SimpleStatementLine(body=[alone])])
        group.replace_statement(where, [with_line.with_changes(body=body)])
    return Moved(todo=(*inputs.todo, *left))


def model_of(call: cst.Call) -> cst.BaseExpression:
    """The model that is called: `model` of `model(...)` and of `model.forward(...)`."""
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value in ("forward", "__call__"):
        return func.value
    return func


# Where gradients are switched off.


def _no_grad_place(site: Site, node: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The small statement to put under `torch.no_grad()`; None when it runs without gradient already."""
    small: cst.BaseSmallStatement | None = None
    inside: cst.CSTNode = node
    for around in site.ancestors(node):
        if small is None:
            if isinstance(around, cst.BaseSmallStatement):
                small = around
            elif isinstance(around, cst.Lambda):
                break
            elif isinstance(around, cst.GeneratorExp) and not _is_consumed(site, around):
                raise _Refused(
                    "it is called in a generator, which runs later: make it a list, or a loop of its own"
                )
        if isinstance(around, cst.With):
            items = [_gradients(site, item.item) for item in around.items if item is not inside]
            if True in items:
                break
            if False in items:
                return None
        elif isinstance(around, cst.FunctionDef):
            if small is not None and False in [
                _gradients(site, each.decorator) for each in around.decorators
            ]:
                return None
            break
        inside = around
    if small is None:
        raise _Refused(
            "it is called where no `with torch.no_grad()` can be put around it: give its output a name first"
        )
    if any(isinstance(each, (cst.Await, cst.Yield)) for each in _inside(small)):
        raise _Refused(
            "its statement gives way to other code (`await`, `yield`), which would run without gradients "
            "too: give its output a name first"
        )
    if _trains(site) and not _is_plain(site, node) and not _is_printed(site, small):
        raise _Refused(
            "its statement computes more, in a file that trains: under `torch.no_grad()` that would get "
            "no gradient either; give its output a name first"
        )
    return small


def _gradients(site: Site, node: cst.BaseExpression) -> bool | None:
    """Whether a context or decorator switches gradients on or off; None when it does neither."""
    name = site.name_of(node.func if isinstance(node, cst.Call) else node)
    if name in _SETS_GRAD and isinstance(node, cst.Call) and len(node.args) == 1:
        return {"True": True, "False": False}.get(edits.code_of(node.args[0].value))
    return True if name in _RECORDS else False if name in NO_GRAD else None


def _is_consumed(site: Site, node: cst.GeneratorExp) -> bool:
    arg = site.parent(node)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and arg is call.args[0] and site.name_of(call.func) in _CONSUMERS


def _trains(site: Site) -> bool:
    """Whether this file computes gradients of anything."""
    if "trains" not in site.notes:
        signs = [
            call
            for call in site.nodes(cst.Call)
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward"
        ]
        methods = [
            each
            for each in site.nodes(cst.FunctionDef)
            if each.name.value in ("compute_loss", "training_step")
        ]
        site.notes["trains"] = {*signs, *methods}
    return bool(site.notes["trains"])


def _is_plain(site: Site, node: cst.CSTNode) -> bool:
    """Whether a statement does nothing but call, take from the output and keep it."""
    parent = site.parent(node)
    while isinstance(parent, (cst.Attribute, cst.Subscript)) or (
        isinstance(parent, cst.Call) and parent.func is node
    ):
        node, parent = parent, site.parent(parent)
    return isinstance(parent, (cst.Assign, cst.AnnAssign, cst.Expr, cst.Return))


def _is_printed(site: Site, small: cst.BaseSmallStatement) -> bool:
    """Whether nothing of a statement can be used further."""
    call = small.value if isinstance(small, cst.Expr) else None
    return isinstance(call, cst.Call) and site.name_of(call.func) == "builtins.print"


def _inside(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and what runs when it does."""
    yield node
    if not isinstance(node, cst.Lambda):
        for child in node.children:
            yield from _inside(child)


# Inputs.


class _Inputs:
    """The inputs of one call, and their moves to the device."""

    def __init__(self, site: Site, group: Group, model: cst.BaseExpression) -> None:
        self.site = site
        self.model = model
        self.changes: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
        self.todo: list[str] = []
        self.unseen = False
        """Whether a mapping may bring more than can be seen."""

    def device(self) -> cst.BaseExpression:
        if dotted_name(self.model):
            return cst.Attribute(self.model.deep_clone(), cst.Name("device"))
        return edits.string("neuron")

    def add(self, call: cst.Call) -> None:
        """Move each argument of a call. Raises _Refused."""
        for arg in call.args:
            if arg.star == "*":
                raise _Refused(f"its inputs come as `*{edits.short(arg.value)}`")
            if arg.star == "**":
                self.mapping(arg.value)
            else:
                self.named(arg.keyword.value if arg.keyword else "", arg.value)

    def named(self, name: str, value: cst.BaseExpression) -> None:
        """Move one input."""
        if name == "labels":
            self.todo.append(_LABELS)
        if name == "return_dict" and edits.code_of(value) not in ("True", "None"):
            self.todo.append("`return_dict` was ignored before; where it is False the output is a tuple now")
        if name not in _FLAGS:
            self.change(value, self.moved(value))

    def change(self, old: cst.BaseExpression, new: cst.BaseExpression) -> None:
        if new is not old:
            self.changes.append((old, new))

    def moved(self, value: cst.BaseExpression) -> cst.BaseExpression:
        """The value of an input on the device; the value itself when it needs no move."""
        if edits.is_literal(value) or self.is_moved(value):
            return value
        if isinstance(value, cst.IfExp):
            return value.with_changes(body=self.moved(value.body), orelse=self.moved(value.orelse))
        if isinstance(value, cst.BooleanOperation) or (
            isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.Not)
        ):
            raise _Refused(f"whether `{edits.short(value)}` is a tensor cannot be told")
        template = "{value}.to({device})"
        if _may_be_none(self.site, value):
            if not isinstance(value, cst.Name):
                raise _Refused(f"`{edits.short(value)}` may be None: give it a name first")
            template = "None if {value} is None else {value}.to({device})"
        return edits.expression(template, value=value, device=self.device())

    def mapping(self, value: cst.BaseExpression) -> None:
        """Move the values of a mapping that is spread."""
        if isinstance(value, cst.Dict):
            for element in value.elements:
                if isinstance(element, cst.DictElement):
                    key = element.key.evaluated_value if isinstance(element.key, cst.SimpleString) else ""
                    self.named(str(key), element.value)
                else:
                    self.mapping(element.value)
            return
        if isinstance(value, cst.Call) and self.site.name_of(value.func) == "builtins.dict":
            for arg in value.args:
                if arg.keyword:
                    self.named(arg.keyword.value, arg.value)
                elif arg.star == "*":
                    raise _Refused(f"its inputs come as `*{edits.short(arg.value)}`")
                else:
                    self.mapping(arg.value)
            return
        if isinstance(value, cst.DictComp):
            self.unseen = True
            self.change(value.value, self.moved(value.value))
            return
        if self.is_moved(value):
            return
        written = _written_out(self.site, value)
        if any(edits.is_literal(each) for each in written):
            raise _Refused(
                f"`{edits.short(value)}` holds values that are no tensors: pass those as keywords of the call"
            )
        if is_encoding(self.site, value):
            if not _read_elsewhere(self.site, value):
                self.change(
                    value, edits.expression("{value}.to({device})", value=value, device=self.device())
                )
                return
        else:
            self.unseen = not written
        self.change(
            value,
            edits.expression(
                "{{key: tensor.to({device}) for key, tensor in {value}.items()}}",
                value=value,
                device=self.device(),
            ),
        )

    def is_moved(self, value: cst.BaseExpression) -> bool:
        """Whether a value is brought to the device of the model where it stands."""
        if not (
            isinstance(value, cst.Call)
            and isinstance(value.func, cst.Attribute)
            and value.func.attr.value == "to"
            and len(value.args) == 1
        ):
            return False
        target = value.args[0].value
        name = dotted_name(self.model)
        return edits.code_of(target) == '"neuron"' or (bool(name) and dotted_name(target) == f"{name}.device")


def _may_be_none(site: Site, value: cst.BaseExpression) -> bool:
    """Whether an optional input may be missing."""
    if edits.code_of(value) == "None":
        return True
    if isinstance(value, cst.IfExp):
        return _may_be_none(site, value.body) or _may_be_none(site, value.orelse)
    if isinstance(value, cst.Call):
        return (
            isinstance(value.func, cst.Attribute)
            and value.func.attr.value in ("get", "pop")
            and len(value.args) == (1 if value.func.attr.value == "get" else 2)
        )
    if not isinstance(value, cst.Name):
        return False
    given = [each.value for each in site.names.bindings_at(value) if not each.path]
    # One step is enough: what another name holds is asked where that one is bound.
    return any(
        edits.code_of(each) == "None" or (not isinstance(each, cst.Name) and _may_be_none(site, each))
        for each in given
        if each is not None
    )


def _written_out(site: Site, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The values of a dictionary that is written out where its name is bound."""
    found = []
    for producer in site.flow.origin_of(value).producers:
        if isinstance(producer.node, cst.Dict):
            found += [each.value for each in producer.node.elements]
    return found


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
    """Whether anything but this place holds the value: moving it in place would move it there too."""
    if isinstance(value, cst.Call):
        # What a function of the project returns may be kept there.
        return bool(site.flow.sites_at(value))
    if not isinstance(value, cst.Name):
        return True
    for binding in site.names.bindings_at(value):
        # A parameter or the item of a loop is held by whoever gave it.
        if binding.kind not in (Kind.ASSIGN, Kind.WALRUS) or binding.path or binding.value is None:
            return True
        if not isinstance(binding.value, cst.Call) or _read_elsewhere(site, binding.value):
            return True
        if any(reader is not value for reader in site.names.references(binding)):
            return True
        at_top = binding.scope is site.names.module_scope
        if at_top and site.project.imported_elsewhere(site.path, binding.name):
            return True
        assign = site.parent(binding.value)
        if not isinstance(assign, (cst.Assign, cst.AnnAssign)) or (
            isinstance(assign, cst.Assign) and len(assign.targets) > 1
        ):
            return True
    return False


# Outputs.


def _bring_back(
    site: Site, group: Group, call: cst.Call, as_float32: bool, *, unseen: bool
) -> tuple[list[tuple[cst.BaseExpression, cst.BaseExpression]], list[str]]:
    """Edits that bring the tensors of an output to the CPU, and what could not be followed."""
    found = site.flow.uses_of(call)
    changes: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
    left: list[str] = []
    others: list[str] = []
    for use in found.uses:
        parent = site.parent(use.node)
        around = site.parent(parent) if parent is not None else None
        field: str | None = None
        if isinstance(parent, cst.Attribute) and parent.value is use.node:
            field = parent.attr.value
            if isinstance(around, cst.Call) and around.func is parent:
                left.append(_said(site, use.node, f"`{field}()` gives tensors"))
                continue
        elif isinstance(parent, cst.Subscript) and parent.value is use.node:
            field = _key(parent)
            if field == "0" and unseen:
                others.append(
                    _said(
                        site,
                        use.node,
                        "if the inputs hold `labels`, which were ignored before, `[0]` is the loss",
                    )
                )
        elif use.kind in (UseKind.BOUND, UseKind.DISCARDED, UseKind.RETURNED, UseKind.COMPARED):
            continue  # what is returned is followed, or told as lost
        elif use.kind is UseKind.ARGUMENT and _is_looked_at(site, parent):
            continue
        if field == "loss":
            continue
        if field is None or parent is None:
            left.append(_said(site, use.node, "the whole output is passed on"))
        elif isinstance(around, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.Del)) and (
            not isinstance(around, (cst.AugAssign, cst.AnnAssign)) or around.target is parent
        ):
            left.append(_said(site, use.node, "the output is changed"))
        elif field in TUPLES or (field.lstrip("-").isdigit() and field != "0") or not field:
            left.append(_said(site, use.node, f"`{edits.short(parent)}` may be a tuple of tensors"))
        elif isinstance(parent, cst.BaseExpression) and not _goes_home(site, parent, as_float32):
            changes.append((parent, _home(parent, as_float32)))
    for node, why in found.lost:
        left.append(_said(site, node, why))
    return changes, [*others, *(f"{text}: its tensors are on the device now" for text in dict.fromkeys(left))]


def _key(node: cst.Subscript) -> str:
    """The key or index of a subscript; empty for a slice and what is not written out."""
    index = node.slice[0].slice
    if len(node.slice) != 1 or not isinstance(index, cst.Index):
        return ""
    if isinstance(index.value, cst.SimpleString):
        return str(index.value.evaluated_value)
    return edits.code_of(index.value) if edits.is_literal(index.value) else ""


def _is_looked_at(site: Site, arg: cst.CSTNode | None) -> bool:
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and site.name_of(call.func) in _LOOKERS


def _said(site: Site, node: cst.CSTNode, what: str) -> str:
    return f"line {site.positions.span(node).line}: {what}"


def _goes_home(site: Site, node: cst.CSTNode, as_float32: bool) -> bool:
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
        and (not as_float32 or "float" in before)
    )


def _home(node: cst.BaseExpression, as_float32: bool) -> cst.BaseExpression:
    # Parentheses around it stay where they are, around the whole.
    bare = node.with_changes(lpar=(), rpar=())
    return edits.expression("{x}.float().cpu()" if as_float32 else "{x}.cpu()", x=bare)
