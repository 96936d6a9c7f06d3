"""Transformers' pipelines: text generation and classification, with the device named."""

from __future__ import annotations

from transformers import pipeline

from tests.runtime.models import bert, llama, tokenizer


def run(device: str) -> dict[str, object]:
    generate = pipeline("text-generation", model=llama(), tokenizer=tokenizer(), device=device)
    classify = pipeline("text-classification", model=bert(), tokenizer=tokenizer(), device=device)
    assert generate.device.type == classify.device.type == device
    return {
        "text": generate("the cat sat", max_new_tokens=5, do_sample=False),
        "classes": classify(["the cat sat", "a dog"], top_k=None),
        "weight": classify.model.classifier.weight,
    }
