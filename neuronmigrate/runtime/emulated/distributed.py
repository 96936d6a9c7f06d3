"""Collectives of the process group "neuron", carried by gloo; loaded with the first group (group.py).

The group serves neuron tensors only, objects travel as neuron tensors, and

- all_to_all splits evenly,
- a receive names its source.

The early TorchNeuron source asserts both (`alltoall_base`, `recv_anysource` of its process group). It also
has barriers for the whole world only, and no send and receive. Both are let through here, as the guide of
the released package lists pipeline parallelism; strict mode reports them.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch._ops import OpOverload
from torch.nn.parallel import DistributedDataParallel

from neuronmigrate.runtime.emulated import fallback, kernels, touch
from neuronmigrate.runtime.emulated import strict as strict_mode
from neuronmigrate.runtime.emulated.retag import to_cpu
from neuronmigrate.runtime.places import Places

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Backend, Store

_strict = False


def prepare(*, strict: bool) -> None:
    """Register the collectives, and what goes with them in torch."""
    global _strict
    _strict = strict
    lib = kernels.library("c10d")
    for qualified in torch._C._dispatch_get_all_op_names():
        if qualified.startswith("c10d::") and _has_kernel(qualified):
            name, _, overload = qualified[len("c10d::") :].partition(".")
            op = getattr(getattr(torch.ops.c10d, name), overload or "default")
            _override(lib, op, functools.partial(_collective, op), kernels.KEY)
    touch.register("c10d kernels of PrivateUse1", "torch's own would give neuron memory to gloo")
    result, get_future = dist.Work.result, dist.Work.get_future
    touch.replace(
        dist.Work, "result", lambda work: _relabelled(result(work)), "gloo hands out its CPU tensors"
    )
    touch.replace(
        dist.Work,
        "get_future",
        lambda work: get_future(work).then(lambda future: _relabelled(future.value())),
        "gloo hands out its CPU tensors",
    )
    init = DistributedDataParallel.__init__

    @functools.wraps(init)
    def init_and_pin(self: DistributedDataParallel, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)  # type: ignore[arg-type]
        if self.find_unused_parameters and any(each.device.type == "neuron" for each in self.parameters()):
            _allow_pinned_memory()

    touch.replace(DistributedDataParallel, "__init__", init_and_pin, "unused parameters need pinned memory")


def _override(lib: torch.library.Library, op: OpOverload, kernel: fallback.Kernel, key: str) -> None:
    """Register a kernel in the place of torch's own, which torch would warn of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators", UserWarning)
        lib.impl(op, kernel, key, allow_override=True)


