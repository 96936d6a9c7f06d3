"""`NeuronTrainingArguments` and `NeuronSFTConfig` of 0.4.x: a closed list of fields with its own defaults.

The fields of a release and their defaults come from the catalogue; what is done with them is that of
`trainers/training_args.py` at 0.4.5. For the classes before 0.4.0 see `transformers_arguments`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import math
import os
import types
from collections.abc import Callable, Mapping
from typing import TypeVar

from neuronmigrate import catalogue
from neuronmigrate.runtime.legacy.session import LegacyProblem, current

_TYPES: Mapping[str, object] = {
    "accelerator_config": dict | str | None,
    "completion_only_loss": bool | None,
    "data_seed": int | None,
    "dataloader_prefetch_factor": int | None,
    "dataloader_prefetch_size": int | None,
    "dataset_kwargs": dict | None,
    "dataset_num_proc": int | None,
    "disable_tqdm": bool | None,
    "eval_packing": bool | None,
    "eval_steps": float | None,
    "gradient_checkpointing_kwargs": dict | str | None,
    "kv_size_multiplier": int | None,
    "label_names": list[str] | None,
    "logging_steps": float,
    "lr_scheduler_kwargs": dict | str,
    "max_seq_length": int | None,
    "model_init_kwargs": dict | None,
    "neftune_noise_alpha": float | None,
    "pad_to_multiple_of": int | None,
    # In the order that the parser of transformers can take.
    "report_to": None | str | list[str],
    "save_steps": float,
    "save_total_limit": int | None,
}
"""Types of the fields whose default does not tell them, for parsers of command lines."""

_SFT: Mapping[str, object] = {
    "model_init_kwargs": None,
    "chat_template_path": None,
    "dataset_text_field": "text",
    "dataset_kwargs": None,
    "dataset_num_proc": None,
    "eos_token": None,
    "pad_token": None,
    "max_length": 1024,
    "packing": False,
    "packing_strategy": "bfd",
    "padding_free": False,
    "pad_to_multiple_of": None,
    "eval_packing": None,
    "completion_only_loss": None,
    "assistant_only_loss": False,
    "loss_type": "nll",
    "activation_offloading": False,
}
"""Fields that trl 0.24's SFTConfig adds (trl/trainer/sft_config.py), from 0.4.2 on."""

SFT_0_11: Mapping[str, object] = {
    "dataset_text_field": None,
    "packing": False,
    "max_seq_length": None,
    "dataset_num_proc": None,
    "dataset_batch_size": 1000,
    "neftune_noise_alpha": None,
    "model_init_kwargs": None,
    "dataset_kwargs": None,
    "eval_packing": None,
    "num_of_sequences": 1024,
    "chars_per_token": 3.6,
    "use_liger": False,
}
"""Fields of trl 0.11.4's SFTConfig (trl/trainer/sft_config.py), up to 0.4.1."""

_INERT: Mapping[str, object] = {
    "push_to_hub": False,
    "hub_model_id": None,
    "hub_token": None,
    "fp16": False,
    "data_seed": None,
    "group_by_length": False,
    "load_best_model_at_end": False,
    "neftune_noise_alpha": None,
}
"""Fields of transformers' TrainingArguments that came along with SFTConfig and that nothing read."""

_WITHOUT_EFFECT = (
    "label_smoothing_factor",
    "seed",
    "average_tokens_across_devices",
    "eval_steps",
    "resume_from_checkpoint",
    "loss_type",
    "neftune_noise_alpha",
    "push_to_hub",
    "fp16",
    "data_seed",
    "group_by_length",
    "load_best_model_at_end",
)
"""Fields that were accepted and never read."""


