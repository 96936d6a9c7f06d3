"""Findings as text: one line each, and for `check` the source line with a mark below the place."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from neuronmigrate.plan import Finding, Place, Problem, Report, Result, State
from neuronmigrate.report.view import Line, View, ordered, printable, source_lines

STYLES = {State.NOTE: "dim", State.FIXED: "green", State.REVIEW: "yellow", State.MARKED: "red"}
WIDEST = 160
"""Characters of a source line that are shown."""


def concise(report: Report, view: View) -> Iterator[Line]:
    """One line for each finding, and the totals."""
    for _, one in ordered(report):
        yield headline(one, view)
    yield summary(report, view)


def text(report: Report, view: View) -> Iterator[Line]:
    """Each finding with its source line, and the totals."""
    lines: list[str] = []
    shown: Result | None = None
    for result, one in ordered(report):
        yield headline(one, view)
        if result is not shown:
            lines, shown = source_lines(result.before) if result.before else [], result
        if isinstance(one, Finding):
            yield from snippet(lines, one.place, STYLES[one.state])
    yield summary(report, view)


def open_ends(report: Report, view: View) -> Iterator[Line]:
    """What a rewrite leaves to a person: all but the plain fixes, and the totals."""
    for _, one in ordered(report):
        if isinstance(one, Problem) or one.state is not State.FIXED:
            yield headline(one, view)
    yield summary(report, view)


def errors(report: Report, view: View) -> Iterator[Line]:
    """Only what could not be dealt with."""
    for _, one in ordered(report):
        if isinstance(one, Problem):
            yield headline(one, view)


def headline(one: Finding | Problem, view: View) -> Line:
    """Place, state, codemod, what was found, why and what to do, in one line."""
    position = (view.position(one.place), "bold")
    if isinstance(one, Problem):
        return position, (" ", ""), ("error", "bold red"), (f" {one.kind.value}: {_flat(one.message)}", "")
    found = f" {_flat(one.found)}:" if one.found else ""
    return (
        position,
        (" ", ""),
        (one.state.value, STYLES[one.state]),
        (f" [{one.codemod}]{found} {_flat(one.message)}", ""),
    )


def snippet(lines: list[str], place: Place, style: str) -> Iterator[Line]:
    """The source line of a place, with carets below it."""
    if place.cell is not None or not 0 < place.line <= len(lines):
        return
    line = lines[place.line - 1]
    if not line.strip():
        return
    first = min(place.column - 1, len(line))
    last = place.end_column - 1 if place.end_line == place.line else len(line.rstrip())
    if not place.end_line:
        last = first + 1
    start = max(0, first - WIDEST // 2) if len(line) > WIDEST else 0
    stop = start + WIDEST
    before, marked, after = line[start:first], line[first : min(last, stop)], line[max(first, last) : stop]
    lead = "..." if start else ""
    number = str(place.line)
    gutter = " " * len(number)
    shown = lead + "".join(map(printable, (before, marked, after))) + ("..." if len(line) > stop else "")
    blank = " " * len(lead) + "".join(
        "\t" if each == "\t" else " " * _width(each) for each in printable(before)
    )
    carets = "^" * max(1, sum(map(_width, printable(marked))))
    yield ((f"  {number} | ", "dim"), (shown.rstrip(), ""))
    yield ((f"  {gutter} | ", "dim"), (blank + carets, style))


def summary(report: Report, view: View) -> Line:
    """The totals."""
    counts = [
        (f"{count} {state.value}{'s' if state is State.NOTE and count != 1 else ''}", STYLES[state])
        for state in (State.FIXED, State.REVIEW, State.MARKED, State.NOTE)
        if (count := report.count(state))
    ]
    pieces: list[tuple[str, str]] = []
    for piece in counts or [("nothing found", "")]:
        pieces += [(", ", ""), piece] if pieces else [piece]
    changed = sum(result.changed for result in report.results)
    verb = "changed" if view.command == "rewrite" else "would change"
    pieces.append((f" in {_plural(report.scanned, 'file')}, {changed} {verb}", ""))
    if report.problems:
        pieces += [("; ", ""), (_plural(len(report.problems), "error"), "bold red")]
    return tuple(pieces)


def _flat(words: str) -> str:
    return printable(" ".join(words.split("\n")))


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
