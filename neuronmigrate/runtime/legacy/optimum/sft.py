"""Rows and batches of `NeuronSFTTrainer` from 0.4.2 on: trl 0.24's rows, padded by the Neuron collator.

From `trainers/sft_trainer.py` at 0.4.5; `trl/trainer/sft_trainer.py`, `trl/data_utils.py` of trl 0.24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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

    def apply_chat_template(
        self, conversation: list[Mapping[str, object]], **kwargs: object
    ) -> Mapping[str, list[int]]: ...


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

    Raises as the original did: TypeError for a model by name without its neuron configuration, ValueError
    for a formatting function beside `completion_only_loss`, for packing without a length and for a padding
    token that the vocabulary lacks, RuntimeError for `assistant_only_loss` with a template that marks
    nothing. Raises LegacyProblem for pictures, which have no stand-in.
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
        only_completion = bool(rows) and "prompt" in rows[0] and "completion" in rows[0]
    if rows and ("image" in rows[0] or "images" in rows[0]):
        raise LegacyProblem("NeuronSFTTrainer: rows with pictures have no stand-in")
    skipped = bool((args.dataset_kwargs or {}).get("skip_prepare_dataset"))
    if only_completion and formatting_func is not None and not skipped:
        raise ValueError(
            "A formatting function was provided while `completion_only_loss=True`, which is incompatible."
        )
    made: list[Mapping[str, object]] = rows
    if not skipped:
        tokenised = [_tokenised(row, tokenizer, args, formatting_func) for row in rows]
        made = list(_packed(tokenised, args) if args.packing else _cut(tokenised, args.max_length))
    pad = args.pad_token or tokenizer.pad_token or tokenizer.eos_token
    pad_id = None if pad is None else tokenizer.convert_tokens_to_ids(pad)
    if pad_id is None:
        raise ValueError(f"The specified `pad_token` ('{pad}') is not found in the vocabulary.")
    length = args.max_length
    return Prepared(model, args, tokenizer, list(made), Collator(length, pad_id, bool(only_completion)))


Ids = dict[str, list[int]]


def _tokenised(
    row: Row, tokenizer: _Tokenizer, args: SFTArguments, formatting_func: Callable[[Row], str] | None
) -> Ids:
    """Token ids of a row, and the masks of its completion and of what the assistant said."""
    if "input_ids" in row:
        return {name: list(cast("list[int]", row[name])) for name in row if name in _COLUMNS}
    if formatting_func is not None:
        row = {"text": formatting_func(row)}
    turns = row.get("messages", row.get("conversations"))
    prompt, completion = row.get("prompt"), row.get("completion")
    if _is_conversation(turns):
        return _with_template(_as_chatml(turns), row, tokenizer, args)
    if _is_conversation(prompt):
        before = _as_chatml(prompt)
        made = _with_template(before + _as_chatml(completion), row, tokenizer, args)
        length = len(_with_template(before, row, tokenizer, None, add_generation_prompt=True)["input_ids"])
        return made | {"completion_mask": [0] * length + [1] * (len(made["input_ids"]) - length)}
    end = tokenizer.eos_token or ""
    if isinstance(prompt, str) and isinstance(completion, str):
        if not completion.endswith(end):
            completion += end
        ids = list(tokenizer(prompt + completion)["input_ids"])
        length = len(tokenizer(prompt)["input_ids"])
        return {"input_ids": ids, "completion_mask": [0] * length + [1] * (len(ids) - length)}
    text = row.get(args.dataset_text_field)
    if not isinstance(text, str):
        raise KeyError(args.dataset_text_field)
    # Only a column of that name gets the end token.
    if args.dataset_text_field == "text" and not text.endswith(end):
        text += end
    return {"input_ids": list(tokenizer(text)["input_ids"])}


def _is_conversation(turns: object) -> bool:
    """Whether a column holds turns, with the keys of one kind of dataset or the other."""
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], Mapping):
        return False
    return {"role", "content"} <= set(turns[0]) or {"from", "value"} <= set(turns[0])


def _as_chatml(turns: object) -> list[Mapping[str, object]]:
    given = cast("list[Mapping[str, object]]", turns)
    return [{"role": turn["from"], "content": turn["value"]} if "from" in turn else turn for turn in given]


def _with_template(
    turns: list[Mapping[str, object]],
    row: Row,
    tokenizer: _Tokenizer,
    args: SFTArguments | None,
    **options: object,
) -> Ids:
    """Token ids of a conversation, by the tokenizer's template."""
    if args is not None and args.assistant_only_loss:
        options["return_assistant_tokens_mask"] = True
    more = cast("Mapping[str, object]", row.get("chat_template_kwargs") or {})
    made = tokenizer.apply_chat_template(
        turns, tokenize=True, return_dict=True, tools=row.get("tools"), **options, **more
    )
    found = {name: list(made[name]) for name in ("input_ids", "assistant_masks") if name in made}
    if "assistant_masks" in found and 1 not in found["assistant_masks"]:
        raise RuntimeError(
            "You're using `assistant_only_loss=True`, but at least one example has no assistant tokens."
        )
    return found


