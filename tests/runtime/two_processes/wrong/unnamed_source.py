"""A receive from whoever sends first."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    received = torch.zeros(1, device=here)
    dist.recv(received)
    return {"received": received}
