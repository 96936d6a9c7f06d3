"""T5: encoder and decoder, the loss with relative positions, and greedy generation."""

from __future__ import annotations

from transformers import T5Config, T5ForConditionalGeneration

from tests.runtime.models import prompts


def run(device: str) -> dict[str, object]:
    config = T5Config(
        vocab_size=128,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        initializer_factor=0.5,
    )
    model = T5ForConditionalGeneration(config).to(device)
    ids = prompts().to(device)
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    tokens = model.eval().generate(ids, max_new_tokens=5, do_sample=False)
    return {"loss": loss, "gradient": model.shared.weight.grad, "tokens": tokens}
