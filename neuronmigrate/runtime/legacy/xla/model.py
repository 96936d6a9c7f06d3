"""`torch_xla.core.xla_model`."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO, TextIO, TypeVar

import torch
from torch.utils._pytree import tree_map_only

from neuronmigrate.runtime.legacy.session import current
from neuronmigrate.runtime.legacy.xla import redirect, world

Value = TypeVar("Value")
Groups = Sequence[Sequence[int]] | None

REDUCE_SUM = "sum"
REDUCE_MUL = "mul"
REDUCE_AND = "and"
REDUCE_OR = "or"
REDUCE_MIN = "min"
REDUCE_MAX = "max"

__all__ = [
    "REDUCE_AND",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_MUL",
    "REDUCE_OR",
    "REDUCE_SUM",
    "RateTracker",
    "add_step_closure",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast_master_param",
    "collective_broadcast",
    "collective_permute",
    "do_on_ordinals",
    "fork_rng",
    "get_local_ordinal",
    "get_memory_info",
    "get_ordinal",
    "get_rng_state",
    "get_xla_supported_devices",
    "is_master_ordinal",
    "is_xla_tensor",
    "mark_step",
    "master_print",
    "mesh_reduce",
    "optimization_barrier_",
    "optimizer_step",
    "reduce_gradients",
    "reduce_scatter",
    "rendezvous",
    "save",
    "send_cpu_data_to_device",
    "set_rng_state",
    "sync",
    "unlazy",
    "wait_device_ops",
    "xla_device",
    "xla_device_hw",
    "xla_real_devices",
    "xla_rendezvous",
    "xrt_world_size",
]

_closures: list[Callable[[], object]] = []
_async_closures: list[Callable[[], object]] = []
_seed = 0

redirect.install()
if os.environ.get("XLA_USE_BF16", "0") not in ("", "0") or os.environ.get("XLA_DOWNCAST_BF16", "0") not in (
    "",
    "0",
):
    current().note("XLA_USE_BF16 or XLA_DOWNCAST_BF16 is set: the device held bfloat16, here it is float32")


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The device of this process, `xla:0`; `n` is its index, `devkind` has no meaning here."""
    return torch.device("xla", n or 0)


def xla_real_devices(devices: Sequence[object] | None = None) -> list[str]:
    """Names of the devices behind."""
    return [f"CPU:{number}" for number in range(len(devices or [None]))]


