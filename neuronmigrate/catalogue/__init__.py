"""Every legacy name, what became of it, and what to tell a person about it.

The data are in catalogue.json, made by generate.py. `is_legacy` and `touches_legacy` need none of it and
are cheap; the rest loads the file when first asked.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from neuronmigrate.targets.neuron import NAMES as NATIVE

if TYPE_CHECKING:
    from typing import TypedDict

    class _Data(TypedDict):
        texts: list[str]
        rows: list[tuple[str, str, list[str], int, int, int, str, str, dict[str, str]]]
        names: dict[str, int]
        variables: dict[str, int]
        commands: dict[str, int]
        flags: dict[str, int]
        idioms: dict[str, int]
        modules: dict[str, int]
        arguments: dict[str, dict[str, list[str]]]


roots: tuple[str, ...] = (
    "_XLAC",
    "libneuronxla",
    "nemo_neuron",
    "neuronperf",
    "neuronx_distributed",
    "neuronx_distributed_inference",
    "neuronx_distributed_training",
    "neuronxcc",
    "optimum.commands.export.neuron",
    "optimum.commands.export.neuronx",
    "optimum.commands.neuron",
    "optimum.commands.register.register_neuron",
    "optimum.exporters.neuron",
    "optimum.neuron",
    "torch.classes.neuron",
    "torch.ops.neuron",
    "torch_neuron",
    "torch_xla",
    "transformers_neuronx",
)
"""Packages below which every name is legacy. `torch_neuronx` and `torch.neuron` are not among them: the
native stack has both, and only the attribute tells."""

SINGLE = frozenset(
    {
        "accelerate.utils.imports.is_torch_xla_available",
        "accelerate.utils.is_torch_xla_available",
        "accelerate.utils.is_tpu_available",
        "diffusers.utils.import_utils.is_torch_xla_available",
        "diffusers.utils.is_torch_xla_available",
        "transformers.file_utils.is_torch_tpu_available",
        "transformers.is_torch_tpu_available",
        "transformers.is_torch_xla_available",
        "transformers.utils.import_utils.is_torch_neuroncore_available",
        "transformers.utils.import_utils.is_torch_tpu_available",
        "transformers.utils.import_utils.is_torch_xla_available",
        "transformers.utils.is_torch_neuroncore_available",
        "transformers.utils.is_torch_tpu_available",
        "transformers.utils.is_torch_xla_available",
    }
)
"""Legacy names inside packages that stay."""

INF1_NAMES = frozenset(
    {
        "DataParallel",
        "Optimization",
        "analyze_model",
        "experimental",
        "get_supported_operations",
        "trace",
    }
)
"""What the Inf1 package put into `torch.neuron`, where the native device module has other names."""

_ROOT_SET = frozenset(roots)
_DEPTHS = (1, 2, 3, 4)
_ABOVE = frozenset(
    ".".join(name.split(".")[:length])
    for name in (*roots, *SINGLE, "torch_neuronx.", "torch.neuron.")
    for length in range(1, name.count(".") + 1)
)

SHORT_NAMES = {
    "met": "torch_xla.debug.metrics",
    "nxd": "neuronx_distributed",
    "pl": "torch_xla.distributed.parallel_loader",
    "xb": "torch_xla.core.xla_builder",
    "xf": "torch_xla.core.functions",
    "xla": "torch_xla",
    "xm": "torch_xla.core.xla_model",
    "xmp": "torch_xla.distributed.xla_multiprocessing",
    "xp": "torch_xla.debug.profiler",
    "xr": "torch_xla.runtime",
    "xs": "torch_xla.distributed.spmd",
    "xser": "torch_xla.utils.serialization",
    "xu": "torch_xla.utils.utils",
}
"""Aliases that people use, for `explain`."""


@dataclass(frozen=True)
class Entry:
    """One legacy name."""

    name: str
    """The name that was asked for, or the module around it that is known."""
    kind: str
    """What it is: `class`, `function`, `module`, `variable`, `command`, `package`, `flag`, `idiom` ..."""
    action: str
    """`keep`, `rename`, `rewrite`, `drop`, `insert` or `manual`."""
    native: tuple[str, ...]
    """Names of the native libraries that take its place."""
    reason: str
    """Why it cannot stay, as a clause."""
    advice: str
    """What to do, as a clause that can follow `do this:`."""
    detail: str
    """Conditions and side effects, in the terse words of the mapping; may be empty."""
    first: str
    """Release of Optimum Neuron that had it first; empty when not from there."""
    last: str
    """Release that had it last; `main` when it is still there."""
    exact: bool = True
    """False when only a module around the name is known."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Argument tables of its callables: method (`init`, `call`, `from_pretrained` ...) to table."""


