"""Steps and functions that torch_xla traced as one graph: `with torch_xla.step():`, `torch_xla.compile(f)`.

Both cut the lazy graph before and after what they held. The native device runs each operation when it is
called, so the block stands by itself and the function is called as it is. What was traced as one program
compiles as one with `torch.compile(f, backend="neuron", dynamic=False)`, which is said and left to choose.

A function that comes by keyword or is passed on is marked.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

COMPILE = "torch_xla.compile"
STEP = "torch_xla.step"
PARAMETERS = {COMPILE: ("f", "full_graph", "name", "max_different_graphs"), STEP: ()}
"""Of torch_xla 2.9 (torch_xla/torch_xla.py)."""
WHY = "the native device runs each operation when it is called, so no graph is pending"
ENTERS = ("enter_context", "enter_async_context")
TRAINS = ("backward", "step")


@codemod.uses(PARAMETERS)
def decide(site: Site, use: Use) -> None:
    """Let the block or the function stand by itself."""
    whole, call = use.whole, use.call
    bound = edits.arguments(call or cst.Call(use.chain), PARAMETERS[use.claim])
    function = bound.value("f")
    around = site.parent(whole)
    compiles = _compiles(bound)
    if use.method or bound.spread or bound.extra:
        site.mark(whole, use.name, "its arguments cannot be seen from here", compiles)
        return
    group = site.group(use)
    if isinstance(around, cst.Decorator) and function is None:
        group.omit(around)
        decorated = site.parent(around)
        if decorated is not None and _trains(decorated):
            compiles = f"what holds no `backward()` or `step()` can be compiled: {compiles}"
    elif call is not None and function is None and _is_entered(site, call):
        block = site.parent(around) if isinstance(around, cst.WithItem) else None
        if not isinstance(around, cst.WithItem) or not isinstance(block, cst.With) or around.asname:
            group.replace(call, group.expression("contextlib.nullcontext()"))
        elif len(block.items) == 1:
            group.unindent(block, block.body)
        elif not all(_is_ours(site, each) or "#" in edits.code_of(each) for each in block.items):
            group.omit(around)
        else:
            group.replace(call, group.expression("contextlib.nullcontext()"))
    elif call is not None and function is not None and not isinstance(around, cst.WithItem):
        if isinstance(around, cst.Assign) and _is_same(around, function):
            group.replace_statement(around)  # `step = torch_xla.compile(step)`
        else:
            group.replace(call, function)
    else:
        site.groups.remove(group)
        what = "it is passed on" if call is None else "it is kept, or entered by other means"
        site.mark(whole, use.name, what, compiles)
        return
    for name in PARAMETERS[use.claim][1:]:
        gone = bound.value(name)
        if gone is not None:
            forget(site, gone)
    if use.claim == COMPILE:
        group.review(whole, use.name, WHY, compiles)
    else:
        group.fixed(whole, use.name, WHY)


def _compiles(bound: edits.Arguments) -> str:
    """How the same is compiled natively."""
    full = bound.value("full_graph")
    graph = f", fullgraph={edits.short(full)}" if full is not None else ""
    return f'`torch.compile(f, backend="neuron"{graph}, dynamic=False)` compiles a function as one program'


def _is_entered(site: Site, call: cst.Call) -> bool:
    """Whether a call makes a context that is only entered."""
    around = site.parent(call)
    while isinstance(around, cst.IfExp):
        around = site.parent(around)
    if isinstance(around, cst.Arg):
        entering = site.parent(around)
        func = entering.func if isinstance(entering, cst.Call) else None
        return isinstance(func, cst.Attribute) and func.attr.value in ENTERS
    return isinstance(around, cst.WithItem)


def _is_same(assign: cst.Assign, value: cst.BaseExpression) -> bool:
    """Whether the only target of an assignment is read as its value."""
    targets = [edits.code_of(each.target) for each in assign.targets]
    return targets == [edits.code_of(value)]


def _is_ours(site: Site, item: cst.WithItem) -> bool:
    """Whether a `with` enters one of these contexts there."""
    return isinstance(item.item, cst.Call) and site.name_of(item.item.func) in PARAMETERS


def _trains(function: cst.CSTNode) -> bool:
    """Whether a function holds a backward pass, or updates parameters."""
    return any(m.findall(function, m.Call(func=m.Attribute(attr=m.Name(name)))) for name in TRAINS)
