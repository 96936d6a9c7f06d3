"""Questions whether a package is installed, such as `is_neuronx_available()` of Optimum Neuron.

They asked for packages, not for devices, and Accelerate and Transformers ask for the same ones. Native
and legacy `torch_neuronx` share their name, so the answer goes on to tell machines with a Neuron stack
from others. Questions about packages that have no native counterpart are left to a person.
"""

from __future__ import annotations

from neuronmigrate.codemod import Call, Codemod, Rename

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
