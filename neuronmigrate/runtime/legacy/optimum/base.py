"""What the inference classes share: arguments of the release, shapes, precision, loading of the weights."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import torch
from packaging.version import Version

from neuronmigrate import catalogue
from neuronmigrate.runtime.legacy.session import LegacyProblem, current

Inputs = dict[str, torch.Tensor]

Config: TypeAlias = Any
"""A configuration of transformers: its fields are those of its architecture."""

HUB = (
    "revision",
    "token",
    "use_auth_token",
    "cache_dir",
    "subfolder",
    "local_files_only",
    "trust_remote_code",
    "force_download",
)
"""Arguments that say where a checkpoint is."""

SHAPES = (
    "batch_size",
    "sequence_length",
    "num_choices",
    "text_batch_size",
    "image_batch_size",
    "num_channels",
    "height",
    "width",
    "image_size",
    "patch_size",
    "audio_sequence_length",
    "num_beams",
    "feature_size",
    "nb_max_frames",
)
"""Arguments that fix a dimension at export."""

MARKER = "model.neuron"
"""The file that holds the compiled program; in what a stand-in saves, a sentence."""

SAVED_BY_STAND_IN = "saved by a stand-in of neuronmigrate: the weights beside this file are not compiled\n"


def library(name: str) -> object:
    """A library that a stand-in is built on. Raises LegacyProblem if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name != name:
            raise
        raise LegacyProblem(f"the stand-in needs {name}, which is not installed") from None


def of_transformers(name: str) -> Callable[..., torch.nn.Module]:
    """A name of transformers. Raises LegacyProblem if the installed version has none."""
    found: Callable[..., torch.nn.Module] | None = getattr(library("transformers"), name, None)
    if found is None:
        version = importlib.metadata.version("transformers")
        raise LegacyProblem(f"transformers.{name} is not in transformers {version}")
    return found


def dtype_keyword(dtype: torch.dtype | str) -> dict[str, torch.dtype | str]:
    """The load dtype under the name that the installed transformers has for it."""
    renamed = Version(importlib.metadata.version("transformers")) >= Version("4.56")
    return {"dtype" if renamed else "torch_dtype": dtype}


def pop_hub(arguments: dict[str, object]) -> dict[str, object]:
    """Take the arguments about the checkpoint out of the others."""
    found = {name: arguments.pop(name) for name in HUB if name in arguments}
    if "use_auth_token" in found:
        found["token"] = found.pop("use_auth_token")
    return found


def pop_shapes(arguments: dict[str, object]) -> dict[str, int]:
    """Take the static shapes out of the arguments. Raises TypeError for one that is no number."""
    found = {}
    for name in SHAPES:
        value = arguments.pop(name, None)
        if value is None:
            continue
        if not isinstance(value, int):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        found[name] = value
    return found


def check_arguments(owner: str, arguments: Mapping[str, object]) -> None:
    """Refuse what the chosen release did not take, and note what has no effect here.

    `owner` is a qualified callable of the catalogue. Raises TypeError.
    """
    session = current()
    known = catalogue.arguments(owner)
    for name in arguments:
        argument = known.get(name)
        if argument is None or not session.release.has(argument.first, argument.last):
            raise TypeError(
                f"{owner.rpartition('.')[2]}() got an unexpected keyword argument '{name}' "
                f"(optimum-neuron {session.release})"
            )
    if arguments:
        short = owner.removeprefix("optimum.neuron.")
        session.note(f"{short}: without effect here: {', '.join(sorted(arguments))}")


