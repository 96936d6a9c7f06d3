"""Several tensors in one collective, and the collectives that autograd goes through."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.nn import functional as differentiable

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    tensors = [torch.arange(4.0, device=here) + rank, torch.ones(2, 3, device=here) * (rank + 1)]
    reduced = [each.clone() for each in tensors]
    dist.all_reduce_coalesced(reduced)
    parts = [torch.zeros(4, device=here)]
    dist.reduce_scatter(parts[0], [tensors[0] * (i + 1) for i in range(size)])
    joined = functional.all_gather_into_tensor_coalesced(tensors, group)
    scattered = functional.reduce_scatter_tensor_coalesced(
        [tensors[0], tensors[0].repeat(2)], "sum", [0, 0], group
    )
    together = functional.all_reduce_coalesced(tensors, "max", group)
    exchanged = functional.all_to_all_single(tensors[0], None, None, group)
    leaf = tensors[0].clone().requires_grad_()
    differentiable.all_reduce(leaf * 2).square().sum().backward()
    gathered = functional.all_gather_tensor_autograd(leaf, 0, group)
    (gathered * torch.arange(8.0, device=here)).sum().backward()
    return {
        **{f"reduced_{i}": each for i, each in enumerate(reduced)},
        "part": parts[0],
        **{f"joined_{i}": each + 0 for i, each in enumerate(joined)},
        **{f"scattered_{i}": each + 0 for i, each in enumerate(scattered)},
        **{f"together_{i}": each + 0 for i, each in enumerate(together)},
        "exchanged": exchanged + 0,
        "gradient": leaf.grad,
    }
