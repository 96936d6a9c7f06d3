"""Lets one program be half migrated: the device type `neuron` means the CPU, beside the stand-ins.

The search for the hunk that brings a difference in runs such programs. What is not here raises
AttributeError, and the search takes the mixture for one that cannot run.
"""

from __future__ import annotations

import sys
import types

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


def install() -> None:
    """Name the device; called once, before the program, when its stand-ins are active."""
    from neuronmigrate.runtime.legacy.xla import redirect

    module = types.ModuleType("torch.neuron")
    functions: dict[str, object] = {
        "_is_in_bad_fork": lambda: False,
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _nothing,
        "synchronize": _nothing,
        "empty_cache": _nothing,
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
        "get_rng_state": _state,
        "set_rng_state": _set_state,
    }
    for name, function in functions.items():
        setattr(module, name, function)
    sys.modules["torch.neuron"] = module
    _setup_privateuseone_for_python_backend("neuron", backend_module=module)
    redirect.install()
    redirect.MEANS_CPU.add("neuron")
    # A Trainer pins its batches where a device is there, and this one has no memory to pin.
    torch.Tensor.pin_memory = _itself  # type: ignore[method-assign, assignment]  # for this one program
    if torch.distributed.is_available():
        import torch.distributed as dist

        dist.Backend.register_backend("neuron", dist.ProcessGroupGloo, devices=["cpu", "neuron"])


def _nothing(*_: object, **__: object) -> None:
    """What a device that works at once has to do."""


def _itself(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return tensor


def _state(*_: object) -> torch.Tensor:
    return torch.get_rng_state()


def _set_state(state: torch.Tensor, *_: object) -> None:
    torch.set_rng_state(state)
