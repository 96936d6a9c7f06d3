"""`NeuronSFTTrainer` of 0.4.0 and 0.4.1: the loop of 0.4.x on rows that trl 0.11.4 would prepare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from neuronmigrate.runtime.legacy.optimum import sft_trl_0_11 as rows
from neuronmigrate.runtime.legacy.optimum.arguments import sft_config
from neuronmigrate.runtime.legacy.optimum.trainer import NeuronTrainer
from neuronmigrate.runtime.legacy.session import current

__all__ = ["NeuronSFTTrainer"]


class NeuronSFTTrainer(NeuronTrainer):
    """Raises ValueError as the original did (`sft_trl_0_11.prepare`)."""

    def __init__(
        self,
        model: torch.nn.Module | str,
        args: rows.Config = None,
        data_collator: Callable[..., dict[str, torch.Tensor]] | None = None,
        train_dataset: rows.Dataset = None,
        eval_dataset: rows.Dataset = None,
        processsing_class: object = None,
        callbacks: Sequence[object] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, object]] | None = None,
        tokenizer: rows.Tokenizer = None,
        peft_config: object = None,
        formatting_func: rows.Format | None = None,
    ) -> None:
        make: Callable[..., rows.Config] = sft_config(str(current().release))
        if args is None:
            args = make(output_dir="tmp_trainer")
        elif type(args).__name__ == "NeuronTrainingArguments":
            args = make(**args.to_dict())
        if processsing_class is not None:
            current().note("NeuronSFTTrainer: processsing_class was accepted and never read")
        prepared = rows.prepare(
            model, args, data_collator, train_dataset, eval_dataset, tokenizer, peft_config, formatting_func
        )
        super().__init__(
            prepared.model,
            args,
            prepared.collator,
            prepared.train,
            prepared.evaluation,
            prepared.tokenizer,
            callbacks,
            optimizers,
            optimizer_cls_and_kwargs,
        )
