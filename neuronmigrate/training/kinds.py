"""The legacy classes of a training script, and the native ones that take their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuronmigrate.training.fields import DEFAULTS, FIELDS, Default, Field


@dataclass(frozen=True)
class ArgumentsKind:
    """A class of training arguments."""

    native: str
    fields: Mapping[str, tuple[Field, ...]] = field(default_factory=lambda: FIELDS)
    """What becomes of each of its fields, by legacy name."""
    defaults: tuple[Default, ...] = DEFAULTS
    """Where its defaults and those of the native class differ."""
    loads_float32: bool = False
    """Whether the native trainer loads a model that is given by name in float32 by itself."""


@dataclass(frozen=True)
class TrainerKind:
    """A trainer class."""

    native: str
    arguments: str
    """The native class of its arguments."""


def _under(modules: str, names: Mapping[str, str]) -> dict[str, str]:
    return {
        f"optimum.neuron{module and '.' + module}.{name}": native
        for module in ("", *modules.split())
        for name, native in names.items()
    }


_TRAINING_ARGUMENTS = ArgumentsKind("transformers.TrainingArguments")
_SEQ2SEQ_ARGUMENTS = ArgumentsKind("transformers.Seq2SeqTrainingArguments")

ARGUMENTS: dict[str, ArgumentsKind] = {
    **dict.fromkeys(
        _under(
            "training_args trainers trainers.training_args",
            {"NeuronTrainingArguments": "", "TrainiumTrainingArguments": ""},
        ),
        _TRAINING_ARGUMENTS,
    ),
    **dict.fromkeys(
        _under(
            "training_args trainers",
            {"Seq2SeqNeuronTrainingArguments": "", "Seq2SeqTrainiumTrainingArguments": ""},
        ),
        _SEQ2SEQ_ARGUMENTS,
    ),
}
"""By legacy name, of all codemods: a trainer and its arguments may belong to two of them."""

_TRAINER = TrainerKind("transformers.Trainer", "transformers.TrainingArguments")
_SEQ2SEQ_TRAINER = TrainerKind("transformers.Seq2SeqTrainer", "transformers.Seq2SeqTrainingArguments")

TRAINERS: dict[str, TrainerKind] = {
    **dict.fromkeys(
        _under("trainers trainers.transformers", {"NeuronTrainer": "", "TrainiumTrainer": ""}), _TRAINER
    ),
    **dict.fromkeys(
        _under("trainers", {"Seq2SeqNeuronTrainer": "", "Seq2SeqTrainiumTrainer": ""}), _SEQ2SEQ_TRAINER
    ),
}
"""By legacy name, of all codemods."""

PARSERS = frozenset(_under("hf_argparser", {"NeuronHfArgumentParser": "", "TrainiumHfArgumentParser": ""}))
"""The argument parsers of Optimum Neuron."""
NATIVE_PARSERS = frozenset(
    {
        "transformers.HfArgumentParser",
        "transformers.hf_argparser.HfArgumentParser",
        "trl.TrlParser",
        "trl.commands.cli_utils.TrlParser",
        "trl.scripts.utils.TrlParser",
        "trl.scripts.TrlParser",
        "trl.trainer.utils.TrlParser",
    }
)
"""Parsers that stay what they are, and fill legacy classes."""
PARSING = frozenset(
    {
        "parse_args_and_config",
        "parse_args_into_dataclasses",
        "parse_dict",
        "parse_json_file",
        "parse_yaml_file",
    }
)
"""Methods of a parser that give the objects, in the order of the classes."""

MODELS = frozenset(
    f"optimum.neuron.models.training{module}.{name}"
    for module in ("", ".modeling_auto", ".llama", ".llama.modeling_llama", ".granite", ".qwen3")
    for name in (
        "GraniteForCausalLM",
        "LlamaForCausalLM",
        "NeuronModel",
        "NeuronModelForCausalLM",
        "Qwen3ForCausalLM",
    )
)
"""Training classes of models that Optimum Neuron implements itself, from 0.2.0 on."""
