"""DataLoader with workers, shuffling, pinned memory and copies that do not block."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from tests.runtime.models import Rows


def run(device: str) -> dict[str, object]:
    loader = DataLoader(
        Rows(),
        batch_size=8,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
        pin_memory=True,
        num_workers=2,
    )
    batches = [batch["input_ids"].to(device, non_blocking=True) for batch in loader]
    back = torch.stack(batches).to("cpu", non_blocking=True)
    return {"batches": torch.cat(batches), "sums": back.sum((1, 2)).tolist()}
