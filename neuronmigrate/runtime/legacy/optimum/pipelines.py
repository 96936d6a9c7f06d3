"""`optimum.neuron.pipeline`: pipelines of transformers over the stand-ins.

From `pipelines/transformers/base.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from neuronmigrate.runtime.legacy.optimum import decoder, traced
from neuronmigrate.runtime.legacy.optimum.base import NeuronModel, library
from neuronmigrate.runtime.legacy.session import LegacyProblem, current

TASKS: dict[str, type[traced.NeuronTracedModel] | type[decoder.NeuronModelForCausalLM]] = {
    "audio-classification": traced.NeuronModelForAudioClassification,
    "feature-extraction": traced.NeuronModelForFeatureExtraction,
    "fill-mask": traced.NeuronModelForMaskedLM,
    "image-classification": traced.NeuronModelForImageClassification,
    "image-segmentation": traced.NeuronModelForSemanticSegmentation,
    "object-detection": traced.NeuronModelForObjectDetection,
    "question-answering": traced.NeuronModelForQuestionAnswering,
    "sentiment-analysis": traced.NeuronModelForSequenceClassification,
    "text-classification": traced.NeuronModelForSequenceClassification,
    "text-generation": decoder.NeuronModelForCausalLM,
    "token-classification": traced.NeuronModelForTokenClassification,
}


def pipeline(
    task: str | None = None,
    model: object = None,
    tokenizer: object = None,
    feature_extractor: object = None,
    use_fast: bool = True,
    export: bool = False,
    input_shapes: Mapping[str, int] | None = None,
    compiler_args: Mapping[str, object] | None = None,
    **kwargs: object,
) -> object:
    """A pipeline whose batch is the compiled one; without shapes an export has batch 1 and length 128.

    Raises LegacyProblem for a task or a version of transformers that has no stand-in.
    """
    if task not in TASKS:
        raise LegacyProblem(f"pipeline: the task {task!r} has no stand-in")
    if model is None:
        raise LegacyProblem("pipeline: name the model, the default one would have to be fetched")
    kwargs.pop("device", None)
    name = model if isinstance(model, str) else None
    if name is not None:
        shapes = dict(input_shapes or {})
        if export and not shapes and task != "text-generation":
            shapes = {"batch_size": 1, "sequence_length": 128}
        for each in ("batch_size", "sequence_length", "tensor_parallel_size"):
            if task == "text-generation" and each in kwargs:
                value = kwargs.pop(each)
                assert isinstance(value, int)
                shapes[each] = value
        loader: Callable[..., NeuronModel] = TASKS[task].from_pretrained
        model = loader(name, export=export, **shapes, **(compiler_args or {}))
    if not isinstance(model, NeuronModel):
        raise LegacyProblem(f"pipeline: a model of type {type(model).__name__} has no stand-in")
    source = name or getattr(getattr(model, "config", None), "name_or_path", "")
    if tokenizer is None and task not in ("image-classification", "object-detection", "audio-classification"):
        tokenizer = getattr(library("transformers"), "AutoTokenizer").from_pretrained(source)  # noqa: B009
    compiled = getattr(model, "shapes", {}).get("batch_size", 1)
    given = kwargs.pop("batch_size", None)
    if given is not None and not current().release.since("0.4.0"):
        raise TypeError("pipeline() got multiple values for keyword argument 'batch_size'")
    make: Callable[..., object] = getattr(library("transformers"), "pipeline")  # noqa: B009
    return make(
        task,
        model=model,
        tokenizer=tokenizer,
        feature_extractor=feature_extractor,
        use_fast=use_fast,
        batch_size=given or compiled,
        device="cpu",
        **kwargs,
    )
