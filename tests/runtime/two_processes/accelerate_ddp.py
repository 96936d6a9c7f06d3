"""Accelerate on two processes: the loop, and the collectives on tensors of different length and objects."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object
from torch.utils.data import DataLoader

from tests.runtime.models import Rows, llama


def run(device: str) -> dict[str, object]:
    accelerator = Accelerator(cpu=device == "cpu")
    assert accelerator.device.type == device
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Rows(), batch_size=4))
    losses = []
    for batch in loader:
        loss = model(**batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).tolist())
    rank = accelerator.process_index
    ragged = torch.full((2, 3 + rank), rank, device=accelerator.device)
    padded = accelerator.pad_across_processes(ragged, dim=1, pad_index=-1)
    accelerator.wait_for_everyone()
    return {
        "losses": losses,
        "weight": accelerator.unwrap_model(model).lm_head.weight,
        "ragged": accelerator.gather(padded),
        "objects": gather_object([{"rank": rank}]),
        "told": broadcast_object_list([rank, "x" * rank], from_process=1),
    }
