"""Transformers: a checkpoint loaded with tensor parallelism, forward and greedy generation."""

from __future__ import annotations

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM

from tests.runtime.groups import join
from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    join(device)
    if dist.get_rank() == 0:
        llama().save_pretrained("model")
    dist.barrier()
    model = AutoModelForCausalLM.from_pretrained("model", tp_plan="auto").eval()
    ids = prompts().to(model.device)
    with torch.no_grad():
        logits = model(ids).logits
    tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
    return {"logits": logits, "tokens": tokens}