_COLUMNS = ("input_ids", "labels", "completion_mask", "assistant_masks")

_AT_ONCE = 1000
"""Rows that were packed together: the batch size of `Dataset.map`."""


def _cut(rows: list[Ids], length: int | None) -> Iterable[Ids]:
    return ({name: values[:length] for name, values in row.items()} for row in rows)


def _packed(rows: list[Ids], args: SFTArguments) -> Iterator[Ids]:
    """Rows of at most `max_length` tokens made of several, by the strategy of the arguments."""
    if args.max_length is None:
        raise ValueError("When packing is enabled, `max_length` can't be `None`.")
    if args.packing_strategy not in ("bfd", "wrapped"):
        raise ValueError(f"Invalid packing strategy: {args.packing_strategy}. Use 'bfd' or 'wrapped'.")
    for start in range(0, len(rows), _AT_ONCE):
        part = [
            {name: row[name] for name in row if name != "labels"} for row in rows[start : start + _AT_ONCE]
        ]
        if args.packing_strategy == "wrapped":
            whole = _joined(part)
            for at in range(0, len(whole["input_ids"]), args.max_length):
                yield {name: values[at : at + args.max_length] for name, values in whole.items()}
        else:
            yield from map(_joined, _fitted(list(_cut(part, args.max_length)), args.max_length))


def _joined(rows: list[Ids]) -> Ids:
    return {name: [each for row in rows for each in row[name]] for name in rows[0]}


def _fitted(rows: list[Ids], length: int) -> list[list[Ids]]:
    """Bins of rows, best fit by decreasing length; of bins with the same room, the one that had it first."""
    bins: list[list[Ids]] = []
    by_room: dict[int, list[list[Ids]]] = {}
    for row in sorted(rows, key=lambda row: -len(row["input_ids"])):
        size = len(row["input_ids"])
        room = min((room for room, waiting in by_room.items() if waiting and room >= size), default=length)
        if by_room.get(room):
            chosen = by_room[room].pop(0)
        else:
            chosen = []
            bins.append(chosen)
        chosen.append(row)
        by_room.setdefault(room - size, []).append(chosen)
    return bins


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
        masks = ["completion_mask"] if self.completion_only_loss else []
        for name in [*masks, "assistant_masks"]:
            if name in rows[0]:
                kept = torch.tensor([self._filled(row[name], 0) for row in rows])
                labels[kept == 0] = -100
        return {"input_ids": ids, "labels": labels, "attention_mask": torch.ones_like(ids)}

    def _filled(self, values: list[int], fill: int) -> list[int]:
        return [*values[: self.max_length], *[fill] * (self.max_length - len(values))]
