"""DistributedDataParallel: a static graph first, three steps, parameters that a step does not use."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.runtime.groups import join
from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    here = join(device)
    rank = torch.distributed.get_rank()
    static = DistributedDataParallel(torch.nn.Linear(4, 2).to(here), static_graph=True)
    for _ in range(2):
        static(torch.ones(2, 4, device=here) * (rank + 1)).sum().backward()
    model = DistributedDataParallel(llama().to(here), gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for step in range(3):
        ids = (prompts() + rank + step).to(here) % 128
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    partly = DistributedDataParallel(_Partly().to(here), find_unused_parameters=True)
    for step in range(2):
        partly(torch.ones(2, 4, device=here) * (rank + 1), second=step == 1).sum().backward()
    return {
        "losses": losses,
        "static": static.module.weight.grad,
        "weight": model.module.lm_head.weight,
        "first": partly.module.first.weight.grad,
        "second": partly.module.second.weight.grad,
    }


class _Partly(torch.nn.Module):
    """Two layers, one of which a call uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 2)
        self.second = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor, second: bool) -> torch.Tensor:
        answer: torch.Tensor = (self.second if second else self.first)(x)
        return answer
