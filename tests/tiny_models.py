"""Tiny models with random weights, saved where a script can load them without a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

WORDS = ("a", "and", "dull", "film", "fine", "good", "is", "long", "poor", "the", "this", "was")


def save_classifier(
    folder: Path, words: Sequence[str] = WORDS, labels: Sequence[str] = ("NEGATIVE", "POSITIVE")
) -> Path:
    """Save a BERT sequence classifier with its tokenizer, the same one on every call."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

    torch.manual_seed(0)
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    config = BertConfig(
        vocab_size=len(entries),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=128,
        id2label=dict(enumerate(labels)),
        # Larger than the usual 0.02, so that different texts get clearly different logits.
        initializer_range=0.5,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    BertTokenizer(vocab={entry: i for i, entry in enumerate(entries)}).save_pretrained(folder)
    return folder
