"""What a run found and what it would do, as plain data.

Every other part speaks in these words: the engine makes them, proof and report read them, workers
pickle them. Nothing here holds a syntax tree, and nothing here prints.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class State(str, enum.Enum):
    """How a legacy use ended. The order is the order of severity."""

    NOTE = "note"
    """Recognised and left alone on purpose; never part of an exit code."""
    FIXED = "fixed"
    """Rewritten, meaning kept."""
    REVIEW = "review"
    """Rewritten, and one named thing is left for a person to look at."""
    MARKED = "marked"
    """Left as it was, with a comment on the statement where one can stand."""


class Numerics(str, enum.Enum):
    """What a rewrite does to the numbers of the program; parity takes its tolerances from it."""

    SAME = "same"
    REORDERED = "reordered"
    DTYPE = "dtype"
    RANDOM = "random"
    SHARDING = "sharding"
    FORMAT = "format"


class Trouble(str, enum.Enum):
    """Why a file could not be dealt with."""

    READ = "read"
    """It cannot be opened or decoded."""
    PARSE = "parse"
    """It is not Python that can be parsed."""
    WRITE = "write"
    """It could not be written."""
    PROOF = "proof"
    """The result failed a proof and was not written: a bug of neuronmigrate."""
    INTERNAL = "internal"
    """Something raised: a bug of neuronmigrate."""


@dataclass(frozen=True, order=True)
class Place:
    """Where something stands. Lines and columns count from 1; columns count characters."""

    path: str
    """Posix path, relative to the project root when the file is below it."""
    line: int
    column: int = 1
    end_line: int = 0
    end_column: int = 0
    cell: int | None = None
    """Index of the notebook cell from 0, and then lines count inside the cell."""

    def __str__(self) -> str:
        cell = "" if self.cell is None else f":cell {self.cell}"
        return f"{self.path}{cell}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Finding:
    """One legacy use and how it ended."""

    codemod: str
    """Name of the codemod, in its dashed spelling."""
    state: State
    place: Place
    found: str
    """The legacy name or text that was found, such as `torch_xla.core.xla_model.mark_step`."""
    why: str
    """Why it ended so: one sentence without a full stop."""
    todo: str = ""
    """What a person should do or look at; empty for a plain fix."""
    group: str = ""
    """Identity of the group whose edits belong to this finding."""
    numerics: tuple[Numerics, ...] = (Numerics.SAME,)

    @property
    def message(self) -> str:
        """Why and what to do, as one text."""
        return f"{self.why}; {self.todo}" if self.todo else self.why


@dataclass(frozen=True)
class GroupRecord:
    """A group of edits that was applied whole or not at all."""

    name: str
    codemods: tuple[str, ...]
    applied: bool
    refused: str = ""
    """Why it was not applied."""
    numerics: tuple[Numerics, ...] = (Numerics.SAME,)
    lines: tuple[int, ...] = ()
    """First lines of the statements that its edits touch, in the original file."""


@dataclass(frozen=True)
class Problem:
    """A file that could not be dealt with, in whole or in part."""

    kind: Trouble
    place: Place
    message: str
    legacy: bool = True
    """Whether the file holds a legacy marker, or nobody can tell; `check` fails only on those."""


@dataclass(frozen=True)
class Result:
    """What came of one file."""

    path: str
    before: bytes = b""
    after: bytes | None = None
    """The new content; None when nothing changes."""
    findings: tuple[Finding, ...] = ()
    groups: tuple[GroupRecord, ...] = ()
    problems: tuple[Problem, ...] = ()

    @property
    def changed(self) -> bool:
        return self.after is not None and self.after != self.before


@dataclass(frozen=True)
class Report:
    """What came of one run over all files."""

    results: tuple[Result, ...] = ()
    scanned: int = 0
    """How many files were looked at, hit or not."""
    notices: tuple[str, ...] = field(default=())
    """Facts about the whole project, such as the legacy version that was assumed."""

    @property
    def findings(self) -> list[Finding]:
        return [finding for result in self.results for finding in result.findings]

    @property
    def problems(self) -> list[Problem]:
        return [problem for result in self.results for problem in result.problems]

    def count(self, state: State) -> int:
        """Number of findings that ended in a state."""
        return sum(finding.state is state for finding in self.findings)
