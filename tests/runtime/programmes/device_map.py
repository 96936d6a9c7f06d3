"""A checkpoint loaded onto the device in bfloat16, tied weights included."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    llama(tie_word_embeddings=True).save_pretrained("model")
    model = AutoModelForCausalLM.from_pretrained("model", device_map=device, dtype=torch.bfloat16).eval()
    ids = prompts().to(model.device)
    with torch.no_grad():
        logits = model(ids).logits
    tokens = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    return {
        "logits": logits,
        "tokens": tokens,
        "tied": model.get_input_embeddings().weight is model.get_output_embeddings().weight,
    }
