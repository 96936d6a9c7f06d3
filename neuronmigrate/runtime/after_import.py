"""Doing something right after a module was imported, without importing it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence

Act = Callable[[types.ModuleType], object]


def after_import(name: str, act: Act) -> None:
    """Call `act` with the module `name` once its code has run; at once if it has."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        act(module)
        return
    _watch.waiting.setdefault(name, []).append(act)
    if _watch not in sys.meta_path:
        sys.meta_path.insert(0, _watch)


class _Watch(importlib.abc.MetaPathFinder):
    """Finds what the other finders find, with a loader that tells when it is done.

    A spec is often only looked at, to see whether a package is there; so nothing is over before the
    module's code has run.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, list[Act]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.waiting:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                self._done(module)

            # On this one loader, which was made for this one import.
            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def _done(self, module: types.ModuleType) -> None:
        acts = self.waiting.pop(module.__name__, [])
        if not self.waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        for act in acts:
            act(module)


_watch = _Watch()
