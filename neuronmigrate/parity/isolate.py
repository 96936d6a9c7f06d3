"""Finds the hunk of a rewrite that brings a difference in.

Mixtures of the old and the new program, the old one with some of the hunks applied, are run and compared with
the old one, until the smallest step from one that computes the same to one that does not is found (Zeller and
Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002). In a mixture legacy names have their
stand-ins and the neuron device means the CPU. A mixture that cannot run tells nothing.
"""

from __future__ import annotations

import ast
import enum
import os
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from neuronmigrate.parity import comparing, hunks
from neuronmigrate.parity.comparison import Blame, Comparison, Culprit, Status
from neuronmigrate.parity.hunks import Difference, Hunk
from neuronmigrate.parity.recording import Recording, read
from neuronmigrate.parity.running import Choices, Pair
from neuronmigrate.parity.tolerance import Policy
from neuronmigrate.parity.warm import Warm
from neuronmigrate.plan import Result

Item = TypeVar("Item")

RUNS = 24
"""Mixtures that are run at most."""


class Answer(enum.Enum):
    """What a mixture showed."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    """It could not be run, or the count of runs is used up."""


def isolate(items: Sequence[Item], ask: Callable[[Sequence[Item]], Answer]) -> list[Item]:
    """A smallest difference between a selection that computes the same and one that differs.

    All items together differ, and no item alone is the same. What others need only to run is left out.
    """
    same: list[Item] = []
    differs = list(items)
    parts = 2
    while True:
        between = [item for item in differs if item not in same]
        if len(between) < 2:
            return between
        parts = min(parts, len(between))
        size = -(-len(between) // parts)
        chunks = [between[start : start + size] for start in range(0, len(between), size)]
        step = _step(items, same, differs, chunks, ask)
        if step is not None:
            same, differs, narrow = step
            parts = 2 if narrow else max(parts - 1, 2)
        elif parts < len(between):
            parts = min(2 * parts, len(between))
        else:
            return between


def _step(
    items: Sequence[Item],
    same: list[Item],
    differs: list[Item],
    chunks: Sequence[list[Item]],
    ask: Callable[[Sequence[Item]], Answer],
) -> tuple[list[Item], list[Item], bool] | None:
    """Nearer bounds, and whether only one chunk is left between them; None if no answer brings any."""
    for chunk in chunks:
        more = [item for item in items if item in same or item in chunk]
        found = ask(more)
        if found is Answer.DIFFERS:
            return same, more, True
        if found is Answer.SAME:
            return more, differs, False
        less = [item for item in differs if item not in chunk]
        found = ask(less)
        if found is Answer.SAME:
            return less, differs, True
        if found is Answer.DIFFERS:
            return same, less, False
    return None


class Search:
    """The mixtures of one pair of programs."""

    def __init__(
        self,
        before: Path,
        after: Path,
        recording: Recording,
        policy: Policy,
        warm: Warm,
        *,
        arguments: Sequence[str] = (),
        devices: int | None = None,
        release: str | None = None,
        choices: Choices,
        variables: Mapping[str, str] | None = None,
        runs: int = RUNS,
    ) -> None:
        self.before = before
        self.differences = hunks.of_scripts(before, after)
        self.recording = recording
        self.policy = policy
        self.warm = warm
        self.arguments = tuple(arguments)
        self.devices = devices
        self.release = release
        self.choices = choices
        self.variables = variables
        self.left = runs
        self.done = 0
        self._known: dict[tuple[Hunk, ...], Answer] = {}

    def blame(self, written: Collection[Result] = ()) -> Blame:
        """The hunks that make the difference. `written` is what a rewrite does to the old files."""
        found = [hunk for each in self.differences for hunk in each.hunks]
        if not found:
            return Blame((), 0, "the two sides differ in imports and definitions alone")
        whole = self.ask(found)
        if whole is not Answer.DIFFERS:
            reason = "cannot be run" if whole is Answer.UNKNOWN else "shows no difference"
            return Blame((), self.done, f"the new side {reason} where its device is the plain CPU")
        smallest = isolate(found, self.ask)
        reason = "" if self.left else "the number of runs is used up: a part of these hunks may do"
        return Blame(tuple(_culprit(hunk, written) for hunk in smallest), self.done, reason)

    def ask(self, applied: Sequence[Hunk]) -> Answer:
        """Run a mixture, and say whether it computes what the old program did."""
        key = tuple(applied)
        if key not in self._known:
            if not self.left:
                return Answer.UNKNOWN
            self._known[key] = self._run(applied)
        return self._known[key]

    def _run(self, applied: Sequence[Hunk]) -> Answer:
        texts = {each.path: each.mixture(applied) for each in self.differences}
        try:
            for text in texts.values():
                ast.parse(text)
        except SyntaxError:
            return Answer.UNKNOWN
        self.left -= 1
        self.done += 1
        with tempfile.TemporaryDirectory(prefix="neuronmigrate-") as folder:
            program, cwd, out = (Path(folder) / name for name in ("program", "cwd", "out"))
            program.mkdir()
            cwd.mkdir()
            for entry in self.before.parent.resolve().iterdir():
                if entry.name not in texts:
                    os.symlink(entry, program / entry.name)
            for name, text in texts.items():
                (program / name).write_text(text, "utf-8")
            self.warm.record(
                [str(program / self.before.name), *self.arguments],
                out,
                self.choices,
                legacy=True,
                release=self.release,
                devices=self.devices,
                mixed=True,
                cwd=cwd,
                variables=self.variables,
            )
            if not any(out.glob("rank*.jsonl")):
                return Answer.UNKNOWN
            return answer(comparing.compare(self.recording, read(out), self.policy))


def blame(pair: Pair, recording: Recording, policy: Policy, devices: int | None) -> Blame:
    """Search for the hunks that make two scripts differ, whose old side was recorded."""
    try:
        with Warm() as warm:
            search = Search(
                pair.before,
                pair.after,
                recording,
                policy,
                warm,
                arguments=pair.arguments,
                devices=devices,
                release=pair.release,
                choices=pair.choices,
            )
            return search.blame(_written(pair))
    except (SyntaxError, UnicodeDecodeError) as error:
        return Blame((), 0, f"a side cannot be cut into hunks: {error}")


def _written(pair: Pair) -> tuple[Result, ...]:
    """What a rewrite makes of the old side today."""
    from neuronmigrate import files, run
    from neuronmigrate.config import Settings

    folder = pair.before.resolve().parent
    settings = Settings(from_version=pair.release or "")
    return run.run(files.discover([folder], settings, root=folder), settings, run.engine()).results


def answer(found: Comparison) -> Answer:
    """What a comparison says of a mixture."""
    if found.status is Status.NOT_COMPARABLE:
        return Answer.UNKNOWN
    return Answer.DIFFERS if found.status is Status.DIVERGED else Answer.SAME


def _culprit(hunk: Hunk, written: Collection[Result]) -> Culprit:
    """A hunk, and who wrote it."""
    names: tuple[str, ...] = ()
    by_hand = True
    for result in written:
        if Path(result.path).name != hunk.path or result.after is None:
            continue
        ours = hunks.difference(hunk.path, result.before.decode(), result.after.decode())
        by_hand = not _holds(ours, hunk)
        lines = range(hunk.line, hunk.last + 1)
        touching = [finding for finding in result.findings if finding.place.line in lines]
        names = tuple(dict.fromkeys(finding.codemod for finding in touching))
    return Culprit(hunk.path, hunk.line, hunk.new_line, "".join(hunk.old), "".join(hunk.new), names, by_hand)


def _holds(ours: Difference, hunk: Hunk) -> bool:
    return any((each.line, each.old, each.new) == (hunk.line, hunk.old, hunk.new) for each in ours.hunks)
