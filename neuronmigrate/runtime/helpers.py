"""What migrated code may import instead of carrying it along, when it was rewritten with `--shim`.

Each takes the place of a legacy function and needs nothing but torch (`DeviceLoader` also Accelerate).
All work without a process group too: then there is one process, and nothing to exchange. Where they keep
a habit of torch_xla 2.9 its function is named; `torch_xla/core/xla_model.py` is the source.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import IO, Generic, TypeVar, overload

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only

T = TypeVar("T")
R = TypeVar("R")

# The native backend compiles a program for each size of a message, so sizes are rounded up to few.
# Accelerate 1.15 does the same, from the same smallest size (utils/operations.py).
_SMALLEST_MESSAGE = 1 << 20

_REDUCTIONS = {
    "sum": dist.ReduceOp.SUM,
    "mul": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
}


# Ranks


def rank() -> int:
    """The rank of this process in the job; before a group stands, what the launcher says. Else 0."""
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def world_size() -> int:
    """The number of processes of the job; before a group stands, what the launcher says. Else 1."""
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def local_rank() -> int:
    """The rank of this process on its host, as the launcher says. Else 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_master(*, local: bool = True) -> bool:
    """Whether this is the first process of its host, or with `local=False` of the whole job.

    The default is that of `xm.is_master_ordinal`.
    """
    return (local_rank() if local else rank()) == 0


def master_print(*values: object, local: bool = False, flush: bool = False) -> None:
    """Print on the first process of the job, or with `local=True` of each host, as `xm.master_print`."""
    if is_master(local=local):
        print(*values, flush=flush)


def barrier() -> None:
    """Wait for all processes of the group; nothing without one."""
    if dist.is_initialized():
        dist.barrier()


# Data


class DeviceLoader(Generic[T]):
    """Iterates over a loader and moves each batch to a device, in place of `pl.MpDeviceLoader`.

    A batch may be a tensor of any shape and dtype, anything that has `.to`, or lists, tuples, named tuples
    and mappings of those; its type, its shapes and its dtypes stay. (`MpDeviceLoader` turned tuples into
    lists.) No step is marked between batches and nothing is read ahead: give the loader `num_workers`.
    """

    def __init__(self, loader: Iterable[T], device: torch.device | str) -> None:
        self.loader = loader
        self.device = torch.device(device)

    def __iter__(self) -> Iterator[T]:
        from accelerate.utils import send_to_device

        for batch in self.loader:
            moved: T = send_to_device(batch, self.device, non_blocking=True)
            yield moved

    def __len__(self) -> int:
        """The number of batches. Raises TypeError if the loader has none to tell."""
        if not isinstance(self.loader, Sized):
            raise TypeError(f"{type(self.loader).__name__} has no length")
        return len(self.loader)


def pad_batch(
    batch: Mapping[str, torch.Tensor],
    *,
    rows: int | None = None,
    length: int | None = None,
    pad_token_id: int = 0,
    left: bool = False,
) -> dict[str, torch.Tensor]:
    """A batch of constant shape: each new shape costs compilations on the device.

    `rows`: tensors `[batch, ...]` become `[rows, ...]`; the new rows are copies of the first one, so that
    ids stay valid. Cut the result back with `[:batch]`.
    `length`: tensors `[batch, n]` become `[batch, length]`, filled on the right, or with `left=True` (as
    decoders want prompts) on the left: `input_ids` with `pad_token_id`, `labels` with -100, all others
    with 0. Tensors of more dimensions keep theirs. Dtypes and devices stay.

    Raises ValueError if the batch is larger than asked for, as the legacy models did, or has no rows, or
    if its tensors disagree about the number of rows.
    """
    sizes = {len(tensor) for tensor in batch.values()}
    if len(sizes) > 1:
        raise ValueError(f"the tensors of the batch have different numbers of rows: {sorted(sizes)}")
    padded = {}
    for name, tensor in batch.items():
        if length is not None and tensor.dim() == 2:
            missing = _missing(tensor.shape[1], length, f"{name}: length")
            fill = {"input_ids": pad_token_id, "labels": -100}.get(name, 0)
            sides = (missing, 0) if left else (0, missing)
            tensor = torch.nn.functional.pad(tensor, sides, value=fill)
        if rows is not None:
            if not len(tensor):
                raise ValueError(f"{name}: a batch without rows cannot be padded")
            missing = _missing(len(tensor), rows, f"{name}: rows")
            tensor = torch.cat([tensor, tensor[:1].expand(missing, *tensor.shape[1:])])
        padded[name] = tensor
    return padded


def _missing(found: int, wanted: int, what: str) -> int:
    if found > wanted:
        raise ValueError(f"{what} {found} is more than {wanted}")
    return wanted - found


# Gradients and collectives


