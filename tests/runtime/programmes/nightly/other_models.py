"""GPT-2, Mixtral, CLIP and DistilBERT: forward and backward."""

from __future__ import annotations

import torch
from transformers import (
    CLIPConfig,
    CLIPModel,
    DistilBertConfig,
    DistilBertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
)

from tests.runtime.models import prompts


def run(device: str) -> dict[str, object]:
    ids = prompts().to(device)
    small = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4}
    mixtral = MixtralForCausalLM(MixtralConfig(**small, **layers, num_key_value_heads=2, num_local_experts=4))
    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4))
    distil = DistilBertForTokenClassification(
        DistilBertConfig(vocab_size=128, dim=32, hidden_dim=64, n_layers=2, n_heads=4)
    )
    vision = {"hidden_size": 32, "intermediate_size": 64, **layers, "image_size": 32, "patch_size": 8}
    clip = CLIPModel(CLIPConfig(text_config={**small, **layers}, vision_config=vision, projection_dim=16))
    images = torch.linspace(-1, 1, 2 * 3 * 32 * 32, device=device).reshape(2, 3, 32, 32)
    outcome: dict[str, object] = {}
    cases: list[tuple[str, PreTrainedModel, dict[str, object]]] = [
        ("mixtral", mixtral, {"input_ids": ids, "labels": ids}),
        ("gpt2", gpt2, {"input_ids": ids, "labels": ids}),
        ("distilbert", distil, {"input_ids": ids, "labels": ids % 2}),
        ("clip", clip, {"input_ids": ids, "pixel_values": images, "return_loss": True}),
    ]
    for name, model, inputs in cases:
        outcome |= {f"{name}_{key}": value for key, value in _trained(model.to(device), inputs).items()}
    return outcome


def _trained(model: PreTrainedModel, inputs: dict[str, object]) -> dict[str, object]:
    loss = model(**inputs).loss
    loss.backward()
    return {
        "loss": loss,
        **{name: each.grad for name, each in model.named_parameters() if each.grad is not None},
    }
