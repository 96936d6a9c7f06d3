"""Doing something right after a module was imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence


def after_import(name: str, act: Callable[[types.ModuleType], None]) -> None:
    """Call `act` with the module `name` once its code has run; at once if it has."""
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        sys.meta_path.insert(0, _Watch(name, act))
    else:
        act(module)


class _Watch(importlib.abc.MetaPathFinder):
    """Finds what the other finders find, with a loader that tells when it is done."""

    def __init__(self, name: str, act: Callable[[types.ModuleType], None]) -> None:
        self.name = name
        self.act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                self.act(module)

            # On this one loader, which was made for this one import.
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
