"""Rows of the supervised fine-tuning stand-ins, of trl 0.11.4 and of trl 0.24."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from neuronmigrate.runtime.legacy import LegacyProblem
from tests.runtime.legacy_session import begin

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dull", "fine", "film", "long"]
TEMPLATE = "{% for turn in messages %}{{ turn.role }} {{ turn.content }} {% endfor %}"


def _tokenizer(folder: Path) -> Any:
    """One token a word; it puts [CLS] before and [SEP], its end token, behind a text."""
    from transformers import BertTokenizerFast

    (folder / "vocab.txt").write_text("\n".join(WORDS))
    build: Callable[..., Any] = getattr(BertTokenizerFast, "from_pretrained")  # noqa: B009 - of a class
    made = build(str(folder), eos_token="[SEP]")
    made.chat_template = TEMPLATE
    return made


def _model() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=10,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        eos_token_id=3,
        pad_token_id=0,
    )
    build: Callable[..., torch.nn.Module] = LlamaForCausalLM
    return build(config)


def _rows(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset

    make: Callable[..., Any] = getattr(Dataset, "from_list")  # noqa: B009 - of a class
    return make(rows)


def _config(release: str, folder: Path, **fields: object) -> Any:
    """`NeuronSFTConfig` of a release."""
    from neuronmigrate.runtime.legacy.optimum import arguments, transformers_arguments

    module = arguments if release.startswith("0.4") else transformers_arguments
    make: Callable[..., Any] = module.sft_config(release)
    defaults: dict[str, object] = {"max_steps": 1, "per_device_train_batch_size": 1, "save_strategy": "no"}
    return make(output_dir=str(folder), **{**defaults, "disable_tqdm": True, "logging_steps": 1, **fields})


@pytest.mark.parametrize("release", ["0.3.0", "0.4.1"])
def test_texts_are_padded_to_one_length_until_0_4_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    from neuronmigrate.runtime.legacy.optimum import sft_0_4_0, sft_until_0_3

    begin(monkeypatch, release)
    build: Callable[..., Any] = (sft_0_4_0 if release == "0.4.1" else sft_until_0_3).NeuronSFTTrainer
    args = _config(release, tmp_path, dataset_text_field="text", max_seq_length=6)
    trainer = build(
        _model(),
        args,
        train_dataset=_rows([{"text": "a fine film"}, {"text": "a long long dull film"}]),
        tokenizer=_tokenizer(tmp_path),
    )
    batch = trainer.data_collator([trainer.train_dataset[0], trainer.train_dataset[1]])
    assert batch["input_ids"].tolist() == [[2, 5, 7, 8, 3, 0], [2, 5, 9, 9, 6, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1, 1, 0], [1] * 6]
    assert batch["labels"].tolist() == [[2, 5, 7, 8, 3, -100], [2, 5, 9, 9, 6, 3]]
    trainer.train()
    (loss,) = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    # 0.4.x divided the mean by the labels as well.
    assert (loss < 1) == (release == "0.4.1")


def _prepared(folder: Path, rows: list[dict[str, Any]], formatting: Any = None, **fields: object) -> Any:
    from neuronmigrate.runtime.legacy.optimum import sft_trl_0_11

    args = _config("0.3.0", folder, max_seq_length=6, **fields)
    tokenizer = _tokenizer(folder)
    made = sft_trl_0_11.prepare(_model(), args, None, _rows(rows), None, tokenizer, None, formatting)
    return made.train


def test_conversations_go_through_the_template_without_special_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(monkeypatch, "0.3.0")
    turns = [{"role": "a", "content": "fine"}, {"role": "film", "content": "long"}]
    (row,) = _prepared(tmp_path, [{"messages": turns}])
    assert row["input_ids"] == [5, 7, 8, 9, 0, 0]
    pair = {"prompt": "fine", "completion": "long"}
    # The roles "user" and "assistant" are no words of this vocabulary.
    (row,) = _prepared(tmp_path, [pair])
    assert row["input_ids"] == [1, 7, 1, 9, 0, 0]
    with pytest.raises(ValueError, match="didn't pass a `dataset_text_field`"):
        _prepared(tmp_path, [{"words": "fine"}])


def test_formatting_functions_take_batches_unless_rows_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(monkeypatch, "0.3.0")
    rows = [{"words": "fine"}, {"words": "long film"}]

    def of_batch(batch: Mapping[str, Any]) -> list[str]:
        return [f"{words} a" for words in batch["words"]]

    assert [row["input_ids"] for row in _prepared(tmp_path, rows, of_batch)] == [
        [2, 7, 5, 3, 0, 0],
        [2, 9, 8, 5, 3, 0],
    ]
    with pytest.raises(ValueError, match="should return a list"):
        _prepared(tmp_path, rows, lambda batch: "a")
    # Eleven tokens with the two ends: one block, the rest is lost.
    packed = _prepared(tmp_path, rows, lambda row: f"{row['words']} a", packing=True)
    (block,) = packed
    first, second = [2, 7, 5, 3, 3], [2, 9, 8, 5, 3, 3]
    assert block["input_ids"] in ((first + second)[:6], (second + first)[:6])
    assert block["labels"] == block["input_ids"]
    with pytest.raises(ValueError, match="at least yield one packed sequence"):
        _prepared(tmp_path, rows[:1], lambda row: "a", packing=True)


def test_packing_of_trl_0_24() -> None:
    from neuronmigrate.runtime.legacy.optimum.sft import _packed

    rows = [[1, 2, 3], [4, 5], [6, 7, 8], [9], [10, 11, 12, 13, 14]]

    def packed(strategy: str) -> list[list[int]]:
        args: Any = types.SimpleNamespace(max_length=4, packing_strategy=strategy)
        given = [{"input_ids": list(row), "completion_mask": [each % 2 for each in row]} for row in rows]
        made = list(_packed(given, args))
        assert all(row["completion_mask"] == [each % 2 for each in row["input_ids"]] for row in made)
        return [row["input_ids"] for row in made]

    # The longest first; a row that is too long loses its end.
    assert packed("bfd") == [[10, 11, 12, 13], [1, 2, 3, 9], [6, 7, 8], [4, 5]]
    assert packed("wrapped") == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14]]
    with pytest.raises(ValueError, match="Invalid packing strategy: other"):
        packed("other")


def test_conversations_of_trl_0_24(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuronmigrate.runtime.legacy.optimum.sft import prepare

    begin(monkeypatch)
    tokenizer = _tokenizer(tmp_path)

    def batch(row: dict[str, Any], **fields: object) -> dict[str, list[int]]:
        args = _config("0.4.5", tmp_path, max_length=6, **fields)
        made = prepare(_model(), args, [row], tokenizer, None, None)
        return {name: value[0].tolist() for name, value in made.collator(made.rows).items()}

    ours = [{"role": "a", "content": "fine"}, {"role": "film", "content": "long"}]
    theirs = [{"from": "a", "value": "fine"}, {"from": "film", "value": "long"}]
    for row in ({"messages": ours}, {"conversations": theirs}):
        assert batch(row)["labels"] == [*batch(row)["input_ids"][:-2], 0, 0]
        assert batch(row)["attention_mask"] == [1] * 6
    split = {"prompt": ours[:1], "completion": ours[1:]}
    whole = batch({"messages": ours})["input_ids"]
    assert batch(split)["input_ids"] == whole
    before = [each == -100 for each in batch(split)["labels"]]
    assert before == [True, True, *[False] * (len(whole) - 4), True, True]
    with pytest.raises(RuntimeError, match="no assistant tokens"):
        batch({"messages": ours}, assistant_only_loss=True)
    with pytest.raises(LegacyProblem, match="pictures"):
        batch({"messages": ours, "images": []})
