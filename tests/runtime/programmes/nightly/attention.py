"""The attention implementations of Transformers, and PyTorch's own with masks, dropout and grouped heads."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    ids = prompts().to(device)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    outcome: dict[str, object] = {}
    for name in ("eager", "sdpa"):
        model = llama(attn_implementation=name).to(device)
        loss = model(ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        outcome |= {name: loss, f"{name}_gradient": model.model.embed_tokens.weight.grad}
    query = torch.randn(2, 4, 6, 8, device=device, requires_grad=True)
    keys = torch.randn(2, 2, 6, 8, device=device, requires_grad=True)
    allowed = torch.ones(6, 6, dtype=torch.bool, device=device).tril()
    for name, options in (
        ("causal", {"is_causal": True}),
        ("masked", {"attn_mask": allowed}),
        ("added", {"attn_mask": torch.zeros(6, 6, device=device)}),
        ("scaled", {"scale": 0.5}),
        ("dropped", {"dropout_p": 0.5}),
    ):
        answer = functional.scaled_dot_product_attention(query, keys, keys, enable_gqa=True, **options)
        outcome[name] = answer
        outcome[f"{name}_gradient"] = torch.autograd.grad(answer.sum(), (query, keys))[1]
    return outcome