class Arguments:
    """The fields that are read here, and what they compute; one process is one data-parallel rank."""

    adam_beta1: float
    adam_beta2: float
    adam_epsilon: float
    bf16: bool
    dataloader_drop_last: bool
    dataloader_num_workers: int
    disable_tqdm: bool | None
    do_eval: bool
    eval_strategy: str
    gradient_accumulation_steps: int
    gradient_checkpointing: bool
    gradient_checkpointing_kwargs: dict[str, object] | None
    label_names: list[str] | None
    learning_rate: float
    logging_steps: float
    logging_strategy: str
    lr_scheduler_kwargs: dict[str, object]
    lr_scheduler_type: str
    max_grad_norm: float | None
    max_steps: int
    num_train_epochs: float
    optim: str
    output_dir: str | None
    per_device_train_batch_size: int
    pipeline_parallel_size: int
    remove_unused_columns: bool
    report_to: str | list[str] | None
    run_name: str | None
    save_only_model: bool
    save_steps: float
    save_strategy: str
    save_total_limit: int | None
    tensor_parallel_size: int
    use_autocast: bool
    warmup_ratio: float
    warmup_steps: int
    weight_decay: float
    zero_1: bool

    def __post_init__(self) -> None:
        session = current()
        self.output_dir = os.path.expanduser(self.output_dir or "trainer_output")
        if self.eval_strategy != "no" or self.do_eval:
            raise RuntimeError("Evaluation is not supported yet.")
        steps: object = self.warmup_steps
        if not isinstance(steps, int) or steps < 0:
            raise ValueError("warmup_steps must be of type int and must be 0 or a positive integer.")
        if not 0 <= self.warmup_ratio <= 1:
            raise ValueError("warmup_ratio must lie in range [0,1]")
        for name in ("logging_steps", "save_steps"):
            value = getattr(self, name)
            if value > 1 and value != int(value):
                raise ValueError(f"--{name} must be an integer if bigger than 1: {value}")
        # transformers' callbacks compare with the members of its enumeration.
        from transformers import IntervalStrategy

        for name in ("eval_strategy", "logging_strategy", "save_strategy"):
            setattr(self, name, IntervalStrategy(getattr(self, name)))
        if self.run_name is None:
            self.run_name = self.output_dir
        if self.report_to not in (None, "none", [], ["none"]):
            session.note("report_to: no tracker is called here")
        for each in dataclasses.fields(self):  # type: ignore[arg-type]  # the class made of this one is one
            if each.name in _WITHOUT_EFFECT and getattr(self, each.name) != each.default:
                session.note(f"{type(self).__name__}: {each.name} was accepted and never read")
        if self.tensor_parallel_size * self.pipeline_parallel_size > 1:
            if self._processes > 1:
                raise LegacyProblem(
                    "tensor or pipeline parallelism over several processes has no stand-in: start one process"
                )
            session.note("tensor and pipeline parallelism: computed whole, in one process")
        self.trn_config = types.SimpleNamespace(
            tensor_parallel_size=self.tensor_parallel_size,
            pipeline_parallel_size=self.pipeline_parallel_size,
            data_parallel_size=self._processes,
            model_parallelism_enabled=False,
        )

    @property
    def _processes(self) -> int:
        return int(os.environ.get("WORLD_SIZE", "1"))

    @property
    def world_size(self) -> int:
        """Data-parallel ranks."""
        return self._processes

    @property
    def process_index(self) -> int:
        """Number of this process."""
        return int(os.environ.get("RANK", "0"))

    @property
    def local_process_index(self) -> int:
        """Number of this process on its host."""
        return int(os.environ.get("LOCAL_RANK", "0"))

    @property
    def train_batch_size(self) -> int:
        """Rows of one step of all ranks."""
        return self.per_device_train_batch_size * self._processes

    @property
    def should_log(self) -> bool:
        """Whether this is the first process."""
        return self.process_index == 0

    should_save = should_log

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Steps of the warmup: `warmup_steps` if there are any, else the share."""
        return (
            self.warmup_steps if self.warmup_steps > 0 else math.ceil(num_training_steps * self.warmup_ratio)
        )

    def to_dict(self) -> dict[str, object]:
        """The fields as plain data."""
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}  # type: ignore[arg-type]


class SFTArguments(Arguments):
    """The fields of supervised fine-tuning that are read here."""

    assistant_only_loss: bool
    completion_only_loss: bool | None
    dataset_kwargs: dict[str, object] | None
    dataset_text_field: str
    max_length: int
    packing: bool
    packing_strategy: str
    pad_token: str | None


def _of_release() -> dict[str, object]:
    """Fields of the chosen release with their defaults, `output_dir` first."""
    release = current().release
    found: dict[str, object] = {"output_dir": None}
    for name, argument in catalogue.arguments("optimum.neuron.NeuronTrainingArguments").items():
        if not argument.first or not argument.default or not release.has(argument.first, argument.last):
            continue
        if argument.default == "dict()":
            found[name] = {}
        elif name == "optim":
            found[name] = "adamw_torch"
        elif name not in ("framework", "default_optim"):
            found[name] = ast.literal_eval(argument.default)
    return found


def kind_of(name: str, default: object) -> object:
    """The type of a field, for parsers of command lines."""
    return _TYPES.get(name, str | None if default is None else type(default))


Kind = TypeVar("Kind", bound=Arguments)


def _make(name: str, base: type[Kind], defaults: Mapping[str, object]) -> type[Kind]:
    fields: list[tuple[str, object, object]] = []
    for key, value in defaults.items():
        kind = kind_of(key, value)
        default: object = dataclasses.field(default=value)
        if isinstance(value, dict):
            default = dataclasses.field(default_factory=dict)
        fields.append((key, kind, default))
    make: Callable[..., type[Kind]] = dataclasses.make_dataclass
    made = make(name, fields, bases=(base,))
    made.__module__ = "optimum.neuron"
    return made


@functools.cache
def training_arguments(release: str) -> type[Arguments]:
    """`NeuronTrainingArguments` of a release."""
    return _make("NeuronTrainingArguments", Arguments, _of_release())


@functools.cache
def sft_config(release: str) -> type[SFTArguments]:
    """`NeuronSFTConfig` of a release: with the fields of trl 0.24 from 0.4.2 on, of trl 0.11.4 before."""
    fields = {**_SFT, **_INERT} if current().release.since("0.4.2") else {**SFT_0_11, **_INERT}
    return _make("NeuronSFTConfig", SFTArguments, {**_of_release(), **fields})
