"""What differs between two runs before any number of theirs is judged."""

from __future__ import annotations

from collections.abc import Mapping

from neuronmigrate.parity.comparison import Setting, Side
from neuronmigrate.parity.recording import Recording, number

# No number can be judged when these differ: the runs did not do the same thing.
BREAKING = ("seed", "world", "elements", "dropout", "order", "steps")
INFORMING = (
    "arguments",
    "calls",
    "default dtype",
    "device",
    "python",
    "machine",
    "system",
    "threads",
    "initial",
)


def differences(first: Recording, second: Recording) -> tuple[Setting, ...]:
    """The settings in which two recordings differ, those that break the comparison first."""
    a, b = first.first.head, second.first.head
    found = [
        Setting(name, *_shown(name, a, b), breaks=True) for name in BREAKING if a.get(name) != b.get(name)
    ]
    found += [Setting(name, *_shown(name, a, b)) for name in INFORMING if a.get(name) != b.get(name)]
    for group in ("versions", "environment"):
        old, new = _table(a, group), _table(b, group)
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name):
                found.append(Setting(f"{group}: {name}", old.get(name, "none"), new.get(name, "none")))
    return tuple(found)


def side(recording: Recording, label: str) -> Side:
    """A recording in a few words."""
    head = recording.first.head
    errors = [f"rank {rank.number}: {rank.error}" for rank in recording.ranks.values() if rank.error]
    return Side(
        label=label,
        script=str(head.get("script", "")),
        device=str(head.get("device", "not said")),
        versions=_table(head, "versions"),
        world=int(number(head.get("world", 1))),
        complete=recording.complete,
        error=", ".join(errors),
    )


def _shown(name: str, a: Mapping[str, object], b: Mapping[str, object]) -> tuple[str, str]:
    return str(a.get(name)), str(b.get(name))


def _table(head: Mapping[str, object], name: str) -> dict[str, str]:
    table = head.get(name)
    return {str(key): str(value) for key, value in table.items()} if isinstance(table, Mapping) else {}
