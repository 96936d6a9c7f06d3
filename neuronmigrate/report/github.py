"""Findings as GitHub workflow commands, which become annotations on the pull request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from neuronmigrate.plan import Finding, Problem, Report, State
from neuronmigrate.report.view import Line, View, ordered

LEVELS = {State.NOTE: "notice", State.FIXED: "warning", State.REVIEW: "warning", State.MARKED: "error"}


def github(report: Report, view: View) -> Iterator[Line]:
    """One workflow command for each finding and problem."""
    for _, one in ordered(report):
        yield ((_command(one, view), ""),)


def _command(one: Finding | Problem, view: View) -> str:
    place = one.place
    properties = {"file": _path(place.path, view)}
    message = one.message
    if place.cell is None:
        properties |= {"line": str(place.line), "col": str(place.column)}
        if place.end_line:
            properties["endLine"] = str(place.end_line)
        # GitHub takes an end column only within one line, and counts it inclusively.
        if place.end_line == place.line and place.end_column > place.column:
            properties["endColumn"] = str(place.end_column - 1)
    else:
        message = f"cell {place.cell}, line {place.line}: {message}"
    if isinstance(one, Problem):
        level, title = "error", f"neuronmigrate: {one.kind.value}"
    else:
        level, title = LEVELS[one.state], f"neuronmigrate: {one.state.value} [{one.codemod}]"
        message = f"{one.found}: {message}" if one.found else message
    properties["title"] = title
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{level} {written}::{_data(message)}"


def _path(path: str, view: View) -> str:
    """Relative to the checkout, which need not be where the report's root is."""
    workspace = os.environ.get("GITHUB_WORKSPACE")
    if workspace:
        absolute = view.root / path
        base = Path(workspace).resolve()
        if base in absolute.parents:
            return absolute.relative_to(base).as_posix()
    return path


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")
