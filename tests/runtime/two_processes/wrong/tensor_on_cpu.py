"""A collective on a tensor that was left on the CPU."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    join(device)
    count = torch.ones(1)
    dist.all_reduce(count)
    return {"count": count}
