"""What a run found, for people and for machines: the only printers.

A format is a function from a report to lines; it joins FORMATS and needs nothing else. A line is a row
of pieces of text, each with the style it has on a terminal, so that no format knows about terminals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from neuronmigrate.plan import Report
from neuronmigrate.report import data, github, text
from neuronmigrate.report.view import Line, View

Format = Callable[[Report, View], Iterable[Line]]

FORMATS: dict[str, Format] = {
    "text": text.text,
    "concise": text.concise,
    "json": data.json_lines,
    "github": github.github,
}

__all__ = ["FORMATS", "Format", "Line", "View"]
