"""Llama: forward, and greedy generation with the dynamic and with the static cache."""

from __future__ import annotations

import torch

from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    model = llama().to(device).eval()
    ids = prompts().to(device)
    mask = torch.ones_like(ids)
    with torch.no_grad():
        logits = model(ids).logits
    dynamic = model.generate(ids, attention_mask=mask, max_new_tokens=8, do_sample=False)
    static = model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=8,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
    )
    return {"logits": logits, "dynamic": dynamic, "static": static}
