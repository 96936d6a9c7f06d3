"""An all_to_all of tensors of different sizes."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    sizes = (1, 3) if dist.get_rank() == 0 else (3, 1)
    received = [torch.zeros(size, device=here) for size in sizes]
    dist.all_to_all(received, [torch.ones(size, device=here) for size in sizes])
    return {"received": received[0]}
