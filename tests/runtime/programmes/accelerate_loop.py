"""Accelerate: a training loop in bfloat16 with clipping, saved and restored state."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from tests.runtime.models import Rows, llama


def run(device: str) -> dict[str, object]:
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2)
    assert accelerator.device.type == device
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Rows(), batch_size=8))
    losses = []
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
        if step == 2:
            accelerator.save_state("state")
    weight = accelerator.unwrap_model(model).lm_head.weight
    trained = weight.detach().clone()
    accelerator.load_state("state")
    return {"losses": losses, "trained": trained, "restored": weight}
