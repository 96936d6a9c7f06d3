"""What an observed run comes to: by line of its source, in one process or over the ranks of several.

Nothing here needs torch. An observer hands over what it has seen as plain data (`Seen`), which travels as
JSON from each process to the one that reports; `combine` makes the figures of it.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TypeAlias

from neuronmigrate.runtime.places import Place
from neuronmigrate.targets import operators

SCHEMA = 2

HOST_SYNC = "host-sync"
SHAPED_BY_DATA = "data-dependent-shape"
FLOAT64 = "float64"
INT64 = "int64"
ON_CPU = "runs-on-cpu"
PLACEMENT = "cpu-placement"
KINDS = (PLACEMENT, HOST_SYNC, SHAPED_BY_DATA, ON_CPU, FLOAT64, INT64)

Signature: TypeAlias = "tuple[str, tuple[str, ...]]"
"""An operation, and the shape and dtype of each of its tensors, as `[2, 5] float32`."""


@dataclass(frozen=True)
class Seen:
    """What one process saw, in the order in which it came."""

    emulated: bool
    signatures: tuple[tuple[Signature, int, Place], ...]
    """Each with how often it came, and the line that had it first."""
    calls: tuple[tuple[Place, int], ...]
    notes: tuple[tuple[str, Place, str, str, int], ...]
    """Kind, line, what, why, and how often."""
    graphs: int
    in_graphs: int

    def to_text(self) -> str:
        """The same as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Seen:
        """What `to_text` wrote."""
        data = json.loads(text)
        signatures = [
            ((name, tuple(shapes)), count, Place(*place))
            for (name, shapes), count, place in data["signatures"]
        ]
        calls = [(Place(*place), count) for place, count in data["calls"]]
        notes = [(kind, Place(*place), what, why, count) for kind, place, what, why, count in data["notes"]]
        lists = {"signatures": tuple(signatures), "calls": tuple(calls), "notes": tuple(notes)}
        return cls(**{**data, **lists})


@dataclass(frozen=True)
class Varied:
    """An operation that came in several shapes."""

    operation: str
    shapes: tuple[str, ...]
    """As `[2, 5] float32 x [5] int64`."""


@dataclass(frozen=True)
class LineCost:
    """The operations that a line of the program ran, on all ranks together."""

    place: Place
    calls: int
    distinct: int
    """Operations with shapes and dtypes that no line before it had needed."""
    varied: tuple[Varied, ...]
    """Those among the distinct ones that came in most shapes, most first; at most five."""
    ranks: tuple[int, ...] = ()
    """The ranks that ran the line; empty if all did."""


@dataclass(frozen=True)
class Note:
    """Something to look at."""

    kind: str
    place: Place
    what: str
    count: int
    why: str
    ranks: tuple[int, ...] = ()
    """The ranks that have it; empty if all have."""


@dataclass(frozen=True)
class Rank:
    """The part of one process of several."""

    rank: int
    calls: int
    distinct: int
    own: int
    """Distinct operations that no other rank had."""
    graphs: int
    in_graphs: int


@dataclass(frozen=True)
class Observation:
    """All that was seen. Counts are sums over the ranks; what is distinct is so among all of them."""

    emulated: bool
    calls: int
    distinct: int
    once: int
    """Distinct ones that came a single time, and on one rank."""
    graphs: int
    """Graphs that torch.compile gave to the neuron backend, each of which is compiled as a whole."""
    in_graphs: int
    """Operations that ran in them, which are not among the others."""
    lines: tuple[LineCost, ...]
    """Dearest first."""
    notes: tuple[Note, ...]
    """By kind, most frequent first."""
    ranks: tuple[Rank, ...] = ()
    """Each process of a run of several."""
    silent: tuple[int, ...] = ()
    """Ranks that ended without a word of what they saw: they were killed."""

    def of(self, kind: str) -> tuple[Note, ...]:
        """The notes of one kind."""
        return tuple(note for note in self.notes if note.kind == kind)

    def as_json(self) -> dict[str, object]:
        """The observation as plain data."""
        lines = [{**_flat(line), "varied": [asdict(each) for each in line.varied]} for line in self.lines]
        totals = {name: getattr(self, name) for name in ("calls", "distinct", "once", "graphs", "in_graphs")}
        return {
            "schema": SCHEMA,
            "table": operators.DATED,
            "emulated": self.emulated,
            **totals,
            "ranks": [asdict(rank) for rank in self.ranks],
            "silent": list(self.silent),
            "lines": lines,
            "notes": [_flat(note) for note in self.notes],
        }


