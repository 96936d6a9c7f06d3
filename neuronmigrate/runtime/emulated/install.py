"""Puts the emulated device into this process, once."""

from __future__ import annotations

import importlib
import sys

import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from neuronmigrate.runtime.emulated import (
    accelerator,
    dynamo,
    generator,
    group,
    kernels,
    module,
    package,
    storage,
    touch,
)

_done = _strict = False


def installed() -> bool:
    """Whether the device is there."""
    return _done


def settings() -> tuple[int, bool]:
    """Devices and strictness of the device that is there."""
    return module.device_count(), _strict


def install(*, devices: int, strict: bool) -> None:
    """Register the device, its kernels and the stand-in package; RuntimeError if the backend's name is taken.

    It cannot be taken back: PyTorch renames the backend once in a process. A second call does nothing.
    """
    global _done, _strict
    if _done:
        return
    name = torch._C._get_privateuse1_backend_name()
    if name != "privateuseone":
        raise RuntimeError(
            f"PyTorch's backend for other devices is in use by {name!r}; no emulation beside it"
        )
    _done, _strict = True, strict
    neuron = module.build(devices)
    touch.register("torch.utils.rename_privateuse1_backend", "torch.device('neuron')")
    touch.register("torch.neuron", "the device's module")
    for owner in ("torch.Tensor", "torch.nn.modules.module.Module", "torch.nn.utils.rnn.PackedSequence"):
        touch.register(f"{owner}.neuron", "added by PyTorch's generate_methods_for_privateuse1_backend")
    for owner in ("torch.Tensor", "torch.nn.utils.rnn.PackedSequence"):
        touch.register(f"{owner}.is_neuron", "added by PyTorch's generate_methods_for_privateuse1_backend")
    _setup_privateuseone_for_python_backend("neuron", backend_module=neuron)
    sys.modules["torch.neuron"] = neuron
    package.install()
    kernels.install(keep_parameters=not strict)
    storage.install()
    accelerator.install()
    generator.install(strict=strict)
    dynamo.install()
    if strict:
        importlib.import_module("neuronmigrate.runtime.emulated.strict").install()
    group.install(strict=strict)
    _run_backward_here()


def _run_backward_here() -> None:
    """Let this thread run its backward passes itself, as on the CPU.

    PyTorch's engine counts the devices at the first backward pass of a process and starts a thread for each.
    Where a pass on the CPU came before the activation, this device has none, and the next pass would end with
    an internal assert (`device_ready_queues_`, torch/csrc/autograd/engine.cpp).
    """
    torch.autograd.set_multithreading_enabled(False)
    touch.register(
        "torch.autograd.set_multithreading_enabled",
        "False in the thread that activates: a backward pass on the CPU may have come before",
    )
