"""ViT: classification of an image, and the gradient of its patch embedding."""

from __future__ import annotations

import torch
from transformers import ViTConfig, ViTForImageClassification


def run(device: str) -> dict[str, object]:
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
    )
    model = ViTForImageClassification(config).to(device)
    images = torch.linspace(-1, 1, 2 * 3 * 32 * 32, device=device).reshape(2, 3, 32, 32)
    answer = model(images, labels=torch.tensor([0, 1], device=device))
    answer.loss.backward()
    gradient = model.vit.embeddings.patch_embeddings.projection.weight.grad
    return {"logits": answer.logits, "gradient": gradient}
