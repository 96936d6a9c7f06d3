"""Kernels of operations that the fallback cannot run: memory, copies, views, and where C++ asks for a device.

All are registered for the dispatch key PrivateUse1 and take and return neuron tensors, on which autograd
has been dealt with already.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from neuronmigrate.runtime.emulated import touch
from neuronmigrate.runtime.emulated.fallback import CPU, CPU_KEYS, Kernel, fallback, observers, tell
from neuronmigrate.runtime.emulated.retag import to_cpu, to_neuron

KEY = "PrivateUse1"
aten = torch.ops.aten

libraries: list[torch.library.Library] = []
"""Registrations live as long as these objects."""


def library(namespace: str) -> torch.library.Library:
    """A library to register kernels in, kept alive."""
    made = torch.library.Library(namespace, "IMPL")
    libraries.append(made)
    return made


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> Tensor:
    """aten::empty.memory_format."""
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"the emulated neuron device has no {layout} tensors")
    return to_neuron(aten.empty.memory_format(size, dtype=dtype, device=CPU, memory_format=memory_format))


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """aten::empty_strided."""
    return to_neuron(aten.empty_strided.default(size, stride, dtype=dtype, device=CPU))


def zero_tensor(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> Tensor:
    """aten::_efficientzerotensor, with real memory: DLPack would export a null pointer."""
    return to_neuron(aten.zeros.default(size, dtype=dtype, device=CPU))


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """aten::_copy_from, between the devices and on either; casts and broadcasts as `copy_` does."""
    if observers:
        tell("aten::_copy_from", (source, target, non_blocking), {})
    _plain_alias(target).copy_(_plain_alias(source))
    return target


def _plain_alias(tensor: Tensor) -> Tensor:
    """A tensor's memory on the CPU, with the lazy bits that DLPack leaves behind."""
    if tensor.is_cpu:
        return tensor
    alias = to_cpu(tensor)
    if tensor.is_conj():
        alias = alias.conj()
    return alias._neg_view() if tensor.is_neg() else alias


def copy_from_and_resize(source: Tensor, target: Tensor) -> Tensor:
    """aten::_copy_from_and_resize."""
    if target.shape != source.shape:
        target.resize_(source.shape)
    return copy_from(source, target)


def local_scalar_dense(tensor: Tensor) -> bool | int | float | complex:
    """aten::_local_scalar_dense: the number in a tensor of one element."""
    if observers:
        tell("aten::_local_scalar_dense", (tensor,), {})
    return aten._local_scalar_dense.default(to_cpu(tensor))  # type: ignore[no-any-return]


def resize(
    tensor: Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> Tensor:
    """aten::resize_. Imported memory cannot grow, so a larger tensor gets new memory with the old elements."""
    wanted = aten.empty.memory_format(size, dtype=tensor.dtype, device="meta").numel()
    if (wanted + tensor.storage_offset()) * tensor.element_size() <= tensor.untyped_storage().nbytes():
        aten.resize_.default.redispatch(CPU_KEYS, tensor, size, memory_format=memory_format)
        return tensor
    grown = aten.empty.memory_format(size, dtype=tensor.dtype, device=CPU, memory_format=memory_format)
    old = to_cpu(tensor)
    storage = torch.empty(0, dtype=tensor.dtype, device=CPU).set_(
        old.untyped_storage(), 0, (old.untyped_storage().nbytes() // old.element_size(),)
    )
    whole = grown.as_strided((grown.numel(),), (1,))
    kept = storage[tensor.storage_offset() :][: whole.numel()]
    whole[: kept.numel()].copy_(kept)
    aten.set_.source_Tensor.redispatch(CPU_KEYS, tensor, to_neuron(grown))
    return tensor


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """aten::convolution_overrideable, where C++ sends the convolutions of devices that it does not know."""
    operands = (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
    return fallback(aten.convolution.default, *operands)  # type: ignore[return-value]


def convolution_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """aten::convolution_backward_overrideable; the gradients of input, weight and bias as the mask asks."""
    channels = [weight.size(1) * groups if transposed else weight.size(0)]
    rest = (stride, padding, dilation, transposed, output_padding, groups, output_mask)
    return fallback(  # type: ignore[return-value]
        aten.convolution_backward.default, grad_output, input, weight, channels, *rest
    )


def metadata_only(op: OpOverload) -> Kernel:
    """A CPU kernel that changes shape, strides or storage alone, run on the neuron tensor itself.

    Unlike a run through the fallback, this keeps the storage, the version counter and the view relation.
    """
    return functools.partial(op.redispatch, CPU_KEYS)


def _compatible_shallow_copy(tensor: Tensor, other: Tensor) -> bool:
    return True


OWN: dict[str, Kernel] = {
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from_and_resize,
    "_efficientzerotensor": zero_tensor,
    "_local_scalar_dense": local_scalar_dense,
    "convolution_backward_overrideable": convolution_backward,
    "convolution_overrideable": convolution,
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "record_stream": lambda tensor, stream: None,
    "resize_": resize,
}
"""Kernels for what the CPU's kernel would do to the wrong memory, or not at all."""

METADATA_WRITERS = (
    "set_",
    "set_.source_Storage",
    "set_.source_Storage_storage_offset",
    "set_.source_Tensor",
)


def install(*, keep_parameters: bool) -> None:
    """Register all kernels.

    With `keep_parameters`, `module.to("neuron")` keeps its Parameter objects, as it does on CUDA; without,
    it replaces them, as it does on a PrivateUse1 device that does not override
    `_has_compatible_shallow_copy_type` (c10/core/TensorImpl.h).
    """
    touch.register("fallback of PrivateUse1", "every operation without a kernel runs on the CPU")
    library("_").fallback(fallback, KEY)
    lib = library("aten")
    for name, kernel in OWN.items():
        lib.impl(name, kernel, KEY)
    if keep_parameters:
        lib.impl("_has_compatible_shallow_copy_type", _compatible_shallow_copy, KEY)
    for lazy in ("Conjugate", "Negative"):
        # Otherwise a copy resolves the bit by a clone, which copies, and so on without end.
        lib.impl("_copy_from", torch.library.fallthrough_kernel, lazy)
    touch.register("aten kernels of PrivateUse1", "memory, copies, views, convolutions")
    own = {f"aten::{name}" for name in OWN}
    for qualified in torch._C._dispatch_get_all_op_names():
        if not qualified.startswith("aten::") or qualified in own:
            continue
        route = _route(qualified)
        if route is not None:
            lib.impl(qualified[len("aten::") :], route, KEY)


def _route(qualified: str) -> Kernel | None:
    """The kernel that an operation needs beside the fallback; None if C++ finds the right one by itself."""

    def has(key: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(qualified, key)

    name = qualified[len("aten::") :]
    composite = has("CompositeExplicitAutograd") or has("CompositeExplicitAutogradNonFunctional")
    if has("CPU"):
        if name in METADATA_WRITERS or _is_view(qualified):
            return metadata_only(_overload(name))
        if composite:
            # The composite kernel would win over the fallback, with another formula than the CPU's.
            return functools.partial(fallback, _overload(name))
    elif composite and name.startswith("_foreach_"):
        return functools.partial(fallback, _overload(name))
    return None


def _is_view(qualified: str) -> bool:
    name, _, overload = qualified.partition(".")
    schema = torch._C._get_schema(name, overload)
    return any(made.alias_info is not None and not made.alias_info.is_write for made in schema.returns)


def _overload(name: str) -> OpOverload:
    packet, _, overload = name.partition(".")
    return getattr(getattr(aten, packet), overload or "default")  # type: ignore[no-any-return]
