"""Stand-ins for Optimum Neuron, torch_xla and the legacy torch-neuronx, so that an old script runs on a CPU.

`activate()` puts a finder last into `sys.meta_path`: a legacy package that is really installed wins. From
then on `import torch_xla`, `import torch_neuronx` and `import optimum.neuron` give modules whose names are
those of the chosen release and whose behaviour is written from the legacy sources: shapes fixed at export
with padding up to them, the defaults of that release, steps and collectives of the lazy device. Every
tensor lives on the CPU.

What a script computes this way is a *stub reference*: it shows what the script asked the legacy library
for, in the library's own logic. It says nothing about the rounding, the speed or the memory of a
NeuronCore, nor about an operator that its compiler refused.

Nothing here is derived from the codemods, so that agreement between a legacy script and its migrated twin
means something.
"""

from __future__ import annotations

from neuronmigrate.runtime.legacy.explain import explain
from neuronmigrate.runtime.legacy.session import LegacyProblem, Session, activate

__all__ = ["LegacyProblem", "Session", "activate", "explain"]
