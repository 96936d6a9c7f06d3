"""What the libraries that rewritten code uses really have: names, and the keywords their callables take.

One JSON file for each library, made by generate.py out of the released package; `torch.neuron` and the
native `torch_neuronx` are in neuron.py, by hand. A file is read when the first name of its library is
asked for, and the libraries themselves are never imported.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from neuronmigrate.targets import keywords, neuron

if TYPE_CHECKING:
    from typing import TypedDict

    class _Class(TypedDict, total=False):
        b: list[str]
        """Bases."""
        f: str
        """Fields of a dataclass that are parameters."""
        m: dict[str, str]
        """Methods with their parameters."""
        a: str
        """Other attributes."""

    class _Library(TypedDict):
        version: str
        left_out: list[str]
        modules: dict[str, str]
        definitions: dict[str, str | _Class]


LIBRARIES = ("accelerate", "diffusers", "peft", "sentence_transformers", "torch", "transformers", "trl")
"""The libraries that are described, by the name they are imported under."""


def version(library: str) -> str:
    """The release of a library that is described here. Raises KeyError for a library that is not."""
    if library not in LIBRARIES:
        raise KeyError(library)
    return _library(library)["version"]


def exists(name: str) -> bool | None:
    """Whether a library has a qualified name; None if the library, or that part of it, is not described."""
    root = name.partition(".")[0]
    if name in neuron.NAMES:
        return True
    if _stubbed(name):
        # What is not in the stub may be there all the same.
        return None
    if root not in LIBRARIES:
        return None
    if name == root:
        return True
    where = _locate(name)
    if where is None:
        return None if _left_out(name) else False
    target, rest = where
    return not rest or _has(target, rest)


def accepts(callable_name: str, keyword: str) -> bool | None:
    """Whether a callable takes a keyword; None if that is not known.

    A class stands for its constructor. Of callables that take any keyword (`from_pretrained`, `generate`),
    those they take out by name are known, and those listed in keywords.py.
    """
    if _stubbed(callable_name):
        known = neuron.NAMES.get(callable_name)
        return None if known is None or known.parameters is None else keyword in known.parameters
    if callable_name.partition(".")[0] not in LIBRARIES:
        return None
    where = _locate(callable_name)
    if where is None:
        return None
    owner, rest = where
    if len(rest) > 1:
        return None
    method = rest[0] if rest else ""
    listed = keywords.known(_lineage(owner), method, keyword)
    if listed is not None:
        return listed
    parameters = _parameters(owner, method)
    if parameters is None:
        return None
    if keyword in parameters or f"~{keyword}" in parameters:
        return True
    return None if any(each.startswith("**") for each in parameters) else False


def parameters(callable_name: str) -> tuple[str, ...] | None:
    """The parameters of a callable, or None.

    Names, `/name` for positional only ones, `*args`, `**kwargs`, and `~name` for each keyword that is taken
    out of the latter.
    """
    where = _locate(callable_name) if callable_name.partition(".")[0] in LIBRARIES else None
    if where is None or len(where[1]) > 1:
        return None
    found = _parameters(where[0], where[1][0] if where[1] else "")
    return None if found is None else tuple(found)


def _stubbed(name: str) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in neuron.ROOTS)


@functools.cache
def _library(library: str) -> _Library:
    import json

    data: _Library = json.loads(Path(__file__).with_name(f"{library}.json").read_bytes())
    return data


@functools.cache
def _names(module: str) -> dict[str, str]:
    """The names of a module with what they stand for."""
    root = module.partition(".")[0]
    found = {}
    for word in _library(root)["modules"][module].split():
        name, equals, target = word.partition("=")
        if equals:
            found[name] = f"{root}{target}" if target.startswith(".") else target
        else:
            found[name] = f"{module}.{name}"
    return found


def _left_out(name: str) -> bool:
    left_out = _library(name.partition(".")[0])["left_out"]
    return any(name == each or name.startswith(f"{each}.") for each in left_out)


def _locate(name: str) -> tuple[str, tuple[str, ...]] | None:
    """What a name stands for, and the attributes after it; None when nothing leads there."""
    parts = name.split(".")
    modules = _library(parts[0])["modules"]
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if module not in modules:
            continue
        if length == len(parts):
            return module, ()
        target = _names(module).get(parts[length])
        if target is None:
            return None
        rest = tuple(parts[length + 1 :])
        if target in modules and rest:
            return _locate(".".join([target, *rest]))
        return target, rest
    return None


def _definition(target: str) -> str | _Class | None:
    root = target.partition(".")[0]
    return _library(root)["definitions"].get(target) if root in LIBRARIES else None


def _lineage(target: str) -> Iterator[str]:
    """A class and its bases, nearest first, as far as they are described."""
    waiting, seen = [target], set()
    while waiting:
        current = waiting.pop(0)
        root = current.partition(".")[0]
        if current in seen:
            continue
        seen.add(current)
        if root in LIBRARIES and _definition(current) is None:
            # A base from another library is named as it was imported.
            where = _locate(current)
            if where is not None and not where[1] and where[0] != current:
                waiting.insert(0, where[0])
                continue
        yield current
        found = _definition(current)
        if isinstance(found, dict):
            waiting = [*found.get("b", ()), *waiting]


def _has(target: str, rest: tuple[str, ...]) -> bool | None:
    """Whether what a name stands for has an attribute; None where its bases are not described."""
    if len(rest) > 1:
        return None
    closed = True
    for owner in _lineage(target):
        found = _definition(owner)
        if not isinstance(found, dict):
            closed = False
        elif rest[0] in found.get("m", ()) or rest[0] in found.get("a", "").split():
            return True
    return False if closed else None


def _parameters(target: str, method: str) -> list[str] | None:
    found = _definition(target)
    if isinstance(found, str):
        return found.split() if not method else None
    if found is None:
        return None
    fields: list[str] | None = None
    for owner in _lineage(target):
        definition = _definition(owner)
        if not isinstance(definition, dict):
            continue
        methods = definition.get("m", {})
        if method:
            if method in methods:
                return methods[method].split()
            continue
        if "f" in definition:
            # The constructor of a dataclass takes the fields of its bases as well.
            fields = [*(fields or ()), *definition["f"].split()]
        elif fields is None:
            for name in ("__init__", "__new__"):
                if name in methods:
                    return methods[name].split()
        if "__init__" in methods and "f" in definition:
            return methods["__init__"].split()
    return fields
