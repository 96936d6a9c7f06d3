"""The model is moved before the process joins its group."""

from __future__ import annotations

import torch.distributed as dist

from tests.runtime.models import llama


def run(device: str) -> dict[str, object]:
    model = llama().to(device)
    dist.init_process_group("neuron")
    return {"weight": model.lm_head.weight}
