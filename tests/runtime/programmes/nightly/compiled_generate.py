"""Generation with a static cache, which Transformers compiles by itself on an accelerator."""

from __future__ import annotations

import torch

from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    model = llama().to(device).eval()
    ids = prompts().to(device)
    tokens = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=8,
        do_sample=False,
        cache_implementation="static",
    )
    return {"tokens": tokens}
