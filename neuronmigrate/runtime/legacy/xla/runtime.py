"""`torch_xla.runtime`."""

from __future__ import annotations

from neuronmigrate.runtime.legacy.session import LegacyProblem
from neuronmigrate.runtime.legacy.xla import world

__all__ = [
    "addressable_device_count",
    "addressable_runtime_device_count",
    "device_type",
    "global_device_count",
    "global_ordinal",
    "global_runtime_device_count",
    "host_index",
    "initialize_cache",
    "is_bf16_supported",
    "is_spmd",
    "local_device_count",
    "local_ordinal",
    "local_process_count",
    "process_count",
    "process_index",
    "set_device_type",
    "use_spmd",
    "world_size",
]


def world_size() -> int:
    """Processes of the run."""
    return world.size()


def global_ordinal() -> int:
    """Number of this process among all."""
    return world.rank()


def local_ordinal() -> int:
    """Number of this process on its host."""
    return world.local_rank()


process_count = global_device_count = global_runtime_device_count = world_size
process_index = global_ordinal


def local_process_count() -> int:
    """Processes on this host."""
    return world.local_size()


local_device_count = local_process_count


def addressable_device_count() -> int:
    """Devices of this process: a NeuronCore each."""
    return 1


addressable_runtime_device_count = addressable_device_count


def host_index() -> int:
    """Number of this host."""
    return world.rank() // max(world.local_size(), 1)


def device_type() -> str:
    """The kind of device, as the Neuron plugin calls it."""
    return "NEURON"


def set_device_type(pjrt_device: str) -> None:
    """Nothing: there is one kind."""


def is_bf16_supported() -> bool:
    """True, as on the hardware."""
    return True


def is_spmd() -> bool:
    """False: SPMD has no stand-in."""
    return False


def use_spmd(auto: bool = False) -> None:
    """Raises LegacyProblem: SPMD has no stand-in."""
    raise LegacyProblem("torch_xla.runtime.use_spmd has no stand-in: sharded programs cannot run here")


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Nothing: nothing is compiled."""
