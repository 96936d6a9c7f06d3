"""Sentence embeddings: `modeling.py` up to 0.4.1, `modeling_sentence_transformers.py` from 0.4.2 on.

`encode` of 0.4.2 to 0.4.5 sorts the texts by length and puts the results back by the sort's own order
instead of its inverse: what comes out is scrambled, and it is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from neuronmigrate.runtime.legacy.optimum.base import (
    Inputs,
    Precision,
    bind,
    check_arguments,
    library,
    pop_hub,
    pop_shapes,
)
from neuronmigrate.runtime.legacy.optimum.traced import NeuronTracedModel
from neuronmigrate.runtime.legacy.session import LegacyProblem, current


class NeuronSentenceTransformers(NeuronTracedModel):
    """Token and sentence embeddings, float32 on the CPU, cut to the sizes of the call."""

    outputs = (("token_embeddings", (0, 1)), ("sentence_embedding", (0,)))

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
        """Load the modules of the sentence encoder. Raises as the other traced models do."""
        hub = pop_hub(arguments)
        shapes = pop_shapes(arguments)
        owner = "optimum.neuron.NeuronSentenceTransformers.from_pretrained"
        if not current().release.since("0.4.2"):
            owner = "optimum.neuron.NeuronModelForSentenceTransformers.from_pretrained"
        check_arguments(owner, arguments)
        if not export:
            raise FileNotFoundError(f"Could not find any neuron model file in {model_id}")
        encoder: Callable[..., torch.nn.Module] = getattr(  # noqa: B009 - of an optional library
            library("sentence_transformers"), "SentenceTransformer"
        )
        found = encoder(str(model_id), device="cpu", revision=hub.get("revision")).float().eval()
        model = _Modules(found)
        tokenizers: list[object] = [getattr(found, "tokenizer")]  # noqa: B009
        return cls(model, shapes, Precision(auto_cast, auto_cast_type), tokenizers, dynamic_batch_size)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs of the graph: token types are taken and not given to it."""
        return ("input_ids", "attention_mask")

    def _named(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Inputs:
        if "pixel_values" in kwargs:
            raise LegacyProblem("CLIP of sentence-transformers has no stand-in")
        return bind(type(self).__name__, self.input_names, 2, args, kwargs)

    def _compute(self, inputs: Inputs) -> Mapping[str, torch.Tensor | None]:
        with self._precision.computing():
            results: Mapping[str, torch.Tensor | None] = self.model(inputs)
        return results

    def encode(
        self,
        sentences: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        show_progress_bar: bool | None = None,
        output_value: str | None = "sentence_embedding",
        normalize_embeddings: bool = False,
        **kwargs: object,
    ) -> torch.Tensor:
        """Embeddings of the sentences, float32 `(sentences, hidden)`, in the original's wrong order.

        `kwargs` go to the tokenizer, which pads and cuts only if they say so.
        """
        if prompt or prompt_name:
            raise AttributeError("encode(prompt=) asked for self.tokenizer, which the class did not have")
        if output_value != "sentence_embedding":
            raise LegacyProblem(f"encode: output_value={output_value!r} has no stand-in")
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
        order = torch.argsort(-torch.tensor([len(text) for text in texts]))
        ordered = [texts[int(number)] for number in order]
        tokenize = self.preprocessors[0]
        assert callable(tokenize)
        rows: list[torch.Tensor] = []
        size = self._dimension("batch_size")
        for start in range(0, len(ordered), size):
            features = tokenize(ordered[start : start + size], return_tensors="pt", **kwargs)
            output = self.forward(features["input_ids"], features["attention_mask"])
            embeddings: torch.Tensor = getattr(output, "sentence_embedding")  # noqa: B009
            if normalize_embeddings:
                embeddings = torch.nn.functional.normalize(embeddings, dim=1)
            rows += list(embeddings)
        rows = [rows[int(number)] for number in order]
        if len({len(text) for text in texts}) > 1:
            current().note(
                "encode gave embeddings back in scrambled order from 0.4.2 to 0.4.5, and does here"
            )
        result = torch.stack(rows) if rows else torch.tensor([])
        return result[0] if isinstance(sentences, str) else result


NeuronModelForSentenceTransformers = NeuronSentenceTransformers


class _Modules(torch.nn.Module):
    """The modules of a sentence encoder, with the config of the one that reads the tokens."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        first = next(iter(encoder.children()))
        self.config = getattr(first, "auto_model").config  # noqa: B009

    def forward(self, inputs: Inputs) -> Mapping[str, torch.Tensor]:
        """What the encoder's own call gives for a dictionary of tensors."""
        results: Mapping[str, torch.Tensor] = self.encoder(dict(inputs))
        return results
