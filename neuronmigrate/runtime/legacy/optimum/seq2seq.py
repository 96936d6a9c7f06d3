"""T5 (`modeling_seq2seq.py`, the same text from 0.0.17 to 0.4.5) and Whisper (`models/inference/whisper`).

T5: the batch and the prompt are padded to the compiled sizes; `num_beams` is the compiled one whatever the
call says; without a length the compiled sequence length is the limit; all but a few keywords of `generate`
are dropped; the graph takes the best token itself, so that no processor acts; greedy output always is
`(compiled batch, limit)`, filled with pad ids.
Whisper: transformers' own generate around two graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from neuronmigrate.runtime.legacy.optimum.base import Precision
from neuronmigrate.runtime.legacy.optimum.traced import NeuronTracedModel
from neuronmigrate.runtime.legacy.session import LegacyProblem, current

_TAKEN = ("max_length", "max_new_tokens", "do_sample", "output_attentions", "output_hidden_states")
_TAKEN_LATER = ("output_scores", "return_dict_in_generate")
_NEUTRAL: Mapping[str, object] = {
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
}


class _EncoderDecoder(NeuronTracedModel):
    @classmethod
    def from_pretrained(
        cls,
        model_id: str | Path,
        config: object = None,
        export: bool = False,
        dynamic_batch_size: bool = False,
        auto_cast: str | None = "matmul",
        auto_cast_type: str | None = "bf16",
        torch_dtype: torch.dtype | str = torch.float32,
        **arguments: object,
    ) -> NeuronTracedModel:
        """As for the encoders, but matrix products are cast to bfloat16 by default."""
        if dynamic_batch_size:
            current().note(f"{cls.__name__}: dynamic_batch_size was not supported and is ignored, as before")
        return super().from_pretrained(
            model_id, config, export, False, auto_cast, auto_cast_type, torch_dtype, **arguments
        )

    def can_generate(self) -> bool:
        """Yes."""
        return True

    def forward(self, *args: object, **kwargs: object) -> object:
        """Raises LegacyProblem: a single step of the compiled decoder has no stand-in."""
        raise LegacyProblem(f"{type(self).__name__}: a direct call has no stand-in, only generate() has")

    @property
    def _generate(self) -> Callable[..., torch.Tensor]:
        found: Callable[..., torch.Tensor] = getattr(self.model, "generate")  # noqa: B009 - not of a module
        return found


class NeuronModelForSeq2SeqLM(_EncoderDecoder):
    """T5: int64 ids `(batch, sequence)` in, int64 ids out, on the CPU."""

    auto_model_class = "AutoModelForSeq2SeqLM"
    main_input_name = "input_ids"

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs of the encoder's graph."""
        return ("input_ids", "attention_mask")

    def __init__(
        self,
        model: torch.nn.Module,
        shapes: Mapping[str, int],
        precision: Precision,
        preprocessors: list[object],
        dynamic_batch_size: bool,
    ) -> None:
        super().__init__(model, shapes, precision, preprocessors, dynamic_batch_size)
        if str(self.config.model_type) != "t5":
            raise LegacyProblem(f"only t5 could be exported for text2text, not {self.config.model_type}")
        self.generation_config = self.model.generation_config

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        generation_config: object = None,
        num_return_sequences: int = 1,
        **kwargs: object,
    ) -> torch.Tensor:
        """Raises ValueError for sampling or an input larger than compiled, TypeError without a mask."""
        if attention_mask is None:
            raise TypeError(
                "NeuronEncoder.forward() missing 1 required positional argument: 'attention_mask'"
            )
        taken = {name: kwargs.pop(name) for name in _TAKEN if name in kwargs}
        if any(kwargs.pop(name, False) for name in _TAKEN_LATER):
            raise LegacyProblem("generate: scores and dictionaries have no stand-in")
        if kwargs:
            current().note(f"{type(self).__name__}.generate: dropped, as before: {', '.join(sorted(kwargs))}")
        beams = self.shapes.get("num_beams", 1)
        if taken.get("do_sample"):
            raise ValueError("Only greedy search and beam search are supported on Neuron.")
        length = taken.get("max_length") or self._dimension("sequence_length")
        if taken.get("max_new_tokens"):
            # One token stands at the start of the decoder.
            assert isinstance(taken["max_new_tokens"], int)
            length = taken["max_new_tokens"] + 1
        assert isinstance(length, int)
        inputs = self._padded({"input_ids": input_ids, "attention_mask": attention_mask})
        with self._precision.computing():
            ids = self._generate(
                **inputs,
                generation_config=generation_config,
                num_beams=beams,
                num_return_sequences=num_return_sequences,
                max_length=length,
                do_sample=False,
                **_NEUTRAL,
            )
        if beams > 1:
            return ids
        pad = int(self.config.pad_token_id)
        return torch.nn.functional.pad(ids, (0, length - ids.shape[1]), value=pad)


class NeuronWhisperForConditionalGeneration(_EncoderDecoder):
    """Whisper: float32 features `(batch, mels, frames)` of exactly the compiled size in, int64 ids out."""

    auto_model_class = "WhisperForConditionalGeneration"
    main_input_name = "input_features"

    @property
    def input_names(self) -> tuple[str, ...]:
        """The input of the encoder's graph."""
        return ("input_features",)

    def _static_shapes(self) -> dict[str, tuple[int, ...]]:
        frames = 2 * int(self.config.max_source_positions)
        return {"input_features": (self._dimension("batch_size"), int(self.config.num_mel_bins), frames)}

    def generate(self, input_features: torch.Tensor, **kwargs: object) -> torch.Tensor:
        """Whatever transformers' generate takes acts. Raises ValueError for features of another size."""
        expected = self.input_static_shapes["input_features"]
        if tuple(input_features.shape) != expected:
            raise ValueError(
                f"input_features of shape {tuple(input_features.shape)}: compiled for {expected}"
            )
        limit = self._dimension("sequence_length")
        with self._precision.computing():
            ids = self._generate(input_features, **{"max_length": limit, **kwargs})
        return ids
