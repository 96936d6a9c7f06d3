"""Generation with a static cache from left-padded prompts of different lengths, tokenized on the CPU."""

from __future__ import annotations

from tests.runtime.models import llama, tokenizer


def run(device: str) -> dict[str, object]:
    model = llama().to(device).eval()
    words = tokenizer()
    words.padding_side = "left"
    batch = words(
        ["the cat sat on a mat", "a dog ran"], padding="max_length", max_length=16, return_tensors="pt"
    )
    tokens = model.generate(
        **batch.to(device),
        max_new_tokens=8,
        do_sample=False,
        cache_implementation="static",
        disable_compile=True,
    )
    return {"tokens": tokens, "texts": words.batch_decode(tokens.cpu())}
