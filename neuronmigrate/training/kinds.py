"""The legacy classes of a training script, and the native ones that take their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuronmigrate.training.fields import DEFAULTS, FIELDS, Default, Field
from neuronmigrate.training.trl_fields import ORPO_DEFAULTS, ORPO_FIELDS, SFT_DEFAULTS, SFT_FIELDS


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


def _under(modules: str, *names: str) -> list[str]:
    """Names at the top of optimum.neuron and in modules below it."""
    return [
        f"optimum.neuron.{f'{module}.' if module else ''}{name}"
        for module in ("", *modules.split())
        for name in names
    ]


_TRAINING_ARGUMENTS = ArgumentsKind("transformers.TrainingArguments")
_SEQ2SEQ_ARGUMENTS = ArgumentsKind("transformers.Seq2SeqTrainingArguments")
_SFT_ARGUMENTS = ArgumentsKind("trl.SFTConfig", SFT_FIELDS, SFT_DEFAULTS)
_ORPO_ARGUMENTS = ArgumentsKind("trl.experimental.orpo.ORPOConfig", ORPO_FIELDS, ORPO_DEFAULTS)

ARGUMENTS: dict[str, ArgumentsKind] = {
    **dict.fromkeys(
        _under("training_args", "NeuronTrainingArguments", "TrainiumTrainingArguments"), _TRAINING_ARGUMENTS
    ),
    "optimum.neuron.trainers.NeuronTrainingArguments": _TRAINING_ARGUMENTS,
    "optimum.neuron.trainers.training_args.NeuronTrainingArguments": _TRAINING_ARGUMENTS,
    **dict.fromkeys(
        _under("training_args", "Seq2SeqNeuronTrainingArguments", "Seq2SeqTrainiumTrainingArguments"),
        _SEQ2SEQ_ARGUMENTS,
    ),
    **dict.fromkeys(
        _under("trainers trainers.sft_config utils utils.trl_utils", "NeuronSFTConfig"), _SFT_ARGUMENTS
    ),
    **dict.fromkeys(_under("utils utils.trl_utils", "NeuronORPOConfig"), _ORPO_ARGUMENTS),
}
"""By legacy name, of all codemods: a trainer and its arguments may belong to two of them."""

_TRAINER = TrainerKind("transformers.Trainer", "transformers.TrainingArguments")
_SEQ2SEQ_TRAINER = TrainerKind("transformers.Seq2SeqTrainer", "transformers.Seq2SeqTrainingArguments")
_SFT_TRAINER = TrainerKind("trl.SFTTrainer", "trl.SFTConfig")
_ORPO_TRAINER = TrainerKind("trl.experimental.orpo.ORPOTrainer", "trl.experimental.orpo.ORPOConfig")

TRAINERS: dict[str, TrainerKind] = {
    **dict.fromkeys(_under("trainers", "NeuronTrainer", "TrainiumTrainer"), _TRAINER),
    "optimum.neuron.trainers.transformers.NeuronTrainer": _TRAINER,
    **dict.fromkeys(_under("trainers", "Seq2SeqNeuronTrainer", "Seq2SeqTrainiumTrainer"), _SEQ2SEQ_TRAINER),
    **dict.fromkeys(_under("trainers trainers.sft_trainer", "NeuronSFTTrainer"), _SFT_TRAINER),
    **dict.fromkeys(_under("trainers", "NeuronORPOTrainer"), _ORPO_TRAINER),
}
"""By legacy name, of all codemods."""

PLAIN_ARGUMENTS = frozenset(f"transformers.{each}TrainingArguments" for each in ("", "Seq2Seq"))
"""Arguments of Transformers itself, which trainers of Optimum Neuron took as well."""

PARSERS = frozenset(_under("hf_argparser", "NeuronHfArgumentParser", "TrainiumHfArgumentParser"))
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

MODELS = {
    f"optimum.neuron.models.training{module}.{name}": f"transformers.{native}"
    for module, names in {
        "": "NeuronModel NeuronModelForCausalLM GraniteForCausalLM LlamaForCausalLM Qwen3ForCausalLM",
        ".granite.modeling_granite": "GraniteForCausalLM GraniteModel",
        ".llama": "LlamaForCausalLM",
        ".llama.modeling_llama": "LlamaForCausalLM LlamaModel",
        ".modeling_auto": "NeuronModel NeuronModelForCausalLM",
        ".qwen3.modeling_qwen3": "Qwen3ForCausalLM Qwen3Model",
    }.items()
    for name in names.split()
    for native in [name.replace("NeuronModel", "AutoModel")]
}
"""Training classes of models that Optimum Neuron implements itself, from 0.2.0 on, and the native ones."""
