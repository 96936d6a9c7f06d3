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
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from neuronmigrate.config import UserError
from neuronmigrate.parity import comparing
from neuronmigrate.parity.comparison import Blame, Comparison, Culprit, Side, Status
from neuronmigrate.parity.isolate import Search
from neuronmigrate.parity.recording import Recording, read
from neuronmigrate.parity.running import ALIGNED
from neuronmigrate.parity.tolerance import Policy
from neuronmigrate.parity.warm import Warm
from neuronmigrate.report import comparison, terminal
from tests.parity.faults import BASES, FAULTS, VARIANTS, Base, Change
from tests.tiny_models import save_chat, save_classifier, save_translator

SECONDS = 120.0
"""A program or mixture that takes longer is stopped."""


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

    def __init__(self, folder: Path, warm: Warm, models: Path | None = None) -> None:
        """`models` is where the models are; without it they are in `folder` as well."""
        self.folder = folder
        self.models = models or folder
        self.warm = warm
        self._before: dict[str, Recording] = {}
        self._runs = 0

    def variables(self, base: Base) -> dict[str, str]:
        """Where the program finds its model, which is made when it is first asked for."""
        return {base.model: str(_model(base.model, self.models))} if base.model else {}

    def before(self, base: Base) -> Recording:
        """The recording of the old side."""
        if base.name not in self._before:
            self._before[base.name] = self._record(base, base.before, legacy=True)
        return self._before[base.name]

    def compare(self, base: Base, after: str) -> Comparison:
        """What comes of the old side and this new one. One that does not even start cannot be compared."""
        old = self.before(base)
        script = self.folder / f"{base.name}_{self._runs}.py"
        script.write_text(after, "utf-8")
        try:
            new = self._record(base, script, legacy=False)
        except UserError as error:
            none = Side("", str(script), "", {}, 0, complete=False, error=str(error))
            return Comparison(none, none, Status.NOT_COMPARABLE, str(error))
        return comparing.compare(old, new)

    def outcome(self, change: Change) -> Outcome:
        """Run one edited program."""
        base = BASES[change.base]
        return Outcome(change, change in FAULTS, self.compare(base, change.apply(base.after())))

    def searched(self, outcome: Outcome) -> Outcome:
        """Search for the edit of a fault that was caught."""
        change = outcome.change
        base = BASES[change.base]
        blame = self.blame(base, change.apply(base.after()))
        return replace(outcome, blame=blame, named=_named(blame, change))

    def blame(self, base: Base, after: str) -> Blame:
        """The hunks that make the difference."""
        folder = Path(tempfile.mkdtemp(prefix="after", dir=self.folder))
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
            timeout=SECONDS,
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
                timeout=SECONDS,
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
        if tag == "delete":
            # Between these two.
            lines |= {start, start + 1}
        elif tag != "equal":
            lines |= set(range(start + 1, stop + 1))
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


def _model(name: str, folder: Path) -> Path:
    """The folder of a model."""
    found = folder / name.lower()
    if not found.exists():
        MODELS[name](found)
    return found


class Pool:
    """Programs that run several at a time, each thread with a process of its own that forks."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder = folder
        self._threads = ThreadPoolExecutor(jobs)
        self._own = threading.local()
        self._left = ExitStack()

    def __enter__(self) -> Pool:
        # Here, as two threads would draw from one random stream, and must not rewrite at the same time.
        for name in MODELS:
            _model(name, self.folder)
        for base in BASES.values():
            base.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        self._left.close()

    def each(
        self, act: Callable[[Programs, Change], Outcome], changes: Sequence[Change]
    ) -> Iterator[Outcome]:
        """What comes of each change, in the order in which they are done."""
        waiting = [self._threads.submit(lambda each: act(self._programs(), each), each) for each in changes]
        for done in as_completed(waiting):
            yield done.result()

    def _programs(self) -> Programs:
        """Those of this thread."""
        if not hasattr(self._own, "programs"):
            warm = self._left.enter_context(Warm())
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            self._own.programs = Programs(folder, warm, self.folder)
        programs: Programs = self._own.programs
        return programs


AS_MIGRATED = "as migrated"
BEGIN, END = "<!-- begin: tests.parity.table -->\n", "<!-- end: tests.parity.table -->\n"


def main(arguments: Sequence[str]) -> int:
    """Run the changes and print a line for each; 1 if one did not come out as it should."""
    parser = argparse.ArgumentParser(prog="python -m tests.parity.table")
    parser.add_argument("--only", default="", help="a program, or PROGRAM/WORD for edits with that word")
    parser.add_argument("--bisect", action="store_true", help="search for the edit as well")
    parser.add_argument("--verbose", action="store_true", help="print what is wrong in full")
    parser.add_argument("--jobs", type=int, default=1, help="programs that run at the same time")
    parser.add_argument("--write", type=Path, help="page in which the tables are written anew")
    given = parser.parse_args(arguments)
    only, _, word = given.only.partition("/")
    correct = [Change(name, AS_MIGRATED, "", "") for name in BASES]
    changes = [
        each for each in (*correct, *FAULTS, *VARIANTS) if only in ("", each.base) and word in each.name
    ]
    outcomes: dict[Change, Outcome] = {}
    used = _seconds()

    def show(outcome: Outcome) -> None:
        outcomes[outcome.change] = outcome
        found = outcome.comparison
        print(" | ".join(outcome.columns()), f"{found.status.value}: {found.reason}", sep=" | ", flush=True)
        if given.write:
            # A run that is stopped leaves what it has.
            _write(given.write, [outcomes[each] for each in changes if each in outcomes], len(changes))
        if given.verbose and outcome.caught != outcome.is_fault:
            terminal.emit(comparison.text([found]), sys.stdout)

    with tempfile.TemporaryDirectory() as folder, Pool(Path(folder), given.jobs) as pool:
        for outcome in pool.each(Programs.outcome, changes):
            show(outcome)
        if given.bisect:
            caught = [each for each in changes if each in FAULTS and outcomes[each].caught]
            for outcome in pool.each(lambda programs, each: programs.searched(outcomes[each]), caught):
                show(outcome)
    used = _seconds() - used
    print(f"{used:.0f} seconds of CPU")
    if given.write:
        _write(given.write, [outcomes[each] for each in changes], len(changes), used)
    return int(any(each.caught != each.is_fault for each in outcomes.values()))


def _seconds() -> float:
    """Seconds of CPU of this process and of those that it started and that are over."""
    return sum(os.times()[:4])


def _write(path: Path, outcomes: Sequence[Outcome], number: int, used: float = 0.0) -> None:
    page = path.read_text("utf-8")
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    path.write_text(head + BEGIN + "".join(tables(outcomes, number, used)) + END + tail, "utf-8")


def tables(outcomes: Sequence[Outcome], number: int, used: float = 0.0) -> Iterator[str]:
    """The tables of docs/parity.md, of the outcomes of a `number` of programs.

    `used` is what the run took in seconds of CPU, once it is over.
    """
    if used:
        yield f"All of them in one run, with torch {torch.__version__}: {used / 60:.0f} minutes of CPU. "
    if len(outcomes) < number:
        yield f"The run was stopped after {len(outcomes)} of {number} programs. "
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
