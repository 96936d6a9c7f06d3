"""The journal: what a run overwrote, so that it can be taken back as one unit.

It lives outside the tree: in a git repository under `git rev-parse --git-path neuronmigrate`, elsewhere
in the user's state folder, keyed by the root of the tree.

    report.json           the report of the last run that was not a preview
    lock                  held while a run or an undo writes
    runs/000007/
        unit.json         {"schema", "root", "started", "state", "entries": [{"path", "before", "after",
                          "saved", "temporary"}]}; before and after are SHA-256 of the contents
        before/0          the first entry's old content, and so on
        report.json       the report of this run

A unit is complete on disk before the first file is written. Its state goes from `writing` to `done`, and
with an undo through `undoing` to `undone`. Each file is replaced atomically, so after a crash at any
moment each file holds either content of its entry, and an undo, or a second undo, puts the rest right.
An entry whose `before` is null stands for a file that the run created.

`report.json` holds one object:

    schema      1; a change that old readers would misread raises it
    tool        {"name", "version", "codemods"}; codemods is a hash over the set of codemods
    root        absolute path that all paths in it are relative to
    command     "rewrite", "preview" (nothing was written) or "check"
    settings    for each setting its value and its source (`default`, `pyproject.toml:7`, `--tpu`)
    summary     {"scanned", "changed", "fixed", "review", "marked", "note", "problems"}
    notices     facts about the whole project, as sentences
    files       [{"path", "changed", "numerics"}]: each file with a finding or a change, and what the
                rewrites applied to it do to numbers (`same`, `reordered`, `dtype`, `random`,
                `sharding`, `format`)
    findings    [{"codemod", "state", "path", "cell", "line", "column", "end_line", "end_column",
                "found", "why", "todo", "group", "numerics"}]
    groups      [{"path", "name", "codemods", "applied", "refused", "numerics", "lines"}]
    problems    [{"kind", "path", "cell", "line", "column", "message", "legacy"}]

Lines and columns count from 1, `cell` from 0 or null. Bytes of a file name that are not UTF-8 are written
as lone surrogates, as Python's os.fsdecode does.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from neuronmigrate import files
from neuronmigrate.config import UserError
from neuronmigrate.git import GitError, repository_of

SCHEMA = 1
KEPT = 20
"""Runs that stay in the journal."""


class State(str, enum.Enum):
    """How far a unit is."""

    WRITING = "writing"
    DONE = "done"
    UNDOING = "undoing"
    UNDONE = "undone"


@dataclass(frozen=True)
class Change:
    """A file that a run is about to write."""

    name: str
    """Posix path relative to the root."""
    before: bytes | None
    """None for a file that does not exist yet."""
    after: bytes


@dataclass(frozen=True)
class Entry:
    """One file of a unit."""

    name: str
    before: str | None
    after: str
    saved: str
    temporary: str


@dataclass
class Unit:
    """One writing run."""

    folder: Path
    root: Path
    started: float
    state: State
    entries: tuple[Entry, ...]

    def save(self, state: State) -> None:
        """Record how far the unit is. Raises UserError."""
        self.state = state
        content = {
            "schema": SCHEMA,
            "root": str(self.root),
            "started": self.started,
            "state": state.value,
            "entries": [
                {
                    "path": entry.name,
                    "before": entry.before,
                    "after": entry.after,
                    "saved": entry.saved,
                    "temporary": entry.temporary,
                }
                for entry in self.entries
            ],
        }
        try:
            files.create(self.folder / "unit.json", json.dumps(content, indent=1).encode(), 0o600)
        except OSError as error:
            raise UserError(f"{self.folder}: the journal cannot be written: {error.strerror}") from error

    def original(self, entry: Entry) -> bytes:
        """The old content of a file. Raises UserError when the journal is damaged."""
        path = self.folder / "before" / entry.saved
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}: the journal is damaged: {error.strerror}") from error
        if fingerprint(content) != entry.before:
            raise UserError(f"{path}: the journal is damaged: not what was saved")
        return content

    def sweep(self) -> None:
        """Remove what a killed run may have left beside the files that it wrote."""
        for entry in self.entries:
            with contextlib.suppress(OSError):
                ((self.root / entry.name).parent / entry.temporary).unlink()


@dataclass(frozen=True)
class Journal:
    """The units of one tree."""

    folder: Path
    root: Path

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs from writing. Raises UserError when one is at it, or no journal can be kept."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UserError(f"{self.folder}: no journal can be kept there: {error.strerror}") from error
        try:
            _take_lock(descriptor, self.root)
            yield
        finally:
            os.close(descriptor)

    def units(self) -> list[Unit]:
        """All units, oldest first. What cannot be read is left out: it was never complete."""
        found = []
        with contextlib.suppress(OSError):
            for folder in sorted((self.folder / "runs").iterdir()):
                with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                    found.append(_read_unit(folder, self.root))
        return found

    def last(self) -> Unit | None:
        """The newest unit that is not taken back yet."""
        return next((unit for unit in reversed(self.units()) if unit.state is not State.UNDONE), None)

    def results(self) -> dict[str, str]:
        """For each file, the fingerprint of the content that we gave it last."""
        found: dict[str, str] = {}
        for unit in self.units():
            if unit.state is not State.UNDONE:
                found.update({entry.name: entry.after for entry in unit.entries})
        return found

    def begin(self, changes: Sequence[Change]) -> Unit:
        """Save what is about to be overwritten. Raises UserError when that cannot be done."""
        runs = self.folder / "runs"
        try:
            runs.mkdir(parents=True, exist_ok=True)
            for unit in self.units():
                if unit.state in (State.WRITING, State.UNDOING):
                    unit.sweep()
            numbers = [int(folder.name) for folder in runs.iterdir() if folder.name.isdigit()]
            folder = runs / f"{max(numbers, default=0) + 1:06}"
            (folder / "before").mkdir(parents=True)
            entries = []
            for number, change in enumerate(changes):
                if change.before is not None:
                    files.create(folder / "before" / str(number), change.before, 0o600)
                entries.append(
                    Entry(
                        change.name,
                        None if change.before is None else fingerprint(change.before),
                        fingerprint(change.after),
                        str(number),
                        files.temporary_name(),
                    )
                )
            unit = Unit(folder, self.root, time.time(), State.WRITING, tuple(entries))
            unit.save(State.WRITING)
            files.sync_folder(runs)
            for old in sorted(runs.iterdir())[:-KEPT]:
                shutil.rmtree(old, ignore_errors=True)
        except OSError as error:
            raise UserError(f"{self.folder}: nothing was written, no journal can be kept: {error}") from error
        return unit

    def keep_report(self, report: bytes, unit: Unit | None = None) -> None:
        """Save the report of a run. Raises UserError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            files.create(self.folder / "report.json", report)
            if unit is not None:
                files.create(unit.folder / "report.json", report)
        except OSError as error:
            raise UserError(f"{self.folder}: the report cannot be written: {error.strerror}") from error


