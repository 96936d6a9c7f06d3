"""What scripts ask about the machine: they are told that the legacy stack is there, since it stands in."""

from __future__ import annotations

import os

from neuronmigrate.runtime.legacy.xla import world


def is_neuronx_available() -> bool:
    """True: `torch_neuronx` can be imported."""
    return True


def is_neuron_available() -> bool:
    """False: Inf1's package has no stand-in."""
    return False


def is_neuronx_distributed_available() -> bool:
    """False: NxD has no stand-in."""
    return False


def is_precompilation() -> bool:
    """Whether `neuron_parallel_compile` runs the script, to learn its graphs."""
    return os.environ.get("NEURON_EXTRACT_GRAPHS_ONLY") == "1"


def is_main_worker(global_main: bool = True) -> bool:
    """Whether this is the first process, of all or of its host."""
    return (world.rank() if global_main else world.local_rank()) == 0


def get_neuron_major() -> int:
    """Any number but -1, which would mean that there is no device to load a model onto."""
    return 0
