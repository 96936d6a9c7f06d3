"""What PyTorch calls at the end of `import torch` (entry point group `torch.backends`).

It does nothing unless NEURONMIGRATE_EMULATE=1 is set. torchrun's children inherit the variable, so each
of them gets its device. An exception here would break `import torch` for everyone, so none leaves.
"""

from __future__ import annotations

import os

VARIABLE = "NEURONMIGRATE_EMULATE"
STRICT = "NEURONMIGRATE_STRICT"
DEVICES = "NEURONMIGRATE_DEVICES"


def autoload() -> None:
    """Activate the emulated device if the environment asks for it and no real one is installed."""
    if os.environ.get(VARIABLE) != "1":
        return
    import sys

    try:
        from neuronmigrate.runtime.activation import activate_from_environment

        activate_from_environment()
    except Exception as error:
        print(f"neuronmigrate: no emulated neuron device: {type(error).__name__}: {error}", file=sys.stderr)
