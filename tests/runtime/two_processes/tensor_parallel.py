"""DTensor: tensors distributed over a mesh, and a block parallelized by columns and rows."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(0)
    block = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)).to(here)
    parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    answer = block(torch.arange(16.0, device=here).reshape(2, 8))
    answer.square().mean().backward()
    gradient = block[0].weight.grad
    assert isinstance(gradient, DTensor)
    spread = distribute_tensor(torch.arange(8.0, device=here), mesh, [Shard(0)])
    doubled, total = spread * 2, spread.sum()
    assert isinstance(doubled, DTensor)
    assert isinstance(total, DTensor)
    return {
        "answer": answer,
        "gradient": gradient.full_tensor(),
        "local": spread.to_local(),
        "doubled": doubled.redistribute(mesh, [Replicate()]).to_local(),
        "total": total.full_tensor(),
    }