def _has_kernel(qualified: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(qualified, kernels.KEY)


# What gloo carries --------------------------------------------------------------------------------------

_carriers: dict[Backend, dist.ProcessGroup] = {}
"""For each backend of a neuron group, a group of the same processes in which it serves CPU tensors."""


def carry(store: Store, rank: int, size: int, timeout: timedelta) -> Backend:
    """A backend of gloo for a new group, with the group that carries what it is given."""
    if not dist.is_initialized():
        _carriers.clear()
    backend = dist.ProcessGroupGloo(store, rank, size, timeout)
    backend._set_sequence_number_for_group()
    carrier = dist.ProcessGroup(store, rank, size)
    carrier._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    carrier._register_backend(fallback.CPU, dist.ProcessGroup.BackendType.GLOO, backend)
    _carriers[backend] = carrier
    return backend


def _collective(op: OpOverload, *args: object, **kwargs: object) -> object:
    """Run a collective over the memory of its neuron tensors, in the group that carries theirs."""
    if fallback.observers:
        fallback.tell(op._name, args, kwargs)
    name = op._schema.name.partition("::")[2]
    if name == "recv_any_source_":
        raise NotImplementedError(
            "the process group of the neuron device receives from a source that is named:"
            " dist.recv(..., src=RANK)"
        )
    if name in ("alltoall_", "alltoall_base_"):
        _refuse_uneven(args)
    if _strict:
        _report_unsure(name, args)
    seen = fallback.Seen(to_cpu, resizable=False)
    given = []
    for argument, value in zip(op._schema.arguments, args, strict=False):
        if argument.name == "process_group":
            value = _carrier(dist.ProcessGroup.unbox(value)).boxed()  # type: ignore[arg-type]
        given.append(seen.enter(value))
    if seen.host:
        raise fallback.MixedDevices(op._name, args)
    for neuron, cpu in seen.pairs.values():
        cpu.carried = neuron  # type: ignore[attr-defined]
    if name in ("_allgather_base_", "_reduce_scatter_base_"):
        _flatten(given)
    return fallback.leave(op._op(*given, **kwargs), {id(cpu): neuron for neuron, cpu in seen.pairs.values()})


def _flatten(given: list[object]) -> None:
    """Make the tensors out and in one-dimensional: gloo wants equal shapes where others count elements.

    Accelerate gathers into a flat tensor on every device but the CPU (utils/operations.py).
    """
    made, source = given[:2]
    assert isinstance(made, Tensor)
    assert isinstance(source, Tensor)
    if made.dim() != source.dim():
        flat = made.view(-1)
        flat.carried = made.carried  # type: ignore[attr-defined]
        given[:2] = [flat, source.view(-1)]


def _relabelled(result: object) -> object:
    """What a collective hands out, with the neuron tensors in the place of those that gloo worked on."""
    if isinstance(result, list | tuple):
        return type(result)([_relabelled(item) for item in result])
    return getattr(result, "carried", result)


def _carrier(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The group that carries a neuron group; torch's own RuntimeError if that serves no neuron tensors."""
    backend = group._get_backend(torch.device("neuron"))
    # TORCH_DISTRIBUTED_DEBUG=DETAIL puts a wrapper around it.
    return _carriers[getattr(backend, "wrapped_pg", backend)]


# The limits of the real one -----------------------------------------------------------------------------


def _refuse_uneven(args: Sequence[object]) -> None:
    """NotImplementedError if the splits of an all_to_all differ in size.

    args: those of c10d::alltoall_ (tensors out, tensors in, group) or of c10d::alltoall_base_ (tensor out,
    tensor in, group, sizes out, sizes in).
    """
    first, second = args[:2]
    if isinstance(first, Tensor):
        splits = [list(sizes) for sizes in args[3:5] if isinstance(sizes, list | tuple)]
    else:
        splits = [[tuple(each.shape) for each in tensors] for tensors in (first, second)]  # type: ignore[attr-defined]
    for sizes in splits:
        if len(set(sizes)) > 1:
            raise NotImplementedError(
                f"the process group of the neuron device splits an all_to_all evenly, not into {sizes}: pad"
                " the parts to one size"
            )


def _report_unsure(name: str, args: Sequence[object]) -> None:
    """Warn of what the process group of the early source does not have."""
    what = None
    if name in ("send", "recv_"):
        what = "send and receive"
    elif name == "barrier" and dist.ProcessGroup.unbox(args[1]).size() != dist.get_world_size():  # type: ignore[arg-type]
        what = "a barrier of some of the processes"
    if what is not None:
        place, _ = Places().now(inspect.currentframe())
        warnings.warn_explicit(
            f"{what} on the neuron device: reported to be missing there (strict)",
            strict_mode.StrictWarning,
            place.path,
            place.line,
        )


# Pinned memory ------------------------------------------------------------------------------------------

_pinned_memory_allowed = False


def _allow_pinned_memory() -> None:
    """Make pinned CPU memory plain CPU memory, for the C++ of DistributedDataParallel.

    With find_unused_parameters its reducer asks for pinned memory in each backward
    (torch/csrc/distributed/c10d/reducer.cpp, all_reduce_local_used_map), and a Python backend cannot give
    it an allocator. Allocations cost about 2 us more from then on, so it is done when it is needed only.
    """
    global _pinned_memory_allowed
    if _pinned_memory_allowed:
        return
    _pinned_memory_allowed = True
    keys = {
        kind: torch._C.DispatchKeySet(key)
        for kind, key in (
            ("cpu", torch._C.DispatchKey.CPU),
            ("meta", torch._C.DispatchKey.Meta),
            ("neuron", torch._C.DispatchKey.PrivateUse1),
        )
    }

    def unpinned(
        op: OpOverload, *args: object, device: torch.device | None = None, **kwargs: object
    ) -> object:
        kind = device.type if device is not None else "cpu"
        kwargs["pin_memory"] = None
        return op.redispatch(keys[kind], *args, device=device, **kwargs)

    lib = kernels.library("aten")
    for op in (torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default):
        _override(lib, op, functools.partial(unpinned, op), "BackendSelect")
    # The reducer asserts that it got what it asked for.
    _override(lib, torch.ops.aten.is_pinned.default, lambda tensor, device=None: True, "CPU")
    touch.register("aten kernels of BackendSelect, aten::is_pinned", "pinned memory is plain memory")