def xla_device_hw(device: object) -> str:
    """Kind of hardware; NEURON, as scripts that ask want to know."""
    return "NEURON"


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str]:
    """The devices of this process."""
    return ["xla:0"]


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Always True: the stand-in cannot tell where a tensor would be, and scripts ask before a step."""
    return True


def get_ordinal(defval: int = 0) -> int:
    """Number of this process among all; gone from torch_xla 2.7 on."""
    return world.rank() if world.size() > 1 else defval


def get_local_ordinal(defval: int = 0) -> int:
    """Number of this process on its host."""
    return world.local_rank() if world.size() > 1 else defval


def xrt_world_size(defval: int = 1) -> int:
    """Processes of the run; gone from torch_xla 2.7 on."""
    return world.size() if world.size() > 1 else defval


def is_master_ordinal(local: bool = True) -> bool:
    """Whether this is the first process, of its host by default."""
    return (world.local_rank() if local else world.rank()) == 0


def master_print(*args: object, fd: TextIO | None = None, local: bool = False, flush: bool = False) -> None:
    """Print on the first process, of all by default."""
    if is_master_ordinal(local=local):
        print(*args, file=fd or sys.stdout, flush=flush)


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """`torch_xla.sync`: end the step, then run the closures that wait for it."""
    _end_step("sync")


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """End the step: what was recorded would run now. The closures of the step run."""
    _end_step("mark_step")


def _end_step(cause: str) -> None:
    current().step(cause)
    # The real ones run on a thread, one after the other, and are waited for by nobody.
    waiting = [*_async_closures]
    _async_closures.clear()
    if waiting:
        thread = threading.Thread(target=lambda: [closure() for closure in waiting])
        thread.start()
        thread.join()
    waiting = [*_closures]
    _closures.clear()
    for closure in waiting:
        closure()


def add_step_closure(
    closure: Callable[..., object], args: Sequence[object] = (), run_async: bool = False
) -> None:
    """Call something at the end of the step; never, if no step follows."""
    (_async_closures if run_async else _closures).append(lambda: closure(*args))


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Wait for what was started. It starts nothing itself: that takes a step."""


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Run what these tensors need."""
    current().step("unlazy")


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """A hint to the compiler."""


def _reduce(kind: str, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    total = parts[0].clone()
    for part in parts[1:]:
        if kind == REDUCE_SUM:
            total += part
        elif kind == REDUCE_MUL:
            total *= part
        elif kind == REDUCE_AND:
            total = torch.logical_and(total, part) if part.dtype == torch.bool else total & part
        elif kind == REDUCE_OR:
            total = torch.logical_or(total, part) if part.dtype == torch.bool else total | part
        elif kind == REDUCE_MIN:
            total = torch.minimum(total, part)
        elif kind == REDUCE_MAX:
            total = torch.maximum(total, part)
        else:
            raise ValueError(f"Unknown reduce type: {kind}")
    return total


class _AllReduce(torch.autograd.Function):
    """The gradient of an all-reduce that sums is the sum of the gradients."""

    @staticmethod
    def forward(
        context: torch.autograd.function.FunctionCtx,
        value: torch.Tensor,
        kind: str,
        scale: float,
        groups: Groups,
    ) -> torch.Tensor:
        context.settings = kind, scale, groups  # type: ignore[attr-defined]  # a place for such things
        result = _reduce(kind, world.of_group(world.gather(value), groups))
        return result if scale == 1.0 else result * scale

    @staticmethod
    def backward(
        context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None]:
        kind, scale, groups = context.settings  # type: ignore[attr-defined]
        if kind != REDUCE_SUM:
            raise RuntimeError(f"the gradient of an all_reduce that takes the {kind} is not defined")
        return _reduce(kind, world.of_group(world.gather(gradient), groups)) * scale, None, None, None


def all_reduce(
    reduce_type: str,
    inputs: torch.Tensor | list[torch.Tensor],
    scale: float = 1.0,
    groups: Groups = None,
    pin_layout: bool = True,
    cctx: object = None,
) -> torch.Tensor | list[torch.Tensor]:
    """Reduce over the replicas: a tensor gives a new one, a list is reduced in place and returned.

    With one process nothing happens, scaling included (torch_xla 2.9, xla_model.py: no-op).
    """
    if isinstance(inputs, torch.Tensor):
        if world.size() == 1:
            return inputs.clone()
        apply: Callable[..., torch.Tensor] = _AllReduce.apply
        return apply(inputs, reduce_type, scale, groups)
    if world.size() > 1:
        with torch.no_grad():
            for each in inputs:
                each.copy_(_reduce(reduce_type, world.of_group(world.gather(each), groups)) * scale)
    return inputs


def all_gather(
    value: torch.Tensor | list[torch.Tensor],
    dim: int = 0,
    groups: Groups = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> torch.Tensor | list[torch.Tensor]:
    """The tensors of all replicas, joined along `dim`; a list needs `pin_layout=False`, as it did."""
    if isinstance(value, list):
        if pin_layout:
            raise RuntimeError(
                "For xm.all_gather with list of tensors input, pin_layout=True is not yet supported."
            )
        return [torch.cat(world.of_group(world.gather(each), groups), dim) for each in value]
    result = torch.cat(world.of_group(world.gather(value), groups), dim)
    return result if output is None else output.copy_(result)


def all_to_all(
    value: torch.Tensor,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups = None,
    pin_layout: bool = True,
) -> torch.Tensor:
    """Split along one dimension, give each replica its part, join what came along another."""
    parts = world.of_group(world.gather(value), groups)
    place = world.members(groups).index(world.rank())
    return torch.cat([part.chunk(split_count, split_dimension)[place] for part in parts], concat_dimension)


def collective_permute(value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
    """The tensor of the replica that a pair (from, to) names for this one; zeros without a pair."""
    parts = world.gather(value)
    for source, target in pairs:
        if target == world.rank():
            return parts[source]
    return torch.zeros_like(value)


def collective_broadcast(
    tensors: Sequence[torch.Tensor], root_ordinal: int = 0, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Overwrite the tensors by those of one replica."""
    with torch.no_grad():
        for each in tensors:
            each.copy_(world.gather(each)[root_ordinal])


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Give every replica the parameters and buffers of the first, and end the step."""
    collective_broadcast([*model.parameters(), *model.buffers()])
    _end_step("broadcast_master_param")


def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups = None,
    output: torch.Tensor | None = None,
    pin_layout: bool = True,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> torch.Tensor:
    """Reduce over the replicas and keep this one's share along `scatter_dim`."""
    total = _reduce(reduce_type, world.of_group(world.gather(input), groups)) * scale
    place = world.members(groups).index(world.rank())
    result = total.chunk(shard_count, scatter_dim)[place].clone()
    return result if output is None else output.copy_(result)


def _gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]


def reduce_gradients(
    optimizer: torch.optim.Optimizer, groups: Groups = None, pin_layout: bool = True
) -> None:
    """Sum the gradients over the replicas and divide by the size of the world, with `groups` as well."""
    count = world.size()
    if count > 1:
        all_reduce(REDUCE_SUM, _gradients(optimizer), scale=1.0 / count, groups=groups)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, object] | None = None,
    groups: Groups = None,
    pin_layout: bool = True,
) -> object:
    """Reduce the gradients, step, and with `barrier` end the lazy step. Returns what `step` returns."""
    reduce_gradients(optimizer, groups)
    step: Callable[..., object] = optimizer.step
    loss = step(**(optimizer_args or {}))
    if barrier:
        _end_step("optimizer_step")
    return loss


