"""What a comparison of two recordings says, as one HTML page that needs nothing beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from neuronmigrate.parity.comparison import Comparison, Curve, Row, Status
from neuronmigrate.report.comparison import (
    counted,
    culprit_line,
    row_line,
    summary,
    told_rows,
    worst_of,
)
from neuronmigrate.report.view import Line

LISTED = 60
"""Differences that are told one by one."""
COLOURS = (
    (0.0, "#d9ead9", "equal"),
    (0.1, "#b8dcb8", "up to a tenth"),
    (1.0, "#f2e6a8", "up to 1"),
    (10.0, "#f2b888", "up to 10"),
    (math.inf, "#e58080", "more"),
)
"""Upper ends of the ratio of needed and given tolerance, and how they look."""
UNDECIDED = "#cfc6de"

LAYERS = ("inner output", "output", "logits", "first logits")
UPDATES = ("gradient", "weight")


@dataclass(frozen=True)
class Cell:
    """One value of a heat map."""

    colour: str
    mark: str
    """What is seen without colours: `x` diverged, `e` explained, `?` not comparable."""
    told: str


@dataclass(frozen=True)
class Heat:
    """Differences by name and call."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


@dataclass(frozen=True)
class Plot:
    """Two curves over the steps."""

    title: str
    top: str
    bottom: str
    flat: str
    """The value of curves that have no other; empty for those that have."""
    last: int
    lines: tuple[tuple[str, str], ...]
    """Side, and its points in the picture."""
    distance: str


def html(found: Sequence[Comparison]) -> Iterator[Line]:
    """The page in lines."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("neuronmigrate", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("parity.html.j2").render(
        title=", ".join(each.status.value for each in found),
        comparisons=[_context(each) for each in found],
        key=[(colour, label) for _, colour, label in COLOURS] + [(UNDECIDED, "not comparable")],
    )
    for line in page.splitlines():
        yield ((line, ""),)


def _context(found: Comparison) -> dict[str, object]:
    told = told_rows(found)
    return {
        "found": found,
        "quantities": [
            (name, worst_of(rows).value, counted(rows), summary(rows))
            for name, rows in found.by_quantity().items()
        ],
        "told": [(row, row_line(row)) for row in told[:LISTED]],
        "more": max(0, len(told) - LISTED),
        "plots": [_plot(curve) for curve in found.curves if len(curve.first) > 1 and len(curve.second) > 1],
        "heats": [
            heat
            for title, quantities in (("Layers by call", LAYERS), ("Gradients and weights by step", UPDATES))
            if (heat := _heat(found, title, quantities)) is not None
        ],
        "written": [] if found.blame is None else [culprit_line(each) for each in found.blame.culprits],
    }


def _plot(curve: Curve) -> Plot:
    finite = [value for value in (*curve.first, *curve.second) if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
    flat = high == low
    if flat:
        # In the middle of the picture.
        low, high = low - 1.0, high + 1.0
    span = high - low
    last = max(len(curve.first), len(curve.second)) - 1
    lines = []
    for kind, values in (("first", curve.first), ("second", curve.second)):
        points = (
            f"{60 + 570 * step / last:.1f},{170 - 155 * (value - low) / span:.1f}"
            for step, value in enumerate(values)
            if math.isfinite(value)
        )
        lines.append((kind, " ".join(points)))
    rank = f" on rank {curve.rank}" if curve.rank else ""
    name = "" if curve.name in (curve.quantity, "all") else f", {curve.name}"
    return Plot(
        f"{curve.quantity.capitalize()}{name}{rank}",
        "" if flat else f"{high:.3g}",
        "" if flat else f"{low:.3g}",
        f"{finite[0]:.3g}" if flat and finite else "",
        last,
        tuple(lines),
        f"{curve.distance:.2g}",
    )


def _heat(found: Comparison, title: str, quantities: Sequence[str]) -> Heat | None:
    worst: dict[tuple[str, str], Row] = {}
    columns: dict[str, None] = {}
    names: dict[str, None] = {}
    for row in sorted(
        (each for each in found.rows if each.quantity in quantities), key=lambda each: each.order
    ):
        kind = "" if row.quantity in LAYERS else f"{row.quantity} "
        column = f"{kind}{row.call}" + (f" rank {row.rank}" if row.rank else "")
        name = row.name
        columns.setdefault(column)
        names.setdefault(name)
        known = worst.get((name, column))
        if known is None or _severity(row) > _severity(known):
            worst[name, column] = row
    if not worst:
        return None
    rows = tuple(
        (name, tuple(_cell(worst[name, each]) if (name, each) in worst else None for each in columns))
        for name in names
    )
    return Heat(title, tuple(columns), rows)


def _severity(row: Row) -> tuple[int, float]:
    return row.status.severity, _ratio(row)


def _ratio(row: Row) -> float:
    if row.status is Status.EQUAL or row.measures is None:
        return 0.0
    needed = row.measures.needed
    return needed / row.tolerance if row.tolerance else (math.inf if needed else 0.0)


def _cell(row: Row) -> Cell:
    marks = {Status.DIVERGED: "x", Status.EXPLAINED: "e", Status.NOT_COMPARABLE: "?"}
    colour = UNDECIDED
    if row.status is not Status.NOT_COMPARABLE:
        ratio = math.inf if row.status is Status.DIVERGED and row.measures is None else _ratio(row)
        colour = next(each for limit, each, _ in COLOURS if ratio <= limit)
    told = f"{row.title}: {row.status.value}"
    line = row_line(row)
    return Cell(colour, marks.get(row.status, ""), f"{told}; {line}" if line else told)
