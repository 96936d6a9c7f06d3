"""What `neuronmigrate run --observe` saw, as text and as a section of HTML."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from neuronmigrate.report.view import Line, printable
from neuronmigrate.targets import operators

if TYPE_CHECKING:
    from neuronmigrate.runtime.observation import Note, Observation
    from neuronmigrate.runtime.places import Place

LINES = 10
"""Lines of a section that are shown; the JSON has all."""
VARIED = 3
"""Operations of a line that are shown with their shapes."""
WIDEST = 60
"""Characters of a source line that are shown."""

SECTIONS = {
    "cpu-placement": 'left on the CPU: device_map="neuron", .to("neuron"), pipeline(device="neuron"), '
    'SentenceTransformer(device="neuron")',
    "host-sync": "the host waits for the device",
    "data-dependent-shape": "shapes that the values decide: each new one costs compilations",
    "runs-on-cpu": f"known to run on the host's CPU (table of {operators.DATED})",
    "float64": "64 bits",
    "int64": "64-bit integers: fine for indices, labels and ids below 2**31",
}


def text(observation: Observation) -> Iterator[Line]:
    """The totals, the dearest lines, and what to look at."""
    yield ((_title(observation), "bold"),)
    yield from (((line, ""),) for line in _by_rank(observation))
    if observation.emulated and not observation.calls and not observation.in_graphs:
        yield (("nothing ran on it", "bold yellow"),)
    elif observation.emulated:
        calls = _plural(observation.calls, "operation")
        totals = (
            f"{_together(observation)}{calls}, {observation.distinct:,} distinct by shape and dtype "
            f"(an estimate of compilations), {observation.once:,} of them once"
        )
        yield ((totals, ""),)
        if observation.graphs:
            graphs = _plural(observation.graphs, "graph")
            inner = _plural(observation.in_graphs, "operation")
            yield ((f"{graphs} of torch.compile, each compiled as a whole; {inner} ran in them", ""),)
    costly = [line for line in observation.lines if line.distinct]
    for line in costly[:LINES]:
        yield (
            _place(line.place),
            (f"  {line.distinct:,} distinct in {_plural(line.calls, 'call')}", "yellow"),
            (_only(line.ranks), "yellow"),
            (
                f"  {_source(line.place)}",
                "dim",
            ),
        )
        for varied in line.varied[:VARIED]:
            shown = "; ".join(varied.shapes[:3])
            more = ", ..." if len(varied.shapes) > 3 else ""
            yield ((f"    {varied.operation} in {len(varied.shapes)} shapes: {shown}{more}", ""),)
    if len(costly) > LINES:
        yield ((f"  and {len(costly) - LINES} more lines", "dim"),)
    for kind, title in SECTIONS.items():
        notes = observation.of(kind)
        if notes:
            yield from _section(title, notes)


def _section(title: str, notes: tuple[Note, ...]) -> Iterator[Line]:
    yield ((title, "bold"),)
    for note in notes[:LINES]:
        what = f" {note.what}:" if note.what else ""
        yield (
            _place(note.place),
            (f"  {note.count:,} x{what} {note.why}{_only(note.ranks)}", ""),
            (f"  {_source(note.place)}", "dim"),
        )
    if len(notes) > LINES:
        yield ((f"  and {len(notes) - LINES} more", "dim"),)


def _by_rank(observation: Observation) -> Iterator[str]:
    """A line for each process of several, and one for those of which nothing is known."""
    for rank in observation.ranks:
        own = f", {rank.own:,} of them on no other rank" if len(observation.ranks) > 1 else ""
        graphs = f"; {_plural(rank.graphs, 'graph')} of torch.compile" if rank.graphs else ""
        yield f"rank {rank.rank}: {_plural(rank.calls, 'operation')}, {rank.distinct:,} distinct{own}{graphs}"
    if observation.silent:
        yield f"{_ranks(observation.silent)}: killed before the end, what was seen is lost"


def _together(observation: Observation) -> str:
    return "together: " if len(observation.ranks) > 1 else ""


def _only(ranks: tuple[int, ...]) -> str:
    return f" ({_ranks(ranks)})" if ranks else ""


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _place(place: Place) -> tuple[str, str]:
    if not place.path:
        return "  (no line of the program)", "bold"
    try:
        path = os.path.relpath(place.path)
    except ValueError:  # another drive
        path = place.path
    shown = path if len(path) <= len(place.path) else place.path
    return f"  {printable(shown)}:{place.line}", "bold"


def _source(place: Place) -> str:
    source = printable(place.source)
    return source if len(source) <= WIDEST else f"{source[:WIDEST]}..."


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def section(observation: Observation) -> str:
    """The observation as an HTML `<section>`: totals, every line by its cost, and what to look at."""
    rows = [
        [_where(line.place), f"{line.distinct:,}", f"{line.calls:,}{_only(line.ranks)}", line.place.source]
        for line in observation.lines
    ]
    parts = [
        "<section>",
        f"<h2>{html.escape(_title(observation))}</h2>",
        *(f"<p>{html.escape(line)}</p>" for line in _by_rank(observation)),
        f"<p>{html.escape(_totals(observation))}</p>",
        _table(("line", "distinct", "calls", "source"), rows),
    ]
    for kind, title in SECTIONS.items():
        notes = [
            [_where(note.place), f"{note.count:,}{_only(note.ranks)}", note.what, note.why, note.place.source]
            for note in observation.of(kind)
        ]
        if notes:
            parts.append(f"<h3>{html.escape(title)}</h3>")
            parts.append(_table(("line", "times", "what", "why", "source"), notes))
    return "\n".join([*parts, "</section>", ""])


def page(observation: Observation) -> str:
    """A page that holds the section alone; it loads nothing from anywhere."""
    style = (
        "body{font:14px sans-serif}td,th{padding:2px 8px;text-align:left}td:last-child{font-family:monospace}"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>neuronmigrate</title>'
        f"<style>{style}</style></head><body>\n{section(observation)}</body></html>\n"
    )


def _title(observation: Observation) -> str:
    where = "on the emulated neuron device (CPU)" if observation.emulated else "on the neuron device"
    return f"neuronmigrate: observed {where}"


def _totals(observation: Observation) -> str:
    graphs = _plural(observation.graphs, "graph")
    return (
        f"{_together(observation)}{_plural(observation.calls, 'operation')}, "
        f"{observation.distinct:,} distinct by shape and dtype "
        f"(an estimate of compilations), {observation.once:,} of them once; {graphs} of torch.compile with "
        f"{_plural(observation.in_graphs, 'operation')}"
    )


def _where(place: Place) -> str:
    return _place(place)[0].strip()


def _table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    cells = "".join(f"<th>{html.escape(each)}</th>" for each in head)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(each)}</td>" for each in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{cells}</tr>\n{body}</table>"