class Precision:
    """What the compiler was told about casts: weights, inputs and outputs stay what they are."""

    def __init__(self, auto_cast: str | None, auto_cast_type: str | None) -> None:
        self.auto_cast = auto_cast if auto_cast != "none" else None
        names = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32}
        name = auto_cast_type or "bf16"
        if self.auto_cast and name not in names:
            raise ValueError(f"auto_cast_type must be one of {', '.join(names)}, not {name!r}")
        self.dtype = names.get(name, torch.bfloat16) if self.auto_cast else torch.float32
        if self.auto_cast:
            current().note(
                f"auto_cast={self.auto_cast!r}: matrix products in {str(self.dtype).removeprefix('torch.')} "
                "of the CPU, as near as it comes to the compiler's"
            )

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Compute as compiled: no gradients, casts as told."""
        cast = self.auto_cast is not None and self.dtype != torch.float32
        with torch.no_grad(), torch.autocast("cpu", self.dtype if cast else torch.bfloat16, enabled=cast):
            yield


def full(output: torch.Tensor) -> torch.Tensor:
    """An output in the dtype that the graph gave: what is no integer is float32."""
    return output.float() if output.is_floating_point() else output


def preprocessors(model_id: str, hub: Mapping[str, object]) -> list[object]:
    """The tokenizer or processors of a checkpoint, as far as they can be loaded."""
    found: list[object] = []
    for name in ("AutoTokenizer", "AutoProcessor", "AutoFeatureExtractor", "AutoImageProcessor"):
        loader: Callable[..., object] = getattr(library("transformers"), name).from_pretrained
        # As in the original, whatever fails is left out.
        with contextlib.suppress(Exception):
            found.append(loader(model_id, **hub))
    return found


def static_of(folder: str) -> dict[str, int] | None:
    """Static shapes in the config of a folder that holds a compiled model, None in any other.

    Raises LegacyProblem if the model is really compiled, so that there are no weights to take.
    """
    path = Path(folder)
    if not path.is_dir() or not list(path.glob("*.neuron")):
        return None
    marker = path / MARKER
    if not marker.exists() or marker.stat().st_size > 1000 or marker.read_text("utf-8") != SAVED_BY_STAND_IN:
        raise LegacyProblem(
            f"{folder} holds a compiled model, which only a NeuronCore can run; "
            "give the checkpoint it was made from, with export=True"
        )
    config = json.loads((path / "config.json").read_text("utf-8"))
    return {
        name.removeprefix("static_"): value
        for name, value in config.get("neuron", {}).items()
        if name.startswith("static_")
    }


def is_local(model_id: str) -> bool:
    """Whether a model id is a folder."""
    return os.path.isdir(model_id)


class NeuronModel:
    """Base of all: not a torch module, on the CPU as far as callers can see."""

    device = torch.device("cpu")

    def __call__(self, *args: object, **kwargs: object) -> object:
        """The same as `forward`."""
        return self.forward(*args, **kwargs)

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the compiled graph."""
        raise NotImplementedError("NeuronModel is an abstract class. Please use a subclass.")

    def to(self, device: torch.device | str) -> NeuronModel | None:
        """Nothing for the CPU; from 0.4.0 on None and a ValueError for other devices, before it the model."""
        if not current().release.since("0.4.0"):
            return self
        if torch.device(device).type != "cpu":
            raise ValueError(f"Neuron models cannot be moved to {torch.device(device).type}.")
        return None

    def can_generate(self) -> bool:
        """Whether there is a `generate`."""
        return False


def bind(
    owner: str, order: tuple[str, ...], required: int, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Inputs:
    """The arguments of a forward by name, in its order; the rest is swallowed as it was."""
    given = dict(zip(order, args, strict=False))
    for name in order:
        if name in kwargs:
            given[name] = kwargs[name]
    missing = [name for name in order[:required] if name not in given]
    if missing:
        raise TypeError(f"{owner}.forward() missing required argument: {missing[0]!r}")
    swallowed = sorted(kwargs.keys() - set(order))
    if swallowed:
        current().note(f"{owner}.forward: swallowed, as before: {', '.join(swallowed)}")
    bound = {}
    for number, name in enumerate(order):
        value = given.get(name)
        if value is None and number >= required:
            continue
        if not isinstance(value, torch.Tensor):
            raise AttributeError(
                f"{owner}.forward: {name} is {type(value).__name__}, and the padding asked it for its shape"
            )
        bound[name] = value
    return bound
