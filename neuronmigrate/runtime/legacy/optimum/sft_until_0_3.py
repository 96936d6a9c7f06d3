"""`NeuronSFTTrainer` of 0.0.25 to 0.3.0: the trainer of that time on rows that trl 0.11.4 would prepare."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from transformers import Trainer

from neuronmigrate.runtime.legacy.optimum import sft_trl_0_11 as rows
from neuronmigrate.runtime.legacy.optimum.transformers_arguments import sft_config
from neuronmigrate.runtime.legacy.optimum.transformers_trainer import TrainerForNeuron
from neuronmigrate.runtime.legacy.session import current

__all__ = ["NeuronSFTTrainer"]


class NeuronSFTTrainer(TrainerForNeuron):
    """Raises ValueError as the original did (`sft_trl_0_11.prepare`)."""

    def __init__(
        self,
        model: torch.nn.Module | str | None = None,
        args: rows.Config = None,
        data_collator: Callable[..., dict[str, torch.Tensor]] | None = None,
        train_dataset: rows.Dataset = None,
        eval_dataset: rows.Dataset = None,
        tokenizer: rows.Tokenizer = None,
        model_init: object = None,
        compute_metrics: object = None,
        callbacks: Sequence[object] | None = None,
        optimizers: tuple[object, object] = (None, None),
        preprocess_logits_for_metrics: object = None,
        peft_config: object = None,
        formatting_func: rows.Format | None = None,
    ) -> None:
        make = sft_config(str(current().release))
        if args is None:
            args = make(output_dir="tmp_trainer")
        elif type(args).__name__ == "NeuronTrainingArguments":
            args = make(**as_keywords(args))
        assert model is not None
        prepared = rows.prepare(
            model, args, data_collator, train_dataset, eval_dataset, tokenizer, peft_config, formatting_func
        )
        super().__init__(
            model=prepared.model,
            args=args,
            data_collator=prepared.collator,
            train_dataset=prepared.train,
            eval_dataset=prepared.evaluation,
            model_init=model_init,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **{processing_keyword(): prepared.tokenizer},
        )


def processing_keyword() -> str:
    """The name of the trainer's argument for a tokenizer in the installed transformers."""
    known = inspect.signature(Trainer.__init__).parameters
    return "processing_class" if "processing_class" in known else "tokenizer"


def as_keywords(args: rows.Config) -> dict[str, object]:
    """The fields of arguments, tokens as they are."""
    found: dict[str, object] = args.to_dict()
    found.update({name: getattr(args, name) for name in found if name.endswith("_token")})
    return found
