"""FSDP1 by flat parameters: two steps, compared with DistributedDataParallel in the same run.

On the CPU, FSDP1 frees and gathers its flat parameters in another way; what must hold on either device
is that it trains as DDP does.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

from tests.runtime.groups import join
from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    here = join(device)
    sharded = _losses(FullyShardedDataParallel(llama().to(here), use_orig_params=True), here)
    whole = _losses(DistributedDataParallel(llama().to(here)), here)
    torch.testing.assert_close(sharded, whole, rtol=1e-6, atol=0)
    return {"sharded": sharded, "whole": whole}


def _losses(model: torch.nn.Module, here: torch.device) -> torch.Tensor:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for step in range(2):
        ids = (prompts() + dist.get_rank() + step).to(here) % 128
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)
