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
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from neuronmigrate.config import UserError
from neuronmigrate.parity import comparing, hunks
from neuronmigrate.parity.comparison import OUTCOMES, Blame, Comparison, Culprit, Status
from neuronmigrate.parity.forks import TIMEOUT
from neuronmigrate.parity.hunks import Difference, Hunk
from neuronmigrate.parity.recording import Recording, read
from neuronmigrate.parity.running import Choices, Pair, link
from neuronmigrate.parity.tolerance import Policy
from neuronmigrate.parity.warm import Warm
from neuronmigrate.plan import Result

Item = TypeVar("Item")

RUNS = 24
"""Mixtures that are run at most."""
FINEST = 40
"""Lines of the hunks found that are told from each other at most."""
SLACK, LONGER = 30.0, 4.0
"""Seconds that a mixture may take, and how many times as long as the slower side beside them."""
EARLY = 3
"""Mixtures are stopped early where a run has so many times the steps that its difference needs to show."""


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
    same, differs = narrow(items, [], list(items), ask)
    return [item for item in differs if item not in same]


def narrow(
    items: Sequence[Item],
    same: list[Item],
    differs: list[Item],
    ask: Callable[[Sequence[Item]], Answer],
) -> tuple[list[Item], list[Item]]:
    """The bounds brought as near to each other as the answers allow; the first is a part of the second."""
    parts = 2
    while True:
        between = [item for item in differs if item not in same]
        if len(between) < 2:
            return same, differs
        parts = min(parts, len(between))
        size = -(-len(between) // parts)
        chunks = [between[start : start + size] for start in range(0, len(between), size)]
        step = _step(items, same, differs, chunks, ask)
        if step is not None:
            same, differs, narrower = step
            parts = 2 if narrower else max(parts - 1, 2)
        elif parts < len(between):
            parts = min(2 * parts, len(between))
        else:
            return same, differs


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
    """The mixtures of one pair of programs, whose new side is known to differ on its device."""

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
        timeout: float | None = None,
        data: Collection[Path] = (),
    ) -> None:
        """`timeout` is in seconds and holds for each mixture; one that takes longer tells nothing.

        `data` is linked into the working folder of each.

        With `choices.steps` the old side is recorded anew, as far as the mixtures are.
        Raises SyntaxError and UnicodeDecodeError as `hunks.of_scripts` does.
        """
        self.before = before
        self.differences = hunks.of_scripts(before, after)
        self.policy = policy
        self.warm = warm
        self.arguments = tuple(arguments)
        self.devices = devices
        self.release = release
        self.choices = choices
        self.variables = variables
        self.left = runs
        self.timeout = timeout
        self.data = tuple(data)
        self.done = 0
        self.stopped = 0
        """Mixtures that took too long."""
        self._recording = recording
        self._known: dict[tuple[str, ...], Answer] = {}
        self._confirmed = False
        """Whether any mixture differed."""

    def blame(self, written: Collection[Result] = ()) -> Blame:
        """The hunks that make the difference. `written` is what a rewrite does to the old files."""
        whole = _hunks(self.differences)
        if not whole:
            return Blame((), 0, "the two sides differ in imports and definitions alone")
        with tempfile.TemporaryDirectory(prefix="neuronmigrate-") as folder:
            self._shorten(Path(folder))
            smallest = self._lines(*narrow(whole, [], whole, lambda some: self.ask(self.differences, some)))
            reason = self._doubt()
            if not self._confirmed:
                # So far the new side was only known to differ on its device.
                answer = self._run(_texts(self.differences, whole))
                if answer is Answer.SAME:
                    smallest = []
                    reason = "the new side shows no difference where its device is the plain CPU"
                elif answer is Answer.UNKNOWN and not reason:
                    reason = "the new side cannot be run where its device is the plain CPU"
                    if len(self._known) == list(self._known.values()).count(Answer.UNKNOWN):
                        smallest = []
        return Blame(tuple(_culprit(hunk, written) for hunk in smallest), self.done, reason)

    def _shorten(self, folder: Path) -> None:
        """Record the old side as far as the mixtures are recorded."""
        if not self.choices.steps:
            return
        short = self._record(_texts(self.differences, ()), folder)
        if short is not None and short.complete:
            self._recording = short
        else:
            self.choices = replace(self.choices, steps=0)

    def _lines(self, same: list[Hunk], differs: list[Hunk]) -> list[Hunk]:
        """The hunks between two bounds, as few lines of them as the answers allow."""
        between = [hunk for hunk in differs if hunk not in same]
        cut = {hunk: [piece for piece in hunk.by_lines() if isinstance(piece, Hunk)] for hunk in between}
        number = sum(map(len, cut.values()))
        if number > FINEST:
            return between
        finer = [each.finer(between) for each in self.differences]
        items = [
            hunk for hunk in _hunks(finer) if hunk in differs or any(hunk in each for each in cut.values())
        ]
        low, high = narrow(
            items, [hunk for hunk in items if hunk in same], items, lambda some: self.ask(finer, some)
        )
        left = [hunk for hunk in high if hunk not in low]
        found: list[Hunk] = []
        for hunk, pieces in cut.items():
            some = [piece for piece in pieces if piece in left]
            found += [hunk] if len(some) == len(pieces) else some
        return found

    def _doubt(self) -> str:
        """Why a part of what is named may be enough."""
        if not self.left:
            return "the number of runs is used up: a part of these hunks may do"
        if self.stopped:
            return f"{self.stopped} of the mixtures took more than {self.timeout:g} seconds"
        return ""

    def ask(self, differences: Sequence[Difference], applied: Sequence[Hunk]) -> Answer:
        """Run a mixture, and say whether it computes what the old program did."""
        texts = _texts(differences, applied)
        key = tuple(texts.values())
        if key not in self._known:
            try:
                for text in key:
                    ast.parse(text)
            except SyntaxError:
                return Answer.UNKNOWN
            if not self.left:
                return Answer.UNKNOWN
            self.left -= 1
            self._known[key] = self._run(texts)
            self._confirmed = self._confirmed or self._known[key] is Answer.DIFFERS
        return self._known[key]

    def _run(self, texts: Mapping[str, str]) -> Answer:
        self.done += 1
        with tempfile.TemporaryDirectory(prefix="neuronmigrate-") as folder:
            new = self._record(texts, Path(folder))
            if new is None:
                return Answer.UNKNOWN
            return answer(comparing.compare(self._recording, new, self.policy))

    def _record(self, texts: Mapping[str, str], folder: Path) -> Recording | None:
        """Record a mixture; None where it came to nothing."""
        program, cwd, out = (folder / name for name in ("program", "cwd", "out"))
        program.mkdir()
        cwd.mkdir()
        link(self.data, cwd)
        for entry in self.before.parent.resolve().iterdir():
            if entry.name not in texts:
                os.symlink(entry, program / entry.name)
        for name, text in texts.items():
            (program / name).write_text(text, "utf-8")
        code = self.warm.record(
            [str(program / self.before.name), *self.arguments],
            out,
            self.choices,
            legacy=True,
            release=self.release,
            devices=self.devices,
            mixed=True,
            cwd=cwd,
            variables=self.variables,
            timeout=self.timeout,
        )
        if code == TIMEOUT:
            self.stopped += 1
            return None
        try:
            return read(out)
        except UserError:
            # It did not get as far as its first line.
            return None


