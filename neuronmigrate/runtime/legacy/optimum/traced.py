"""Encoders, vision and audio models: one graph, fixed shapes, CPU tensors in and out.

From `modeling_traced.py` (`modeling_base.py` before 0.0.23) and `modeling.py`, whose padding is the same
text from 0.0.8 to 0.4.5: each input is padded on the right, its inner dimensions with 0 (token ids with the
tokenizer's pad id), missing batch rows with 1; what is larger than compiled raises; outputs are cut back,
on the dimensions that the class says and on no others. The graph takes its inputs by position and takes
all of them: an encoder traced with token_type_ids cannot be called without.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from neuronmigrate.runtime.legacy.optimum.base import (
    MARKER,
    SAVED_BY_STAND_IN,
    Config,
    Inputs,
    NeuronModel,
    Precision,
    bind,
    check_arguments,
    dtype_keyword,
    full,
    of_transformers,
    pop_hub,
    pop_shapes,
    preprocessors,
    static_of,
)
from neuronmigrate.runtime.legacy.session import LegacyProblem

_WITHOUT_TOKEN_TYPES = frozenset(
    {"camembert", "distilbert", "esm", "modernbert", "mpnet", "phi", "roberta", "xlm-roberta"}
)
"""Text encoders whose graph takes two inputs (exporters/neuron/model_configs.py at 0.4.5)."""


class NeuronTracedModel(NeuronModel):
    """A model of transformers behind padding to the shapes given at export."""

    auto_model_class = "AutoModel"
    """Class of transformers that loads the weights."""
    modality = "text"
    outputs: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names of the outputs, with the dimensions on which the padding is cut off."""
    output_class = "transformers.utils.ModelOutput"

    def __init__(
        self,
        model: torch.nn.Module,
        shapes: Mapping[str, int],
        precision: Precision,
        preprocessors: list[object],
        dynamic_batch_size: bool,
    ) -> None:
        self.model = model
        self.config: Config = model.config
        self.preprocessors = preprocessors
        self.dynamic_batch_size = dynamic_batch_size
        self.shapes = dict(shapes)
        self.input_static_shapes = self._static_shapes()
        self._precision = precision
        neuron: dict[str, object] = {
            "dynamic_batch_size": dynamic_batch_size,
            "auto_cast": precision.auto_cast,
            **{f"static_{name}": value for name, value in self.shapes.items()},
        }
        setattr(self.config, "neuron", neuron)  # noqa: B010 - no field of the class

    @classmethod
    def from_pretrained(
        cls,
        model_id: str | Path,
        config: object = None,
        export: bool = False,
        dynamic_batch_size: bool = False,
        auto_cast: str | None = None,
        auto_cast_type: str | None = None,
        torch_dtype: torch.dtype | str = torch.float32,
        **arguments: object,
    ) -> NeuronTracedModel:
        """Load the checkpoint and fix the shapes.

        Raises FileNotFoundError without `export=True` for a folder that was never exported, ValueError
        for a shape that is missing, TypeError for an argument that the release did not take.
        """
        hub = pop_hub(arguments)
        shapes = pop_shapes(arguments)
        export = bool(arguments.pop("from_transformers", False)) or export
        check_arguments("optimum.neuron.NeuronModelForSequenceClassification.from_pretrained", arguments)
        name = str(model_id)
        if not export:
            static = static_of(name)
            if static is None:
                raise FileNotFoundError(f"Could not find any neuron model file in {name}")
            shapes = static
        loading = dict(hub)
        if config is not None:
            loading["config"] = config
        loader = getattr(of_transformers(cls.auto_model_class), "from_pretrained")  # noqa: B009 - of a class
        model: torch.nn.Module = loader(name, **loading, **dtype_keyword(torch_dtype))
        model.eval()
        precision = Precision(auto_cast, auto_cast_type)
        if precision.auto_cast == "all":
            model.to(precision.dtype)
        return cls(model, shapes, precision, preprocessors(name, hub), dynamic_batch_size)

    def save_pretrained(self, save_directory: str | Path, **options: object) -> None:
        """Write weights, shapes and a marker where the original wrote its compiled program."""
        save: Callable[[str | Path], object] = getattr(self.model, "save_pretrained")  # noqa: B009
        save(save_directory)
        self.config.save_pretrained(save_directory)
        for each in self.preprocessors:
            getattr(each, "save_pretrained")(save_directory)  # noqa: B009
        Path(save_directory, MARKER).write_text(SAVED_BY_STAND_IN, "utf-8")

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs of the graph, in order."""
        if self.modality == "image":
            return ("pixel_values",)
        if self.modality == "audio":
            return ("input_values",)
        names = ("input_ids", "attention_mask")
        kind = str(self.config.model_type)
        if kind in _WITHOUT_TOKEN_TYPES or (kind == "deberta" and self.config.type_vocab_size == 0):
            return names
        return (*names, "token_type_ids")

    def _static_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each input. Raises ValueError for a dimension that nobody gave."""
        batch = self._dimension("batch_size")
        if self.modality == "audio":
            return {"input_values": (batch, self._dimension("audio_sequence_length"))}
        if self.modality == "image":
            channels = self._dimension("num_channels")
            size = (self._dimension("height"), self._dimension("width"))
            return {"pixel_values": (batch, channels, *size)}
        inner: tuple[int, ...] = (self._dimension("sequence_length"),)
        if self.auto_model_class == "AutoModelForMultipleChoice":
            inner = (self._dimension("num_choices"), *inner)
        return dict.fromkeys(self.input_names, (batch, *inner))

    def _dimension(self, name: str) -> int:
        value = self.shapes.get(name, getattr(self.config, name, None))
        if not isinstance(value, int):
            raise ValueError(
                f"The value for the {name} axis is missing, "
                "it is needed to perform the export to Neuron compiled model."
            )
        return value

    def forward(self, *args: object, **kwargs: object) -> object:
        """The fixed fields of the class, as CPU tensors without gradient.

        Text: `input_ids` and `attention_mask` of int64 `(batch, sequence)`, `token_type_ids` where the
        graph has them; images `(batch, channels, height, width)` and audio `(batch, samples)` of float32.
        Any other keyword was swallowed, and is. Raises ValueError for an input larger than compiled.
        """
        given = self._named(args, kwargs)
        first = next(iter(given.values()))
        results = self._compute(self._padded(given))
        fields = {}
        for name, dimensions in self.outputs:
            value = results.get(name)
            if value is None:
                continue
            fields[name] = self._cut(full(value), dimensions, first)
        return self._output(fields)

    def _named(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Inputs:
        order: tuple[str, ...] = ("input_ids", "attention_mask", "token_type_ids")
        required = 2
        if self.modality != "text":
            order, required = self.input_names, 1
        return bind(type(self).__name__, order, required, args, kwargs)

    def _padded(self, given: Inputs) -> Inputs:
        """Every input in the compiled shape; the order stays, and the graph counts them."""
        padded = {name: self._pad(name, tensor) for name, tensor in given.items()}
        if len(padded) != len(self.input_names):
            raise RuntimeError(
                f"the graph of {type(self).__name__} was traced with {', '.join(self.input_names)}; "
                f"the call gave {', '.join(padded)}"
            )
        return padded

    def _pad(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        target = self.input_static_shapes[name]
        fill = 0
        if name == "input_ids" and self.preprocessors:
            fill = getattr(self.preprocessors[0], "pad_token_id", None) or 0
        padding: list[int] = []
        for dimension in reversed(range(1, tensor.dim())):
            missing = target[dimension] - tensor.size(dimension)
            self._refuse_larger(name, tensor, target, missing, dimension)
            padding += [0, missing]
        result = torch.nn.functional.pad(tensor, padding, value=fill)
        if self.dynamic_batch_size:
            missing = -tensor.size(0) % target[0]
        else:
            missing = target[0] - tensor.size(0)
            self._refuse_larger(name, tensor, target, missing, 0)
        return torch.nn.functional.pad(result, [0] * len(padding) + [0, missing], value=1)

    def _refuse_larger(
        self, name: str, tensor: torch.Tensor, target: tuple[int, ...], missing: int, dimension: int
    ) -> None:
        if missing < 0:
            extra = (
                ", unless you set `dynamic_batch_size=True` during the compilation" if dimension == 0 else ""
            )
            raise ValueError(
                f"Unable to pad {name} with shape: {tensor.shape} on dimension {dimension} as input shapes "
                f"must be inferior than the static shapes used for compilation: {target}{extra}."
            )

    def _compute(self, inputs: Inputs) -> Mapping[str, torch.Tensor | None]:
        with self._precision.computing():
            if self._precision.auto_cast == "all":
                inputs = {
                    name: value.to(self._precision.dtype) if value.is_floating_point() else value
                    for name, value in inputs.items()
                }
            results: Mapping[str, torch.Tensor | None] = self.model(**inputs, return_dict=True)
        return results

    def _cut(self, value: torch.Tensor, dimensions: tuple[int, ...], first: torch.Tensor) -> torch.Tensor:
        for dimension in dimensions:
            # The last dimension of multiple choice is the number of choices, the input's second.
            value = value.narrow(dimension, 0, first.shape[0 if dimension == 0 else 1])
        return value.clone()

    def _output(self, fields: Mapping[str, torch.Tensor]) -> object:
        module, _, name = self.output_class.rpartition(".")
        build: Callable[..., object] = getattr(importlib.import_module(module), name)
        return build(**fields)

    def replace_weights(self, weights: Mapping[str, torch.Tensor] | torch.nn.Module | None = None) -> None:
        """Take other weights, by name."""
        if isinstance(weights, torch.nn.Module):
            weights = weights.state_dict()
        if weights is not None:
            self.model.load_state_dict(weights, strict=False)

    def push_to_hub(self, *args: object, **kwargs: object) -> str:
        """Raises LegacyProblem: there is no compiled model to upload."""
        raise LegacyProblem("push_to_hub has no stand-in: there is no compiled model to upload")


class _ImageModel(NeuronTracedModel):
    modality = "image"

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the pixels."""
        return torch.float32


class NeuronModelForFeatureExtraction(NeuronTracedModel):
    """Hidden states of a text encoder, and the pooled one where the architecture's graph had it."""

    output_class = "transformers.modeling_outputs.BaseModelOutputWithPooling"
    outputs = (("last_hidden_state", (0, 1)), ("pooler_output", (0,)))


class NeuronModelForMaskedLM(NeuronTracedModel):
    """Scores of the vocabulary for each token."""

    auto_model_class = "AutoModelForMaskedLM"
    output_class = "transformers.modeling_outputs.MaskedLMOutput"
    outputs = (("logits", (0, 1)),)


class NeuronModelForQuestionAnswering(NeuronTracedModel):
    """Scores of the first and of the last token of an answer."""

    auto_model_class = "AutoModelForQuestionAnswering"
    output_class = "transformers.modeling_outputs.QuestionAnsweringModelOutput"
    outputs = (("start_logits", (0, 1)), ("end_logits", (0, 1)))


class NeuronModelForSequenceClassification(NeuronTracedModel):
    """Scores of the labels of a text."""

    auto_model_class = "AutoModelForSequenceClassification"
    output_class = "transformers.modeling_outputs.SequenceClassifierOutput"
    outputs = (("logits", (0,)),)


class NeuronModelForTokenClassification(NeuronTracedModel):
    """Scores of the labels of each token."""

    auto_model_class = "AutoModelForTokenClassification"
    output_class = "transformers.modeling_outputs.TokenClassifierOutput"
    outputs = (("logits", (0, 1)),)


class NeuronModelForMultipleChoice(NeuronTracedModel):
    """Scores of the choices."""

    auto_model_class = "AutoModelForMultipleChoice"
    output_class = "transformers.modeling_outputs.MultipleChoiceModelOutput"
    outputs = (("logits", (0, -1)),)


class NeuronModelForImageClassification(_ImageModel):
    """Scores of the labels of an image."""

    auto_model_class = "AutoModelForImageClassification"
    output_class = "transformers.modeling_outputs.ImageClassifierOutput"
    outputs = (("logits", (0,)),)


class NeuronModelForSemanticSegmentation(_ImageModel):
    """Scores of the classes of each pixel, in the compiled size."""

    auto_model_class = "AutoModelForSemanticSegmentation"
    output_class = "transformers.modeling_outputs.SemanticSegmenterOutput"
    outputs = (("logits", (0,)),)


class NeuronModelForObjectDetection(_ImageModel):
    """Scores and boxes."""

    auto_model_class = "AutoModelForObjectDetection"
    outputs = (("logits", (0,)), ("pred_boxes", (0,)), ("last_hidden_state", (0,)))


class NeuronModelForAudioClassification(NeuronTracedModel):
    """Scores of the labels of a recording, padding included: there is no mask."""

    modality = "audio"
    auto_model_class = "AutoModelForAudioClassification"
    output_class = "transformers.modeling_outputs.SequenceClassifierOutput"
    outputs = (("logits", (0,)),)


class NeuronModelForAudioFrameClassification(NeuronTracedModel):
    """Scores of the labels of each frame of the padded recording."""

    modality = "audio"
    auto_model_class = "AutoModelForAudioFrameClassification"
    output_class = "transformers.modeling_outputs.TokenClassifierOutput"
    outputs = (("logits", (0,)),)


class NeuronModelForCTC(NeuronTracedModel):
    """Scores of the letters for each frame of the padded recording."""

    modality = "audio"
    main_input_name = "input_values"
    auto_model_class = "AutoModelForCTC"
    output_class = "transformers.modeling_outputs.CausalLMOutput"
    outputs = (("logits", (0,)),)


class NeuronModelForXVector(NeuronTracedModel):
    """Scores of the speakers, and an embedding of the voice."""

    modality = "audio"
    auto_model_class = "AutoModelForAudioXVector"
    output_class = "transformers.modeling_outputs.XVectorOutput"
    outputs = (("logits", (0,)), ("embeddings", (0,)))


class NeuronCLIPModel(NeuronTracedModel):
    """Texts and images against each other.

    Only hidden states of the text are cut; with fewer texts or images than compiled, the rows of
    padding stay in the scores (models/inference/clip/modeling_clip.py).
    """

    auto_model_class = "CLIPModel"
    output_class = "transformers.models.clip.modeling_clip.CLIPOutput"
    outputs = tuple(
        (name, ()) for name in ("logits_per_image", "logits_per_text", "text_embeds", "image_embeds")
    )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs of the graph, in order."""
        return ("input_ids", "pixel_values", "attention_mask")

    def _static_shapes(self) -> dict[str, tuple[int, ...]]:
        texts = (self._dimension("text_batch_size"), self._dimension("sequence_length"))
        vision = self.config.vision_config
        size = int(vision.image_size)
        images = (
            self._dimension("image_batch_size"),
            self.shapes.get("num_channels", int(vision.num_channels)),
            self.shapes.get("height", size),
            self.shapes.get("width", size),
        )
        return {"input_ids": texts, "pixel_values": images, "attention_mask": texts}

    def _named(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Inputs:
        return bind(type(self).__name__, self.input_names, 3, args, kwargs)


class NeuronCLIPForImageClassification(NeuronModelForImageClassification):
    """Scores of the labels of an image."""


NeuronBertModel = NeuronModelForFeatureExtraction
NeuronBertForMaskedLM = NeuronModelForMaskedLM
NeuronBertForMultipleChoice = NeuronModelForMultipleChoice
NeuronBertForQuestionAnswering = NeuronModelForQuestionAnswering
NeuronBertForSequenceClassification = NeuronModelForSequenceClassification
NeuronBertForTokenClassification = NeuronModelForTokenClassification
NeuronYolosForObjectDetection = NeuronModelForObjectDetection
