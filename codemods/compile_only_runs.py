"""Questions whether a script runs only to compile: `is_precompilation()`, `NEURON_EXTRACT_GRAPHS_ONLY`.

`neuron_parallel_compile` ran a script without computing, to collect its graphs, and set that variable. The
native device compiles as it runs, so no run is such a run: the branch for it goes, the other one takes the
place of the question. A name that was given the answer goes with it.

Marked is a function that asks and is passed on. The variable where it is set, or read in another way, is left
to `hidden-name`.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.site import Constant, Site, Use

codemod = Codemod(__name__)

# optimum/neuron/utils/misc.py of 0.0.28 to 0.4.5, optimum/neuron/utils/training_utils.py before.
ASKS = (
    "optimum.neuron.utils.is_precompilation",
    "optimum.neuron.utils.misc.is_precompilation",
    "optimum.neuron.utils.training_utils.is_precompilation",
)
VARIABLES = ("NEURON_EXTRACT_GRAPHS_ONLY", "NEURON_PARALLEL_COMPILE", "NEURON_PARALLEL_COMPILE_DUMP_RESULTS")
"""What `neuron_parallel_compile` sets, the name of Optimum Neuron up to 0.0.13 among them."""
READS = frozenset({"os.environ.get", "os.getenv"})
WHY = "the native device compiles as it runs, so no run is only there to compile"


@codemod.knows
def know(site: Site) -> None:
    """Answer all questions of a file with no."""
    for use in site.uses:
        if use.claim in ASKS and use.call is not None and not (use.method or use.stored or use.ambiguous):
            site.know(use.call, False, use.name, WHY, use)
    for text in site.nodes(cst.SimpleString):
        name = text.evaluated_value
        read = _read(site, text) if isinstance(name, str) and name in VARIABLES else None
        if read is not None:
            site.know(*read, str(name), WHY)


@codemod.uses(ASKS)
def decide(site: Site, use: Use) -> None:
    """Mark a question that is passed on, or whose answer cannot be folded."""
    why = "the function is passed on" if use.call is None else "what follows from it was left alone"
    site.mark(use.whole, use.name, f"{WHY}, and {why}", "write `False`, or pass `lambda: False`")


def _read(site: Site, text: cst.SimpleString) -> tuple[cst.BaseExpression, Constant] | None:
    """The expression that reads a variable, and what it gives when the variable is not set."""
    parent = site.parent(text)
    if isinstance(parent, cst.Comparison) and parent.left is text and len(parent.comparisons) == 1:
        target = parent.comparisons[0]
        if site.name_of(target.comparator) == "os.environ":
            if isinstance(target.operator, cst.In):
                return parent, False
            if isinstance(target.operator, cst.NotIn):
                return parent, True
        return None
    call = site.parent(parent) if isinstance(parent, cst.Arg) else None
    if not isinstance(call, cst.Call) or site.name_of(call.func) not in READS:
        return None
    bound = edits.arguments(call, ("key", "default"))
    if bound.spread or bound.extra or bound.value("key") is not text:
        return None
    default = bound.value("default")
    if default is None:
        return call, None
    if isinstance(default, cst.SimpleString) and isinstance(default.evaluated_value, str):
        return call, default.evaluated_value
    if isinstance(default, cst.Integer):
        return call, int(default.evaluated_value)
    if isinstance(default, cst.Name) and default.value in ("True", "False", "None"):
        return call, {"True": True, "False": False, "None": None}[default.value]
    return None
