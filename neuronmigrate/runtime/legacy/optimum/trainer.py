"""`NeuronTrainer` of 0.4.x, which is a loop of its own and no subclass of transformers' Trainer.

From `trainers/transformers.py`, `accelerate/accelerator.py` and `accelerate/optimizer.py` at 0.4.5, and
torch_xla's ZeroRedundancyOptimizer:

- With ZeRO-1 (the default) the optimizer works on copies: float32 with `bf16=True` and master weights,
  **bfloat16 otherwise**, also for a float32 model, whose weights come back from there. Here each step
  rounds them; torch_xla on a CPU keeps more digits inside a step and rounds only what it stores.
- Clipping is `norm + 1e-6`, on the gradients averaged over the ranks.
- The loss of a model that takes loss arguments is divided by the labels of all micro-batches; of its two
  kinds, the package's own Llama and Qwen3 gave sums before, all others the mean, which came out too small.
- Epoch strategies of logging and saving never act, since the flags are looked at inside the batch loop.
- More processes: `DistributedSampler` with seed 0.
"""

from __future__ import annotations

import inspect
import math
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler

from neuronmigrate.runtime.legacy.optimum.arguments import Arguments
from neuronmigrate.runtime.legacy.optimum.optimizer import Optimizer
from neuronmigrate.runtime.legacy.optimum.training import SUMS_ITS_LOSS
from neuronmigrate.runtime.legacy.session import current
from neuronmigrate.runtime.legacy.xla import world

Batch = dict[str, torch.Tensor]


