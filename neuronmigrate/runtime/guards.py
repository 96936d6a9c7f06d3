"""Warnings, or with --strict refusals, of what would leave a model on the CPU without a word."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable

from neuronmigrate.runtime.after_import import after_import
from neuronmigrate.runtime.places import Place, Places

Tell = Callable[[Place, str, str], None]
"""Takes the line, what was found there, and why it matters."""


def install(tell: Tell, *, strict: bool) -> None:
    """Guard `from_pretrained(device_map=...)` of Transformers, once it is imported."""
    after_import("transformers.modeling_utils", lambda module: _guard_device_map(module, tell, strict))


def _guard_device_map(module: types.ModuleType, tell: Tell, strict: bool) -> None:
    """Look at each device map as Transformers does (modeling_utils.check_and_set_device_map, 5.24)."""
    original: Callable[[object], object] | None = getattr(module, "check_and_set_device_map", None)
    if original is None:
        return
    places = Places()

    def check_and_set_device_map(device_map: object) -> object:
        found = original(device_map)
        # A strategy stays a string; a device has become a map.
        if isinstance(found, str):
            place, _ = places.now(sys._getframe(1))
            # Accelerate 1.15 counts the memory of no neuron device (utils/modeling.py, get_max_memory).
            why = 'it knows the CPU alone, and the model stays there: write device_map="neuron"'
            if strict:
                raise ValueError(f"device_map={found!r}: {why}")
            tell(place, f"device_map={found!r}", why)
        return found

    module.check_and_set_device_map = check_and_set_device_map  # type: ignore[attr-defined]
