"""Rows of `NeuronSFTTrainer` up to 0.4.1, which prepared them as trl 0.11.4 did, padded to one length.

From `trainers.py` at 0.3.0 and `trainers/sft_trainer.py` at 0.4.1; `trl/trainer/sft_trainer.py`,
`trl/trainer/utils.py` and `trl/extras/dataset_formatting.py` of trl 0.11.4. No end token is appended outside
of packing; labels are the ids, without those that equal the padding token.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from neuronmigrate.runtime.legacy.optimum.base import dtype_keyword, library, of_transformers
from neuronmigrate.runtime.legacy.optimum.peft import get_peft_model

Dataset: TypeAlias = Any
"""A dataset of the library `datasets`."""

Tokenizer: TypeAlias = Any
"""A tokenizer of transformers."""

Config: TypeAlias = Any
"""`NeuronSFTConfig` of a release up to 0.4.1."""

Format = Callable[[Mapping[str, object]], object]


@dataclass
class Prepared:
    """What the trainer is built with."""

    model: torch.nn.Module
    tokenizer: Tokenizer
    train: Dataset
    evaluation: Dataset
    collator: Callable[..., dict[str, torch.Tensor]] | None


def prepare(
    model: torch.nn.Module | str,
    args: Config,
    collator: Callable[..., dict[str, torch.Tensor]] | None,
    train: Dataset,
    evaluation: Dataset,
    tokenizer: Tokenizer,
    peft_config: object,
    formatting: Format | None,
) -> Prepared:
    """Everything the original's constructor made before it handed over to the trainer.

    Raises ValueError as it did: for `model_init_kwargs` beside a model, for texts that nothing names, and
    for a formatting function that gives a batch no list.
    """
    options = dict(args.model_init_kwargs or {})
    if options and not isinstance(model, str):
        raise ValueError(
            "You passed model_init_kwargs to the SFTConfig, but your model is already instantiated."
        )
    if isinstance(model, str):
        dtype = options.pop("torch_dtype", torch.float32)
        if isinstance(dtype, str) and dtype != "auto":
            dtype = getattr(torch, dtype)
        load: Callable[..., torch.nn.Module] = of_transformers("AutoModelForCausalLM").from_pretrained  # type: ignore[attr-defined]  # of a class
        model = load(model, **options, **dtype_keyword(dtype))
    if peft_config is not None:
        reentrant = (args.gradient_checkpointing_kwargs or {}).get("use_reentrant", True)
        prepare_embeddings = getattr(model, "enable_input_require_grads", None)
        if args.gradient_checkpointing and reentrant and prepare_embeddings is not None:
            prepare_embeddings()
        model = get_peft_model(model, peft_config)
    if tokenizer is None:
        name = str(getattr(model.config, "_name_or_path"))  # noqa: B009 - of a module
        tokenizer = library("transformers").AutoTokenizer.from_pretrained(name)  # type: ignore[attr-defined]
        if getattr(tokenizer, "pad_token", None) is None:
            tokenizer.pad_token = tokenizer.eos_token
    if args.max_seq_length is None:
        args.max_seq_length = min(tokenizer.model_max_length, 1024)
    more = dict(args.dataset_kwargs or {})
    if formatting is None and args.dataset_text_field is None:
        formatting = template_of(train, tokenizer)
        if formatting is not None:
            more["add_special_tokens"] = False
    if not args.packing:
        if args.dataset_text_field is None and formatting is None and not more.get("skip_prepare_dataset"):
            raise ValueError(
                "You passed `packing=False` to the SFTTrainer/SFTConfig, but you didn't pass a"
                " `dataset_text_field` or `formatting_func` argument."
            )
        if collator is None:
            make: Callable[..., Any] = of_transformers("DataCollatorForLanguageModeling")
            collator = make(tokenizer=tokenizer, mlm=False)

    def rows(dataset: Dataset, packing: bool) -> Dataset:
        return _rows(dataset, args, tokenizer, packing, formatting, **more)

    if train is not None:
        train = rows(train, args.packing)
    packing = args.packing if args.eval_packing is None else args.eval_packing
    if isinstance(evaluation, dict):
        evaluation = {name: rows(each, packing) for name, each in evaluation.items()}
    elif evaluation is not None:
        evaluation = rows(evaluation, packing)
    return Prepared(model, tokenizer, train, evaluation, collator)


def template_of(dataset: Dataset, tokenizer: Tokenizer) -> Format | None:
    """What turns conversations, or prompts with completions, into texts; None for other columns."""
    datasets: Any = library("datasets")
    if not isinstance(dataset, datasets.Dataset) or not len(dataset):
        return None
    render: Callable[..., str] = tokenizer.apply_chat_template
    first = dataset[0]

    def conversations(column: str) -> Format:
        def texts(batch: Mapping[str, object]) -> object:
            given: Any = batch[column]
            if isinstance(given[0], list):
                return [render(each, tokenize=False) for each in given]
            return render(given, tokenize=False)

        return texts

    for column in ("messages", "conversations"):
        turns = first.get(column)
        if isinstance(turns, list) and all(set(turn) == {"content", "role"} for turn in turns):
            return conversations(column)
    if set(first) != {"prompt", "completion"} or not all(isinstance(each, str) for each in first.values()):
        return None

    def instructions(batch: Mapping[str, object]) -> object:
        prompts, completions = batch["prompt"], batch["completion"]
        if isinstance(prompts, str):
            return render(_turns(prompts, completions), tokenize=False)
        pairs: Any = zip(prompts, completions, strict=True)  # type: ignore[call-overload]  # lists of strings
        return [render(_turns(*pair), tokenize=False) for pair in pairs]

    return instructions


def _turns(prompt: object, completion: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]


def _rows(
    dataset: Dataset,
    args: Config,
    tokenizer: Tokenizer,
    packing: bool,
    formatting: Format | None,
    append_concat_token: bool = True,
    add_special_tokens: bool = True,
    skip_prepare_dataset: bool = False,
) -> Dataset:
    """Token ids of a dataset; what is tokenised already, or no dataset of the library, stays."""
    datasets: Any = library("datasets")
    known = isinstance(dataset, (datasets.Dataset, datasets.IterableDataset))
    if skip_prepare_dataset or not known or "input_ids" in (dataset.column_names or ()):
        return dataset
    if packing:
        texts = formatting or (lambda row: row[args.dataset_text_field])
        size = args.max_seq_length * args.chars_per_token * args.num_of_sequences
        packed = Packed(
            dataset, tokenizer, texts, args.max_seq_length, size, append_concat_token, add_special_tokens
        )
        if isinstance(dataset, datasets.IterableDataset):
            return packed
        blocks = list(packed)
        if not blocks:
            raise ValueError(
                "Error occurred while packing the dataset. Make sure that your dataset has enough samples to"
                " at least yield one packed sequence."
            )
        return datasets.Dataset.from_list(blocks)

    def tokenised(batch: Mapping[str, object]) -> dict[str, object]:
        texts = batch[args.dataset_text_field] if args.dataset_text_field is not None else None
        if texts is None:
            assert formatting is not None
            texts = formatting(batch)
            if not isinstance(texts, list):
                raise ValueError(
                    "The `formatting_func` should return a list of processed strings since it can lead to"
                    " silent bugs."
                )
        made = tokenizer(
            texts,
            add_special_tokens=add_special_tokens,
            truncation=True,
            padding="max_length",
            max_length=args.max_seq_length,
        )
        return {"input_ids": made["input_ids"], "attention_mask": made["attention_mask"]}

    return dataset.map(
        tokenised,
        batched=True,
        batch_size=args.dataset_batch_size,
        remove_columns=dataset.column_names if args.remove_unused_columns else None,
    )


class Packed(torch.utils.data.IterableDataset[dict[str, list[int]]]):
    """Blocks of `length` token ids, cut from buffers of texts in random order; the rest of a buffer is lost.

    The order is that of Python's own generator, which the trainer seeds after this.
    """

    def __init__(
        self,
        dataset: Iterable[Mapping[str, object]],
        tokenizer: Tokenizer,
        texts: Format,
        length: int,
        characters: float,
        append_end: bool,
        special: bool,
    ) -> None:
        self.dataset = dataset
        self.tokenizer = tokenizer
        self.texts = texts
        self.length = length
        self.characters = characters
        self.append_end = append_end
        self.special = special

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        buffer: list[str] = []
        for row in self.dataset:
            buffer.append(str(self.texts(row)))
            if sum(map(len, buffer)) >= self.characters:
                yield from self._blocks(buffer)
                buffer = []
        if buffer:
            yield from self._blocks(buffer)

    def _blocks(self, buffer: list[str]) -> Iterator[dict[str, list[int]]]:
        random.shuffle(buffer)
        end = self.tokenizer.eos_token_id or 0
        ids: list[int] = []
        texts: Sequence[list[int]] = self.tokenizer(buffer, add_special_tokens=self.special)["input_ids"]
        for each in texts:
            ids += [*each, end] if self.append_end else each
        blocks = [
            ids[start : start + self.length] for start in range(0, len(ids) - self.length + 1, self.length)
        ]
        random.shuffle(blocks)
        for block in blocks:
            yield {"input_ids": block, "labels": list(block)}
