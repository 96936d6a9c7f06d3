"""BERT for classification: forward of a padded batch, then one training step with dropout."""

from __future__ import annotations

import torch

from tests.runtime.models import bert, tokenizer


def run(device: str) -> dict[str, object]:
    model = bert().to(device).eval()
    texts = ["the cat sat", "a dog"]
    batch = tokenizer()(texts, padding="max_length", max_length=16, return_tensors="pt").to(device)
    with torch.no_grad():
        logits = model(**batch).logits
    model.train()
    loss = model(**batch, labels=torch.tensor([0, 2], device=device)).loss
    loss.backward()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    return {"logits": logits, "loss": loss, **gradients}
