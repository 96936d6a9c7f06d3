"""`torch.accelerator`: the functions whose C++ side asks a Python backend for what it cannot answer."""

from __future__ import annotations

from collections import OrderedDict

import torch

from neuronmigrate.runtime.emulated import module, touch


def synchronize(device: object = None, /) -> None:
    """Nothing is pending."""


def empty_cache() -> None:
    """There is no cache."""


def memory_stats(device: object = None, /) -> OrderedDict[str, object]:
    """Empty: not measured."""
    return OrderedDict()


def memory_figure(device: object = None, /) -> int:
    """0: not measured."""
    return 0


def reset_stats(device: object = None, /) -> None:
    """Nothing is measured."""


def get_memory_info(device: object = None, /) -> tuple[int, int]:
    """Free and total bytes of this machine's memory."""
    return module.mem_get_info()


def get_device_capability(device: object = None, /) -> dict[str, object]:
    """Every dtype that the CPU has."""
    dtypes = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return {"supported_dtypes": dtypes}


def install() -> None:
    """Replace the functions, in `torch.accelerator` and where they are defined."""
    because = "a Python backend has no allocator and no event queue to ask"
    memory = {
        "empty_cache": empty_cache,
        "get_memory_info": get_memory_info,
        "max_memory_allocated": memory_figure,
        "max_memory_reserved": memory_figure,
        "memory_allocated": memory_figure,
        "memory_reserved": memory_figure,
        "memory_stats": memory_stats,
        "reset_accumulated_memory_stats": reset_stats,
        "reset_peak_memory_stats": reset_stats,
    }
    for name, value in memory.items():
        touch.replace(torch.accelerator, name, value, because)
        touch.replace(torch.accelerator.memory, name, value, because)
    touch.replace(torch.accelerator, "synchronize", synchronize, because)
    touch.replace(torch.accelerator, "get_device_capability", get_device_capability, because)
