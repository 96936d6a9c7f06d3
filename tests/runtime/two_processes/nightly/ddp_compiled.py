"""torch.compile around DistributedDataParallel, one step."""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.runtime.groups import join
from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    here = join(device)
    model = DistributedDataParallel(llama().to(here))
    compiled = torch.compile(model, backend="neuron" if device == "neuron" else "aot_eager", dynamic=False)
    ids = (prompts() + torch.distributed.get_rank()).to(here)
    loss = compiled(input_ids=ids, labels=ids).loss
    loss.backward()
    return {"loss": loss, "gradient": model.module.lm_head.weight.grad}
