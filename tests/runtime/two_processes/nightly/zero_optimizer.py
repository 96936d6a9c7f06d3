"""ZeroRedundancyOptimizer, and the accumulation of gradients without synchronization."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    model = DistributedDataParallel(layer.to(here))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    rows = torch.arange(12.0, device=here).reshape(3, 4) + dist.get_rank()
    for step in range(4):
        if step % 2 == 0:
            with model.no_sync():
                model(rows).square().mean().backward()
        else:
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return {f"parameter_{i}": each for i, each in enumerate(model.parameters())}