@dataclass(frozen=True)
class Argument:
    """One argument of a legacy callable."""

    name: str
    action: str
    native: str
    note: str
    first: str
    last: str
    default: str


@dataclass(frozen=True)
class Explanation:
    """What `neuronmigrate explain NAME` has to say."""

    asked: str
    entries: tuple[tuple[str, Entry], ...]
    """Qualified names, variables or commands that fit, each with its entry. Paths of one thing share it."""
    arguments: tuple[tuple[str, tuple[Argument, ...]], ...]
    """Callables with their arguments."""
    suggestions: tuple[str, ...]
    """Names that look like the one asked for, when none fits."""


def is_legacy(name: str) -> bool:
    """Whether a qualified name belongs to the legacy stack and not to the native one."""
    if name in SINGLE:
        return True
    parts = name.split(".")
    for depth in _DEPTHS:
        if ".".join(parts[:depth]) in _ROOT_SET:
            return True
    if parts[0] == "torch_neuronx":
        return len(parts) > 1 and not _native(name)
    return parts[:2] == ["torch", "neuron"] and len(parts) > 2 and parts[2] in INF1_NAMES


def touches_legacy(name: str) -> bool:
    """Whether a name is legacy, or something below it may be."""
    return is_legacy(name) or name in _ABOVE


def lookup(name: str) -> Entry | None:
    """The entry of exactly this qualified name."""
    row = _data()["names"].get(name)
    return None if row is None else _entry(name, row)


def has_below(name: str) -> bool:
    """Whether some known name stands below this one, so that it is a module or a class."""
    return name in _inner()


def nearest(name: str) -> Entry | None:
    """The entry of this name, else of the longest known name around it; None if it is not legacy."""
    exact = lookup(name)
    if exact is not None:
        return exact
    if not touches_legacy(name):
        return None
    data = _data()
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        known = ".".join(parts[:length])
        # A module has one text for itself and another for what nobody listed below it.
        row = data["modules"].get(known, data["names"].get(known))
        if row is not None:
            return _entry(known, row, exact=False)
    return None


def env(name: str) -> Entry | None:
    """The entry of an environment variable."""
    data = _data()
    row = data["variables"].get(name)
    if row is None:
        for pattern, candidate in data["variables"].items():
            if pattern.endswith("*") and name.startswith(pattern[:-1]):
                row = candidate
    return None if row is None else _entry(name, row)


def variables() -> Sequence[str]:
    """The environment variables that have an entry."""
    return tuple(_data()["variables"])


def command(text: str) -> Entry | None:
    """The entry of the command or package that a command line is about.

    `A=b python -m torch.distributed.launch x.py` and `pip install -U torch-xla==2.5` are seen through.
    """
    known = _data()["commands"]
    words = [word for word in text.split() if not re.match(r"[A-Za-z_]\w*=", word)]
    if len(words) > 2 and re.fullmatch(r"(?:.*/)?python[\d.]*", words[0]) and words[1] == "-m":
        words = words[2:]
    if words and re.fullmatch(r"(?:.*/)?pip[\d.]*", words[0]):
        names = [re.split(r"[\[=<>~!;@ ]", word.strip("'\""))[0] for word in words[1:]]
        words = next(([name] for name in names if name in known), [])
    for length in range(len(words), 0, -1):
        joined = " ".join(words[:length])
        for candidate in (joined, joined.rpartition("/")[2], joined.rpartition(".")[2]):
            if candidate in known:
                return _entry(candidate, known[candidate])
    return None


def commands() -> Sequence[str]:
    """The commands and packages that have an entry."""
    return tuple(_data()["commands"])


def flag(name: str) -> Entry | None:
    """The entry of a compiler option such as `--auto-cast`."""
    row = _data()["flags"].get(name)
    return None if row is None else _entry(name, row)


def arguments(name: str) -> Mapping[str, Argument]:
    """The arguments of a qualified callable, such as `optimum.neuron.NeuronTrainer` or its methods.

    Empty when nothing is known of it. A class stands for its constructor.
    """
    table = _table(name)
    return {} if table is None else _arguments(table)


def rows(table: str) -> Mapping[str, Argument]:
    """The arguments in one of the argument tables that `Entry.groups` names. Raises KeyError for another."""
    return _arguments(table)


