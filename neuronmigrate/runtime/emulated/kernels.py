"""Kernels of operations that the fallback cannot run: memory, copies, views and formulas.

All are registered for the dispatch key PrivateUse1 and take and return neuron tensors, on which autograd
has been dealt with already.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from neuronmigrate.runtime.emulated import attention, recurrent, touch
from neuronmigrate.runtime.emulated.fallback import (
    CPU,
    CPU_KEYS,
    Kernel,
    by_name,
    fallback,
    observers,
    overload_of,
    tell,
)
from neuronmigrate.runtime.emulated.module import check_index
from neuronmigrate.runtime.emulated.retag import to_cpu, to_cpu_with_bits, to_neuron

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
    check_index(device)
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
    check_index(device)
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
    on_cpu = [tensor if tensor.is_cpu else to_cpu_with_bits(tensor) for tensor in (target, source)]
    on_cpu[0].copy_(on_cpu[1])
    return target


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
    """aten::resize_. Imported memory cannot grow: a larger tensor gets new memory, and the old elements.

    Views of the old memory stay with it, where on the CPU they would see the new elements.
    """
    wanted = aten.empty.memory_format(size, dtype=tensor.dtype, device="meta").numel()
    if (wanted + tensor.storage_offset()) * tensor.element_size() <= tensor.untyped_storage().nbytes():
        aten.resize_.default.redispatch(CPU_KEYS, tensor, size, memory_format=memory_format)
        return tensor
    grown = aten.empty.memory_format(size, dtype=tensor.dtype, device=CPU, memory_format=memory_format)
    storage = tensor.untyped_storage()
    start = tensor.storage_offset()
    old = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    old.set_(storage, start, (storage.nbytes() // old.element_size() - int(start),), (1,))
    whole = grown.as_strided((grown.numel(),), (1,))
    kept = to_cpu(old)[: whole.numel()]
    whole[: kept.numel()].copy_(kept)
    aten.set_.source_Tensor.redispatch(CPU_KEYS, tensor, to_neuron(grown))
    return tensor


def nested_from_mask(tensor: Tensor, mask: Tensor) -> bool:
    """aten::_nested_tensor_from_mask_left_aligned: the device holds no nested tensors of strided layout.

    So `nn.TransformerEncoder` in eval mode keeps its padded positions, where the CPU takes them out.
    """
    return False


def metadata_only(op: OpOverload) -> Kernel:
    """A CPU kernel that changes shape, strides or storage alone, run on the neuron tensor itself.

    Unlike a run through the fallback, this keeps the storage, the version counter and the view relation.
    """
    return functools.partial(op._handle.redispatch_boxed, CPU_KEYS)


def _compatible_shallow_copy(tensor: Tensor, other: Tensor) -> bool:
    return True


OWN: dict[str, Kernel] = {
    "_copy_from": copy_from,
    "_copy_from_and_resize": copy_from_and_resize,
    "_efficientzerotensor": zero_tensor,
    "_local_scalar_dense": local_scalar_dense,
    "_nested_tensor_from_mask_left_aligned": nested_from_mask,
    "empty.memory_format": empty,
    "empty_strided": empty_strided,
    "record_stream": lambda tensor, stream: None,
    "resize_": resize,
}
"""Kernels for what the CPU's kernel would do to the wrong memory, or not at all."""

METADATA_WRITERS = frozenset(
    {"set_", "set_.source_Storage", "set_.source_Storage_storage_offset", "set_.source_Tensor"}
)

AS_IS = frozenset(
    {"as_strided_", "detach_", "resize_as_", "squeeze_", "squeeze_.dim", "squeeze_.dims", "t_"}
    | {"transpose_", "unsqueeze_", "_unsafe_view", "unsafe_split.Tensor", "unsafe_split_with_sizes"}
    | {"_lazy_clone", "_pin_memory", "_resize_output", "copy", "copy_", "lift", "resize", "resize_as"}
    | {"set", "set.source_Storage", "set.source_Storage_storage_offset", "set.source_Tensor"}
    | {"convolution_overrideable", "convolution_backward_overrideable", "_pack_padded_sequence"}
)
"""Composite operations whose C++ serves every device: they change metadata, or cross devices."""


