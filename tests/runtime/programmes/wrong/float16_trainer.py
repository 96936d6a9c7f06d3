"""Mixed precision in float16, which Transformers refuses on the device."""

from __future__ import annotations

import torch
from transformers import Trainer, TrainingArguments

from tests.runtime.models import Rows, llama


def run(device: str) -> dict[str, object]:
    arguments = TrainingArguments("out", max_steps=1, fp16=True, report_to=[])
    Trainer(llama(), arguments, train_dataset=Rows()).train()
    return {"ran": torch.ones(1, device=device)}
