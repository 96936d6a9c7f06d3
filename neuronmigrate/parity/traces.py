"""Compares what two runs did, in the order in which they did it.

An event of a recording is told in words that mean the same in old and in new code: a sum that is divided by
the number of processes is a mean, and what many calls reduce one after the other counts as one reduction.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neuronmigrate.parity.comparison import EventDifference, Status
from neuronmigrate.parity.recording import Rank, number

Fields = Mapping[str, object]

LONGEST = 4000
"""Events of a process that are compared; the comparison takes the square of their number."""

# Settings of an optimizer that choose an implementation and not a rule.
_HOW = ("foreach", "fused", "capturable", "differentiable")


@dataclass(frozen=True)
class Event:
    """One event in common words."""

    kind: str
    words: str
    step: int
    order: int

    @property
    def told(self) -> str:
        return f"{self.kind}: {self.words}" if self.words else self.kind


def events_of(rank: Rank, settings: frozenset[str] | None = None) -> list[Event]:
    """The events of a process that two runs can be judged by.

    Of an optimizer's settings, those of `settings` are told: a newer torch has more of them. None: all.
    """
    found: list[Event] = []
    reducing: tuple[str, str, float] | None = None
    for fields in rank.events:
        kind = str(fields["event"])
        step, order = int(number(fields.get("step", 0))), int(number(fields.get("order", 0)))
        if kind == "reduction":
            world = number(fields.get("world", 1))
            if world <= 1:
                continue
            what, op, elements = str(fields.get("of")), _op(fields, world), number(fields.get("elements", 0))
            if reducing is not None and reducing[:2] == (what, op):
                elements += reducing[2]
                found.pop()
            reducing = what, op, elements
            found.append(Event(kind, f"{op} of {elements:.0f} {what}", step, order))
            continue
        words = _words(kind, fields, settings)
        if words is None:
            continue
        event = Event(kind, words, step, order)
        if kind == "epoch":
            found.insert(_begin_of_epoch(found, f"loader {fields.get('loader')},"), event)
            continue
        reducing = None
        # Seeding twice is seeding once, and so is entering the same region again.
        if kind in ("seed", "autocast") and found and found[-1].told == event.told:
            continue
        if kind == "autocast" and words == "off" and not any(each.kind == kind for each in found):
            continue
        found.append(event)
    return found


def _begin_of_epoch(found: Sequence[Event], loader: str) -> int:
    """Where an epoch is told: at its begin, since Accelerate asks for a batch ahead and so ends it early."""
    begins = [
        place for place, each in enumerate(found) if each.kind == "data" and each.words.startswith(loader)
    ]
    return begins[-1] + 1 if begins else len(found)


def lone_reductions(rank: Rank) -> int:
    """Reductions that a single process cannot show."""
    alone = [
        each for each in rank.events if each["event"] == "reduction" and number(each.get("world", 1)) <= 1
    ]
    return len(alone)


def _op(fields: Fields, world: float) -> str:
    op, divisor = str(fields.get("op")), number(fields.get("divisor", 1.0))
    if op == "sum" and divisor != 1.0:
        return "mean" if abs(divisor - world) < 1e-6 * world else f"sum divided by {divisor:g}"
    return op


def _words(kind: str, fields: Fields, settings: frozenset[str] | None) -> str | None:
    """What an event says; None for one that nothing is judged by."""
    if kind == "seed":
        return f"{fields.get('value')}"
    if kind == "autocast":
        return f"{fields.get('dtype')}" if fields.get("enabled") else "off"
    if kind == "generate":
        # Tokens may agree by chance although they were drawn. By which rule shows in them.
        return "sampled" if fields.get("do_sample") else "greedy"
    if kind == "clip":
        return f"{fields.get('how')} at {fields.get('limit')}"
    if kind == "data":
        share = f"share {fields.get('shard')} of {fields.get('shards')}"
        order = "shuffled" if fields.get("shuffle") else "in order"
        last = ", last one dropped" if fields.get("drop_last") else ""
        return f"loader {fields.get('loader')}, batches of {fields.get('batch')}, {share}, {order}{last}"
    if kind == "epoch":
        return f"loader {fields.get('loader')}, {fields.get('batches')} batches"
    if kind == "optimizer step":
        passes = number(fields.get("backwards", 1))
        return (
            f"{fields.get('optimizer')} of {fields.get('parameters')} parameters after {passes:.0f} backward "
            f"pass{'es' if passes != 1 else ''} ({_rule(fields, settings)})"
        )
    if kind == "save":
        if not fields.get("tensors") and not fields.get("keys"):
            return None  # an object of settings, as a Trainer writes its arguments
        return f"{fields.get('tensors')} tensors, {fields.get('elements')} elements, keys {_keys(fields)}"
    return None


def _rule(fields: Fields, settings: frozenset[str] | None) -> str:
    given = fields.get("settings")
    rule = given if isinstance(given, Mapping) else {}
    told = [name for name in rule if name not in _HOW and (settings is None or name in settings)]
    return ", ".join(f"{name}={rule[name]}" for name in told)


def _passes(rank: Rank) -> list[object]:
    """Backward passes before each optimizer step."""
    return [each.get("backwards") for each in rank.events if each["event"] == "optimizer step"]


def _setting_names(rank: Rank) -> frozenset[str]:
    """Settings that an optimizer of the process has."""
    found: set[str] = set()
    for fields in rank.events:
        given = fields.get("settings")
        if isinstance(given, Mapping):
            found |= set(given)
    return frozenset(found)


def _keys(fields: Fields) -> str:
    keys = fields.get("keys")
    names = list(map(str, keys)) if isinstance(keys, list) else []
    shown = ", ".join(names[:6])
    return f"{shown}, ..." if len(names) > 6 else shown or "none"


# Declared numerics that an event may differ under.
_EXCUSES = {
    "data": "sharding",
    "epoch": "sharding",
    "save": "format",
    "autocast": "dtype",
    "seed": "random",
}


def compare(
    first: Rank, second: Rank, numerics: frozenset[str], agreeing_steps: frozenset[int]
) -> list[EventDifference]:
    """Where the traces of one rank differ.

    `agreeing_steps` are the optimizer steps whose gradients agree on all processes: there it makes no
    difference how they were reduced.
    """
    settings = _setting_names(first) & _setting_names(second)
    a, b = events_of(first, settings)[:LONGEST], events_of(second, settings)[:LONGEST]
    matcher = difflib.SequenceMatcher(
        None, [each.told for each in a], [each.told for each in b], autojunk=False
    )
    found = _placements(first, second)
    as_many = bool(_passes(first)) and _passes(first) == _passes(second)
    for tag, a0, a1, b0, b1 in matcher.get_opcodes():
        if tag != "equal":
            for old, new in _pairs(a[a0:a1], b[b0:b1]):
                found.append(_difference(first.number, old, new, numerics, agreeing_steps, as_many))
    return _counted(found)


def _placements(first: Rank, second: Rank) -> list[EventDifference]:
    """Models that the old side puts on the device and the new one leaves on the CPU.

    The other way round says nothing: stand-ins compute on the CPU what the legacy class had on the device.
    """
    devices = [
        {str(each.get("model")): str(each.get("device")) for each in side.events if each["event"] == "model"}
        for side in (first, second)
    ]
    return [
        EventDifference(
            "model", first.number, 0, f"{name} on the device", f"{name} on the CPU", Status.DIVERGED
        )
        for name, device in devices[0].items()
        if device == "accelerator" and devices[1].get(name) == "cpu"
    ]


def _counted(found: Sequence[EventDifference]) -> list[EventDifference]:
    """What differs at every step is told once, with the number of times."""
    counted: dict[tuple[object, ...], EventDifference] = {}
    for each in found:
        key = each.event, each.first, each.second, each.status, each.reason
        known = counted.get(key)
        counted[key] = each if known is None else replace(known, times=known.times + 1)
    return list(counted.values())


def _pairs(a: Sequence[Event], b: Sequence[Event]) -> list[tuple[Event | None, Event | None]]:
    """What stands for what in two stretches that differ: events of one kind, in their order."""
    left = list(b)
    found: list[tuple[Event | None, Event | None]] = []
    for old in a:
        new = next((each for each in left if each.kind == old.kind), None)
        if new is not None:
            left.remove(new)
        if new is None or new.told != old.told:
            found.append((old, new))
        elif new is not None:
            # The same, at another place of the sequence.
            found.append((old, new))
    return found + [(None, each) for each in left]


def _difference(
    rank: int,
    old: Event | None,
    new: Event | None,
    numerics: frozenset[str],
    agreeing: frozenset[int],
    as_many: bool,
) -> EventDifference:
    one = old or new
    assert one is not None
    status, reason = Status.DIVERGED, ""
    if old is not None and new is not None and old.told == new.told:
        reason = "in another order"
    elif new is None:
        reason = "only the first side did it"
    elif old is None:
        reason = "only the second side did it"
    excuse = _EXCUSES.get(one.kind, "")
    if excuse in numerics:
        status, reason = Status.EXPLAINED, f"declared: {excuse}"
    elif one.kind == "reduction" and one.words.endswith(" values") and "sharding" in numerics:
        status, reason = Status.EXPLAINED, "declared: sharding"
    elif one.kind == "reduction" and one.words.endswith("gradients") and one.step in agreeing:
        status, reason = Status.EXPLAINED, "the gradients of this step agree on every process"
    elif one.kind == "epoch" and as_many and (old is None or new is None):
        status, reason = (
            Status.EXPLAINED,
            "as many backward passes: one side asked for no batch after the last",
        )
    return EventDifference(
        one.kind, rank, one.step, old.words if old else "", new.words if new else "", status, reason
    )
