"""Says why a legacy script cannot go on here, when that is not the script's own fault."""

from __future__ import annotations

import importlib.metadata
import re
import sysconfig
import traceback

from neuronmigrate import catalogue
from neuronmigrate.runtime.legacy.session import LegacyProblem, current

_LIBRARIES = ("transformers", "trl", "accelerate", "peft", "diffusers", "sentence_transformers")
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_KEYWORD = re.compile(r"(?P<callable>[\w.]+)\(\) got an unexpected keyword argument '(?P<name>\w+)'")
_ATTRIBUTE = re.compile(
    r"(?:module '?(?P<module>[\w.]+)'?|'?(?P<type>\w+)'? object|type object '(?P<cls>\w+)')"
    r" has no attribute '?(?P<name>\w+)'?"
)
_IMPORT = re.compile(r"cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'")


def explain(error: BaseException) -> str | None:
    """One message with file and line for an error that stand-ins or other library versions caused.

    None for an error of the script itself: that one is to be shown as it is. The cases are
    a legacy name that has no stand-in, a stand-in that needs another version of a library or is of another
    release than the script, and a name or a keyword of transformers, trl, accelerate, peft, diffusers or
    sentence-transformers that the installed version lacks while the version that the legacy release ran with
    is another one.
    """
    where = _place(error)
    if isinstance(error, LegacyProblem):
        return f"{where}: {error}"
    if isinstance(error, ImportError):
        return _import(error, where)
    text = str(error)
    if isinstance(error, TypeError) and (found := _KEYWORD.search(text)):
        taker = found["callable"].removesuffix(".__init__")
        library = _library_of(error, found["callable"])
        if library:
            return _other_version(where, library, f"{taker}.{found['name']}")
        stand_in = next((each for each in current().used if each.endswith(f".{taker}")), "")
        if stand_in.startswith("optimum."):
            return (
                f"{where}: {stand_in} of optimum-neuron {current().release} has no argument {found['name']}: "
                "choose the release that the script was written for with --from-version"
            )
    if isinstance(error, AttributeError) and (found := _ATTRIBUTE.search(text)):
        owner = found["module"] or found["type"] or found["cls"]
        if found["module"] and catalogue.touches_legacy(f"{owner}.{found['name']}"):
            return f"{where}: {_without_stand_in(owner, found['name'])}"
        library = owner.partition(".")[0] if found["module"] else _library_of(error, owner)
        if library in _LIBRARIES:
            return _other_version(where, library, f"{owner}.{found['name']}")
    return None


def _import(error: ImportError, where: str) -> str | None:
    found = _IMPORT.search(str(error))
    module = found["module"] if found else error.name or ""
    library = module.partition(".")[0]
    if library in _LIBRARIES:
        # A library that is not installed at all is the script's own affair.
        if not found and "." not in module:
            return None
        return _other_version(where, library, f"{module}.{found['name']}" if found else module)
    if found and catalogue.touches_legacy(f"{module}.{found['name']}"):
        return f"{where}: {_without_stand_in(module, found['name'])}"
    if isinstance(error, ModuleNotFoundError) and catalogue.touches_legacy(module):
        owner, _, last = module.rpartition(".")
        return f"{where}: {_without_stand_in(owner, last)}"
    return None


def _without_stand_in(owner: str, name: str) -> str:
    release = current().release
    qualified = f"{owner}.{name}" if owner else name
    entry = catalogue.lookup(qualified)
    if entry is not None and entry.first and not release.has(entry.first, entry.last):
        span = f"{entry.first} to {entry.last}"
        return f"{qualified} is not in optimum-neuron {release} (it is in {span}; choose with --from-version)"
    reason = _REASONS.get(qualified.partition(".")[0], "")
    return (
        f"{qualified} is a legacy name without a stand-in{reason}: this script cannot run here. "
        "Record it where the real package is installed"
    )


_REASONS = {
    "neuronx_distributed": " (its layers and checkpoints are split over the processes of NeuronCores)",
    "torch_neuron": " (the stack of Inf1, which has no native successor)",
    "transformers_neuronx": " (its decoders are compiled graphs and nothing else)",
}
"""Why a package as a whole has none."""


def _library_of(error: BaseException, qualified: str) -> str | None:
    """The library whose callable refused a keyword, told by the callable's own module."""
    import sys

    name = qualified.partition(".")[0]
    for library in _LIBRARIES:
        for module in [sys.modules.get(library), *_modules_of(library)]:
            if module is not None and name in getattr(module, "__dict__", {}):
                owner = str(getattr(module.__dict__[name], "__module__", ""))
                if owner.partition(".")[0] == library:
                    return library
    return None


def _modules_of(library: str) -> list[object]:
    import sys

    return [module for name, module in list(sys.modules.items()) if name.startswith(f"{library}.")]


def _other_version(where: str, library: str, name: str) -> str | None:
    message = in_the_way(library, name)
    return None if message is None else f"{where}: {message}"


def in_the_way(library: str, name: str) -> str | None:
    """The message about an API in the way, or None when the installed version is the release's own."""
    installed = another_version(library)
    if installed is None:
        return None
    release = current().release
    wanted = " and ".join(f"{each} {version}" for each, version in release.pins.items())
    here = f"{library.replace('_', '-')} {installed}"
    return (
        f"{name} is not in {here}; optimum-neuron {release} ran with {wanted}."
        " Run this script in an environment that has those"
    )


def another_version(library: str) -> str | None:
    """The installed version of a library if it is not the minor version that the release ran with."""
    try:
        installed = importlib.metadata.version(library.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return None
    pinned = current().release.pins.get(library)
    if pinned is None:
        return None if library in ("transformers", "trl") else installed
    return None if _minor(installed) == pinned else installed


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _place(error: BaseException) -> str:
    """`file:line` of the innermost frame outside the installed libraries and this package."""
    from neuronmigrate.runtime.legacy.session import OURS

    frames = traceback.extract_tb(error.__traceback__)
    own = [
        each
        for each in frames
        if "site-packages" not in each.filename
        and not each.filename.startswith((*OURS, _STANDARD_LIBRARY, "<"))
    ]
    # The frames before the script are those that run it.
    last = own[-1] if own else (frames[-1] if frames else None)
    return f"{last.filename}:{last.lineno}" if last else "the script"
