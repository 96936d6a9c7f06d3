"""The import hook: legacy module names lead to modules whose names come from the catalogue."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Mapping, Sequence

from neuronmigrate import catalogue
from neuronmigrate.runtime.legacy.session import Session

_OURS = "neuronmigrate.runtime.legacy"

MODULES: Mapping[str, str] = {
    "torch_neuronx": "neuronx",
    "torch_neuronx.experimental": "neuronx",
    "torch_xla": "xla.root",
    "torch_xla.amp": "xla.amp",
    "torch_xla.core.functions": "xla.functions",
    "torch_xla.core.xla_model": "xla.model",
    "torch_xla.debug.metrics": "xla.metrics",
    "torch_xla.debug.profiler": "xla.profiler",
    "torch_xla.distributed.parallel_loader": "xla.loader",
    "torch_xla.distributed.xla_backend": "xla.backend",
    "torch_xla.distributed.xla_multiprocessing": "xla.processes",
    "torch_xla.runtime": "xla.runtime",
    "torch_xla.utils.checkpoint": "xla.checkpoint",
    "torch_xla.utils.serialization": "xla.serialization",
}
"""Legacy module to the module of ours that has its names."""

PACKAGES = frozenset(
    {"optimum", "torch_xla.core", "torch_xla.debug", "torch_xla.distributed", "torch_xla.utils"}
)
"""Modules that are there only for what is below them."""

OPTIMUM = ("optimum.neuron", "optimum.exporters.neuron")
"""Below these, a name is found by the catalogue: many paths lead to one class."""


def install(session: Session) -> None:
    """Put the finder last, so that a package that is installed wins."""
    sys.meta_path.append(_Finder(session))


def has_stand_in(name: str) -> bool:
    """Whether a legacy module has a stand-in."""
    if name in MODULES or name in PACKAGES or name in OPTIMUM or name == "optimum.exporters":
        return True
    if not name.startswith(tuple(f"{root}." for root in OPTIMUM)):
        return False
    entry = catalogue.lookup(name)
    return (entry is not None and entry.kind == "module") or catalogue.has_below(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, session: Session) -> None:
        self.session = session

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not has_stand_in(name):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name, self.session)

    def exec_module(self, module: types.ModuleType) -> None:
        """Load what stands in for the module, so that a missing library is told at the import."""
        if module.__name__ in MODULES:
            importlib.import_module(f"{_OURS}.{MODULES[module.__name__]}")


class _Module(types.ModuleType):
    """A legacy module; each name that a script takes from it is counted."""

    def __init__(self, name: str, session: Session) -> None:
        super().__init__(name, f"Stand-in of neuronmigrate for {name}.")
        self.__dict__["_session"] = session
        self.__path__: list[str] = []

    def __getattr__(self, attribute: str) -> object:
        name = self.__name__
        if attribute == "__all__":
            return _names(name)
        if attribute.startswith("__") and attribute != "__version__":
            raise AttributeError(attribute)
        qualified = f"{name}.{attribute}"
        if has_stand_in(qualified):
            return importlib.import_module(qualified)
        session: Session = self.__dict__["_session"]
        found, value = _stand_in(name, attribute, session)
        if not found:
            raise AttributeError(f"module '{name}' has no attribute '{attribute}' (no stand-in for it)")
        if not attribute.startswith("_"):
            session.use(qualified)
        return value


def _names(module: str) -> list[str]:
    """What `from module import *` brings."""
    if module in MODULES:
        return list(importlib.import_module(f"{_OURS}.{MODULES[module]}").__all__)
    return []


def _stand_in(module: str, name: str, session: Session) -> tuple[bool, object]:
    if module in MODULES:
        ours = importlib.import_module(f"{_OURS}.{MODULES[module]}")
        if name in ours.__all__:
            return True, getattr(ours, name)
        return False, None
    if not module.startswith(OPTIMUM):
        return False, None
    entry = catalogue.lookup(f"{module}.{name}")
    if name != "__version__" and (entry is None or not session.release.has(entry.first, entry.last)):
        return False, None
    from neuronmigrate.runtime.legacy.optimum import stand_in

    value = stand_in(module, name, session)
    return value is not None, value
