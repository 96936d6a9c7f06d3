"""Classes that a program derives from a legacy one: whether the base may change, and what loads with them.

Transformers, Diffusers and Sentence Transformers make objects of a subclass as the legacy classes did,
except for Auto classes, which make objects of the class that a checkpoint names.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from neuronmigrate import edits
from neuronmigrate.names import Binding, Kind
from neuronmigrate.site import Site, Use

HOOKS = frozenset(
    {
        "__call__",
        "__init__",
        "_export",
        "_from_pretrained",
        "_from_transformers",
        "_pad_to_compiled_shape",
        "_reorder_cache",
        "_save_pretrained",
        "_validate_static_shape",
        "can_generate",
        "encode",
        "export",
        "forward",
        "from_pretrained",
        "generate",
        "get_input_static_shapes",
        "load_model",
        "neuron_padding_manager",
        "prepare_inputs_for_decode",
        "prepare_inputs_for_generation",
        "prepare_inputs_for_prefill",
        "push_to_hub",
        "remove_padding",
        "reset_generation",
        "save_pretrained",
        "to",
    }
)
"""What the legacy classes call of themselves, or do by themselves (modeling_base.py, modeling_traced.py,
modeling_seq2seq.py, modeling_decoder.py and modeling_diffusion.py, 0.0.5 to 0.4.5)."""
_BASES = frozenset({"transformers.PreTrainedModel"})


@dataclass(frozen=True)
class Subclass:
    """A class of this file that is derived from a legacy one."""

    use: Use
    """Where the legacy class stands among the bases."""
    node: cst.ClassDef
    loads: tuple[cst.Call, ...] = ()
    """The calls that make an object of it."""
    refused: str = ""
    """Why its base has to stay."""


def subclass(site: Site, use: Use, native: str, makers: Collection[str]) -> Subclass | None:
    """The class among whose bases a legacy class stands; None where it stands elsewhere."""
    arg = site.parent(use.chain)
    node = site.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(node, cst.ClassDef) or arg not in node.bases:
        return None
    loads, refused = _loads(site, node, makers)
    return Subclass(use, node, loads, _what_stays(site, node, native) or refused)


def own_calls(site: Site, node: cst.ClassDef, methods: Collection[str]) -> list[tuple[cst.Call, str]]:
    """The calls that the methods of a class make of its own object: `self(...)`, `self.generate(...)`."""
    found = []
    for call in m.findall(node.body, m.Call()):
        assert isinstance(call, cst.Call)
        func, method = call.func, ""
        if isinstance(func, cst.Attribute):
            if func.attr.value not in {*methods, "forward", "__call__"}:
                continue
            method = func.attr.value if func.attr.value in methods else ""
            func = func.value
        if isinstance(func, cst.Name) and is_self(site, node, func):
            found.append((call, method))
    return found


def is_self(site: Site, node: cst.ClassDef, name: cst.BaseExpression) -> bool:
    """Whether a name stands for the object whose method it is read in."""
    bindings = site.names.bindings_at(name) if isinstance(name, cst.Name) else ()
    return bool(bindings) and all(site.names.instance_class(each) is node for each in bindings)


def _what_stays(site: Site, node: cst.ClassDef, native: str) -> str:
    """What of a class body takes the place of what only the legacy class has; empty for nothing."""
    name = node.name.value
    if native in _BASES:
        return f"`{name}` is derived from the base of all compiled models"
    members = _members(node)
    hooks = sorted(HOOKS & members.keys())
    if hooks:
        return f"`{name}.{hooks[0]}` takes the place of what the compiled class did by itself"
    for call in m.findall(node.body, m.Call(func=m.Name("super"))):
        line = site.positions.span(call).line
        return f"line {line}: `super()` asks the compiled class"
    short = native.rpartition(".")[2]
    if short.startswith("Auto") and members:
        return (
            f"`{short}` makes objects of the class that a checkpoint names, and none of a subclass: derive "
            "it from the class of the checkpoint"
        )
    return ""


def _members(node: cst.ClassDef) -> dict[str, cst.CSTNode]:
    """What a class body defines, by name."""
    found: dict[str, cst.CSTNode] = {}
    for line in node.body.body:
        if isinstance(line, (cst.FunctionDef, cst.ClassDef)):
            found[line.name.value] = line
        elif isinstance(line, (cst.SimpleStatementLine, cst.BaseSmallStatement)):
            for small in line.body if isinstance(line, cst.SimpleStatementLine) else [line]:
                if isinstance(small, cst.Pass) or (isinstance(small, cst.Expr) and _is_text(small.value)):
                    continue
                names = [each.target for each in small.targets] if isinstance(small, cst.Assign) else []
                names += [small.target] if isinstance(small, cst.AnnAssign) else []
                found.update({edits.code_of(each): small for each in names})
                if not names:
                    found[edits.short(small)] = small
        else:
            found[type(line).__name__.lower()] = line
    return found


def _is_text(value: cst.BaseExpression) -> bool:
    return isinstance(value, (cst.SimpleString, cst.ConcatenatedString, cst.Ellipsis))


def _loads(site: Site, node: cst.ClassDef, makers: Collection[str]) -> tuple[tuple[cst.Call, ...], str]:
    """The calls that load with a class, and why they cannot all be seen."""
    name = node.name.value
    if site.project.imported_elsewhere(site.path, name):
        return (), f"other modules take `{name}` from here, and may load with it"
    found = []
    empty = not _members(node)
    for binding in _bindings(site, node):
        for reader in site.names.references(binding):
            parent = site.parent(reader)
            call = site.parent(parent) if parent is not None else None
            method = parent.attr.value if isinstance(parent, cst.Attribute) else ""
            certain = len(site.names.bindings_at(reader)) == 1
            if method in makers and certain and isinstance(call, cst.Call) and call.func is parent:
                found.append(call)
                continue
            if any(isinstance(each, cst.Annotation) for each in site.ancestors(reader)):
                continue
            tested = site.name_of(call.func) if isinstance(call, cst.Call) else None
            if tested in ("builtins.isinstance", "builtins.issubclass") and not empty:
                continue
            line = site.positions.span(reader).line
            return (), f"line {line}: `{name}` is used where it cannot be followed"
    return tuple(found), ""


def _bindings(site: Site, node: cst.ClassDef) -> list[Binding]:
    scope = site.names.lookup(node.name.value, node)
    bindings = scope.bindings.get(node.name.value, ()) if scope is not None else ()
    return [each for each in bindings if each.kind is Kind.CLASS and each.node is node]
