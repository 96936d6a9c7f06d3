"""Optimum Neuron: which stand-in a name has. Many import paths lead to one class, so the last part decides.

The behaviour is that of the package's own source at its tags; where a release differs the module says so.
"""

from __future__ import annotations

import importlib

from neuronmigrate.runtime.legacy.session import Session

STAND_INS: dict[str, tuple[str, ...]] = {
    "accelerator": ("NeuronAccelerator", "lazy_load_for_parallelism"),
    "decoder": ("NeuronConfig", "NeuronModelForCausalLM", "NeuronModelForEmbedding", "NxDNeuronConfig"),
    "environment": (
        "get_neuron_major",
        "is_main_worker",
        "is_neuron_available",
        "is_neuronx_available",
        "is_neuronx_distributed_available",
        "is_precompilation",
    ),
    "parser": ("NeuronHfArgumentParser", "TrainiumHfArgumentParser"),
    "peft": ("get_peft_model",),
    "pipelines": ("pipeline",),
    "sentences": ("NeuronModelForSentenceTransformers", "NeuronSentenceTransformers"),
    "seq2seq": ("NeuronModelForSeq2SeqLM", "NeuronWhisperForConditionalGeneration"),
    "traced": (
        "NeuronBertForMaskedLM",
        "NeuronBertForMultipleChoice",
        "NeuronBertForQuestionAnswering",
        "NeuronBertForSequenceClassification",
        "NeuronBertForTokenClassification",
        "NeuronBertModel",
        "NeuronCLIPForImageClassification",
        "NeuronCLIPModel",
        "NeuronModelForAudioClassification",
        "NeuronModelForAudioFrameClassification",
        "NeuronModelForCTC",
        "NeuronModelForFeatureExtraction",
        "NeuronModelForImageClassification",
        "NeuronModelForMaskedLM",
        "NeuronModelForMultipleChoice",
        "NeuronModelForObjectDetection",
        "NeuronModelForQuestionAnswering",
        "NeuronModelForSemanticSegmentation",
        "NeuronModelForSequenceClassification",
        "NeuronModelForTokenClassification",
        "NeuronModelForXVector",
        "NeuronTracedModel",
        "NeuronYolosForObjectDetection",
    ),
}
"""Modules of this package, and the names they stand in for."""

_MODULE_OF = {name: module for module, names in STAND_INS.items() for name in names}


TRAINING = (
    "GraniteForCausalLM",
    "LlamaForCausalLM",
    "NeuronModelForCausalLM",
    "Qwen3ForCausalLM",
    "TrainingNeuronConfig",
)
"""Names below `optimum.neuron.models.training`, some of which other modules have as well."""


def stand_in(module: str, name: str, session: Session) -> object:
    """The stand-in of a name of a module; None without one.

    Raises LegacyProblem if a library that it is built on is not installed.
    """
    if name == "__version__":
        return str(session.release)
    ours = _MODULE_OF.get(name)
    if name in TRAINING and (ours is None or ".training" in module):
        ours = "training" if ".training" in module else None
    if ours is not None:
        found: object = getattr(importlib.import_module(f"{__name__}.{ours}"), name)
        return found
    if name in _CONFIGS:
        return _config(name, session)
    if name in TRAINERS:
        return _trainer(name, session)
    if name.endswith("Pipeline"):
        diffusion = importlib.import_module(f"{__name__}.diffusion")
        if name in diffusion.NAMES:
            made: object = diffusion.pipeline_class(name)
            return made
    return None


_CONFIGS = {
    "NeuronTrainingArguments": "training_arguments",
    "NeuronSFTConfig": "sft_config",
    "NeuronORPOConfig": "orpo_config",
    "Seq2SeqNeuronTrainingArguments": "seq2seq_arguments",
    "Seq2SeqTrainiumTrainingArguments": "seq2seq_arguments",
    "TrainiumTrainingArguments": "training_arguments",
}
"""Classes of arguments, and what makes one for a release."""

TRAINERS = {
    "NeuronORPOTrainer": (("0.0.1", "orpo"),),
    "NeuronSFTTrainer": (("0.4.2", "trainer"), ("0.4.0", "sft_0_4_0"), ("0.0.1", "sft_until_0_3")),
    "NeuronTrainer": (("0.4.0", "trainer"), ("0.0.1", "transformers_trainer")),
    "Seq2SeqNeuronTrainer": (("0.0.1", "transformers_trainer"),),
    "Seq2SeqTrainiumTrainer": (("0.0.1", "transformers_trainer"),),
    "TrainiumTrainer": (("0.0.1", "transformers_trainer"),),
}
"""The modules of a trainer, each with its first release, the newest first."""


def _config(name: str, session: Session) -> object:
    module = "arguments" if session.release.since("0.4.0") else "transformers_arguments"
    make = getattr(importlib.import_module(f"{__name__}.{module}"), _CONFIGS[name])
    config: object = make(str(session.release))
    return config


def _trainer(name: str, session: Session) -> object:
    module = next(module for first, module in TRAINERS[name] if session.release.since(first))
    trainer: object = getattr(
        importlib.import_module(f"{__name__}.{module}"), name.replace("Trainium", "Neuron")
    )
    return trainer
