"""FSDP1 by flat parameters: two steps; the CPU, where FSDP1 does not run, has DDP for a reference."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from tests.runtime.groups import join
from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    here = join(device)
    model = llama().to(here)
    if device == "cpu":
        wrapped: torch.nn.Module = DistributedDataParallel(model)
    else:
        wrapped = FullyShardedDataParallel(model, use_orig_params=True)
    optimizer = torch.optim.AdamW(wrapped.parameters(), 1e-2)
    losses = []
    for step in range(3):
        ids = (prompts() + dist.get_rank() + step).to(here) % 128
        loss = wrapped(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return {"losses": torch.stack(losses)}
