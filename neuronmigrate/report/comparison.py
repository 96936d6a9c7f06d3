"""What a comparison of two recordings says: on a terminal, as JSON, as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

from neuronmigrate.parity.comparison import (
    OUTCOMES,
    Blame,
    Comparison,
    Culprit,
    Measures,
    Row,
    Side,
    Status,
    as_data,
)
from neuronmigrate.report.view import Line, printable

STYLES = {
    Status.EQUAL: "green",
    Status.WITHIN: "green",
    Status.EXPLAINED: "yellow",
    Status.NOT_COMPARABLE: "magenta",
    Status.DIVERGED: "bold red",
}
LISTED = 12
"""Differences of a kind that are told one by one."""


def text(found: Sequence[Comparison]) -> Iterator[Line]:
    """The verdict, what differs in the settings, each quantity in a line, and what diverged."""
    for number, each in enumerate(found):
        if number:
            yield ()
        yield from _text(each)


def _text(found: Comparison) -> Iterator[Line]:
    yield (found.status.value, STYLES[found.status]), (f"  {printable(found.reason)}", "")
    for side in (found.first, found.second):
        yield ((f"  {side_line(side)}", "dim"),)
    for words in found.aligned:
        yield ((f"  aligned: {printable(words)}", "dim"),)
    if found.numerics:
        yield ((f"  declared by the codemods: {', '.join(found.numerics)}", "dim"),)
    for words, breaks in settings(found):
        yield ((printable(f"  differs: {words}"), "red" if breaks else "dim"),)
    for note in found.notes:
        yield ((f"  note: {printable(note)}", "yellow"),)
    if not (found.first.complete and found.second.complete):
        return
    wide = max((len(name) for name in found.by_quantity()), default=0)
    for name, rows in found.by_quantity().items():
        status = worst_of(rows)
        yield (f"  {name:<{wide}}  ", "bold"), (f"{counted(rows):<40}  ", STYLES[status]), (summary(rows), "")
    for words in curve_lines(found):
        yield ((f"  {words}", ""),)
    if found.divergence is not None:
        yield (("first divergence", "bold"), (f": {printable(found.divergence.title)}", ""))
        yield ((f"  {printable(row_line(found.divergence))}", ""),)
    if found.blame is not None:
        yield (("brought in by", "bold"),)
        for words in blame_lines(found.blame):
            yield ((f"  {printable(words)}", ""),)
        for culprit in found.blame.culprits:
            for sign, lines, style in (("-", culprit.old, "red"), ("+", culprit.new, "green")):
                for line in lines.splitlines():
                    yield ((f"    {sign} {printable(line)}", style),)
    bad = told_rows(found)
    for row in bad[:LISTED]:
        yield (
            (f"  {row.status.value}", STYLES[row.status]),
            (f" {printable(row.title)}: {printable(row_line(row))}", ""),
        )
    if len(bad) > LISTED:
        yield ((f"  and {len(bad) - LISTED} more", "dim"),)
    for event in found.events[:LISTED]:
        told = f"{event.first or 'nothing'} against {event.second or 'nothing'}"
        reason = f" ({event.reason})" if event.reason else ""
        where = f"{event.event} at step {event.step}" + (f" on rank {event.rank}" if event.rank else "")
        where += f", {event.times} times" if event.times > 1 else ""
        yield (f"  {event.status.value}", STYLES[event.status]), (f" {where}: {printable(told)}{reason}", "")
    if len(found.events) > LISTED:
        yield ((f"  and {len(found.events) - LISTED} more events", "dim"),)
    if found.unmatched:
        sides = Counter(which for which, _ in found.unmatched)
        told = ", ".join(f"{number} only on the {which} side" for which, number in sides.items())
        examples = "; ".join(what for _, what in found.unmatched[:3])
        yield ((f"  not compared: {told} ({printable(examples)})", "dim"),)


def json_lines(found: Sequence[Comparison]) -> Iterator[Line]:
    """A list of comparisons as JSON; ASCII, so that no encoding can spoil it."""
    for line in json.dumps([as_data(each) for each in found], indent=2).splitlines():
        yield ((line, ""),)


def markdown(found: Sequence[Comparison]) -> Iterator[Line]:
    """Tables for a comment of a pull request."""
    for number, each in enumerate(found):
        if number:
            yield ()
        for line in _markdown(each):
            yield ((line, ""),)


def _markdown(found: Comparison) -> Iterator[str]:
    yield f"### Parity: {found.status.value}"
    yield ""
    yield cell(found.reason)
    yield ""
    for side in (found.first, found.second):
        yield f"- {cell(side_line(side))}"
    for words in found.aligned:
        yield f"- aligned: {cell(words)}"
    if found.numerics:
        yield f"- declared by the codemods: {', '.join(found.numerics)}"
    for words, _ in settings(found):
        yield f"- differs: {cell(words)}"
    for note in found.notes:
        yield f"- note: {cell(note)}"
    yield ""
    yield "| quantity | values | largest difference |"
    yield "|---|---|---|"
    for name, rows in found.by_quantity().items():
        yield f"| {name} | {counted(rows)} | {cell(summary(rows))} |"
    for words in curve_lines(found):
        yield ""
        yield f"{words[0].upper()}{words[1:]}"
    if found.divergence is not None:
        yield ""
        yield f"First divergence: {cell(found.divergence.title)}: {cell(row_line(found.divergence))}"
    if found.blame is not None:
        yield ""
        for words in blame_lines(found.blame):
            yield f"- {cell(words)}"
    if found.events:
        yield ""
        yield "| event | step | rank | before | after | status |"
        yield "|---|---|---|---|---|---|"
        for event in found.events[:LISTED]:
            times = f", {event.times} times" if event.times > 1 else ""
            yield (
                f"| {event.event}{times} | {event.step} | {event.rank} "
                f"| {cell(event.first)} | {cell(event.second)} | {event.status.value} |"
            )


def curve_lines(found: Comparison) -> Iterator[str]:
    """How far the curves of losses are apart."""
    for curve in found.curves:
        if curve.quantity == "loss" and len(curve.first) > 1:
            steps = min(len(curve.first), len(curve.second))
            rank = f" on rank {curve.rank}" if curve.rank else ""
            yield f"loss curve{rank}: {steps} steps, at most {curve.distance:.2g} of its mean apart"


def settings(found: Comparison) -> Iterator[tuple[str, bool]]:
    """The settings that differ, and whether that breaks the comparison; those of a group in one line."""
    groups: dict[str, list[str]] = {}
    for setting in found.settings:
        group, colon, name = setting.name.partition(": ")
        told = f"{name if colon else group}: {setting.first} and {setting.second}"
        if colon:
            groups.setdefault(group, []).append(told)
        else:
            yield told, setting.breaks
    for group, told_ones in groups.items():
        yield f"{group}: {'; '.join(told_ones)}", False


def cell(words: str) -> str:
    """Text that Markdown shows as it is, in a table as well."""
    safe = "".join(f"\\{each}" if each in "\\`*_{}[]<>#|" else each for each in printable(words))
    return safe.replace("\t", " ")


def side_line(side: Side) -> str:
    """A recording in one line."""
    torch = side.versions.get("torch", "?")
    processes = f", {side.world} processes" if side.world > 1 else ""
    return f"{side.label}: {side.device}, torch {torch}{processes}"


def told_rows(found: Comparison) -> list[Row]:
    """The rows that are told one by one: what diverged or is explained, and outcomes without a verdict."""
    told = (Status.DIVERGED, Status.EXPLAINED)
    undecided = (
        row for row in found.rows if row.status is Status.NOT_COMPARABLE and row.quantity in OUTCOMES
    )
    return [*(row for row in found.rows if row.status in told), *undecided]


def worst_of(rows: Sequence[Row]) -> Status:
    """The most severe status of rows."""
    return max((row.status for row in rows), key=lambda each: each.severity)


def counted(rows: Sequence[Row]) -> str:
    """How many rows came out how."""
    counts = Counter(row.status for row in rows)
    return ", ".join(f"{counts[status]} {status.value}" for status in Status if counts[status])


def summary(rows: Sequence[Row]) -> str:
    """The worst of rows in numbers; empty when they are equal."""
    away = [row.reference for row in rows if row.reference is not None]
    old, new = (max((each[side] for each in away), default=0.0) for side in (0, 1))
    third = f"at most {old:.2g} and {new:.2g} from the reference" if old or new else ""
    return "; ".join(filter(None, (_farthest(rows), third)))


def _farthest(rows: Sequence[Row]) -> str:
    measured = [row for row in rows if row.measures is not None and row.status is not Status.EQUAL]
    if not measured:
        reasons = [row.reason for row in rows if row.status is Status.NOT_COMPARABLE]
        return reasons[0] if reasons else ""
    worst = max(measured, key=lambda row: _needed(row))
    assert worst.measures is not None
    return measures_line(worst.measures, worst.tolerance)


def _needed(row: Row) -> float:
    assert row.measures is not None
    return row.measures.needed / row.tolerance if row.tolerance else row.measures.needed


def row_line(row: Row) -> str:
    """One row in numbers, or its reason."""
    parts = [row.reason] if row.reason else []
    if row.measures is not None:
        parts.append(measures_line(row.measures, row.tolerance))
    if row.reference is not None and any(row.reference):
        old, new = row.reference
        parts.append(f"{old:.2g} and {new:.2g} from the reference")
    return "; ".join(each for each in parts if each)


def measures_line(found: Measures, tolerance: float) -> str:
    """Distances in one line."""
    if found.agreement is not None:
        return f"{found.agreement:.0%} of the tokens agree before the first difference"
    if not tolerance:
        # Whole numbers: they are equal or not.
        return f"{found.outliers:.2%} of the elements differ" if found.outliers else ""
    parts = [
        f"max abs {found.max_abs:.2g}",
        f"max rel {found.max_rel:.2g}",
        f"cosine {found.cosine:.6f}",
        f"{found.ulp:.3g} ULP",
    ]
    parts.append(f"needs {found.needed:.2g} of {tolerance:.2g}")
    if found.outliers:
        parts.append(f"{found.outliers:.2%} over it")
    if found.kl is not None and found.top1 is not None and found.top5 is not None:
        parts.append(f"KL {found.kl:.2g}, top-1 {found.top1:.0%}, top-5 {found.top5:.0%}")
    return ", ".join(parts)


def blame_lines(found: Blame) -> Iterator[str]:
    """What a search for the cause found, in lines."""
    for each in found.culprits:
        yield f"{each.path}:{each.line}: {culprit_line(each)}"
    if found.reason:
        yield f"{'' if found.culprits else 'no hunk is named: '}{found.reason}"
    yield f"{found.runs} mixtures of both sides were run"


def culprit_line(found: Culprit) -> str:
    """Who wrote a hunk."""
    names = ", ".join(found.codemods)
    if found.by_hand:
        return (
            f"another text than {names or 'neuronmigrate'} writes here"
            if names
            else "not written by neuronmigrate"
        )
    return f"written by {names}" if names else "written by neuronmigrate"


def html(found: Sequence[Comparison]) -> Iterator[Line]:
    """One page with loss curves and error heat maps."""
    # It needs jinja2, which comes with torch and not with neuronmigrate alone.
    from neuronmigrate.report import parity_page

    return parity_page.html(found)


FORMATS = {"text": text, "json": json_lines, "markdown": markdown, "html": html}
