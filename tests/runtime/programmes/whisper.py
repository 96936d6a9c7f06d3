"""Whisper: the loss of a transcript, and greedy transcription."""

from __future__ import annotations

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration


def run(device: str) -> dict[str, object]:
    config = WhisperConfig(
        vocab_size=100,
        d_model=32,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=50,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
        init_std=0.3,
    )
    model = WhisperForConditionalGeneration(config).to(device)
    features = torch.linspace(-1, 1, 800, device=device).reshape(1, 8, 100)
    labels = torch.arange(3, 13, device=device)[None]
    loss = model(features, labels=labels).loss
    loss.backward()
    tokens = model.eval().generate(features, max_new_tokens=6, do_sample=False)
    return {"loss": loss, "gradient": model.model.encoder.conv1.weight.grad, "tokens": tokens}