def _flat(one: LineCost | Note) -> dict[str, object]:
    """The fields of a row, with its place as path, line and source."""
    row = {each.name: getattr(one, each.name) for each in fields(one) if each.name != "place"}
    return {"path": one.place.path, "line": one.place.line, "source": one.place.source, **row}


def combine(seen: Mapping[int, Seen], silent: Iterable[int] = ()) -> Observation:
    """The figures of a run out of what each rank saw: at least one; of one alone no rank is named."""
    silent = tuple(silent)
    several = len(seen) + len(silent) > 1
    counts: collections.Counter[Signature] = collections.Counter()
    first: dict[Signature, Place] = {}
    had_by: collections.Counter[Signature] = collections.Counter()
    calls: collections.Counter[Place] = collections.Counter()
    notes: collections.Counter[tuple[str, Place, str, str]] = collections.Counter()
    at_line: dict[object, list[int]] = collections.defaultdict(list)
    """The ranks of each line, and of each note."""
    for rank, one in seen.items():
        for signature, count, place in one.signatures:
            counts[signature] += count
            had_by[signature] += 1
            first.setdefault(signature, place)
        for place, count in one.calls:
            calls[place] += count
            at_line[place].append(rank)
        for kind, place, what, why, count in one.notes:
            notes[kind, place, what, why] += count
            at_line[kind, place, what, why].append(rank)

    def apart(key: object) -> tuple[int, ...]:
        return tuple(at_line[key]) if several and len(at_line[key]) < len(seen) else ()

    by_place: dict[Place, list[Signature]] = collections.defaultdict(list)
    for signature, place in first.items():
        by_place[place].append(signature)
    lines = [
        LineCost(place, count, len(by_place[place]), _varied(by_place[place]), apart(place))
        for place, count in calls.items()
    ]
    lines.sort(key=lambda line: (-line.distinct, line.place.path, line.place.line))
    found = [
        Note(kind, place, what, count, why, apart((kind, place, what, why)))
        for (kind, place, what, why), count in notes.items()
    ]
    found.sort(key=lambda note: (KINDS.index(note.kind), -note.count, note.place.path, note.place.line))
    ranks = [
        Rank(
            rank,
            sum(count for _, count, _ in one.signatures),
            len(one.signatures),
            sum(had_by[signature] == 1 for signature, _, _ in one.signatures),
            one.graphs,
            one.in_graphs,
        )
        for rank, one in sorted(seen.items())
    ]
    return Observation(
        all(one.emulated for one in seen.values()),
        counts.total(),
        len(counts),
        sum(count == 1 for count in counts.values()),
        sum(rank.graphs for rank in ranks),
        sum(rank.in_graphs for rank in ranks),
        tuple(lines),
        tuple(found),
        tuple(ranks) if several else (),
        silent,
    )


_VARIED = 5
"""Operations of a line whose shapes are kept."""
_SHOWN = 4
"""Tensors of an operation that are named; optimizers give them by the hundred."""


def _varied(signatures: list[Signature]) -> tuple[Varied, ...]:
    by_name: dict[str, list[tuple[str, ...]]] = collections.defaultdict(list)
    for name, shapes in signatures:
        by_name[name].append(shapes)
    several = [(name, shapes) for name, shapes in by_name.items() if len(shapes) > 1]
    several.sort(key=lambda item: -len(item[1]))
    return tuple(Varied(name, tuple(map(_shown, shapes))) for name, shapes in several[:_VARIED])


def _shown(tensors: tuple[str, ...]) -> str:
    more = f" and {len(tensors) - _SHOWN} more" if len(tensors) > _SHOWN else ""
    return " x ".join(tensors[:_SHOWN]) + more
