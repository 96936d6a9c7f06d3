"""Static facts about a project: which legacy releases it was written for, and for which chip.

Everything is read as text: nothing of the project is imported, and a file that is not well-formed tells
as much as its lines do.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

OPTIMUM_NEURON = "optimum-neuron"

RELEASES = (
    *(f"0.0.{patch}" for patch in range(1, 13)),
    "0.0.12.1",
    *(f"0.0.{patch}" for patch in range(13, 29)),
    "0.1.0",
    "0.2.0",
    "0.2.1",
    "0.2.2",
    "0.3.0",
    "0.4.0",
    "0.4.1",
    "0.4.2",
    "0.4.3",
    "0.4.4",
    "0.4.5",
)
"""Releases of optimum-neuron, oldest first."""

PACKAGES = (
    OPTIMUM_NEURON,
    "accelerate",
    "diffusers",
    "libneuronxla",
    "neuronx-cc",
    "neuronx-distributed",
    "neuronx-distributed-inference",
    "neuronx-distributed-training",
    "optimum",
    "peft",
    "sentence-transformers",
    "torch",
    "torch-neuron",
    "torch-neuronx",
    "torch-xla",
    "transformers",
    "transformers-neuronx",
    "trl",
)
"""Packages whose releases say something about the code."""


@dataclass(frozen=True)
class Requirement:
    """One place where a project asks for a package."""

    package: str
    """Normalised name."""
    specifier: str
    """Such as `==0.0.25`; empty when any release will do."""
    source: str
    """`requirements.txt:3`; in a notebook `train.ipynb:cell 2:1`."""
    rank: int
    """How much the place counts: 0 for a lock file, then declared, images, scripts, notebooks, code."""
    extras: frozenset[str] = frozenset()


@dataclass(frozen=True)
class LegacyVersion:
    """The release of a package that code was written for."""

    release: Version
    source: str
    """Where it is said; empty when nothing says so."""
    assumed: bool
    """Whether it is not pinned, so that the newest that fits was taken."""
    notice: str
    """One sentence about it for the report."""


# Requirement files


def reads(path: str) -> bool:
    """Whether a file of this name may say which releases are used."""
    return _rank(path) is not None


def requirements(path: str, raw: bytes) -> tuple[Requirement, ...]:
    """What a file asks for, of the packages that matter. Empty for a file of another kind."""
    rank = _rank(path)
    if rank is None or (rank > 2 and not _MAY_ASK.search(raw)):
        return ()
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")
    name = PurePosixPath(path).name
    if name.endswith(".lock"):
        found = _locked(name, path, text)
    elif name.endswith(".ipynb"):
        found = _notebook(path, text)
    else:
        found = _lines(name, path, text.split("\n"), declared=rank < 2)
    return tuple(Requirement(package, spec, source, rank, extras) for package, spec, source, extras in found)


def legacy_version(found: Iterable[Requirement], given: str = "") -> LegacyVersion:
    """The release of optimum-neuron that a project uses.

    `given` is what a person said and holds over everything. Of the places that count most, the newest
    exact pin holds; without a pin the newest release that fits is assumed, at last the newest of all.
    Raises ValueError when `given` is not a release.
    """
    from packaging.version import InvalidVersion, Version

    if given:
        try:
            release = Version(given)
        except InvalidVersion as error:
            raise ValueError(f"{given!r} is not a release of optimum-neuron") from error
        return LegacyVersion(release, "", False, f"optimum-neuron {release}, as given")
    places = list(found)
    release_known = release_of(places, OPTIMUM_NEURON)
    if release_known is not None:
        return release_known
    newest = Version(RELEASES[-1])
    asked = [place for place in places if _asks(place)]
    source = min(asked, key=lambda place: place.rank).source if asked else ""
    told = f"{source} asks for it without a release" if source else "no file says which release is used"
    notice = f"optimum-neuron {newest} is assumed: {told}"
    return LegacyVersion(newest, source, True, notice)


def release_of(found: Iterable[Requirement], package: str) -> LegacyVersion | None:
    """The release of a package that a project uses; None when no place says anything about it.

    Only of optimum-neuron are the releases known, so only there a range leads to one.
    """
    places = [place for place in found if place.package == package and place.specifier]
    pins = [(place, version) for place in places if (version := _pin(place.specifier)) is not None]
    if pins:
        rank = min(place.rank for place, _ in pins)
        best, release = max(
            ((place, version) for place, version in pins if place.rank == rank), key=lambda item: item[1]
        )
        others = [f"{place.source} says {version}" for place, version in pins if version != release]
        aside = f" ({', '.join(others[:3])})" if others else ""
        return LegacyVersion(release, best.source, False, f"{package} {release}, from {best.source}{aside}")
    if package != OPTIMUM_NEURON:
        return None
    for place in sorted(places, key=lambda each: each.rank):
        fitting = _fitting(place.specifier)
        if fitting is not None:
            notice = f"{package} {fitting} is assumed: the newest that {place.source} allows"
            return LegacyVersion(fitting, place.source, True, notice)
    return None


def near(found: Iterable[Requirement], path: str) -> tuple[Requirement, ...]:
    """The requirements that hold for a file where several projects share a tree.

    Those of the nearest folder at or above the file that says which release of optimum-neuron it uses. A
    folder that asks for it without a release is a project too: what stands below or above it holds, and
    not what stands beside it. Where no folder above the file asks for it, all do.
    """
    places = tuple(found)
    for folder in PurePosixPath(path).parents:
        here = [place for place in places if _folder(place) == folder]
        if release_of(here, OPTIMUM_NEURON) is not None:
            return tuple(here)
        if any(_asks(place) for place in here):
            around = {folder, *folder.parents}
            return tuple(
                place for place in places if _folder(place) in around or folder in _folder(place).parents
            )
    return places


def _asks(place: Requirement) -> bool:
    return place.package == OPTIMUM_NEURON or (place.package == "optimum" and _has_neuron_extra(place))


def _folder(place: Requirement) -> PurePosixPath:
    folder = PurePosixPath(place.source.partition(":")[0]).parent
    return folder.parent if folder.name in {"requirements", "reqs"} else folder


def python_floor(specifier: str) -> tuple[int, int] | None:
    """The oldest Python that a `requires-python` text allows, or None without a lower bound."""
    specifiers = _specifiers(specifier)
    if specifiers is None:
        return None
    floors = []
    for each in specifiers:
        match = re.match(r"(\d+)\.?(\d+)?", each.version)
        if match and each.operator in {">=", "==", "~=", ">", "==="}:
            floors.append((int(match[1]), int(match[2] or 0)))
    return max(floors, default=None)


_MAY_ASK = re.compile(
    rb"\binstall\b|\badd\b|(?i:neuronx?|xla|optimum)(?:\[[^\]\n]*\])?[\"']?\s*[=~<>!]=|optimum-neuron"
)
"""What a script, notebook or module holds if it is to say anything here; most do not."""

_REQUIREMENT_FILE = re.compile(
    r"(?i)(?:req|requirements?|constraints?|deps|dependencies)[\w.-]*\.(?:txt|in|pip)$"
)
_CONDA_FILE = re.compile(r"(?i)(?:environment|conda|env)[\w.-]*\.ya?ml$")
_IMAGE_FILE = re.compile(r"(?i)^(?:dockerfile|containerfile)|\.(?:dockerfile|containerfile|def)$")
_DECLARING = frozenset({"pyproject.toml", "setup.cfg", "setup.py", "Pipfile", "tox.ini", "noxfile.py"})
_LOCKS = frozenset({"poetry.lock", "uv.lock", "pdm.lock", "Pipfile.lock", "pylock.lock"})


def _rank(path: str) -> int | None:
    pure = PurePosixPath(path)
    name = pure.name
    if name in _LOCKS:
        return 0
    in_folder = pure.parent.name in {"requirements", "reqs"} and pure.suffix in {".txt", ".in"}
    if name in _DECLARING or in_folder or _REQUIREMENT_FILE.search(name) or _CONDA_FILE.search(name):
        return 1
    if _IMAGE_FILE.search(name):
        return 2
    if pure.suffix in {".sh", ".bash", ".slurm", ".sbatch", ".yml", ".yaml"} or name == "Makefile":
        return 3
    if pure.suffix == ".ipynb":
        return 4
    return 5 if pure.suffix == ".py" else None


_Found = tuple[str, str, str, frozenset[str]]

_ONE = r"(?:===?|~=|!=|>=|<=|>|<)\s*[A-Za-z0-9.*+!-]+"
_NAME = "|".join(
    re.escape(package).replace(r"\-", "[-_.]") for package in sorted(PACKAGES, key=len, reverse=True)
)
_MENTION = re.compile(
    rf"(?<![\w./-])(?P<name>{_NAME})(?![\w-]|\.\w)\s*(?P<extras>\[[\w\s,.-]*\])?\s*"
    rf"\(?(?P<spec>{_ONE}(?:\s*,\s*{_ONE})*)?",
    re.IGNORECASE,
)
_FROM_GIT = re.compile(r"github\.com/huggingface/optimum-neuron(?:\.git)?@v?(?P<release>\d+(?:\.\d+)+)")
_INSTALL = re.compile(r"\b(?:pip[\d.]*|uv|poetry|pdm|conda|mamba)\s+(?:pip\s+)?(?:install|add)\b")
_KEY = re.compile(
    rf"^\s*[\"']?(?P<name>{_NAME})[\"']?\s*=\s*(?:\{{.*?\bversion\s*=\s*)?[\"'](?P<spec>[^\"']*)[\"']",
    re.IGNORECASE,
)
_CONDA = re.compile(rf"^\s*-\s*[\"']?(?P<name>{_NAME})=(?P<spec>[\d.]+\*?)", re.IGNORECASE)
_SAYS = ("==", ">=", "<=", "~=", "!=", "install", "add", "ptimum")
_QUOTED = re.compile(rf"[\"'](?P<name>{_NAME})\s*(?P<extras>\[[\w\s,.-]*\])?[\"']", re.IGNORECASE)


def _lines(name: str, path: str, lines: list[str], *, declared: bool = False) -> Iterator[_Found]:
    listing = bool(_REQUIREMENT_FILE.search(name)) or PurePosixPath(path).parent.name in {
        "requirements",
        "reqs",
    }
    toml = name in {"pyproject.toml", "Pipfile"}
    installing = False
    for number, line in enumerate(lines, 1):
        source = f"{path}:{number}"
        if not (declared or listing or installing or any(each in line for each in _SAYS)):
            continue  # of code, which has many lines that name a package and say nothing of its release
        bare = line.strip()
        if bare.startswith("#"):
            continue
        line = re.sub(r"(?:^|\s)#.*", "", line) if listing or toml else line
        installing = installing or bool(_INSTALL.search(line))
        git = _FROM_GIT.search(line)
        if git is not None:
            yield OPTIMUM_NEURON, f"=={git['release']}", source, frozenset()
        else:
            if toml and (key := _KEY.match(line)) is not None:
                yield _normal(key["name"]), _poetry(key["spec"]), source, frozenset()
            else:
                yield from _of_line(line, source, listing=listing, declared=declared, installing=installing)
        installing = installing and bare.endswith("\\")


def _of_line(line: str, source: str, *, listing: bool, declared: bool, installing: bool) -> Iterator[_Found]:
    conda = _CONDA.match(line)
    if conda is not None:
        yield _normal(conda["name"]), f"=={conda['spec']}", source, frozenset()
        return
    quoted = {match.start("name") for match in _QUOTED.finditer(line)} if declared else set()
    for match in _MENTION.finditer(line.partition(";")[0] if listing else line):
        spec = (match["spec"] or "").replace(" ", "")
        alone = listing or installing or match.start("name") in quoted or bool(match["extras"])
        if spec or (alone and not line.lstrip().startswith(("import ", "from "))):
            extras = frozenset(re.findall(r"[\w.-]+", match["extras"] or ""))
            yield _normal(match["name"]), spec, source, extras


def _notebook(path: str, text: str) -> Iterator[_Found]:
    try:
        cells = json.loads(text).get("cells", ())
    except (ValueError, AttributeError):
        return
    for index, cell in enumerate(cells if isinstance(cells, list) else ()):
        source = cell.get("source", "") if isinstance(cell, dict) and cell.get("cell_type") == "code" else ""
        if isinstance(source, list):
            source = "".join(part for part in source if isinstance(part, str))
        if isinstance(source, str):
            yield from _lines("", f"{path}:cell {index}", source.split("\n"))


_LOCKED_TOML = re.compile(r"^name = \"(?P<name>[^\"]+)\"\nversion = \"(?P<release>[^\"]+)\"", re.MULTILINE)
_LOCKED_JSON = re.compile(
    r"\"(?P<name>[\w.-]+)\":\s*\{[^{}]*?\"version\":\s*\"==(?P<release>[^\"]+)\"", re.DOTALL
)


def _locked(name: str, path: str, text: str) -> Iterator[_Found]:
    starts = [match.start() for match in re.finditer(r"^", text, re.MULTILINE)]
    for match in (_LOCKED_JSON if name == "Pipfile.lock" else _LOCKED_TOML).finditer(text):
        if _normal(match["name"]) in PACKAGES:
            line = bisect.bisect_right(starts, match.start("release"))
            yield _normal(match["name"]), f"=={match['release']}", f"{path}:{line}", frozenset()


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _poetry(spec: str) -> str:
    """A specifier in the words of packaging: Poetry has `^1.2`, `~1.2`, `*` and plain releases."""
    spec = spec.strip()
    caret = re.fullmatch(r"\^\s*(\d+(?:\.\d+)*)", spec)
    if caret is not None:
        parts = [int(part) for part in caret[1].split(".")]
        fixed = next((index for index, part in enumerate(parts) if part), len(parts) - 1)
        upper = ".".join(str(part) for part in [*parts[:fixed], parts[fixed] + 1])
        # `^0.0.25` leaves no room: it is that release alone.
        return f"=={caret[1]}" if fixed == 2 and len(parts) == 3 else f">={caret[1]},<{upper}"
    tilde = re.fullmatch(r"~\s*(\d+(?:\.\d+)+)", spec)
    if tilde is not None:
        return f"~={tilde[1]}" if tilde[1].count(".") > 1 else f"=={tilde[1]}.*"
    if re.fullmatch(r"\d+(?:\.\d+)*", spec):
        return f"=={spec}"
    return "" if spec == "*" else spec


def _specifiers(spec: str) -> SpecifierSet | None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(spec)
    except InvalidSpecifier:
        return None


def _pin(spec: str) -> Version | None:
    """The one release that a specifier allows."""
    from packaging.version import InvalidVersion, Version

    specifiers = _specifiers(spec)
    for each in specifiers or ():
        if each.operator in {"==", "==="} and not each.version.endswith("*"):
            try:
                return Version(each.version)
            except InvalidVersion:
                return None
    return None


def _fitting(spec: str) -> Version | None:
    """The newest known release that a specifier allows."""
    from packaging.version import Version

    specifiers = _specifiers(spec)
    if not specifiers:
        return None
    return max((Version(each) for each in RELEASES if specifiers.contains(each)), default=None)


def _has_neuron_extra(place: Requirement) -> bool:
    return any(extra.startswith("neuron") for extra in place.extras)


# Signs of a chip

_TPU = re.compile(
    rb"""
    PJRT_DEVICE\W{1,12}TPU | \blibtpu\b | \bxla_dist\b | gs://[\w-] | \bpallas\b
    | \bXRT_TPU_CONFIG\b
    | \bTPU_(?:NUM_DEVICES|CHIPS_PER_HOST_BOUNDS|LIBRARY_PATH|NAME|WORKER_ID|IP_ADDRESS)\b
    | \bTPU_(?:PROCESS|VISIBLE)_\w+
    | \bLIBTPU_INIT_ARGS\b | \btorch_xla\.(?:experimental|_internal)\.tpu\b | ["']TPU["']
    | \bis_torch_tpu_available\b | \bTPUStrategy\b | \btpu_(?:num_)?cores\b | --tpu\b
    | \buse_tpu\b | \bon_tpu\b
    | \buse_spmd\s*\( | (?i:\bcloud[- ]tpus?\b) | \bTPU\s+(?:v[2-6]|pod|VM|core)s?\b | \btpu-vm\b
    """,
    re.VERBOSE,
)
_NEURON = re.compile(
    rb"""
    \btorch_neuronx?\b | \boptimum[._-]neuron\b | \btorch\.neuron\b | \bneuronx\w*
    | \bneuron(?:core|_parallel_compile)
    | \bNEURON(?:_\w+|CORE\w*)?\b | \blibneuronxla\b | \btransformers_neuronx\b | ["']neuron["']
    | (?i:\btrainium\b | \binferentia\b) | \b(?:ml\.)?(?:trn[123]n?|inf[12])\.\w+ | \b[Tt]rn[123]n?\b
    | \bneuron-(?:top|ls|monitor|profile|cc)\b
    """,
    re.VERBOSE,
)
_INF1 = re.compile(
    rb"""
    \btorch_neuron\b
    | \btorch\.neuron\.(?:trace|analyze_model|DataParallel|get_supported_operations|experimental)\b
    | \btorch[-_.]neuron\b(?![-_.\w]) | \b(?:ml\.)?inf1\.\w+ | \bneuron-cc\b | \bNEURONCORE_GROUP_SIZES\b
    | \bNEURON_RTD_ADDRESS\b
    """,
    re.VERBOSE,
)
_TPU_PATH = re.compile(r"(?:^|[/_.-])tpus?(?:[/_.-]|$)", re.IGNORECASE)


def tpu_signs(raw: bytes, path: str = "") -> tuple[str, ...]:
    """What in a file says that it runs on a TPU, each as `text (line 3)`."""
    found = _signs(_TPU, raw)
    return (f"the name {path}", *found) if _TPU_PATH.search(path) else found


def neuron_signs(raw: bytes) -> tuple[str, ...]:
    """What in a file says that it runs on Trainium or Inferentia."""
    return _signs(_NEURON, raw)


def inf1_signs(raw: bytes) -> tuple[str, ...]:
    """What in a file says that it runs on Inf1, which has no native backend."""
    return _signs(_INF1, raw)


def chip_of(raw: bytes, path: str = "") -> str:
    """`neuron`, `tpu`, or nothing when a file says neither; `neuron` when it says both.

    Code for both is rewritten as code for Neuron: its TPU side is named by the conditions around it.
    """
    if _NEURON.search(raw):
        return "neuron"
    return "tpu" if tpu_signs(raw, path) else ""


def chip_of_project(chips: Iterable[str]) -> str:
    """The chip of a project by what its files say, for files that say nothing themselves."""
    seen = set(chips)
    if "neuron" in seen:
        return "neuron"
    return "tpu" if "tpu" in seen else ""


def _signs(pattern: re.Pattern[bytes], raw: bytes) -> tuple[str, ...]:
    first: dict[str, int] = {}
    for match in pattern.finditer(raw):
        text = match.group().decode("utf-8", "replace")
        if text not in first:
            first[text] = raw.count(b"\n", 0, match.start()) + 1
    return tuple(f"{text} (line {line})" for text, line in first.items())


# Vendored packages

VENDORED = (
    "libneuronxla",
    "neuronx_distributed",
    "neuronx_distributed_inference",
    "neuronx_distributed_training",
    "optimum/exporters/neuron",
    "optimum/neuron",
    "torch_neuron",
    "torch_neuronx",
    "torch_xla",
    "transformers_neuronx",
)
"""Folders that are a legacy package when they hold an `__init__.py`."""


def vendored(path: str, is_file: Callable[[str], bool]) -> str:
    """The folder of the legacy package that a file is the source of, or nothing.

    A folder that merely has the name, such as `examples/torch_xla/`, is not a package. `is_file` answers
    for paths relative to the same place as `path`.
    """
    parts = PurePosixPath(path).parent.parts
    for length in range(1, len(parts) + 1):
        folder = "/".join(parts[:length])
        if any(folder == name or folder.endswith(f"/{name}") for name in VENDORED) and is_file(
            f"{folder}/__init__.py"
        ):
            return folder
    return ""