def _hunks(differences: Sequence[Difference]) -> list[Hunk]:
    return [hunk for each in differences for hunk in each.hunks]


def _texts(differences: Sequence[Difference], applied: Collection[Hunk]) -> dict[str, str]:
    """The files of a mixture."""
    return {each.path: each.mixture(applied) for each in differences}


def blame(
    pair: Pair, recording: Recording, found: Comparison, policy: Policy, devices: int | None, seconds: float
) -> Blame:
    """Search for the hunks that make two scripts differ, whose old side was recorded.

    `found` is what came of the comparison, and `seconds` what the slower side took.
    """
    steps = _enough_steps(found, recording)
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
                choices=replace(pair.choices, steps=steps) if steps else pair.choices,
                timeout=SLACK + LONGER * seconds,
                data=pair.data,
            )
            return search.blame(_written(pair))
    except (SyntaxError, UnicodeDecodeError) as error:
        return Blame((), 0, f"a side cannot be cut into hunks: {error}")


def _enough_steps(found: Comparison, recording: Recording) -> int:
    """Optimizer steps after which the difference has shown, if that is early in the run; else 0."""
    rows = [row for row in found.rows if row.status is Status.DIVERGED and row.quantity in OUTCOMES]
    shown = [row.step for row in rows]
    shown += [event.step for event in found.events if event.status is Status.DIVERGED]
    steps = max((value.step for rank in recording.ranks.values() for value in rank.values), default=0)
    # One step more, as what a step does may be seen in the next one.
    enough = min(shown, default=steps) + 2
    return enough if enough * EARLY <= steps else 0


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
    """Whether a rewrite has the same hunk, or the same line in one of its hunks."""
    theirs = [*ours.hunks, *ours.finer(ours.hunks).hunks]
    return any((each.line, each.old, each.new) == (hunk.line, hunk.old, hunk.new) for each in theirs)