def fingerprint(content: bytes) -> str:
    """A hash that tells two contents apart."""
    return hashlib.sha256(content).hexdigest()


def journal_of(root: Path) -> Journal:
    """The journal of a tree. `root` is resolved."""
    repository = repository_of(root)
    if repository is not None and repository.root == root:
        with contextlib.suppress(GitError):
            return Journal(repository.own_folder("neuronmigrate"), root)
    return _outside_git(root)


def _outside_git(root: Path) -> Journal:
    import platformdirs

    state = platformdirs.user_state_path("neuronmigrate", appauthor=False)
    return Journal(state / "journals" / fingerprint(os.fsencode(root))[:16], root)


def find_last(start: Path) -> tuple[Journal, Unit] | None:
    """The newest run, not taken back yet, over a tree that `start` belongs to."""
    journals = []
    repository = repository_of(start)
    if repository is not None:
        journals.append(journal_of(repository.root))
    journals += [_outside_git(place) for place in (start, *start.parents)]
    found = [(journal, unit) for journal in journals if (unit := journal.last())]
    return max(found, key=lambda pair: pair[1].started, default=None)


def undo(start: Path) -> Unit:
    """Take back the last run over the tree that `start` belongs to, and return what was taken back.

    Raises UserError when there is none, or when a file was edited since; then nothing is changed.
    """
    found = find_last(start)
    if found is None:
        raise UserError(f"{start}: no run of neuronmigrate to take back")
    journal, _ = found
    with journal.locked():
        unit = journal.last()
        if unit is None:
            raise UserError(f"{start}: no run of neuronmigrate to take back")
        _take_back(unit)
        return unit


def _take_back(unit: Unit) -> None:
    back, edited = [], []
    for entry in unit.entries:
        path = unit.root / entry.name
        current = _current(path)
        held = None if current is None else fingerprint(current)
        if held == entry.before:
            continue  # the run never came to it, or an earlier undo did
        if current is None or held != entry.after:
            edited.append(entry.name)
        else:
            back.append((entry, path, current, b"" if entry.before is None else unit.original(entry)))
    if edited:
        raise UserError(
            "edited since the last run, so nothing was taken back:\n"
            + "\n".join(f"  {name}" for name in edited)
            + f"\nthe contents from before the run are in {unit.folder / 'before'}"
        )
    failed = []
    unit.sweep()
    unit.save(State.UNDOING)
    for entry, path, current, original in back:
        try:
            if entry.before is None:
                path.unlink()
            else:
                files.replace(path, current, original, temporary=entry.temporary)
        except (OSError, files.Unwritable) as error:
            failed.append(f"  {entry.name}: {error}")
    if failed:
        raise UserError("not taken back, mend it and run undo again:\n" + "\n".join(failed))
    unit.save(State.UNDONE)


def _current(path: Path) -> bytes | None:
    """What a file holds; None when there is no file, and empty when it is nothing that can be read."""
    if not os.path.lexists(path):
        return None
    try:
        return files.read(path)
    except files.Unreadable:
        return b""


def _read_unit(folder: Path, root: Path) -> Unit:
    """A unit from disk. Its root is where the tree is now: a repository may have been moved since."""
    content = json.loads((folder / "unit.json").read_bytes())
    if content["schema"] != SCHEMA:
        raise ValueError("written by another version")
    entries = [
        Entry(one["path"], one["before"], one["after"], one["saved"], one["temporary"])
        for one in content["entries"]
    ]
    for entry in entries:
        # A journal that came with an unpacked archive must not reach beyond its tree.
        if Path(entry.name).is_absolute() or ".." in Path(entry.name).parts or not entry.saved.isdigit():
            raise ValueError("not a file of this tree")
        if not re.fullmatch(r"\.neuronmigrate-[0-9a-f]+\.tmp", entry.temporary):
            raise ValueError("not a temporary file of ours")
    return Unit(folder, root, float(content["started"]), State(content["state"]), tuple(entries))


def _take_lock(descriptor: int, root: Path) -> None:
    if os.name != "posix":
        return
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UserError(f"{root}: another run of neuronmigrate is writing there") from error
