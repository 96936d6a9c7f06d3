"""Runs the migrated programs of `tests.parity.faults`, each with one edit, and says what parity finds.

    python -m tests.parity.table --bisect --write docs/parity.md

writes the tables there anew.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from neuronmigrate.parity import comparing
from neuronmigrate.parity.comparison import Blame, Comparison, Culprit, Status
from neuronmigrate.parity.isolate import Search
from neuronmigrate.parity.recording import Recording, read
from neuronmigrate.parity.running import ALIGNED
from neuronmigrate.parity.tolerance import Policy
from neuronmigrate.parity.warm import Warm
from neuronmigrate.report import comparison, terminal
from tests.parity.faults import BASES, FAULTS, VARIANTS, Base, Change
from tests.tiny_models import save_chat, save_classifier, save_translator


@dataclass(frozen=True)
class Outcome:
    """What parity said about one program."""

    change: Change
    is_fault: bool
    comparison: Comparison
    blame: Blame | None = None
    named: str = ""
    """Whether what was named is where the edit is: right, wrong, with others, or none."""

    @property
    def caught(self) -> bool:
        """A program that cannot run is not caught by its numbers."""
        return self.comparison.status is Status.DIVERGED

    @property
    def quantity(self) -> str:
        """What decided, in a few words."""
        found = self.comparison
        row = found.divergence
        if row is not None and row.status is Status.DIVERGED:
            return row.quantity
        events = [event.event for event in found.events if event.status is Status.DIVERGED]
        return f"event: {events[0]}" if events else ""

    def columns(self) -> list[str]:
        """A line of the table."""
        hunk = ""
        if self.blame is not None:
            hunk = "; ".join(_told(each) for each in self.blame.culprits) or self.blame.reason
        return [
            self.change.base,
            self.change.name,
            "yes" if self.caught else "no",
            self.quantity,
            hunk,
            self.named,
        ]


class Programs:
    """Runs changed programs; each old side is run once."""

    def __init__(self, folder: Path, warm: Warm) -> None:
        self.folder = folder
        self.warm = warm
        self._before: dict[str, Recording] = {}
        self._runs = 0

    def variables(self, base: Base) -> dict[str, str]:
        """Where the program finds its model, which is made when it is first asked for."""
        if not base.model:
            return {}
        folder = self.folder / base.model.lower()
        if not folder.exists():
            MODELS[base.model](folder)
        return {base.model: str(folder)}

    def before(self, base: Base) -> Recording:
        """The recording of the old side."""
        if base.name not in self._before:
            self._before[base.name] = self._record(base, base.before, legacy=True)
        return self._before[base.name]

    def compare(self, base: Base, after: str) -> Comparison:
        """What comes of the old side and this new one."""
        script = self.folder / f"{base.name}_{self._runs}.py"
        script.write_text(after, "utf-8")
        new = self._record(base, script, legacy=False)
        return comparing.compare(self.before(base), new)

    def outcome(self, change: Change, *, bisect: bool = False) -> Outcome:
        """Run one edited program; with `bisect`, search for the edit if it makes a difference."""
        base = BASES[change.base]
        after = change.apply(base.after())
        found = self.compare(base, after)
        outcome = Outcome(change, change in FAULTS, found)
        if not bisect or not outcome.caught:
            return outcome
        blame = self.blame(base, after)
        return replace(outcome, blame=blame, named=_named(blame, change))

    def blame(self, base: Base, after: str) -> Blame:
        """The hunks that make the difference."""
        folder = self.folder / f"after{self._runs}"
        folder.mkdir()
        (folder / "before.py").write_text(after, "utf-8")
        search = Search(
            base.before,
            folder / "before.py",
            self.before(base),
            Policy(),
            self.warm,
            devices=base.devices,
            release=base.release,
            choices=ALIGNED,
            variables=self.variables(base),
        )
        return search.blame([base.result()])

    def _record(self, base: Base, script: Path, *, legacy: bool) -> Recording:
        self._runs += 1
        out = self.folder / f"recording{self._runs}"
        with tempfile.TemporaryDirectory() as cwd:
            self.warm.record(
                [str(script)],
                out,
                ALIGNED,
                legacy=legacy,
                release=base.release if legacy else None,
                devices=base.devices,
                cwd=Path(cwd),
                variables=self.variables(base),
            )
        return read(out)


def _told(culprit: Culprit) -> str:
    """A hunk by the lines of both sides, and who wrote it."""
    names = ", ".join(culprit.codemods)
    who = (f"not as {names} writes it" if names else "by hand") if culprit.by_hand else names or "rewritten"
    return f"line {culprit.line} to {culprit.new_line}, {who}"


def _named(blame: Blame, change: Change) -> str:
    """Whether the hunks that were named have the edit, or call the function that has it."""
    if not blame.culprits:
        return "none"
    after = BASES[change.base].after()
    edited = change.apply(after)
    matcher = difflib.SequenceMatcher(None, after.splitlines(), edited.splitlines(), autojunk=False)
    lines: set[int] = set()
    for tag, _, _, start, stop in matcher.get_opcodes():
        if tag != "equal":
            lines |= set(range(start + 1, max(stop, start + 1) + 1))
    around = [name for line in lines for name in _around(edited, line)]
    right = [
        lines & set(range(each.new_line, each.new_line + max(each.new.count("\n"), 1)))
        or any(f"{name}(" in each.new for name in around)
        for each in blame.culprits
    ]
    return "right" if all(right) else "with others" if any(right) else "wrong"


def _around(text: str, line: int) -> list[str]:
    """Names of the functions that a line stands in."""
    return [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.lineno <= line <= (node.end_lineno or 0)
    ]


MODELS: Mapping[str, Callable[[Path], Path]] = {
    "CHAT": save_chat,
    "CLASSIFIER": save_classifier,
    "TRANSLATOR": save_translator,
}


AS_MIGRATED = "as migrated"
BEGIN, END = "<!-- begin: tests.parity.table -->\n", "<!-- end: tests.parity.table -->\n"


def main(arguments: Sequence[str]) -> int:
    """Run the changes and print a line for each; 1 if one did not come out as it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.table")
    parser.add_argument("--only", default="", help="a program, or PROGRAM/WORD for edits with that word")
    parser.add_argument("--bisect", action="store_true", help="search for the edit as well")
    parser.add_argument("--verbose", action="store_true", help="print what is wrong in full")
    parser.add_argument("--write", type=Path, help="page in which the tables are written anew")
    given = parser.parse_args(arguments)
    only, _, word = given.only.partition("/")
    correct = [Change(name, AS_MIGRATED, "", "") for name in BASES]
    changes = [
        each for each in (*correct, *FAULTS, *VARIANTS) if only in ("", each.base) and word in each.name
    ]
    outcomes = []
    used = _seconds()
    with tempfile.TemporaryDirectory() as folder, Warm() as warm:
        programs = Programs(Path(folder), warm)
        for change in changes:
            outcome = programs.outcome(change, bisect=given.bisect)
            outcomes.append(outcome)
            found = outcome.comparison
            print(
                " | ".join(outcome.columns()), f"{found.status.value}: {found.reason}", sep=" | ", flush=True
            )
            if given.verbose and outcome.caught != outcome.is_fault:
                terminal.emit(comparison.text([outcome.comparison]), sys.stdout)
    print(f"{_seconds() - used:.0f} seconds of CPU")
    if given.write:
        page = given.write.read_text("utf-8")
        head, _, rest = page.partition(BEGIN)
        _, _, tail = rest.partition(END)
        given.write.write_text(head + BEGIN + "".join(tables(outcomes)) + END + tail, "utf-8")
    return int(any(each.caught != each.is_fault for each in outcomes))


def _seconds() -> float:
    """Seconds of CPU of this process and of those that it started and that are over."""
    return sum(os.times()[:4])


def tables(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """The tables of docs/parity.md."""
    faults = [each for each in outcomes if each.is_fault]
    others = [each for each in outcomes if not each.is_fault]
    caught = sum(each.caught for each in faults)
    searched = [each for each in faults if each.blame is not None]
    yield f"{caught} of {len(faults)} faults are caught, and {sum(each.caught for each in others)} of "
    yield f"{len(others)} correct programs are failed."
    if searched:
        named = sum(each.named == "right" for each in searched)
        yield f" The hunk with the edit is named for {named} of the {len(searched)} that were searched for."
    yield "\n\n| program | wrong edit | caught | by | hunk named | that is |\n|---|---|---|---|---|---|\n"
    for each in faults:
        yield f"| {' | '.join(each.columns())} |\n"
    yield "\n| program | correct edit | verdict |\n|---|---|---|\n"
    for each in others:
        yield f"| {each.change.base} | {each.change.name} | {each.comparison.status.value} |\n"


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main(sys.argv[1:]))