class NeuronTrainer:
    """Trains on CPU tensors as the legacy loop did; evaluation and resuming raise, as they did."""

    def __init__(
        self,
        model: torch.nn.Module,
        args: Arguments | None = None,
        data_collator: Callable[[list[object]], Batch] | None = None,
        train_dataset: Iterable[object] | None = None,
        eval_dataset: object = None,
        processing_class: object = None,
        callbacks: Sequence[object] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LRScheduler | None] = (
            None,
            None,
        ),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, object]] | None = None,
        tokenizer: object = None,
    ) -> None:
        from transformers import default_data_collator
        from transformers.data.data_collator import DataCollatorWithPadding
        from transformers.trainer_callback import (
            CallbackHandler,
            DefaultFlowCallback,
            PrinterCallback,
            TrainerControl,
            TrainerState,
        )

        if eval_dataset is not None:
            raise RuntimeError("Evaluation is not supported in NeuronTrainer.")
        if tokenizer is not None:
            if processing_class is not None:
                processing_class = tokenizer
            else:
                current().note("NeuronTrainer: tokenizer= without processing_class= was lost, and is")
        if args is None:
            from neuronmigrate.runtime.legacy.optimum.arguments import training_arguments

            args = training_arguments(str(current().release))("tmp_trainer")  # type: ignore[call-arg]
        if model is None:
            raise ValueError("A model must be provided to the NeuronTrainer.")
        self.args = args
        self.model = model
        self.processing_class = processing_class
        self.train_dataset = train_dataset
        self.eval_dataset = None
        self.optimizer: object = optimizers[0]
        self.lr_scheduler = optimizers[1]
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        default: Callable[..., Batch] = default_data_collator
        if hasattr(processing_class, "pad"):
            make_padding: Callable[..., Callable[..., Batch]] = DataCollatorWithPadding
            default = make_padding(processing_class)
        self.data_collator: Callable[[list[object]], Batch] = data_collator or default
        parameters = inspect.signature(_innermost(model).forward).parameters.values()
        self.model_accepts_loss_kwargs = bool(
            getattr(model, "accepts_loss_kwargs", any(each.kind == each.VAR_KEYWORD for each in parameters))
        )
        handler: Callable[..., object] = CallbackHandler
        flow = [DefaultFlowCallback, *(callbacks or ()), *([PrinterCallback] if args.disable_tqdm else [])]
        self.callback_handler = handler(flow, model, processing_class, None, None)
        self.control = TrainerControl()
        self.state = TrainerState(is_local_process_zero=True, is_world_process_zero=args.should_log)
        self.grad_norm: torch.Tensor | None = None
        self._fire("on_init_end")
        if train_dataset is not None and not isinstance(train_dataset, Sized) and self.args.max_steps <= 0:
            raise ValueError("The train_dataset does not implement __len__, max_steps has to be specified.")

    def _arg(self, name: str) -> float:
        value = getattr(self.args, name)
        assert isinstance(value, int | float)
        return value

    def _fire(self, event: str, *extra: object) -> None:
        call = getattr(self.callback_handler, event)
        self.control = call(self.args, self.state, self.control, *extra)

    @property
    def tokenizer(self) -> object:
        """The processing class."""
        return self.processing_class

    def add_callback(self, callback: object) -> None:
        """Call this too."""
        getattr(self.callback_handler, "add_callback")(callback)  # noqa: B009

    def get_train_dataloader(self) -> DataLoader[object]:
        """Batches in random order; with several processes each has its share, by a sampler of seed 0."""
        if self.train_dataset is None:
            raise ValueError("NeuronTrainer: training requires a train_dataset.")
        dataset = self._kept_columns(self.train_dataset)
        sampler: object = None
        if not isinstance(dataset, IterableDataset):
            if world.size() > 1:
                sampler = DistributedSampler(dataset, world.size(), world.rank(), shuffle=True)  # type: ignore[arg-type]
            else:
                sampler = RandomSampler(dataset)  # type: ignore[arg-type]
        make: Callable[..., DataLoader[object]] = DataLoader
        return make(
            dataset,
            batch_size=self.args.per_device_train_batch_size,
            sampler=sampler,
            drop_last=self.args.dataloader_drop_last and sampler is not None,
            num_workers=self.args.dataloader_num_workers,
            collate_fn=self.data_collator,
        )

    def _kept_columns(self, dataset: Iterable[object]) -> object:
        """The dataset without columns that the model does not take."""
        columns = getattr(dataset, "column_names", None)
        if not self.args.remove_unused_columns or columns is None:
            return dataset
        known = {
            *inspect.signature(_innermost(self.model).forward).parameters,
            "label",
            "label_ids",
            "labels",
        }
        known |= set(self.args.label_names or ())
        unused = [name for name in columns if name not in known]
        if len(unused) == len(columns):
            raise ValueError(
                f"No columns in the dataset match the model's forward method signature: {columns}"
            )
        return getattr(dataset, "remove_columns")(unused)  # noqa: B009

    def create_optimizer(self) -> object:
        """AdamW or SGD, weight decay on all but biases and norms, unless one was given."""
        if self.optimizer is None:
            decayed = self.get_decay_parameter_names(self.model)
            named = [(name, each) for name, each in self.model.named_parameters() if each.requires_grad]
            groups = [
                {
                    "params": [each for name, each in named if name in decayed],
                    "weight_decay": self.args.weight_decay,
                },
                {"params": [each for name, each in named if name not in decayed], "weight_decay": 0.0},
            ]
            kind, options = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args)
            make: Callable[..., torch.optim.Optimizer] = kind
            self.optimizer = make([group for group in groups if group["params"]], **options)
        return self.optimizer

    @staticmethod
    def get_decay_parameter_names(model: torch.nn.Module) -> list[str]:
        """Names of parameters that decay: not in a LayerNorm, not named bias, layernorm or rmsnorm."""
        from transformers.trainer_pt_utils import get_parameter_names

        names: Callable[..., list[str]] = get_parameter_names
        return names(model, [torch.nn.LayerNorm], ["bias", "layernorm", "rmsnorm"])

    @staticmethod
    def get_optimizer_cls_and_kwargs(
        args: Arguments, model: object = None
    ) -> tuple[type[torch.optim.Optimizer], dict[str, object]]:
        """Raises ValueError for an optimizer other than adamw_torch and sgd."""
        rate = args.learning_rate
        if args.optim == "adamw_torch":
            betas = (args.adam_beta1, args.adam_beta2)
            return torch.optim.AdamW, {"lr": rate, "betas": betas, "eps": args.adam_epsilon}
        if args.optim == "sgd":
            return torch.optim.SGD, {"lr": rate}
        raise ValueError(f"NeuronTrainer cannot instantiate unsupported optimizer: {args.optim}")

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer) -> None:
        """The schedule that the arguments name, unless one was given."""
        from transformers import get_scheduler

        if self.lr_scheduler is None:
            make: Callable[..., torch.optim.lr_scheduler.LRScheduler] = get_scheduler
            self.lr_scheduler = make(
                self.args.lr_scheduler_type,
                optimizer=optimizer,
                num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
                num_training_steps=num_training_steps,
                scheduler_specific_kwargs=self.args.lr_scheduler_kwargs,
            )

    def _prepare(self, max_steps: int) -> Optimizer:
        """Dtypes of the weights and of the optimizer, by the mixed precision of the arguments."""
        bf16 = bool(self.args.bf16)
        autocast = bf16 and bool(self.args.use_autocast)
        masters = bf16 and self.args.zero_1 and getattr(self.args, "optimizer_use_master_weights", True)
        if bf16 and not autocast:
            self.model.to(torch.bfloat16)
        if self.args.gradient_checkpointing:
            options = self.args.gradient_checkpointing_kwargs or {}
            getattr(self.model, "gradient_checkpointing_enable")(gradient_checkpointing_kwargs=options)  # noqa: B009
        inner = self.create_optimizer()
        assert isinstance(inner, torch.optim.Optimizer)
        self.create_scheduler(max_steps, inner)
        self._autocast = autocast
        dtype = torch.float32 if masters else torch.bfloat16
        if self.args.zero_1 and not masters:
            current().note("zero_1 without master weights: the optimizer holds bfloat16, as it did")
        optimizer = Optimizer(inner, self.args.zero_1, dtype, self.args.max_grad_norm)
        self.model.train()
        return optimizer

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: int | None = None,
    ) -> object:
        """The loss of a micro-batch, already divided; with `return_outputs` what the model gave beside it."""
        with torch.autocast("cpu", torch.bfloat16, enabled=getattr(self, "_autocast", False)):
            outputs = model(**inputs)
        if isinstance(outputs, Mapping) and "loss" not in outputs:
            raise ValueError(
                "The model did not return a loss from the inputs, only the following keys: "
                f"{','.join(outputs)}. For reference, the inputs it received are {','.join(inputs)}."
            )
        loss: torch.Tensor = outputs["loss"] if isinstance(outputs, Mapping) else outputs[0]
        if num_items_in_batch is None:
            loss = loss / self.args.gradient_accumulation_steps
        else:
            if getattr(_innermost(model), SUMS_ITS_LOSS, False):
                # Back from the mean to the sum that the training class gave.
                loss = loss * (inputs["labels"][..., 1:] != -100).sum()
            loss = loss / num_items_in_batch
        return (loss, outputs) if return_outputs else loss

    def training_step(
        self, model: torch.nn.Module, inputs: Batch, num_items_in_batch: int | None = None
    ) -> torch.Tensor:
        """Loss and backward of a micro-batch."""
        loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        assert isinstance(loss, torch.Tensor)
        loss.backward()  # type: ignore[no-untyped-call]  # of torch
        return loss.detach()

    def get_batch_samples(
        self,
        epoch_iterator: Iterator[Batch],
        num_batches: int,
        device: object = None,
        prefetch_size: object = None,
    ) -> tuple[list[Batch], int | None]:
        """The micro-batches of one update, and their labels that count, over all positions."""
        batches = []
        for _ in range(num_batches):
            try:
                batches.append(next(epoch_iterator))
            except StopIteration:
                break
        if not batches or "labels" not in batches[0] or not self.model_accepts_loss_kwargs:
            return batches, None
        return batches, sum(int((batch["labels"] != -100).sum()) for batch in batches)

    def train(self, resume_from_checkpoint: object = None) -> None:
        """Train. Raises ValueError when asked to resume."""
        if resume_from_checkpoint not in (False, None):
            raise ValueError("`resume_from_checkpoint` is not supported by the NeuronTrainer.")
        state = self.state
        loader = self.get_train_dataloader()
        accumulate = int(self.args.gradient_accumulation_steps)
        sized = isinstance(self.train_dataset, Sized)
        length: int = len(loader) if sized else 0
        asked = int(self.args.max_steps)
        updates = max(math.ceil(length / accumulate), 1) if sized else max(asked, 1)
        epochs = math.ceil(self.args.num_train_epochs)
        max_steps = asked if asked > 0 else math.ceil(self.args.num_train_epochs * updates)
        if asked > 0:
            epochs = math.ceil(asked / updates) if sized else sys.maxsize
        optimizer = self._prepare(max_steps)
        state.max_steps, state.num_train_epochs, state.epoch = max_steps, epochs, 0
        for name in ("logging", "save"):
            value = self._arg(f"{name}_steps")
            setattr(state, f"{name}_steps", math.ceil(max_steps * value) if value < 1 else int(value))
        self._running, self._logged = 0.0, 0
        self._fire("on_train_begin")
        optimizer.zero_grad()
        for epoch in range(epochs):
            if isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(epoch)
            self._fire("on_epoch_begin")
            self._epoch(epoch, iter(loader), length or asked * accumulate, accumulate, optimizer)
            self._fire("on_epoch_end")
            if self.control.should_training_stop:
                break
        self.optimizer = optimizer
        self._fire("on_train_end")

    def _epoch(
        self, epoch: int, batches: Iterator[object], length: int, accumulate: int, optimizer: Optimizer
    ) -> None:
        step = -1
        for _ in range(math.ceil(length / accumulate)):
            samples, items = self.get_batch_samples(batches, accumulate)  # type: ignore[arg-type]
            for inputs in samples:
                step += 1
                if step % accumulate == 0:
                    self._fire("on_step_begin")
                self._running += float(self.training_step(self.model, inputs, items))
                if (step + 1) % accumulate == 0 or step + 1 == length:
                    self._update(optimizer, epoch + (step + 1) / length)
                else:
                    self._fire("on_substep_end")
                self._log_and_save(optimizer)
                if self.control.should_epoch_stop or self.control.should_training_stop:
                    return
        if step < 0:
            self.control.should_training_stop = True

    def _update(self, optimizer: Optimizer, epoch: float) -> None:
        self._fire("on_pre_optimizer_step")
        optimizer.step()
        self.grad_norm = optimizer.grad_norm
        self._fire("on_optimizer_step")
        assert self.lr_scheduler is not None
        self.lr_scheduler.step()
        optimizer.zero_grad()
        self.state.global_step += 1
        self.state.epoch = epoch
        self._fire("on_step_end")

    def _log_and_save(self, optimizer: Optimizer) -> None:
        state = self.state
        if self.control.should_log and self._logged < state.global_step:
            with world.quiet():
                mean = torch.stack(world.gather(torch.tensor([self._running], dtype=torch.float64))).mean()
            assert self.lr_scheduler is not None
            logs: dict[str, float] = {
                "loss": round(float(mean) / (state.global_step - self._logged), 4),
                "learning_rate": float(self.lr_scheduler.get_last_lr()[0]),
            }
            if self.grad_norm is not None:
                logs["grad_norm"] = float(self.grad_norm)
            self._running, self._logged = 0.0, state.global_step
            self.log(logs)
        if self.control.should_save:
            self._save_checkpoint(optimizer)
            self._fire("on_save")

    def log(self, logs: dict[str, float]) -> None:
        """Keep logs in the state and tell the callbacks."""
        if self.state.epoch is not None:
            logs["epoch"] = self.state.epoch
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self._fire("on_log", logs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write model and processing class, on the first process."""
        if not self.args.should_save:
            return
        target = output_dir or self.args.output_dir
        save = getattr(self.model, "save_pretrained", None)
        if save is None:
            raise RuntimeError(
                "NeuronTrainer.model is not a `PreTrainedModel`, saving this kind of model is not supported."
            )
        save(target)
        if self.processing_class is not None:
            getattr(self.processing_class, "save_pretrained")(target)  # noqa: B009

    def _save_checkpoint(self, optimizer: Optimizer) -> None:
        if not self.args.should_save:
            return
        assert self.args.output_dir is not None and self.lr_scheduler is not None
        folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        folder.mkdir(parents=True, exist_ok=True)
        self.save_model(str(folder), _internal_call=True)
        if not self.args.save_only_model:
            torch.save(optimizer.state_dict(), folder / "optimizer.pt")
            torch.save(self.lr_scheduler.state_dict(), folder / "scheduler.pt")
        self.state.save_to_json(str(folder / "trainer_state.json"))
        limit = self.args.save_total_limit
        if limit:
            found = sorted(
                Path(self.args.output_dir).glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1])
            )
            for old in found[:-limit]:
                shutil.rmtree(old)

    def evaluate(self, *args: object, **kwargs: object) -> None:
        """Raises AttributeError: the class had no such method."""
        raise AttributeError("'NeuronTrainer' object has no attribute 'evaluate'")

    predict = evaluate

    def is_world_process_zero(self) -> bool:
        """Whether this is the first process."""
        return self.args.process_index == 0

    def is_local_process_zero(self) -> bool:
        """Whether this is the first process of its host."""
        return self.args.local_process_index == 0


def _innermost(model: torch.nn.Module) -> torch.nn.Module:
    """The model without adapters around it."""
    base = getattr(model, "get_base_model", None)
    found = base() if callable(base) else model
    assert isinstance(found, torch.nn.Module)
    return found


class NeuronSFTTrainer(NeuronTrainer):
    """Supervised fine-tuning of 0.4.2 and later (`trainers/sft_trainer.py`, trl 0.24's preparation).

    Texts get the end token, and are cut and padded to `max_length` before the collator sees them: so the
    mask is all ones, and the padding counts as labels unless a completion mask says otherwise.
    """

    def __init__(
        self,
        model: torch.nn.Module | str,
        args: Arguments | None = None,
        data_collator: Callable[[list[object]], Batch] | None = None,
        train_dataset: Iterable[Mapping[str, object]] | None = None,
        eval_dataset: object = None,
        processing_class: object = None,
        compute_loss_func: object = None,
        compute_metrics: object = None,
        callbacks: Sequence[object] | None = None,
        optimizers: tuple[torch.optim.Optimizer | None, torch.optim.lr_scheduler.LRScheduler | None] = (
            None,
            None,
        ),
        optimizer_cls_and_kwargs: tuple[type[torch.optim.Optimizer], dict[str, object]] | None = None,
        preprocess_logits_for_metrics: object = None,
        peft_config: object = None,
        formatting_func: Callable[[Mapping[str, object]], str] | None = None,
    ) -> None:
        from neuronmigrate.runtime.legacy.optimum import sft

        for name, value in (
            ("compute_loss_func", compute_loss_func),
            ("compute_metrics", compute_metrics),
            ("preprocess_logits_for_metrics", preprocess_logits_for_metrics),
        ):
            if value is not None:
                current().note(f"NeuronSFTTrainer: {name} was accepted and never used")
        prepared = sft.prepare(model, args, train_dataset, processing_class, peft_config, formatting_func)
        super().__init__(
            prepared.model,
            prepared.args,
            data_collator or prepared.collator,
            prepared.rows,
            eval_dataset,
            prepared.tokenizer,
            callbacks,
            optimizers,
            optimizer_cls_and_kwargs,
        )

    def _kept_columns(self, dataset: Iterable[object]) -> object:
        return dataset
