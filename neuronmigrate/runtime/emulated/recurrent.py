"""LSTM, GRU and RNN layers, whole on the CPU, autograd included.

For a device other than the CPU, PyTorch's C++ takes fused cells that the CPU does not have, while the CPU
takes kernels of its own. So the operation runs on the CPU with autograd recording there, and stands in the
device's graph as one node.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch._ops import OpOverload

from neuronmigrate.runtime.emulated.fallback import MixedDevices, by_name, observers, overload_of, tell
from neuronmigrate.runtime.emulated.retag import to_cpu, to_neuron

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

NAMES = (
    *("gru.data", "gru.input", "gru_cell", "lstm.data", "lstm.input", "lstm_cell"),
    *("rnn_relu.data", "rnn_relu.input", "rnn_tanh.data", "rnn_tanh.input"),
)


class OnCpu(torch.autograd.Function):
    """An operation and its gradient on the CPU."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, op: OpOverload, structure: list[object], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        """Run `op` on its arguments, in which an `_At` stands for each of the tensors."""
        twins = [
            to_cpu(tensor.detach()).requires_grad_(needed) if tensor.get_device() == 0 else tensor
            for tensor, needed in zip(tensors, ctx.needs_input_grad[2:], strict=True)  # type: ignore[attr-defined]
        ]
        with torch.enable_grad():
            made = op(*(_fill(item, twins) for item in structure))
        results = [made] if isinstance(made, Tensor) else list(made)
        ctx.twins, ctx.results = twins, results  # type: ignore[attr-defined]
        return tuple(to_neuron(result.detach()) for result in results)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of the tensors."""
        twins: list[Tensor] = ctx.twins  # type: ignore[attr-defined]
        results: list[Tensor] = ctx.results  # type: ignore[attr-defined]
        wanted = [twin for twin in twins if twin.requires_grad]
        made = iter(
            torch.autograd.grad(
                results, wanted, [to_cpu(g) for g in gradients], retain_graph=True, allow_unused=True
            )
        )
        found = [next(made) if twin.requires_grad else None for twin in twins]
        return None, None, *(None if gradient is None else to_neuron(gradient) for gradient in found)


class _At:
    """The place of a tensor among the arguments."""

    def __init__(self, index: int) -> None:
        self.index = index


def _take(item: object, tensors: list[Tensor]) -> object:
    if isinstance(item, Tensor):
        tensors.append(item)
        return _At(len(tensors) - 1)
    return [_take(part, tensors) for part in item] if isinstance(item, (list, tuple)) else item


def _fill(item: object, tensors: Sequence[Tensor]) -> object:
    if isinstance(item, _At):
        return tensors[item.index]
    return [_fill(part, tensors) for part in item] if isinstance(item, list) else item


def run(op: OpOverload, *args: object) -> object:
    """The operation, with one node in the graph if a gradient is wanted."""
    tensors: list[Tensor] = []
    structure = [_take(item, tensors) for item in args]
    # The batch sizes of a packed sequence stay on the CPU.
    if any(tensor.is_cpu and tensor.dtype.is_floating_point for tensor in tensors):
        raise MixedDevices(op._name, args)
    if not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)):
        return by_name(op._name, *args)
    if observers:
        tell(op._name, args, {})
    made = OnCpu.apply(op, structure, *tensors)
    return made[0] if len(op._schema.returns) == 1 else tuple(made)


def install(lib: torch.library.Library) -> None:
    """Register above autograd, and below it for inference mode."""
    for name in NAMES:
        op = overload_of(f"aten::{name}")
        lib.impl(name, functools.partial(run, op), "AutogradPrivateUse1")
        lib.impl(name, functools.partial(run, op), "PrivateUse1")
