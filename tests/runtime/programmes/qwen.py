"""Qwen: forward, sampling and beam search."""

from __future__ import annotations

import torch

from tests.runtime.models import prompts, qwen


def run(device: str) -> dict[str, object]:
    model = qwen().to(device).eval()
    ids = prompts().to(device)
    mask = torch.ones_like(ids)
    with torch.no_grad():
        logits = model(ids).logits
    torch.manual_seed(7)
    sampled = model.generate(
        ids, attention_mask=mask, max_new_tokens=8, do_sample=True, top_k=20, top_p=0.9, temperature=0.8
    )
    beams = model.generate(ids, attention_mask=mask, max_new_tokens=6, num_beams=3, do_sample=False)
    return {"logits": logits, "sampled": sampled, "beams": beams}
