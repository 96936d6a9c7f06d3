"""The attention mask was left on the CPU."""

from __future__ import annotations

import torch
from torch.nn import functional


def run(device: str) -> dict[str, object]:
    heads = torch.ones(1, 2, 4, 8, device=device)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    return {"attended": functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask)}
