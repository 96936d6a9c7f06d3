"""Send and receive, at once and later, and objects sent to one process."""

from __future__ import annotations

import torch
import torch.distributed as dist

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    rank = dist.get_rank()
    other = 1 - rank
    first, second = torch.zeros(3, device=here), torch.zeros(2, 2, device=here)
    if rank == 0:
        dist.send(torch.arange(3.0, device=here), dst=1)
    else:
        dist.recv(first, src=0)
    mine = torch.full((2, 2), float(rank + 1), device=here)
    for work in dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, second, other)]
    ):
        work.wait()
    told: list[object] = [None]
    if rank == 0:
        dist.send_object_list([{"from": 0}], dst=1)
    else:
        dist.recv_object_list(told, src=0)
    return {"first": first, "second": second, "told": told}
