"""Model architectures that somebody ran on the native device, as far as it is public; by hand.

As of November 2026, for TorchNeuron 2.13.3 and 2.14.3 (public beta) and Trn2 or Trn3. Sources:

- `docs`: pages of the AWS Neuron documentation, release 2.33, read in October and November 2026
- `tests`: tests of a released library that name the device

A model that is missing here may run all the same: the device takes any PyTorch model operation by operation,
and computes on the CPU what it has no kernel for.
"""

from __future__ import annotations

from dataclasses import dataclass

DATED = "2026-11"


@dataclass(frozen=True)
class Seen:
    """What was done with an architecture, and where that is said."""

    what: str
    source: str


TITAN = Seen("pre-training with TorchTitan Neuron 0.2.2", "docs: release notes of TorchTitan Neuron")
COMPILED = Seen(
    "generate() with Transformers, a static cache and torch.compile",
    "docs: tutorial on Hugging Face inference with torch.compile",
)


def _served(recipe: str) -> Seen:
    return Seen("serving with vLLM Neuron, in its own implementation", f"docs: vLLM Neuron's recipe {recipe}")


MODEL_TYPES: dict[str, tuple[Seen, ...]] = {
    "deepseek_v3": (TITAN,),
    "gpt_oss": (TITAN, _served("GPT-OSS")),
    "llama": (TITAN, _served("Llama 3")),
    "qwen2": (COMPILED,),
    "qwen3": (COMPILED, TITAN, _served("Qwen3-32B")),
    "qwen3_vl": (_served("Qwen3-VL 32B"),),
}
"""By `model_type` of a config.json."""

_DIFFUSERS = "tests: Diffusers, tests/pipelines"
_SPLIT = "tests: Diffusers, tests/models/transformers (tensor parallel)"

PIPELINES: dict[str, tuple[Seen, ...]] = {
    "Flux2KleinPipeline": (Seen("image generation, compiled part by part", f"{_DIFFUSERS}/flux2"),),
    "Flux2Pipeline": (Seen("image generation, compiled part by part", f"{_DIFFUSERS}/flux2"),),
    "FluxPipeline": (Seen("its transformer, split over devices", _SPLIT),),
    "PixArtAlphaPipeline": (Seen("image generation, compiled part by part", f"{_DIFFUSERS}/pixart_alpha"),),
    "QwenImagePipeline": (Seen("its transformer, split over devices", _SPLIT),),
    "StableDiffusionXLPipeline": (
        Seen("image generation, compiled part by part", f"{_DIFFUSERS}/stable_diffusion_xl"),
    ),
}
"""By `_class_name` of a model_index.json."""
