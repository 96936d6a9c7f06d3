"""A mesh of two dimensions, one of them of size one: tensor parallelism inside, FSDP2 outside."""

from __future__ import annotations

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    outcome: dict[str, object] = {}
    for shape in ((2, 1), (1, 2)):
        mesh = init_device_mesh(device, shape, mesh_dim_names=("data", "tensor"))
        torch.manual_seed(0)
        block = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)).to(here)
        parallelize_module(block, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
        optimizer = torch.optim.SGD(block.parameters(), 0.1)
        rows = torch.arange(16.0, device=here).reshape(2, 8) / (1 + mesh["data"].get_local_rank())
        loss = block(rows).square().mean()
        loss.backward()
        optimizer.step()
        weight = block[0].weight
        assert isinstance(weight, DTensor)
        outcome |= {f"loss_{shape}": loss, f"weight_{shape}": weight.full_tensor()}
    return outcome
