"""Questions whether a package is installed, such as `is_neuronx_available()` of Optimum Neuron.

They asked for packages, not for devices, and Accelerate and Transformers ask for the same ones. Native
and legacy `torch_neuronx` share their name, so the answer goes on to tell machines with a Neuron stack
from others. `find_spec("optimum.neuron")` asks for that package too, wherever only its presence is looked
at: without Optimum Neuron it would choose another path in silence. `"torch_xla" in sys.modules` asks for
torch_neuronx as well, which torch imports where it is installed. Questions about packages that have no
native counterpart are left to a person.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits, probes
from neuronmigrate.codemod import Call, Codemod, Rename
from neuronmigrate.environment import ANSWERED
from neuronmigrate.site import Site

codemod = Codemod(__name__)

# optimum/neuron/utils/import_utils.py of 0.4.5, accelerate/utils/imports.py of 1.15.
_NEURON = "accelerate.utils.is_neuron_available"
_SAME = "Accelerate looks for the same package, torch_neuronx"

codemod.symbol("optimum.neuron.is_neuronx_available", Rename(_NEURON), because=_SAME)
for _path in ("optimum.neuron.utils.import_utils", "optimum.neuron.utils"):
    codemod.symbol(
        f"{_path}.is_accelerate_available",
        Call("transformers.utils.is_accelerate_available()"),
        because="Transformers asks for the same package",
    )
    codemod.symbol(f"{_path}.is_neuronx_available", Rename(_NEURON), because=_SAME)
    codemod.symbol(f"{_path}.is_torch_neuronx_available", Rename(_NEURON), because=_SAME)


@codemod.on(cst.Call)
def decide(site: Site, call: cst.Call) -> None:
    """Ask for the package of the native stack, in tests around the question as well."""
    name = probes.asked(site, call)
    if name is None:
        return
    group = site.group()
    group.replace(name, edits.string("torch_neuronx"))
    todo = ["what runs where it is there has to do without Optimum Neuron"]
    done = site.notes.setdefault("packages", set())
    for above, test in probes.around(site, call):
        if above in done:
            continue
        done.add(above)
        if isinstance(test, cst.BooleanOperation):
            group.replace(test, test.right)
        elif isinstance(test, cst.If) and _holds_a_test_alone(test):
            group.unindent(test, test.body)
        else:
            line = site.positions.span(above).line
            todo.append(f"the test on line {line} around it holds only while `optimum` is installed")
    group.review(
        call,
        probes.LEGACY,
        "Optimum Neuron is gone, and the native stack shows by its package, torch_neuronx",
        "; ".join(todo),
    )


@codemod.on(cst.Comparison)
def decide_loaded(site: Site, asked: cst.Comparison) -> None:
    """Ask for the module of the native stack that torch imports."""
    name = probes.loaded(site, asked)
    if name is None:
        return
    site.notes.setdefault(ANSWERED, set()).add(name)
    group = site.group()
    group.replace(name, name.with_changes(value=f"{name.quote}torch_neuronx{name.quote}"))
    group.review(
        asked,
        str(name.evaluated_value),
        "torch imports torch_neuronx by itself where it is installed",
        "elsewhere, as on a CPU, the answer is the other one now",
    )


def _holds_a_test_alone(test: cst.If) -> bool:
    """Whether a test without another branch holds nothing but one of that kind."""
    inner = test.body.body
    return (
        test.orelse is None and len(inner) == 1 and isinstance(inner[0], cst.If) and inner[0].orelse is None
    )
