"""Finds and loads the codemods: every `codemods/[a-z]*.py`, by its path and never by an import name.

An import of `codemods` would find the folder of that name that many projects have for their own
LibCST codemods, and run the scanned project's code.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from neuronmigrate.codemod import Codemod


def folder() -> Path:
    """The folder of the codemods: inside the package when installed, beside it in a checkout."""
    inside = Path(__file__).parent / "codemods"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "codemods"


@functools.cache
def load(extra: Path | None = None) -> tuple[Codemod, ...]:
    """All codemods in the order of their names, then those of the folder `extra`.

    Raises ValueError when a file has no docstring or no `codemod`, or two codemods claim one name.
    """
    found = [_read(path, "neuronmigrate.codemods") for path in sorted(folder().glob("[a-z]*.py"))]
    if extra is not None:
        found += [_read(path, "neuronmigrate.local") for path in sorted(extra.glob("[a-z]*.py"))]
    owner: dict[str, str] = {}
    for codemod in found:
        for name in codemod.claimed:
            other = owner.setdefault(name, codemod.name)
            if other != codemod.name:
                raise ValueError(f"{name} is claimed by both {other} and {codemod.name}")
    return tuple(found)


@functools.cache
def digest() -> str:
    """A short hash over the codemods' sources: tells two sets of rules apart."""
    whole = hashlib.sha256()
    for path in sorted(folder().glob("*.py")):
        whole.update(path.name.encode())
        whole.update(path.read_bytes())
    return whole.hexdigest()[:10]


def _read(path: Path, package: str) -> Codemod:
    # Imported here: the digest, which `--version` prints, must not cost the import of LibCST.
    from neuronmigrate.codemod import Codemod

    name = f"{package}.{path.stem}"
    module = sys.modules.get(name) or _execute(name, path)
    codemod = getattr(module, "codemod", None)
    if not isinstance(codemod, Codemod):
        raise ValueError(f"{path}: no `codemod = Codemod(__name__)` in it")
    if not module.__doc__:
        raise ValueError(f"{path}: a codemod needs a docstring")
    codemod.doc = module.__doc__.strip()
    return codemod


def _execute(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