def reduce_gradients(optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None) -> None:
    """Average the gradients of an optimizer's parameters over all processes, in place.

    As `xm.reduce_gradients`: each gradient, of any shape and dtype, becomes its sum over the group times one
    over the number of processes of the *job*, whichever the group. Every process must have gradients for
    the same parameters. Not for models in DDP or FSDP, which average by themselves.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    scale = 1.0 / dist.get_world_size()
    for parameters in optimizer.param_groups:
        for parameter in parameters["params"]:
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=group)
                parameter.grad.mul_(scale)


@overload
def all_reduce(
    kind: str, value: torch.Tensor, scale: float = 1.0, group: dist.ProcessGroup | None = None
) -> torch.Tensor: ...
@overload
def all_reduce(
    kind: str, value: list[torch.Tensor], scale: float = 1.0, group: dist.ProcessGroup | None = None
) -> list[torch.Tensor]: ...
def all_reduce(
    kind: str,
    value: torch.Tensor | list[torch.Tensor],
    scale: float = 1.0,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Reduce over all processes, as `xm.all_reduce`: a tensor gives a new one, a list is changed in place.

    `kind` is `sum`, `mul`, `min`, `max`, `and` or `or`; the last two are bitwise here and were logical
    there, which is one for bool and for zeros and ones. Shapes and dtypes stay. `scale` is applied
    afterwards, and not at all to a single process. Gradients do not flow through it.
    Raises ValueError for another `kind`.
    """
    if kind not in _REDUCTIONS:
        raise ValueError(f"{kind!r} is none of {', '.join(_REDUCTIONS)}")
    reduced = [value.detach().clone()] if isinstance(value, torch.Tensor) else value
    if dist.is_initialized() and dist.get_world_size() > 1:
        for each in reduced:
            dist.all_reduce(each, op=_REDUCTIONS[kind], group=group)
            if scale != 1.0:
                each.mul_(scale)
    return reduced[0] if isinstance(value, torch.Tensor) else reduced


def all_gather(value: torch.Tensor, dim: int = 0, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """The tensors of all processes one after the other along `dim`, as `xm.all_gather`.

    `[..., n, ...]` becomes `[..., processes * n, ...]`, of the same dtype; a tensor without dimensions
    becomes `[processes]`. Every process must give the same shape. Gradients do not flow through it.
    """
    value = value.detach().contiguous()
    if value.dim() == 0:
        value = value.view(1)
    if not dist.is_initialized():
        return value.clone()
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, value, group=group)
    return torch.cat(parts, dim)


def gather_object(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """What every process gives, in the order of ranks, on every process.

    In place of `xm.rendezvous` with a payload and of Optimum Neuron's `gather_object`. Anything that
    pickles will do; its tensors arrive on the CPU. The message travels as uint8 `[n]`, where n is a power of
    two from one MiB up, so that the native backend compiles for few sizes.
    """
    if not dist.is_initialized():
        return [to_cpu(value)]
    buffer = io.BytesIO()
    torch.save(to_cpu(value), buffer)
    written = torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8)
    device = torch.device("neuron" if dist.get_backend(group) == "neuron" else "cpu")
    # int32: the device has no integers of 64 bits.
    own = torch.tensor([len(written)], dtype=torch.int32, device=device)
    sizes = all_gather(own, group=group).tolist()
    room = max(_SMALLEST_MESSAGE, 1 << (max(sizes) - 1).bit_length())
    message = torch.zeros(room, dtype=torch.uint8)
    message[: len(written)] = written
    messages = all_gather(message.to(device).view(1, room), group=group).cpu()
    # The bytes come from processes of this very job, which could do anything anyway.
    return [
        torch.load(io.BytesIO(row[:size].numpy().tobytes()), weights_only=False)
        for row, size in zip(messages, sizes, strict=True)
    ]


def mesh_reduce(value: T, function: Callable[[list[T]], R]) -> R:
    """A function of what every process gives, as `xm.mesh_reduce` without its tag."""
    return function(gather_object(value))


# Saving


def to_cpu(tree: T) -> T:
    """Nested lists, tuples, dictionaries and the like with their tensors moved to the CPU.

    Shapes and dtypes stay, gradients are cut, and a tensor that is there already shares its memory.
    A tensor that occurs twice does so in the result.
    """
    moved: dict[int, torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:
            moved[id(tensor)] = tensor.detach().cpu()
        return moved[id(tensor)]

    copy: T = tree_map_only(torch.Tensor, move, tree)
    return copy


def save(
    data: object,
    file: str | Path | IO[bytes],
    *,
    master_only: bool = True,
    global_master: bool = False,
) -> None:
    """Write data whose tensors were moved to the CPU, in place of `xm.save`.

    The first process of each host writes, with `global_master=True` only the first of the job, with
    `master_only=False` every one. As there, no process waits for the file: call `barrier()` before another
    reads it. Sharded tensors (FSDP2, DTensor) have to be gathered before, on all processes.
    """
    if not master_only or is_master(local=not global_master):
        torch.save(to_cpu(data), file)


__all__: Sequence[str] = (
    "DeviceLoader",
    "all_gather",
    "all_reduce",
    "barrier",
    "gather_object",
    "is_master",
    "local_rank",
    "master_print",
    "mesh_reduce",
    "pad_batch",
    "rank",
    "reduce_gradients",
    "save",
    "to_cpu",
    "world_size",
)
