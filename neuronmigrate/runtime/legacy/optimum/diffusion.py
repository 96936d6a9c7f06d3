"""Diffusion pipelines: the class of diffusers, with the sizes given at export (`modeling_diffusion.py`).

The compiled height and width hold in every call; matrix products are in bfloat16 by default (from 0.0.10
on); before 0.3.0 classifier-free guidance ran only with a dynamic batch or with `data_parallel_mode` of
"unet" or "transformer".
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import torch
from packaging.version import Version

from neuronmigrate.runtime.legacy.optimum.base import (
    NeuronModel,
    Precision,
    check_arguments,
    library,
    pop_hub,
    pop_shapes,
)
from neuronmigrate.runtime.legacy.session import LegacyProblem, current

NAMES = {
    "NeuronFluxInpaintPipeline": "FluxInpaintPipeline",
    "NeuronFluxKontextPipeline": "FluxKontextPipeline",
    "NeuronFluxPipeline": "FluxPipeline",
    "NeuronLatentConsistencyModelPipeline": "LatentConsistencyModelPipeline",
    "NeuronPixArtAlphaPipeline": "PixArtAlphaPipeline",
    "NeuronPixArtSigmaPipeline": "PixArtSigmaPipeline",
    "NeuronStableDiffusionControlNetPipeline": "StableDiffusionControlNetPipeline",
    "NeuronStableDiffusionImg2ImgPipeline": "StableDiffusionImg2ImgPipeline",
    "NeuronStableDiffusionInpaintPipeline": "StableDiffusionInpaintPipeline",
    "NeuronStableDiffusionInstructPix2PixPipeline": "StableDiffusionInstructPix2PixPipeline",
    "NeuronStableDiffusionPipeline": "StableDiffusionPipeline",
    "NeuronStableDiffusionXLControlNetPipeline": "StableDiffusionXLControlNetPipeline",
    "NeuronStableDiffusionXLImg2ImgPipeline": "StableDiffusionXLImg2ImgPipeline",
    "NeuronStableDiffusionXLInpaintPipeline": "StableDiffusionXLInpaintPipeline",
    "NeuronStableDiffusionXLPipeline": "StableDiffusionXLPipeline",
}
"""Stand-in to the class of diffusers behind it."""

_FROM_IMAGE = ("Img2Img", "InstructPix2Pix")
_UNCHANGED_GUIDANCE = ("Flux", "LatentConsistency")


class _Pipeline(NeuronModel):
    """Prompts, PIL images and CPU tensors in; what diffusers gives, on the CPU, out."""

    diffusers_class = ""

    def __init__(self, pipe: Callable[..., object], shapes: dict[str, int], precision: Precision) -> None:
        self.pipe = pipe
        self.shapes = shapes
        self._precision = precision
        self.guidance = True

    @classmethod
    def from_pretrained(
        cls,
        model_id: str | Path,
        config: object = None,
        export: bool = False,
        dynamic_batch_size: bool = False,
        auto_cast: str | None = "matmul",
        auto_cast_type: str | None = "bf16",
        torch_dtype: torch.dtype = torch.float32,
        data_parallel_mode: str | None = None,
        **arguments: object,
    ) -> _Pipeline:
        """Load the repository in `torch_dtype`, float32 by default.

        Raises FileNotFoundError without `export=True`, ValueError without the sizes.
        """
        release = current().release
        if not export:
            raise FileNotFoundError(f"Could not find any neuron model file in {model_id}")
        if not release.since("0.0.10") and auto_cast == "matmul":
            auto_cast = None
        hub = pop_hub(arguments)
        shapes = pop_shapes(arguments)
        for name in ("unet_id", "controlnet_ids", "lora_model_ids", "ip_adapter_id"):
            if arguments.get(name):
                raise LegacyProblem(f"{cls.__name__}: {name} has no stand-in")
        check_arguments("optimum.neuron.NeuronStableDiffusionPipeline.from_pretrained", arguments)
        missing = [name for name in ("batch_size", "height", "width") if name not in shapes]
        if missing:
            raise ValueError(
                f"The value for the {missing[0]} axis is missing, "
                "it is needed to perform the export to Neuron compiled model."
            )
        native = getattr(library("diffusers"), cls.diffusers_class, None)
        if native is None:
            version = importlib.metadata.version("diffusers")
            raise LegacyProblem(f"diffusers.{cls.diffusers_class} is not in diffusers {version}")
        # What the argument is called; in a version that has the other name it would be ignored.
        renamed = Version(importlib.metadata.version("diffusers")) >= Version("0.40")
        loading: dict[str, object] = {"dtype" if renamed else "torch_dtype": torch_dtype}
        pipe = native.from_pretrained(str(model_id), **loading, **hub)
        pipe.set_progress_bar_config(disable=True)
        made = cls(pipe, shapes, Precision(auto_cast, auto_cast_type))
        if not release.since("0.3.0") and not dynamic_batch_size:
            made.guidance = (data_parallel_mode or "unet") in ("unet", "transformer")
        return made

    def forward(self, *args: object, **kwargs: object) -> object:
        """Raises ValueError for another size or more prompts than compiled."""
        for name in ("height", "width"):
            given = kwargs.pop(name, None)
            if given not in (None, self.shapes[name]):
                raise ValueError(f"{name}={given}: the pipeline is compiled for {self.shapes[name]}")
        prompts = args[0] if args else kwargs.get("prompt")
        if isinstance(prompts, list) and len(prompts) > self.shapes["batch_size"]:
            raise ValueError(f"{len(prompts)} prompts: compiled for a batch of {self.shapes['batch_size']}")
        if any(part in self.diffusers_class for part in _FROM_IMAGE):
            if "image" in kwargs:
                kwargs["image"] = self._resized(kwargs["image"])
        else:
            kwargs.update(height=self.shapes["height"], width=self.shapes["width"])
        if not self.guidance and not any(part in self.diffusers_class for part in _UNCHANGED_GUIDANCE):
            current().note("no classifier-free guidance: data_parallel_mode switched it off before 0.3.0")
            kwargs["guidance_scale"] = 1.0
        with self._precision.computing():
            return self.pipe(*args, **kwargs)

    def _resized(self, image: object) -> object:
        """As the original's preprocessing does it: by Lanczos to the compiled size."""
        resize = getattr(image, "resize", None)
        if resize is None:
            return image
        lanczos = 1
        resized: object = resize((self.shapes["width"], self.shapes["height"]), lanczos)
        return resized

    def __getattr__(self, name: str) -> object:
        """Scheduler, tokenizer, components: those of the pipeline."""
        return getattr(self.__dict__["pipe"], name)


@functools.cache
def pipeline_class(name: str) -> type[_Pipeline]:
    """The stand-in of this name."""
    return type(name, (_Pipeline,), {"diffusers_class": NAMES[name], "__doc__": _Pipeline.__doc__})
