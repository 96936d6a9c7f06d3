"""`NeuronTrainingArguments` before 0.4.0: transformers' TrainingArguments with fields of the package's own.

From `training_args.py` at 0.0.12, 0.0.22, 0.0.28 and 0.3.0. The fields of transformers are those of the
installed version; defaults that changed since the releases are set back.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import types
from collections.abc import Callable, Iterator

from transformers import Seq2SeqTrainingArguments, TrainingArguments

from neuronmigrate import catalogue
from neuronmigrate.runtime.legacy.explain import in_the_way
from neuronmigrate.runtime.legacy.optimum.accelerator import refuse_split
from neuronmigrate.runtime.legacy.optimum.arguments import SFT_0_11, kind_of
from neuronmigrate.runtime.legacy.session import LegacyProblem, current

_OWN: dict[str, tuple[object, object]] = {
    "skip_cache_push": (bool, False),
    "half_precision_backend": (str, "xla"),
    "zero_1": (bool, False),
    "tensor_parallel_size": (int, 1),
    "disable_embedding_parallelization": (bool, False),
    "disable_sequence_parallel": (bool, False),
    "sequence_parallel_enabled": (bool, False),
    "neuron_cc_optlevel": (int | None, None),
    "pipeline_parallel_size": (int, 1),
    "pipeline_parallel_num_microbatches": (int, -1),
    "kv_size_multiplier": (int | None, None),
    "num_ranks_per_loading_step": (int, -1),
    "num_local_ranks_per_step": (int, 8),
    "use_xser": (bool, True),
    "async_save": (bool, False),
    "fuse_qkv": (bool, False),
    "recompute_causal_mask": (bool, True),
}
"""Fields that the package added, with types and defaults of 0.3.0; the catalogue knows the releases."""

_BACK = {"optim": "adamw_torch", "average_tokens_across_devices": False}
"""Defaults of transformers that were others then."""

ORPO: dict[str, tuple[object, object]] = {
    "max_length": (int | None, None),
    "max_prompt_length": (int | None, None),
    "max_completion_length": (int | None, None),
    "beta": (float, 0.1),
    "disable_dropout": (bool, True),
    "label_pad_token_id": (int, -100),
    "padding_value": (int | None, None),
    "truncation_mode": (str, "keep_end"),
    "generate_during_eval": (bool, False),
    "is_encoder_decoder": (bool | None, None),
    "model_init_kwargs": (dict | None, None),
    "dataset_num_proc": (int | None, None),
}
"""Fields of trl 0.11.4's ORPOConfig (`trl/trainer/orpo_config.py`)."""


class NeuronTrainingArgumentsMixin(TrainingArguments):
    """What the package's classes did beside transformers' own."""

    bf16: bool
    gradient_accumulation_steps: int
    report_to: None | str | list[str]  # noqa: RUF036 - the parser takes the second type

    def __post_init__(self) -> None:
        session = current()
        if self.fsdp not in ("", [], None):
            raise RuntimeError("FSDP is not supported.")
        if self.fp16:
            raise ValueError("The fp16 data type is not supported in Neuron, please use bf16 instead.")
        if self.pipeline_parallel_size > 1:
            self.per_device_train_batch_size *= self.gradient_accumulation_steps
            self.per_device_eval_batch_size *= self.gradient_accumulation_steps
            self.gradient_accumulation_steps = 1
        self.mp_plugin = self.trn_config = types.SimpleNamespace(
            tensor_parallel_size=self.tensor_parallel_size, pipeline_parallel_size=self.pipeline_parallel_size
        )
        refuse_split(self.trn_config)
        if not session.release.since("0.1.0"):
            flags = ("XLA_USE_BF16", "XLA_DOWNCAST_BF16")
            self.bf16 = self.bf16 or any(os.environ.get(flag, "0") == "1" for flag in flags)
        if self.report_to not in ("none", [], ["none"]):
            session.note("report_to: no tracker is called here")
            self.report_to = []
        # The library would cast by its own rules.
        bf16, self.bf16, self.use_cpu = self.bf16, False, True
        super().__post_init__()
        self.bf16 = bf16

    @property
    def dp_size(self) -> int:
        """Data-parallel ranks: each process is one."""
        return int(self.world_size)

    @contextlib.contextmanager
    def world_size_as_dp_size(self) -> Iterator[None]:
        """Nothing here, as both are equal."""
        yield


def _make(name: str, base: type, more: dict[str, tuple[object, object]]) -> type:
    release = current().release
    known = catalogue.arguments("optimum.neuron.NeuronTrainingArguments")
    fields = {}
    for field, (kind, default) in _OWN.items():
        if release.has(known[field].first, known[field].last):
            fields[field] = (kind, default)
    existing = {each.name for each in dataclasses.fields(base)}
    fields.update(
        {
            field: (str if field == "optim" else bool, default)
            for field, default in _BACK.items()
            if field in existing
        }
    )
    fields.update(more)
    made = dataclasses.make_dataclass(
        name,
        [(field, kind, dataclasses.field(default=default)) for field, (kind, default) in fields.items()],
        bases=(NeuronTrainingArgumentsMixin, base),
    )
    # Attributes that are no field of the release are read all the same.
    for field, (_, default) in _OWN.items():
        if field not in fields and field not in existing:
            setattr(made, field, default)
    taken = {each.name for each in dataclasses.fields(made)}
    construct: Callable[..., None] = getattr(made, "__init__")  # noqa: B009 - of a class

    @functools.wraps(construct)
    def init(self: object, *args: object, **kwargs: object) -> None:
        if not release.since("0.2.0") and "evaluation_strategy" in kwargs:
            # Its name up to transformers 4.45, and with a warning for some releases more.
            kwargs.setdefault("eval_strategy", kwargs.pop("evaluation_strategy"))
        for keyword in kwargs:
            if keyword not in taken and keyword not in _OWN:
                message = in_the_way("transformers", f"TrainingArguments.{keyword}")
                if message is not None:
                    raise LegacyProblem(message)
        construct(self, *args, **kwargs)

    # The generated one would refuse in the name of a class that nobody can look up.
    setattr(made, "__init__", init)  # noqa: B010 - of a class
    made.__module__ = "optimum.neuron"
    return made


@functools.cache
def training_arguments(release: str) -> type:
    """`NeuronTrainingArguments` of a release before 0.4.0."""
    return _make("NeuronTrainingArguments", TrainingArguments, {})


@functools.cache
def seq2seq_arguments(release: str) -> type:
    """`Seq2SeqNeuronTrainingArguments` of a release before 0.4.0."""
    return _make("Seq2SeqNeuronTrainingArguments", Seq2SeqTrainingArguments, {})


@functools.cache
def sft_config(release: str) -> type:
    """`NeuronSFTConfig` of a release before 0.4.0."""
    fields = {name: (kind_of(name, default), default) for name, default in SFT_0_11.items()}
    return _make("NeuronSFTConfig", TrainingArguments, fields)


@functools.cache
def orpo_config(release: str) -> type:
    """`NeuronORPOConfig` of 0.0.26 to 0.3.0."""
    return _make("NeuronORPOConfig", TrainingArguments, ORPO)
