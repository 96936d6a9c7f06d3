"""An all_to_all with parts of different sizes."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    sizes = [1, 3] if dist.get_rank() == 0 else [3, 1]
    received = torch.zeros(sum(sizes), device=here)
    dist.all_to_all_single(received, torch.ones(4, device=here), sizes, sizes)
    return {"received": received}
