"""What a collective that is still running hands out, and hooks that compress the gradients of DDP."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    here = join(device)
    mine = torch.arange(4.0, device=here) + dist.get_rank()
    work = dist.all_reduce(mine, async_op=True)
    assert work is not None
    work.wait()
    (result,) = work.result()
    gathered = [torch.zeros(4, device=here) for _ in range(2)]
    later = dist.all_gather(gathered, mine, async_op=True)
    assert later is not None
    doubled = later.get_future().then(lambda future: torch.cat(gathered) * 2).wait()
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 2).to(here)
    model = DistributedDataParallel(layer)
    model.register_comm_hook(None, fp16_compress_hook)
    model(mine).sum().backward()
    averaged = DistributedDataParallel(torch.nn.Linear(4, 2).to(here))
    averaged.register_comm_hook(None, lambda state, bucket: _scaled_sum(bucket))
    averaged(mine).sum().backward()
    return {
        "result": result,
        "doubled": doubled,
        "compressed": layer.weight.grad,
        "summed": averaged.module.weight.grad,
    }


def _scaled_sum(bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook that reduces by itself, and scales what comes back."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None

    def scaled(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        return future.value()[0] * torch.ones(1, device=bucket.buffer().device) / 4

    future: torch.futures.Future[torch.Tensor] = work.get_future().then(scaled)
    return future
