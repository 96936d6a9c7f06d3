"""The inputs were moved, the labels of the loss were not."""

from __future__ import annotations

import torch

from tests.runtime.models import bert, prompts


def run(device: str) -> dict[str, object]:
    return {"loss": bert().to(device)(prompts().to(device), labels=torch.tensor([0, 1])).loss}