def save(
    data: object,
    file_or_path: str | os.PathLike[str] | IO[bytes],
    master_only: bool = True,
    global_master: bool = False,
    sync: bool = True,
) -> None:
    """Write tensors as CPU tensors, on the first process of each host by default."""
    current().step("save")
    if not master_only or is_master_ordinal(local=not global_master):
        torch.save(_on_host(data), file_or_path)


def _on_host(data: Value) -> Value:
    result: Value = tree_map_only(torch.Tensor, lambda each: each.detach(), data)
    return result


def send_cpu_data_to_device(datas: object, device: object, input_sharding: object = None) -> object:
    """A copy of the tensors; a single one comes back in a list, tuples as lists."""
    if isinstance(datas, torch.Tensor):
        datas = [datas]
    return copied(datas)


@world.quiet()
def copied(value: object) -> object:
    """A copy of what a batch holds, with tuples as lists, as the transfer to the device made it."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if type(value) in (list, tuple):
        assert isinstance(value, list | tuple)
        return [copied(each) for each in value]
    if isinstance(value, dict):
        return type(value)((key, copied(each)) for key, each in value.items())
    return value


def rendezvous(tag: str, payload: bytes = b"", replicas: Sequence[int] = ()) -> list[bytes]:
    """Wait for all processes and give each the payloads of all; ends the step.

    Raises ValueError for a part of the processes, TypeError for a payload that is not bytes.
    """
    return xla_rendezvous(payload, replicas or None, tag)


def xla_rendezvous(
    payload: bytes = b"", ordinals: Sequence[int] | None = None, tag: str | None = None
) -> list[bytes]:
    """The same as `rendezvous`; the tag is a name and no more."""
    if ordinals and len(ordinals) != world.size():
        raise ValueError("Only global rendezvous is supported")
    if not isinstance(payload, bytes):
        raise TypeError(f"`payload` must be bytes, not {type(payload)}")
    _end_step("rendezvous")
    return world.gather_bytes(payload)


def do_on_ordinals(
    target: Callable[..., Value], data: Sequence[object] = (), ordinals: Sequence[int] = (0,)
) -> Value | None:
    """Call something on some processes, then meet."""
    result = target(*_on_host(tuple(data))) if world.rank() in ordinals else None
    rendezvous("torch_xla.core.xla_model.do_on_ordinals")
    return result


def mesh_reduce(tag: str, data: object, reduce_fn: Callable[[list[object]], Value]) -> Value:
    """`reduce_fn` of the list of what every process gave."""
    written = io.BytesIO()
    torch.save(_on_host(data), written)
    payloads = rendezvous(tag, written.getvalue())
    # What a process of this very run sent.
    return reduce_fn([torch.load(io.BytesIO(each), weights_only=False) for each in payloads])


def set_rng_state(seed: int, device: object = None) -> None:
    """Seed the device's generator, which is the CPU's here."""
    global _seed
    _seed = seed
    torch.manual_seed(seed)
    current().note("the device had a random generator of its own; here it is the CPU's")


def get_rng_state(device: object = None) -> int:
    """The seed that was set last; the real generator moves on with each draw."""
    return _seed


@contextlib.contextmanager
def fork_rng(device: object = None, enabled: bool = True) -> Iterator[None]:
    """Draw without a trace."""
    with torch.random.fork_rng([], enabled):
        yield


def get_memory_info(device: object = None) -> dict[str, int]:
    """Zeros: there is no device memory."""
    current().note("xm.get_memory_info gives zeros: there is no device memory")
    return {"bytes_used": 0, "bytes_limit": 0, "kb_total": 0, "kb_free": 0, "peak_bytes_used": 0}


class RateTracker:
    """Samples a second, smoothed."""

    def __init__(self, smooth_factor: float | None = None) -> None:
        self._factor = 0.4 if smooth_factor is None else smooth_factor
        self._started = self._last = time.time()
        self._rate = 0.0
        self._count = self._last_count = 0.0

    def update(self, count: float) -> None:
        """Take so many samples more into account."""
        self._count += count

    def rate(self) -> float:
        """Smoothed rate since the last question."""
        now = time.time()
        if now > self._last and self._count > self._last_count:
            report = (self._count - self._last_count) / (now - self._last)
            self._rate = (
                report if self._rate == 0.0 else ((1 - self._factor) * report + self._factor * self._rate)
            )
            self._last, self._last_count = now, self._count
        return self._rate

    def global_rate(self) -> float:
        """Rate since the start."""
        return self._count / max(time.time() - self._started, 1e-9)
