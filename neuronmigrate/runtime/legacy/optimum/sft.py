"""Rows and batches of `NeuronSFTTrainer`: tokenised as trl 0.24 did, padded as the Neuron collator did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, cast

import torch

from neuronmigrate.runtime.legacy.optimum.arguments import Arguments, SFTArguments, sft_config
from neuronmigrate.runtime.legacy.optimum.base import Config
from neuronmigrate.runtime.legacy.session import LegacyProblem, current

Row = Mapping[str, object]


class _Tokenizer(Protocol):
    eos_token: str | None
    eos_token_id: int | None
    pad_token: str | None

    def __call__(self, text: str) -> Mapping[str, list[int]]: ...

    def convert_tokens_to_ids(self, token: str) -> int | None: ...


@dataclass
class Prepared:
    """What the trainer is built with."""

    model: torch.nn.Module
    args: SFTArguments
    tokenizer: object
    rows: list[object]
    collator: Callable[[list[object]], dict[str, torch.Tensor]]


def prepare(
    model: torch.nn.Module | str,
    args: Arguments | None,
    dataset: Iterable[Row] | None,
    processing_class: object,
    peft_config: object,
    formatting_func: Callable[[Row], str] | None,
) -> Prepared:
    """Everything the original's constructor made before it handed over to the trainer.

    Raises TypeError for a model by name without its neuron configuration, as the original did, and
    LegacyProblem for packing, conversations and what else has no stand-in.
    """
    release = str(current().release)
    config = sft_config(release)
    if isinstance(model, str):
        raise TypeError("NeuronModelForCausalLM.from_pretrained() missing 1 required argument: 'trn_config'")
    model_config: Config = model.config
    name = str(model_config.name_or_path)
    if args is None:
        named: Callable[[str], SFTArguments] = config
        args = named(f"{name.split('/')[-1]}-SFT")
    elif not isinstance(args, SFTArguments):
        raise AttributeError("'NeuronTrainingArguments' object has no attribute 'hub_token'")
    if dataset is None:
        raise ValueError("NeuronTrainer: training requires a train_dataset.")
    if args.packing:
        raise LegacyProblem("NeuronSFTTrainer: packing has no stand-in")
    if processing_class is None:
        from transformers import AutoTokenizer

        processing_class = AutoTokenizer.from_pretrained(name)
    tokenizer = cast("_Tokenizer", processing_class)
    if peft_config is not None:
        from peft import get_peft_model

        wrap: Callable[..., torch.nn.Module] = get_peft_model
        model = wrap(model, peft_config)
    rows = list(dataset)
    only_completion = args.completion_only_loss
    if only_completion is None:
        only_completion = "prompt" in rows[0] and "completion" in rows[0]
    made = [_tokenised(row, tokenizer, args, formatting_func) for row in rows]
    pad = args.pad_token or tokenizer.pad_token or tokenizer.eos_token
    pad_id = None if pad is None else tokenizer.convert_tokens_to_ids(pad)
    if pad_id is None:
        raise ValueError(f"The specified `pad_token` ('{pad}') is not found in the vocabulary.")
    length = args.max_length
    return Prepared(model, args, tokenizer, list(made), Collator(length, pad_id, bool(only_completion)))


def _tokenised(
    row: Row, tokenizer: _Tokenizer, args: SFTArguments, formatting_func: Callable[[Row], str] | None
) -> dict[str, list[int]]:
    """Token ids of a row, cut to `max_length`, and the mask of its completion."""
    length = args.max_length
    if "input_ids" in row:
        return {name: list(cast("list[int]", row[name])) for name in row if name in _COLUMNS}
    end = tokenizer.eos_token or ""
    if formatting_func is None and "prompt" in row and "completion" in row:
        prompt, completion = row["prompt"], row["completion"]
        if not isinstance(prompt, str) or not isinstance(completion, str):
            raise LegacyProblem("NeuronSFTTrainer: conversations have no stand-in")
        if not completion.endswith(end):
            completion += end
        ids = tokenizer(prompt + completion)["input_ids"]
        before = len(tokenizer(prompt)["input_ids"])
        mask = [0] * before + [1] * (len(ids) - before)
        return {"input_ids": ids[:length], "completion_mask": mask[:length]}
    if formatting_func is not None:
        text: object = formatting_func(row)
    else:
        text = row.get(args.dataset_text_field)
    if not isinstance(text, str):
        raise LegacyProblem("NeuronSFTTrainer: a row without a text has no stand-in (a conversation?)")
    if not text.endswith(end):
        text += end
    return {"input_ids": tokenizer(text)["input_ids"][:length]}


_COLUMNS = ("input_ids", "labels", "completion_mask")


class Collator:
    """Batches of int64 `(batch, max_length)`: ids, labels and a mask of ones."""

    def __init__(self, max_length: int, pad_token_id: int, completion_only_loss: bool) -> None:
        self.max_length = max_length
        self.pad_token_id = pad_token_id
        self.completion_only_loss = completion_only_loss

    def __call__(self, examples: list[object]) -> dict[str, torch.Tensor]:
        """Pad first, then take the padded ids for labels: that is the original's order."""
        rows = cast("list[Mapping[str, list[int]]]", examples)
        ids = torch.tensor([self._filled(row["input_ids"], self.pad_token_id) for row in rows])
        labels = ids.clone()
        if "labels" in rows[0]:
            labels = torch.tensor([self._filled(row["labels"], -100) for row in rows])
        if self.completion_only_loss and "completion_mask" in rows[0]:
            kept = torch.tensor([self._filled(row["completion_mask"], 0) for row in rows])
            labels[kept == 0] = -100
        return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}

    def _filled(self, values: list[int], fill: int) -> list[int]:
        return [*values[: self.max_length], *[fill] * (self.max_length - len(values))]
