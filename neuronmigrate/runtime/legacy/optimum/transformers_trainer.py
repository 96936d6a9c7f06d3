"""`NeuronTrainer` before 0.4.0: transformers' Trainer with a loop of the package's own.

From `trainers.py` at 0.0.12, 0.0.22, 0.0.28, 0.1.0 and 0.3.0, and the transformers that each ran with:

- An epoch counts the floor of its updates. Up to 0.0.28 a short rest of micro-batches went into the next
  epoch; from 0.1.0 on it made an update of its own.
- Accumulated gradients were means up to 0.0.22. From 0.0.23 to 0.0.27 they were sums, as the accelerator lost
  the number of steps; 0.0.28 divided for models that take no loss arguments; later the tokens of all
  micro-batches divide where the model takes them.
- Evaluation gathers whole batches by rank and cuts nothing off.
- Resuming inside an epoch began the epoch anew from 0.1.0 on.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from transformers import Seq2SeqTrainer, Trainer, TrainerState
from transformers.trainer_utils import TrainOutput, has_length, speed_metrics

from neuronmigrate.runtime.legacy.explain import another_version
from neuronmigrate.runtime.legacy.optimum.accelerator import NeuronAccelerator
from neuronmigrate.runtime.legacy.optimum.transformers_arguments import NeuronTrainingArgumentsMixin
from neuronmigrate.runtime.legacy.session import current

__all__ = ["NeuronTrainer", "Seq2SeqNeuronTrainer"]

Batch = dict[str, torch.Tensor]

_NORMS = frozenset(
    {"ChameleonRMSNorm", "CohereLayerNorm", "GraniteMoeRMSNorm", "IdeficsRMSNorm", "LlamaRMSNorm"}
    | {"LongT5LayerNorm", "MegaSequenceNorm", "MoshiRMSNorm", "NemotronLayerNorm1P", "Olmo2RMSNorm"}
    | {"OlmoeRMSNorm", "Pix2StructLayerNorm", "Pop2PianoLayerNorm", "RecurrentGemmaRMSNorm"}
    | {"SwitchTransformersLayerNorm", "T5LayerNorm", "ZambaRMSNorm"}
)
"""Classes that transformers 4.48 and 4.51 registered as norms (`ALL_LAYERNORM_LAYERS`)."""


@dataclass(frozen=True)
class Plan:
    """Numbers of a run."""

    max_steps: int
    epochs: int
    updates: int
    """Updates of an epoch."""
    length: int | None
    """Batches of an epoch, None for a dataset without a length."""
    examples: int
    samples: float
    """Rows of the whole run, for the speed."""


Untyped: TypeAlias = Any
"""An object of transformers or accelerate."""


class TrainerForNeuron(Trainer):
    """What the package put before each of transformers' trainers."""

    control: Untyped
    lr_scheduler: Untyped
    optimizer: Untyped
    state: Untyped
    _created_lr_scheduler: bool

    def __init__(self, *args: object, **kwargs: object) -> None:
        session = current()
        given = kwargs.get("args", args[1] if len(args) > 1 else None)
        if session.release.since("0.2.0") and not isinstance(given, NeuronTrainingArgumentsMixin):
            raise ValueError(
                f"The NeuronTrainer only accept NeuronTrainingArguments, but {type(given)} was provided."
            )
        super().__init__(*args, **kwargs)
        other = another_version("transformers")
        if other is not None:
            session.note(
                f"transformers {other}, not the {session.release.pins['transformers']} of optimum-neuron "
                f"{session.release}: its models may take other loss arguments"
            )

    def create_accelerator_and_postprocess(self) -> None:
        """The package's accelerator, which never learns of `accelerator_config`."""
        release = current().release
        super().create_accelerator_and_postprocess()
        backend = "amp" if getattr(self.args, "half_precision_backend", "xla") == "amp" else "xla"
        steps: dict[str, int] = {}
        if not release.since("0.0.23"):
            steps["gradient_accumulation_steps"] = self.args.gradient_accumulation_steps
        self.accelerator = NeuronAccelerator(
            zero_1=getattr(self.args, "zero_1", False),
            mixed_precision="bf16" if self.args.bf16 else "no",
            autocast_backend=backend,
            **steps,
        )
        self.gather_function = self.accelerator.gather_for_metrics

    # Data -----------------------------------------------------------------------------------------------

    def _get_train_sampler(self, train_dataset: object = None) -> object:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if dataset is None or not has_length(dataset):
            return None
        if getattr(self.args, "group_by_length", False):
            takes = inspect.signature(super()._get_train_sampler).parameters
            return super()._get_train_sampler(*([dataset] if takes else []))
        return RandomSampler(dataset)  # type: ignore[arg-type]

    def _get_eval_sampler(self, eval_dataset: object) -> object:
        return SequentialSampler(eval_dataset)  # type: ignore[arg-type]

    def _prepare_input(self, data: object) -> object:
        data = super()._prepare_input(data)
        if self.accelerator.cast_inputs and isinstance(data, torch.Tensor) and data.is_floating_point():
            return data.to(torch.bfloat16)
        return data

    # Optimizer ------------------------------------------------------------------------------------------

    def get_decay_parameter_names(self, model: torch.nn.Module) -> list[str]:
        """Parameters outside of registered norms whose name has no "bias" in it."""
        spared = {
            f"{path}.{name}" if path else name
            for path, module in model.named_modules()
            if isinstance(module, torch.nn.LayerNorm) or type(module).__name__ in _NORMS
            for name, _ in module.named_parameters()
        }
        return [name for name, _ in model.named_parameters() if name not in spared and "bias" not in name]

    # Steps ----------------------------------------------------------------------------------------------

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> object:
        """The casts of the backend "amp"."""
        return self.accelerator.autocast()

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        *args: object,
        **kwargs: object,
    ) -> Untyped:
        """The loss of transformers."""
        taken = inspect.signature(Trainer.compute_loss).parameters
        named = {name: value for name, value in kwargs.items() if name in taken}
        return super().compute_loss(model, inputs, return_outputs, *args, **named)

    def training_step(
        self, model: torch.nn.Module, inputs: Batch, num_items_in_batch: object = None
    ) -> torch.Tensor:
        """Loss and backward of a micro-batch; the loss as it goes into the log."""
        release = current().release
        accumulate = self.args.gradient_accumulation_steps
        model.train()
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            if release.since("0.0.28"):
                loss: torch.Tensor = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            else:
                loss = self.compute_loss(model, inputs)
        if release.since("0.0.28"):
            if not self.model_accepts_loss_kwargs and getattr(self, "compute_loss_func", None) is None:
                loss = loss / accumulate
            self.accelerator.backward(loss)
            detached: torch.Tensor = loss.detach()
            return detached
        self.accelerator.backward(loss)
        divided: torch.Tensor = loss.detach() / accumulate
        return divided

    def get_batch_samples(
        self, epoch_iterator: Iterator[Batch], num_batches: int, *device: object
    ) -> tuple[list[Batch], object]:
        """The micro-batches of an update, and the number of labels that count, over all positions."""
        batches = []
        for _ in range(num_batches):
            try:
                batches.append(next(epoch_iterator))
            except StopIteration:
                break
        if not batches or "labels" not in batches[0]:
            return batches, None
        if not (self.model_accepts_loss_kwargs or getattr(self, "compute_loss_func", None) is not None):
            return batches, None
        try:
            items = torch.stack([(batch["labels"] != -100).sum() for batch in batches]).sum()
        except (TypeError, AttributeError):
            return batches, None
        if getattr(self.args, "average_tokens_across_devices", False):
            items = self.accelerator.gather(items).sum()
        return batches, items

    # The loop -------------------------------------------------------------------------------------------

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: object = None,
        resume_from_checkpoint: str | None = None,
        trial: object = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> object:
        self.accelerator.free_memory()
        self._train_batch_size = batch_size
        loader = self.get_train_dataloader()
        plan = self._plan(loader)
        if self._created_lr_scheduler:
            self.lr_scheduler, self._created_lr_scheduler = None, False
        if self.args.gradient_checkpointing:
            options = self.args.gradient_checkpointing_kwargs or {}
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        self.model.train()
        # XLA's bfloat16 holds from the first tensor on, ZeRO-1's copies from those weights.
        model = self.model_wrapped = self.accelerator.prepare_model(self.model)
        self.create_optimizer_and_scheduler(num_training_steps=plan.max_steps)
        self.optimizer = self.accelerator.prepare_optimizer(self.optimizer)
        self._load_optimizer_and_scheduler(resume_from_checkpoint)

        epochs_trained, skipped = self._begin(plan, resume_from_checkpoint)
        start = time.time()
        callbacks = self.callback_handler
        callbacks.model, callbacks.train_dataloader = self.model, loader
        callbacks.optimizer, callbacks.lr_scheduler = self.optimizer, self.lr_scheduler
        self._running = torch.tensor(0.0)
        self._total_loss_scalar = 0.0
        self._globalstep_last_logged = self.state.global_step
        self._batched = 0
        self._norm: torch.Tensor | None = None
        self.optimizer.zero_grad()
        self.control = callbacks.on_train_begin(self.args, self.state, self.control)
        if not self.args.ignore_data_skip:
            for _ in range(epochs_trained):
                list(getattr(loader, "sampler", None) or [])
        for epoch in range(epochs_trained, plan.epochs):
            self.control = callbacks.on_epoch_begin(self.args, self.state, self.control)
            if epoch == epochs_trained and resume_from_checkpoint is not None:
                self._load_rng_state(resume_from_checkpoint)
            run = self._epoch_of_updates if current().release.since("0.1.0") else self._epoch_of_batches
            steps = run(model, loader, epoch, skipped, plan, trial, ignore_keys_for_eval, start)
            skipped = 0
            if steps == 0:
                self.control.should_training_stop = True
            self.control = callbacks.on_epoch_end(self.args, self.state, self.control)
            self._log_save_evaluate(model, trial, epoch, ignore_keys_for_eval, start)
            if self.control.should_training_stop:
                break
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        return self._end(plan, start)

    def _plan(self, loader: DataLoader[object]) -> Plan:
        """Updates and epochs of a run. Raises ValueError for a dataset without length and `max_steps`."""
        args = self.args
        accumulate, asked = args.gradient_accumulation_steps, args.max_steps
        if not has_length(loader):
            if asked <= 0:
                raise ValueError(
                    "args.max_steps must be set to a positive value if dataloader does not have a length, was"
                    f" {asked}"
                )
            samples = asked * self._train_batch_size * accumulate * args.world_size
            return Plan(asked, sys.maxsize, asked, None, samples, samples)
        length, examples = len(loader), self.num_examples(loader)
        updates = max(length // accumulate, 1)
        if asked > 0:
            samples = asked * self._train_batch_size * accumulate * args.world_size
            return Plan(asked, math.ceil(asked / updates), updates, length, examples, samples)
        epochs = args.num_train_epochs
        return Plan(
            math.ceil(epochs * updates), math.ceil(epochs), updates, length, examples, examples * epochs
        )

    def _begin(self, plan: Plan, checkpoint: str | None) -> tuple[int, int]:
        """Set the state up; epochs that a checkpoint has behind it, and batches of the next one."""
        args = self.args
        # Saving writes those of the state, in the versions that have them.
        stateful = getattr(self.state, "stateful_callbacks", None)
        self.state = TrainerState()
        done = skipped = 0
        if checkpoint is not None and Path(checkpoint, "trainer_state.json").is_file():
            self.state = TrainerState.load_from_json(os.path.join(checkpoint, "trainer_state.json"))
            done = self.state.global_step // plan.updates
            if not args.ignore_data_skip:
                skipped = self.state.global_step % plan.updates * args.gradient_accumulation_steps
        for name in ("logging", "eval", "save"):
            value = getattr(args, f"{name}_steps")
            if value is not None:
                setattr(
                    self.state, f"{name}_steps", math.ceil(plan.max_steps * value) if value < 1 else value
                )
        if stateful and not self.state.stateful_callbacks:
            self.state.stateful_callbacks = stateful
        self.state.max_steps, self.state.num_train_epochs = plan.max_steps, plan.epochs
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.epoch = self.state.epoch if checkpoint is not None else 0
        return done, skipped

    def _epoch_of_batches(
        self,
        model: torch.nn.Module,
        loader: DataLoader[Batch],
        epoch: int,
        skipped: int,
        plan: Plan,
        trial: object,
        ignore_keys: list[str] | None,
        start: float,
    ) -> int:
        """Up to 0.0.28: an update whenever enough micro-batches came in, over the ends of epochs."""
        accumulate = self.args.gradient_accumulation_steps
        batches = loader
        if skipped:
            from accelerate import skip_first_batches

            batches = skip_first_batches(loader, skipped)
        length = len(batches) if plan.length is not None else plan.max_steps * accumulate
        step = -1
        for step, inputs in enumerate(batches):
            self._batched += 1
            alone = length <= accumulate and step + 1 == length
            due = self._batched % accumulate == 0 or alone
            self._micro_batch(model, inputs, None, step, due)
            if due:
                if self.args.max_grad_norm is not None and self.args.max_grad_norm > 0:
                    self._norm = self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)
                self.optimizer.step()
                self._after_step(epoch + (step + 1 + skipped) / length)
                self._log_save_evaluate(model, trial, epoch, ignore_keys, start)
            if self.control.should_epoch_stop or self.control.should_training_stop:
                break
        return step + 1

    def _epoch_of_updates(
        self,
        model: torch.nn.Module,
        loader: DataLoader[Batch],
        epoch: int,
        skipped: int,
        plan: Plan,
        trial: object,
        ignore_keys: list[str] | None,
        start: float,
    ) -> int:
        """From 0.1.0 on: the micro-batches of an update are drawn together, and a rest makes one as well."""
        accumulate = self.args.gradient_accumulation_steps
        if skipped:
            current().note("resumed inside an epoch: it began with its first batch, as it did")
        length = len(loader) if plan.length is not None else plan.max_steps * accumulate
        batches = iter(loader)
        step = -1
        total = length // accumulate + 1
        for update in range(total):
            number = accumulate if update < total - 1 else plan.examples % accumulate or accumulate
            drawn, items = self.get_batch_samples(batches, number, self.args.device)
            for inputs in drawn:
                step += 1
                due = (step + 1) % accumulate == 0 or step + 1 == length
                self._micro_batch(model, inputs, items, step, due)
                if due:
                    if self.args.max_grad_norm is not None and self.args.max_grad_norm > 0:
                        self.accelerator.clip_grad_norm_(
                            model.parameters(),
                            self.args.max_grad_norm,
                            postpone_clipping_to_optimizer_step=True,
                        )
                    if hasattr(self.callback_handler, "on_pre_optimizer_step"):
                        self._fire("on_pre_optimizer_step")
                    self.optimizer.step()
                    self._norm = self.optimizer.grad_norm
                    if hasattr(self.callback_handler, "on_optimizer_step"):
                        self._fire("on_optimizer_step")
                    self._after_step(epoch + (step + 1 + skipped) / length)
                    self._log_save_evaluate(model, trial, epoch, ignore_keys, start)
                if self.control.should_epoch_stop or self.control.should_training_stop:
                    return step + 1
        return step + 1

    def _micro_batch(
        self, model: torch.nn.Module, inputs: Batch, items: object, step: int, due: bool
    ) -> None:
        """Forward and backward, with the callbacks around them."""
        self.accelerator.gradient_state._set_sync_gradients(due)
        if step % self.args.gradient_accumulation_steps == 0:
            self._fire("on_step_begin")
        if current().release.since("0.1.0"):
            loss = self.training_step(model, inputs, items)
        else:
            loss = self.training_step(model, inputs)
        finite = bool(torch.isfinite(loss))
        if self.args.logging_nan_inf_filter and current().release.since("0.3.0") and not finite:
            loss = self._running / (1 + self.state.global_step - self._globalstep_last_logged)
        self._running = self._running + loss.float().cpu()
        self.current_flos += float(self.floating_point_ops(inputs))
        if not due:
            self._fire("on_substep_end")

    def _after_step(self, epoch: float) -> None:
        if not isinstance(self.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            self.lr_scheduler.step()
        self.optimizer.zero_grad()
        self.state.global_step += 1
        self.state.epoch = epoch
        self._fire("on_step_end")

    def _fire(self, event: str) -> None:
        self.control = getattr(self.callback_handler, event)(self.args, self.state, self.control)

    def _log_save_evaluate(
        self,
        model: torch.nn.Module,
        trial: object,
        epoch: int,
        ignore_keys: list[str] | None,
        start: float,
    ) -> None:
        """Call the method that subclasses override, with the arguments of the release."""
        release = current().release
        norm: list[object] = [self._norm] if release.since("0.0.23") else []
        more: list[object] = [start] if release.since("0.1.0") else []
        self._maybe_log_save_evaluate(self._running, *norm, model, trial, epoch, ignore_keys, *more)

    def _maybe_log_save_evaluate(self, running: torch.Tensor, *args: object) -> None:
        release = current().release
        values = list(args)
        norm = values.pop(0) if release.since("0.0.23") else None
        assert norm is None or isinstance(norm, torch.Tensor)
        model, trial, _, ignore_keys, *start = values
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            steps = self.state.global_step - self._globalstep_last_logged
            mean = float(self.accelerator.gather(running.reshape(1)).mean())
            self._running = torch.tensor(0.0)
            logs: dict[str, float] = {
                "loss": round(mean / steps, 4),
                "learning_rate": self._get_learning_rate(),
            }
            if norm is not None:
                logs["grad_norm"] = norm.item()
            self._total_loss_scalar += mean
            self._globalstep_last_logged = self.state.global_step
            self.store_flos()
            self.log(logs, *start)
        metrics = None
        if self.control.should_evaluate:
            if hasattr(self, "_evaluate"):
                metrics = self._evaluate(trial, ignore_keys)
            else:
                metrics = self.evaluate(ignore_keys=ignore_keys)
            if hasattr(self, "_determine_best_metric"):
                best = self._determine_best_metric(metrics=metrics, trial=trial)
                if self.args.save_strategy == "best":
                    self.control.should_save = best
        if self.control.should_save:
            takes_metrics = "metrics" in inspect.signature(Trainer._save_checkpoint).parameters
            self._save_checkpoint(model, trial, **({"metrics": metrics} if takes_metrics else {}))
            self._fire("on_save")

    def _save_checkpoint(self, model: object, trial: object, *args: object, **kwargs: object) -> None:
        super()._save_checkpoint(model, trial, *args, **kwargs)
        if self.args.save_only_model and self.args.should_save:
            # Written all the same.
            folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
            torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")
            torch.save(self.lr_scheduler.state_dict(), folder / "scheduler.pt")

    def _end(self, plan: Plan, start: float) -> object:
        self._total_loss_scalar += float(self._running)
        loss = self._total_loss_scalar / max(self.state.global_step, 0.001)
        metrics = speed_metrics("train", start, num_samples=plan.samples, num_steps=self.state.max_steps)
        self.store_flos()
        metrics["total_flos"] = self.state.total_flos
        metrics["train_loss"] = loss
        self.is_in_train = False
        self._memory_tracker.stop_and_update_metrics(metrics)
        self.log(metrics)
        self._fire("on_train_end")
        if getattr(self, "neftune_noise_alpha", None) is not None:
            self._deactivate_neftune(self.model)
        return TrainOutput(self.state.global_step, loss, metrics)

    def synchronize_hub_cache(self) -> None:
        """Nothing: there is no cache of compiled graphs here."""


class NeuronTrainer(TrainerForNeuron):
    """The Trainer."""


class Seq2SeqNeuronTrainer(TrainerForNeuron, Seq2SeqTrainer):
    """The Trainer that generates in evaluation."""
