"""Optimum Neuron: which stand-in a name has. Many import paths lead to one class, so the last part decides.

The behaviour is that of the package's own source at its tags; where a release differs the module says so.
"""

from __future__ import annotations

import importlib

from neuronmigrate.runtime.legacy.session import Session

STAND_INS: dict[str, tuple[str, ...]] = {
    "decoder": ("NeuronConfig", "NeuronModelForCausalLM", "NeuronModelForEmbedding", "NxDNeuronConfig"),
    "environment": (
        "get_neuron_major",
        "is_neuron_available",
        "is_neuronx_available",
        "is_neuronx_distributed_available",
    ),
    "parser": ("NeuronHfArgumentParser",),
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
    if name in ("NeuronTrainingArguments", "NeuronSFTConfig"):
        arguments = importlib.import_module(f"{__name__}.arguments")
        make = arguments.sft_config if name == "NeuronSFTConfig" else arguments.training_arguments
        config: object = make(str(session.release))
        return config
    if name in ("NeuronTrainer", "NeuronSFTTrainer"):
        arguments = importlib.import_module(f"{__name__}.arguments")
        # Says so if the release has none.
        (arguments.sft_config if "SFT" in name else arguments.training_arguments)(str(session.release))
        trainer: object = getattr(importlib.import_module(f"{__name__}.trainer"), name)
        return trainer
    if name.endswith("Pipeline"):
        diffusion = importlib.import_module(f"{__name__}.diffusion")
        if name in diffusion.NAMES:
            made: object = diffusion.pipeline_class(name)
            return made
    return None
