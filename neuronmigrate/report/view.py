"""What every format needs besides the report: where the reader stands, and how text is made harmless."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from neuronmigrate.config import Settings
from neuronmigrate.plan import Finding, Place, Problem, Report, Result

Line = tuple[tuple[str, str], ...]
"""Pieces of text, each with its style: a rich style, or nothing."""

_NEWLINE = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True)
class View:
    """One printing of a report."""

    root: Path
    """What the paths of the report are relative to."""
    command: str = "check"
    settings: Settings = field(default_factory=Settings)
    here: Path = field(default_factory=Path.cwd)
    """The folder that the reader stands in."""

    def path(self, place: Place) -> str:
        """The path as the reader would type it."""
        if place.path == "-":
            return "-"
        path = os.path.relpath(self.root / place.path, self.here).replace(os.sep, "/")
        cell = "" if place.cell is None else f":cell {place.cell}"
        return printable(path) + cell

    def position(self, place: Place) -> str:
        """Path, line and column in the form that editors and terminals turn into a link."""
        return f"{self.path(place)}:{place.line}:{place.column}"


def printable(text: str) -> str:
    """Text that cannot move the cursor, reorder what is read, or break a line."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() or each == "\t" else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def entries(result: Result) -> list[Finding | Problem]:
    """Findings and problems of one file in the order of the text."""
    return sorted([*result.findings, *result.problems], key=lambda one: (one.place.line, one.place.column))


def ordered(report: Report) -> Iterator[tuple[Result, Finding | Problem]]:
    """Everything there is to say, by file and line."""
    for result in report.results:
        for one in entries(result):
            yield result, one


def source_lines(raw: bytes) -> list[str]:
    """The lines of a Python file as they are counted: form feeds and the like end none."""
    import tokenize

    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
    except SyntaxError:
        encoding = "utf-8"
    if encoding == "utf-8-sig":
        encoding = "utf-8"
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        return re.split(r"\r\n|\r|\n", raw.decode(encoding, "replace"))
    except (LookupError, UnicodeError):
        return [line.decode("latin-1") for line in _NEWLINE.split(raw)]
