"""What scripts ask about the machine: they are told that the legacy stack is there, since it stands in."""

from __future__ import annotations


def is_neuronx_available() -> bool:
    """True: `torch_neuronx` can be imported."""
    return True


def is_neuron_available() -> bool:
    """False: Inf1's package has no stand-in."""
    return False


def is_neuronx_distributed_available() -> bool:
    """False: NxD has no stand-in."""
    return False


def get_neuron_major() -> int:
    """Any number but -1, which would mean that there is no device to load a model onto."""
    return 0
