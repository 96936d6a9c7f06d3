"""Leaving the default group and joining it again, after the device has been used; groups that overlap."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    first = torch.ones(2, device=here) * (dist.get_rank() + 1)
    dist.all_reduce(first)
    alone = dist.new_group([0])
    if dist.get_rank() == 0:
        dist.all_reduce(first, group=alone)
    dist.destroy_process_group()
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    join(device)
    second = first.clone()
    dist.all_reduce(second)
    return {"first": first, "second": second}
