"""`NeuronORPOTrainer` of 0.0.26 to 0.0.28, over trl's own ORPOTrainer.

From `trainers.py` at 0.0.28 and 0.3.0: other defaults of the lengths, a loss over prompt and answer, and a
log-odds ratio without `log1p` and `logsigmoid`. From 0.1.0 on the class could not train: the loop called
`get_batch_samples`, which in trl's trainer was another method.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import trl
from transformers import Trainer
from trl.trainer.utils import DPODataCollatorWithPadding, disable_dropout_in_model

from neuronmigrate.runtime.legacy.explain import in_the_way
from neuronmigrate.runtime.legacy.optimum.base import dtype_keyword, of_transformers
from neuronmigrate.runtime.legacy.optimum.peft import get_peft_model
from neuronmigrate.runtime.legacy.optimum.sft_until_0_3 import processing_keyword
from neuronmigrate.runtime.legacy.optimum.transformers_trainer import TrainerForNeuron
from neuronmigrate.runtime.legacy.session import LegacyProblem, current

__all__ = ["NeuronORPOTrainer"]

if not hasattr(trl, "ORPOTrainer"):
    raise LegacyProblem(in_the_way("trl", "ORPOTrainer") or "trl has no ORPOTrainer")


class _Construction(trl.ORPOTrainer):
    """The constructor of transformers' trainer behind trl's methods, as in the original."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        Trainer.__init__(self, *args, **kwargs)


class NeuronORPOTrainer(TrainerForNeuron, _Construction):
    """Raises ValueError as the original did, LegacyProblem for a release whose class could not train."""

    def __init__(
        self,
        model: Any = None,
        args: Any = None,
        data_collator: Callable[..., object] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        tokenizer: Any = None,
        model_init: object = None,
        callbacks: Sequence[object] | None = None,
        optimizers: tuple[object, object] = (None, None),
        preprocess_logits_for_metrics: object = None,
        peft_config: object = None,
        compute_metrics: object = None,
    ) -> None:
        release = current().release
        if release.since("0.1.0"):
            raise LegacyProblem(
                f"NeuronORPOTrainer of optimum-neuron {release} could not train: its loop called"
                " get_batch_samples, which is another method in trl's class; choose the release of 0.0.26 to"
                " 0.0.28 that the script was written for with --from-version"
            )
        options = dict(args.model_init_kwargs or {})
        if options and not isinstance(model, str):
            raise ValueError(
                "You passed model_kwargs to the ORPOTrainer. But your model is already instantiated."
            )
        if isinstance(model, str):
            dtype = options.pop("torch_dtype", torch.float32)
            if isinstance(dtype, str) and dtype != "auto":
                dtype = getattr(torch, dtype)
            load = getattr(of_transformers("AutoModelForCausalLM"), "from_pretrained")  # noqa: B009 - of a class
            model = load(model, **options, **dtype_keyword(dtype))
        if args.gradient_checkpointing and hasattr(model, "enable_input_require_grads"):
            model.enable_input_require_grads()
        if peft_config is not None:
            model = get_peft_model(model, peft_config)
        if tokenizer is None:
            raise ValueError("tokenizer must be specified to tokenize a ORPO dataset.")
        self._peft_has_been_casted_to_bf16 = False
        self.is_encoder_decoder = model.config.is_encoder_decoder
        if self.is_encoder_decoder:
            self.decoder_start_token_id = model.config.decoder_start_token_id
            self.pad_token_id = model.config.pad_token_id
        self.max_length = 512 if args.max_length is None else args.max_length
        self.max_prompt_length = 128 if args.max_prompt_length is None else args.max_prompt_length
        self.max_completion_length = args.max_completion_length
        if self.max_completion_length is None and self.is_encoder_decoder:
            self.max_completion_length = 128
        self.use_dpo_data_collator = data_collator is None
        if data_collator is None:
            data_collator = DPODataCollatorWithPadding(
                pad_token_id=tokenizer.pad_token_id,
                label_pad_token_id=args.label_pad_token_id,
                is_encoder_decoder=self.is_encoder_decoder,
            )
            args.remove_unused_columns = False
        if args.disable_dropout:
            disable_dropout_in_model(model)
        self.generate_during_eval = args.generate_during_eval
        self.label_pad_token_id = args.label_pad_token_id
        self.padding_value = args.padding_value if args.padding_value is not None else tokenizer.pad_token_id
        self.truncation_mode = args.truncation_mode
        self.processing_class = tokenizer
        self.beta = args.beta
        self.aux_loss_enabled = getattr(model.config, "output_router_logits", False)
        self.aux_loss_coef = getattr(model.config, "router_aux_loss_coef", 0.0)
        self._stored_metrics: Any = defaultdict(lambda: defaultdict(list))
        if train_dataset is not None:
            train_dataset = train_dataset.map(self.tokenize_row, num_proc=args.dataset_num_proc)
        if eval_dataset is not None:
            eval_dataset = eval_dataset.map(self.tokenize_row, num_proc=args.dataset_num_proc)
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            model_init=model_init,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
            **{processing_keyword(): tokenizer},
        )

    def concatenated_forward(self, model: Any, batch: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
        """Log probabilities and logits of chosen and rejected rows, and the loss of the chosen ones."""
        joined = self.concatenated_inputs(
            batch,
            is_encoder_decoder=self.is_encoder_decoder,
            label_pad_token_id=self.label_pad_token_id,
            padding_value=self.padding_value,
            device=self.accelerator.device,
        )
        ids, mask = joined["concatenated_input_ids"], joined["concatenated_attention_mask"]
        answers = joined["concatenated_labels"]
        chosen = batch["chosen_labels"].shape[0]
        more = {"decoder_input_ids": self._shift_right(answers)} if self.is_encoder_decoder else {}
        if self.aux_loss_enabled:
            more["output_router_logits"] = True
        outputs = model(ids, attention_mask=mask, use_cache=False, **more)
        logits: torch.Tensor = outputs.logits
        labels = answers if self.is_encoder_decoder else torch.where(mask == 1, ids, self.label_pad_token_id)
        shift = 0 if self.is_encoder_decoder else 1
        # The loss ignores -100, whatever label_pad_token_id is.
        loss = torch.nn.functional.cross_entropy(
            logits[:chosen, : logits.shape[1] - shift].flatten(0, 1), labels[:chosen, shift:].flatten()
        )
        scores = self.get_batch_logps(
            logits,
            answers,
            average_log_prob=True,
            is_encoder_decoder=self.is_encoder_decoder,
            label_pad_token_id=self.label_pad_token_id,
        )
        found = (scores[:chosen], scores[chosen:], logits[:chosen], logits[chosen:], loss)
        return (*found, outputs.aux_loss) if self.aux_loss_enabled else found

    def odds_ratio_loss(
        self, policy_chosen_logps: torch.Tensor, policy_rejected_logps: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Losses and rewards by row, and the means of the log-odds ratio's sigmoid and of the ratio."""
        chosen, rejected = policy_chosen_logps, policy_rejected_logps
        odds = (chosen - rejected) - (torch.log(1 - chosen.exp()) - torch.log(1 - rejected.exp()))
        ratio = torch.log(torch.sigmoid(odds))
        return (
            self.beta * ratio,
            (self.beta * chosen).detach(),
            (self.beta * rejected).detach(),
            ratio.mean(),
            odds.mean(),
        )
