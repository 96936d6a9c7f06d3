"""Tests for an installed package by its name: `find_spec("optimum.neuron") is not None`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from neuronmigrate.site import Site

_SPEC = "importlib.util.find_spec"
_SKIP = "pytest.importorskip"
LEGACY = "optimum.neuron"
"""The package whose presence told machines with a Neuron stack from others."""
LOADED = frozenset({"torch_xla", "torch_xla.core.xla_model"})
"""Modules that a script for the legacy stack had imported before it asked."""


def asked(site: Site, call: cst.Call) -> cst.SimpleString | None:
    """The name of the legacy package where a call only asks whether it is there; None for all else."""
    name = _asked_for(site, call)
    if name is None or name.evaluated_value != LEGACY:
        return None
    if site.name_of(call.func) == _SKIP:
        return name if site.alone(call) is not None else None
    return name if _is_tested(site, call) else None


def loaded(site: Site, asked: cst.Comparison) -> cst.SimpleString | None:
    """The name in `"torch_xla" in sys.modules`, which asks whether the script runs on the legacy stack."""
    name = asked.left
    if not isinstance(name, cst.SimpleString) or len(asked.comparisons) != 1:
        return None
    only = asked.comparisons[0]
    is_asked = (
        isinstance(only.operator, (cst.In, cst.NotIn)) and site.name_of(only.comparator) == "sys.modules"
    )
    return name if is_asked and name.evaluated_value in LOADED else None


def around(site: Site, call: cst.Call) -> Iterator[tuple[cst.SimpleString, cst.CSTNode]]:
    """Tests of packages above the legacy one that have to hold for `call` to be reached.

    Gives the name of the package, and the `and` or `if` that tests nothing else, else the name again.
    """
    inside: cst.CSTNode = call
    for node in site.ancestors(call):
        test: cst.BaseExpression | None = None
        if isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And):
            test = node.left if node.right is inside else None
        elif isinstance(node, cst.If) and node.body is inside:
            test = node.test
        elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            return
        for each in m.findall(test, m.Call()) if test is not None else ():
            name = _asked_for(site, each) if isinstance(each, cst.Call) else None
            text = name.evaluated_value if name is not None else ""
            if name is not None and isinstance(text, str) and LEGACY.startswith(f"{text}."):
                whole = test in (each, site.parent(each)) and isinstance(test, (cst.Call, cst.Comparison))
                yield name, node if whole else name
        inside = node


def _asked_for(site: Site, call: cst.Call) -> cst.SimpleString | None:
    if site.name_of(call.func) not in (_SPEC, _SKIP) or len(call.args) != 1:
        return None
    value = call.args[0].value
    return value if isinstance(value, cst.SimpleString) else None


def _is_tested(site: Site, call: cst.Call) -> bool:
    """Whether nothing but the truth of a value is looked at."""
    parent = site.parent(call)
    if isinstance(parent, cst.Comparison) and parent.left is call:
        return all(isinstance(each.operator, (cst.Is, cst.IsNot)) for each in parent.comparisons)
    if isinstance(parent, cst.Arg):
        function = site.parent(parent)
        return isinstance(function, cst.Call) and site.name_of(function.func) == "builtins.bool"
    if isinstance(parent, (cst.If, cst.IfExp)):
        return parent.test is call
    return isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not)
