"""`torch_xla.core.functions`: collectives that gradients pass."""

from __future__ import annotations

from collections.abc import Callable

import torch

from neuronmigrate.runtime.legacy.xla import model, world

__all__ = ["all_gather", "all_reduce"]


def all_reduce(
    reduce_type: str, value: torch.Tensor, scale: float = 1.0, groups: model.Groups = None
) -> torch.Tensor:
    """The tensor reduced over the replicas, with a gradient."""
    result = model.all_reduce(reduce_type, value, scale, groups)
    assert isinstance(result, torch.Tensor)
    return result


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(context: torch.autograd.function.FunctionCtx, value: torch.Tensor, dim: int) -> torch.Tensor:
        context.settings = dim, value.size(dim)  # type: ignore[attr-defined]  # a place for such things
        gathered = model.all_gather(value, dim)
        assert isinstance(gathered, torch.Tensor)
        return gathered

    @staticmethod
    def backward(
        context: torch.autograd.function.FunctionCtx, gradient: torch.Tensor
    ) -> tuple[torch.Tensor, None]:
        dim, size = context.settings  # type: ignore[attr-defined]
        # Each process keeps its own share and adds nobody's, as the original does.
        return gradient.narrow(dim, world.rank() * size, size).clone(), None


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """The tensors of all replicas along `dim`; the gradient is this process's share of it."""
    apply: Callable[..., torch.Tensor] = _AllGather.apply
    return apply(value, dim)
