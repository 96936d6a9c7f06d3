"""A stand-in for the package `torch_neuronx`: libraries look for it before they look for the device.

`transformers.utils.is_torch_neuron_available` and `accelerate.utils.is_neuron_available` ask for the module
and for `torch.neuron.is_available()`. The stand-in has a version and nothing else: a name that TorchNeuron
offers and that is not here raises, as an answer would be made up.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence

NAME = "torch_neuronx"
VERSION = "0+neuronmigrate.emulated"


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the stand-in, after all other finders: a real package wins."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The stand-in's spec, for its name alone."""
        return importlib.machinery.ModuleSpec(NAME, self, is_package=True) if name == NAME else None

    def exec_module(self, module: types.ModuleType) -> None:
        """Fill the stand-in."""
        module.__dict__.update(__version__=VERSION, is_emulated=True, __getattr__=_missing)


def _missing(name: str) -> object:
    raise AttributeError(
        f"the emulated {NAME} has no {name!r}: it needs the real package (torch-neuronx from AWS Neuron)"
    )


def install() -> None:
    """Put the finder at the end of the path; twice does no more."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
