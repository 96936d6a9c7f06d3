"""An optimizer as the legacy accelerators wrapped it: it averages and clips in its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from neuronmigrate.runtime.legacy.xla import world


class Optimizer:
    """An optimizer behind ZeRO-1's copies, or bare, with reduction and clipping in `step`."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, zero_1: bool, dtype: torch.dtype, max_norm: float | None
    ) -> None:
        self.inner = optimizer
        self.max_norm = max_norm if max_norm and max_norm > 0 else None
        self.grad_norm: torch.Tensor | None = None
        self.zero_1 = zero_1
        self._dtype = dtype
        self._shards: list[tuple[torch.nn.Parameter, torch.nn.Parameter]] = []
        if zero_1:
            for group in optimizer.param_groups:
                shards = []
                for parameter in group["params"]:
                    shard = torch.nn.Parameter(parameter.detach().clone().to(dtype))
                    self._shards.append((parameter, shard))
                    shards.append(shard)
                group["params"] = shards

    @torch.no_grad()
    def reduce(self) -> None:
        """Average the gradients of the model over the ranks before a step, which is to be clipped by them."""
        for each in [parameter for parameter, _ in self._shards] or self._parameters():
            if each.grad is not None:
                each.grad.copy_(_average(each.grad))

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [each for group in self.inner.param_groups for each in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        """Average the gradients over the ranks, clip, step, write the weights back."""
        for parameter, shard in self._shards:
            if parameter.grad is not None:
                shard.grad = _average(parameter.grad.to(self._dtype))
        if not self.zero_1:
            self.reduce()
        gradients = [each.grad for each in self._parameters() if each.grad is not None]
        if self.max_norm is not None and gradients:
            self.grad_norm = clip(gradients, self.max_norm)
        step: Callable[[], object] = self.inner.step
        step()
        for parameter, shard in self._shards:
            parameter.copy_(shard)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter, shard in self._shards:
            parameter.grad = shard.grad = None
        self.inner.zero_grad()

    @property
    def param_groups(self) -> list[dict[str, object]]:
        """Groups of the optimizer itself."""
        groups: list[dict[str, object]] = self.inner.param_groups
        return groups

    def state_dict(self) -> dict[str, object]:
        """State of the optimizer itself."""
        state: dict[str, object] = self.inner.state_dict()
        return state


def clip(gradients: Sequence[torch.Tensor], limit: float) -> torch.Tensor:
    """Scale gradients down to a norm, in their own dtype; the norm before, a scalar. Parity hooks this."""
    dtype = gradients[0].dtype
    total = torch.zeros([], dtype=dtype)
    for gradient in gradients:
        total += (gradient * gradient).sum()
    norm = total.sqrt()
    scale = (torch.tensor(limit, dtype=dtype) / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(scale)
    return norm


def _average(gradient: torch.Tensor) -> torch.Tensor:
    if world.size() == 1:
        return gradient
    with world.quiet():
        return torch.stack(world.gather(gradient)).sum(0) / world.size()
