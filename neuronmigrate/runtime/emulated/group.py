"""The process group "neuron": its name in torch, and what a process must have done before it joins one.

As on the real backend,

- the first group of a process comes before its first use of the device, since it is what gives the process
  its core,
- a process has one core.

The early TorchNeuron source asserts both (`_neuron_runtime_setup`); the documentation asks for the order and
for one device a process ("How to use torch.distributed on Neuron"). Collectives are loaded with the first
group: most programs have none, and the registrations take a fifth of the activation's time.
"""

from __future__ import annotations

import functools
import inspect
import os
from datetime import timedelta
from typing import TYPE_CHECKING

import torch.distributed as dist

from neuronmigrate.runtime.emulated import fallback, touch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, Store


def install(*, strict: bool) -> None:
    """Register the process group; does nothing where torch has no distributed package."""
    if not dist.is_available():
        return
    dist.Backend.register_backend("neuron", functools.partial(_create, strict), devices=["neuron"])
    touch.register("torch.distributed.distributed_c10d.Backend.NEURON", "the process group")
    fallback.observers.append(_first_use)


_joined = False
"""Whether the process has been in a group, which is when the real one gives it its core."""

_used: str | None = None
"""What the device was first used for, and where; None while it was not."""


def _first_use(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """An observer of operations that looks at the first one only."""
    global _used
    from neuronmigrate.runtime.places import NOWHERE, Places

    if not fallback.take_out(_first_use):
        return
    place, _ = Places().now(inspect.currentframe())
    _used = f"{name} at {place}" if place is not NOWHERE else name


def _refuse_late_group() -> None:
    if _used is not None:
        raise RuntimeError(
            "init_process_group must come before the first use of the neuron device, because the process"
            f" group gives each process its core. This process has used the device already ({_used}): move"
            ' init_process_group("neuron"), or the Accelerator or TrainingArguments that calls it, to the'
            " beginning of the program."
        )


def _refuse_several_cores() -> None:
    cores = os.environ.get("NEURON_RT_VISIBLE_CORES", "")
    if "," in cores or "-" in cores:
        raise RuntimeError(
            f"NEURON_RT_VISIBLE_CORES={cores} gives this process several cores; in a process group each"
            " process has one. Leave the variable unset: torchrun's LOCAL_RANK chooses the core."
        )


def _create(strict: bool, store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
    """The backend of a new group of processes; RuntimeError if the process may not join one."""
    global _joined
    from neuronmigrate.runtime.emulated import distributed

    if not _joined:
        _refuse_late_group()
        _refuse_several_cores()
        _joined = True
        distributed.prepare(strict=strict)
    return distributed.carry(store, rank, size, timeout)