VIEWS = frozenset(
    {"_nested_view_from_buffer", "_reshape_alias", "as_strided", "unfold", "view", "view_as_complex"}
    | {"view_as_real"}
)
"""Operations with a kernel of the CPU's own that returns a view."""


def install(*, keep_parameters: bool) -> None:
    """Register all kernels.

    With `keep_parameters`, `module.to("neuron")` keeps its Parameter objects, as it does on CUDA; without,
    it replaces them, as it does on a PrivateUse1 device that does not override
    `_has_compatible_shallow_copy_type` (c10/core/TensorImpl.h).
    """
    touch.register("fallback of PrivateUse1", "every operation without a kernel runs on the CPU")
    library("_").fallback(fallback, KEY)
    lib = library("aten")
    touch.register("aten kernels of PrivateUse1", "memory, copies, views, and formulas of the CPU")
    for name, kernel in OWN.items():
        lib.impl(name, kernel, KEY)
    if keep_parameters:
        lib.impl("_has_compatible_shallow_copy_type", _compatible_shallow_copy, KEY)
    for lazy in ("Conjugate", "Negative"):
        # Otherwise a copy resolves the bit by a clone, which copies, and so on without end.
        lib.impl("_copy_from", torch.library.fallthrough_kernel, lazy)
    register_all(lib, KEY, routes())
    touch.register("aten kernels of AutogradPrivateUse1", "attention, LSTM, GRU and RNN on the CPU's way")
    attention.install(lib)
    recurrent.install(lib)


def register_all(lib: torch.library.Library, key: str, named: Iterable[tuple[str, Kernel]]) -> None:
    """`lib.impl` for kernels by the hundred, without its bookkeeping, which doubles the time."""
    assert lib.m is not None
    for name, kernel in named:
        lib.m.impl(name, key, kernel, False)


def routes() -> Iterator[tuple[str, Kernel]]:
    """Kernels of the operations for which C++ would take another than the fallback, by name.

    A composite kernel wins over a backend's fallback and has another formula than the CPU's own kernel;
    where the CPU has none of its own, running the composite as a whole on the CPU saves a call for each of
    its steps.
    """
    on_cpu = registered("CPU")
    composite = registered("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    for name in VIEWS | METADATA_WRITERS:
        yield name, metadata_only(overload_of(f"aten::{name}"))
    done = VIEWS | METADATA_WRITERS | AS_IS | set(OWN)
    for name in (composite | (on_cpu & registered("CompositeImplicitAutograd"))) - done:
        if name in on_cpu or _works_on_tensors(name):
            yield name, functools.partial(by_name, f"aten::{name}")


def registered(*keys: str) -> set[str]:
    """Names of the aten operations that have a kernel for a dispatch key, with their overloads."""
    names = (name for key in keys for name in torch._C._dispatch_get_registrations_for_dispatch_key(key))
    return {name[len("aten::") :] for name in names if name.startswith("aten::")}


def is_view(name: str) -> bool:
    """Whether an operation returns a view of an argument."""
    made = _schema(name).returns
    return any(value.alias_info is not None and not value.alias_info.is_write for value in made)


def _works_on_tensors(name: str) -> bool:
    """Whether a composite operation makes or changes tensors; views and `out=` forms are left to C++."""
    if "out" in name.partition(".")[2]:
        return False
    if name.startswith("_foreach_"):
        return True
    schema = _schema(name)
    return not is_view(name) and any("Tensor" in str(made.type) for made in schema.returns)


def _schema(name: str) -> torch.FunctionSchema:
    packet, _, overload = name.partition(".")
    return torch._C._get_schema(f"aten::{packet}", overload)
