"""torch.distributed: the collectives, their asynchronous and functional forms, objects, a second group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    rank, size = dist.get_rank(), dist.get_world_size()
    world = dist.group.WORLD
    assert world is not None
    mine = torch.arange(4.0, device=here) + 10 * rank
    reduced, averaged, largest, sent = mine.clone(), mine.clone(), mine.clone(), mine.clone()
    dist.all_reduce(reduced)
    dist.all_reduce(averaged, op=dist.ReduceOp.AVG)
    dist.reduce(largest, 1, op=dist.ReduceOp.MAX)
    dist.broadcast(sent, 1)
    gathered = [torch.zeros_like(mine) for _ in range(size)]
    dist.all_gather(gathered, mine)
    joined = torch.zeros(size * 4, device=here)
    dist.all_gather_into_tensor(joined, mine)
    scattered = torch.zeros(2, device=here)
    dist.reduce_scatter_tensor(scattered, mine)
    exchanged = torch.zeros_like(mine)
    dist.all_to_all_single(exchanged, mine)
    parts = [torch.zeros(2, device=here) for _ in range(size)]
    dist.all_to_all(parts, list(mine.split(2)))
    collected = [torch.zeros_like(mine) for _ in range(size)] if rank == 0 else None
    dist.gather(mine, collected, dst=0)
    handed = torch.zeros(4, device=here)
    dist.scatter(handed, [mine, mine + 1] if rank == 0 else None, src=0)
    later = mine.clone()
    work = dist.all_reduce(later, async_op=True)
    assert work is not None
    work.wait()
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    told = [rank]
    dist.broadcast_object_list(told, src=1)
    dist.barrier()
    second = dist.new_group([0, 1])
    grouped = mine.clone()
    dist.all_reduce(grouped, group=second)
    return {
        "reduced": reduced,
        "averaged": averaged,
        "largest": largest,
        "sent": sent,
        "gathered": torch.stack(gathered),
        "joined": joined,
        "scattered": scattered,
        "exchanged": exchanged,
        "parts": torch.cat(parts),
        "collected": torch.stack(collected or [mine]),
        "handed": handed,
        "later": later,
        "grouped": grouped,
        "functional": functional.all_reduce(mine, "sum", world) + 0,
        "functional_joined": functional.all_gather_tensor(mine, 0, world) + 0,
        "functional_scattered": functional.reduce_scatter_tensor(mine, "sum", 0, world) + 0,
        "objects": objects,
        "told": told,
    }
