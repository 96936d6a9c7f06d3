"""Steps and functions that torch_xla traced as one graph: `with torch_xla.step():`, `torch_xla.compile(f)`.

Both cut the lazy graph before and after what they held. The native device runs each operation when it is
called, so the block stands by itself and the function is called as it is. What was traced as one program
compiles as one with `torch.compile(f, backend="neuron", dynamic=False)`, which is said and left to choose.

A decorator is marked, as is a function that comes by keyword or is passed on.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

COMPILE = "torch_xla.compile"
STEP = "torch_xla.step"
PARAMETERS = {COMPILE: ("f", "full_graph", "name", "max_different_graphs"), STEP: ()}
"""Of torch_xla 2.9 (torch_xla/torch_xla.py)."""
COMPILES = '`torch.compile(f, backend="neuron", dynamic=False)` compiles a function as one program'
WHY = "the native device runs each operation when it is called, so no graph is pending"


@codemod.uses(PARAMETERS)
def decide(site: Site, use: Use) -> None:
    """Let the block or the function stand by itself."""
    call = use.call
    if call is None or use.method:
        site.mark(use.chain, use.name, "it is passed on, or decorates a function", COMPILES)
        return
    bound = edits.arguments(call, PARAMETERS[use.claim])
    item = site.parent(call)
    around = site.parent(item) if isinstance(item, cst.WithItem) else None
    function = bound.value("f")
    if bound.spread or bound.extra:
        site.mark(call, use.name, "its arguments cannot be seen from here", COMPILES)
        return
    group = site.group(use)
    if isinstance(around, cst.With) and function is None:
        if len(around.items) == 1:
            group.unindent(around, around.body)
        else:
            group.replace(call, group.expression("contextlib.nullcontext()"))
    elif function is not None and not isinstance(item, (cst.Decorator, cst.WithItem)):
        group.replace(call, function)
    else:
        site.groups.remove(group)
        site.mark(call, use.name, "it decorates a function, or is entered by other means", COMPILES)
        return
    for name in PARAMETERS[use.claim][1:]:
        gone = bound.value(name)
        if gone is not None:
            forget(site, gone)
    if use.claim == COMPILE:
        group.review(call, use.name, WHY, COMPILES)
    else:
        group.fixed(call, use.name, WHY)
