"""What `neuronmigrate run --observe` saw, as text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from neuronmigrate.report.view import Line, printable
from neuronmigrate.targets import operators

if TYPE_CHECKING:
    from neuronmigrate.runtime.observe import Note, Observation
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
    where = "on the emulated neuron device (CPU)" if observation.emulated else "on the neuron device"
    yield ((f"neuronmigrate: observed {where}", "bold"),)
    if observation.emulated and not observation.calls and not observation.in_graphs:
        yield (("nothing ran on it", "bold yellow"),)
    elif observation.emulated:
        calls = _plural(observation.calls, "operation")
        totals = (
            f"{calls}, {observation.distinct:,} distinct by shape and dtype (an estimate of compilations), "
            f"{observation.once:,} of them once"
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
            (f"  {note.count:,} x{what} {note.why}", ""),
            (f"  {_source(note.place)}", "dim"),
        )
    if len(notes) > LINES:
        yield ((f"  and {len(notes) - LINES} more", "dim"),)


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