def explain(asked: str) -> Explanation:
    """Everything that is known of a name in any spelling: qualified, short, alias, variable, command."""
    text = re.sub(r"^(?:from|import)\s+", "", asked.strip()).removesuffix("()")
    found, method = _find(text)
    if not found:
        entry = env(text) or command(text)
        head, dot, rest = text.partition(".")
        if entry is None and dot:
            entry = nearest(f"{SHORT_NAMES[head]}.{rest}" if head in SHORT_NAMES else text)
        if entry is None:
            return Explanation(asked, (), (), _suggest(text))
        return Explanation(asked, ((entry.name, entry),), (), () if entry.exact else _suggest(text))
    tables: dict[str, str] = {}
    entries: list[tuple[str, Entry]] = []
    # Many paths lead to one class: the shortest comes first, and its arguments are told once.
    for name in sorted(found, key=lambda item: (item.count("."), item)):
        entry = _entry(name, found[name])
        entries.append((name, entry))
        for each, group in entry.groups.items():
            if not method or each == method or (each == "init" and method not in entry.groups):
                label = {"init": name, "call": f"{name}(...)"}.get(each, f"{name}.{each}")
                tables.setdefault(group, label)
    told = []
    for group, label in tables.items():
        rows = _arguments(group).values()
        if not method or method in entries[0][1].groups:
            told.append((label, tuple(rows)))
        else:
            # A method without a table of its own: its rows stand in the table of the constructor.
            told.append((label, tuple(r for r in rows if r.name.partition(".")[0] == method)))
    return Explanation(asked, tuple(entries), tuple(told), ())


def _find(text: str) -> tuple[dict[str, int], str]:
    """The names that a spelling fits, with their rows, and the method that was asked for."""
    data = _data()
    head, dot, rest = text.partition(".")
    spellings = [text, f"{SHORT_NAMES[head]}.{rest}"] if dot and head in SHORT_NAMES else [text]
    names = data["names"]
    for spelling in spellings:
        for table in (names, data["variables"], data["commands"], data["flags"], data["idioms"]):
            if spelling in table:
                return {spelling: table[spelling]}, ""
    found = {name: row for name, row in names.items() if name.endswith(f".{text}")}
    if found or not dot:
        return found, ""
    for spelling in spellings:
        owner, _, method = spelling.rpartition(".")
        method = _METHODS.get(method, method)
        found = {
            name: row
            for name, row in names.items()
            if (name == owner or name.endswith(f".{owner}")) and data["rows"][row][8]
        }
        with_method = {name: row for name, row in found.items() if method in data["rows"][row][8]}
        if found:
            return with_method or found, method
    return {}, ""


_METHODS = {"__init__": "init", "__call__": "call", "forward": "call"}


def _suggest(text: str) -> tuple[str, ...]:
    import difflib

    data = _data()
    if "." in text:
        candidates = list(data["names"])
        close = difflib.get_close_matches(text, candidates, n=5, cutoff=0.75)
        if close:
            return tuple(close)
    last = text.rpartition(".")[2]
    by_last: dict[str, str] = {}
    for name in sorted(data["names"], key=lambda item: (-item.count("."), item), reverse=True):
        by_last.setdefault(name.rpartition(".")[2], name)
    for table in (data["variables"], data["commands"], data["flags"]):
        by_last.update({name: name for name in table})
    close = difflib.get_close_matches(last, list(by_last), n=5, cutoff=0.7)
    return tuple(by_last[name] for name in close)


def _native(name: str) -> bool:
    """Whether the native torch_neuronx is known to have a name, or something below or above it."""
    if name in NATIVE or name.startswith("torch_neuronx.nki."):
        return True
    below = f"{name}."
    return any(known.startswith(below) for known in NATIVE)


def _table(name: str) -> str | None:
    """The argument table of a callable."""
    entry = lookup(name)
    if entry is not None:
        return entry.groups.get("init") or entry.groups.get("call")
    owner, _, method = name.rpartition(".")
    entry = lookup(owner)
    if entry is None:
        return None
    return entry.groups.get(_METHODS.get(method, method))


def _arguments(table: str) -> dict[str, Argument]:
    found = {}
    for name, (action, native, note, first, last, default) in _data()["arguments"][table].items():
        found[name] = Argument(name, action, native, note, first, last, default)
    return found


def _entry(name: str, row: int, *, exact: bool = True) -> Entry:
    data = _data()
    kind, action, native, reason, advice, detail, first, last, groups = data["rows"][row]
    texts = data["texts"]
    return Entry(
        name,
        kind,
        action,
        tuple(native),
        texts[reason],
        texts[advice],
        texts[detail],
        first,
        last,
        exact,
        groups,
    )


@functools.lru_cache(maxsize=1)
def _inner() -> frozenset[str]:
    """Every name that is an inner part of a known one."""
    found: set[str] = set()
    for name in _data()["names"]:
        parts = name.split(".")
        found.update(".".join(parts[:length]) for length in range(1, len(parts)))
    return frozenset(found)


@functools.lru_cache(maxsize=1)
def _data() -> _Data:
    import json

    data: _Data = json.loads(Path(__file__).with_name("catalogue.json").read_bytes())
    return data
