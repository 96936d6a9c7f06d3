"""PEFT: LoRA with dropout, trained, saved, loaded and merged."""

from __future__ import annotations

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1)
    model = get_peft_model(llama(), config).to(device)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], 1e-2)
    ids = prompts().to(device)
    losses = []
    for _ in range(3):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.save_pretrained("adapter")
    again = PeftModel.from_pretrained(llama().to(device), "adapter").eval()
    with torch.no_grad():
        logits = again(ids).logits
    merged = model.merge_and_unload().model.layers[0].self_attn.q_proj.weight
    return {"losses": losses, "logits": logits, "merged": merged}
