"""`torch.autocast("neuron", ...)`: the CPU's rules for the device.

An operation that has a kernel for AutocastCPU gets one for AutocastPrivateUse1 with the same policy, so that
a mixed-precision run gives the numbers that it gives on the CPU. Which rules the real device has is not
known. The dtype is PyTorch's: without `dtype=`, float16 on a device that is not PyTorch's own.

All of it is registered as the first region for the device is made.

The policies are those of aten/src/ATen/autocast_mode.cpp; what is not listed here casts to float32.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from neuronmigrate.runtime.emulated import touch
from neuronmigrate.runtime.emulated.fallback import Kernel, overload_of
from neuronmigrate.runtime.emulated.kernels import library, register_all, registered

LOWER = frozenset(
    {"_addmm_activation", "_convolution.deprecated", "_native_multi_head_attention", "addbmm", "addmm"}
    | {"baddbmm", "bmm", "conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d"}
    | {"conv3d.padding", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input"}
    | {"conv_transpose3d.input", "linalg_vecdot", "linear", "matmul", "mkldnn_rnn_layer", "mm", "prelu"}
    | {"scaled_dot_product_attention"}
)
"""Operations whose inputs are cast to the autocast dtype."""

PROMOTE = frozenset({"cat", "index_copy", "stack"})
"""Operations whose inputs are cast to the widest dtype among them."""

KEY = "AutocastPrivateUse1"
_EXCLUDED = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, KEY))

_casts: dict[int, tuple[Tensor, Tensor]] = {}
"""Weights with their casts, by identity, until the outermost autocast region ends."""


def cast(value: object, dtype: torch.dtype) -> object:
    """An argument in a dtype: floating tensors of the device, lists of them; float64 stays."""
    if isinstance(value, Tensor):
        kind = value.dtype
        if kind is dtype or not kind.is_floating_point or kind is torch.float64 or value.is_cpu:
            return value
        if (
            kind is torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
            and torch.is_autocast_cache_enabled()
            and dtype is torch.get_autocast_dtype("neuron")
        ):
            known = _casts.get(id(value))
            if known is None:
                known = _casts[id(value)] = (value, value.to(dtype))
            return known[1]
        return value.to(dtype)
    if isinstance(value, (list, tuple)):
        return [cast(item, dtype) for item in value]
    return value


def lower(op: str, *args: object, **kwargs: object) -> object:
    """Run in the autocast dtype."""
    return _run(op, torch.get_autocast_dtype("neuron"), args, kwargs)


def to_float32(op: str, *args: object, **kwargs: object) -> object:
    """Run in float32."""
    return _run(op, torch.float32, args, kwargs)


def promote(op: str, *args: object, **kwargs: object) -> object:
    """Run in the widest dtype of the arguments, the autocast dtype at least."""
    dtype = torch.get_autocast_dtype("neuron")
    if _any_float32(args):
        dtype = torch.float32
    return _run(op, dtype, args, kwargs)


def _run(op: str, dtype: torch.dtype, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    with torch._C._ExcludeDispatchKeyGuard(_EXCLUDED):
        given = [cast(value, dtype) for value in args]
        named = {name: cast(value, dtype) for name, value in kwargs.items()}
        return overload_of(op)(*given, **named)


def _any_float32(values: object) -> bool:
    if isinstance(values, Tensor):
        return values.dtype is torch.float32 and not values.is_cpu
    return isinstance(values, (list, tuple)) and any(_any_float32(value) for value in values)


def clear_cache() -> None:
    """`torch.clear_autocast_cache()`, which the end of the outermost region calls: the device's casts too."""
    _casts.clear()
    _clear()


_clear = torch.clear_autocast_cache


def rules() -> Iterator[tuple[str, Kernel]]:
    """The kernel of each operation that has one on the CPU, by name."""
    for name in registered("AutocastCPU"):
        policy = lower if name in LOWER else promote if name in PROMOTE else to_float32
        yield name, functools.partial(policy, f"aten::{name}")


def install() -> None:
    """Register the kernels, and the cache with PyTorch's, once, whichever thread comes first."""
    with _lock:
        _install()


_lock = threading.Lock()


@functools.cache
def _install() -> None:
    touch.register(f"fallback and aten kernels of {KEY}", "the CPU's autocast rules")
    library("_").fallback(torch.library.fallthrough_kernel, KEY)
    register_all(library("aten"), KEY, rules())
    touch.replace(torch, "clear_autocast_cache", clear_cache, "casts of weights are kept until a region ends")
