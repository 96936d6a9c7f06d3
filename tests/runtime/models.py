"""Tiny models with random weights, tokenizers and data for the programmes: no network, no downloads."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCABULARY = 128
WORDS = ("a", "big", "cat", "dog", "home", "mat", "on", "ran", "sat", "the")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def llama(**options: object) -> LlamaForCausalLM:
    """A Llama of two layers, the same weights on every call, in training mode."""
    torch.manual_seed(0)
    config = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
        # Larger than the usual 0.02, so that different prompts get different tokens.
        "initializer_range": 0.3,
        **options,
    }
    return LlamaForCausalLM(LlamaConfig(**config)).train()


def qwen() -> Qwen3ForCausalLM:
    """A Qwen3 of two layers, the same weights on every call, in training mode."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        pad_token_id=0,
        eos_token_id=3,
        initializer_range=0.3,
    )
    return Qwen3ForCausalLM(config).train()


def bert(labels: int = 3) -> BertForSequenceClassification:
    """A BERT classifier of two layers, the same weights on every call, in training mode."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=labels,
        initializer_range=0.3,
    )
    return BertForSequenceClassification(config).train()


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of whole words and single letters."""
    letters = [chr(ord("a") + i) for i in range(26)]
    entries = dict.fromkeys([*SPECIAL, *WORDS, *letters])
    words = Tokenizer(models.WordLevel({entry: i for i, entry in enumerate(entries)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="[PAD]",
        unk_token="[UNK]",
        bos_token="[CLS]",
        cls_token="[CLS]",
        eos_token="[SEP]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=64,
    )


def prompts(rows: int = 2, length: int = 12) -> torch.Tensor:
    """Token ids, int64 [rows, length], on the CPU, without special tokens."""
    return (torch.arange(rows * length).reshape(rows, length) * 7) % (VOCABULARY - 5) + 5


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """40 rows of 16 random token ids, each its own label; the same rows in every process."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(5, VOCABULARY, (16,), generator=generator)
        return {"input_ids": ids, "labels": ids.clone()}
