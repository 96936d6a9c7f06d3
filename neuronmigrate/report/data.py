"""A report as one JSON document; neuronmigrate.journal describes what is in it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from neuronmigrate.plan import Finding, GroupRecord, Numerics, Place, Problem, Report, Result, State
from neuronmigrate.report.view import Line, View, entries

SCHEMA = 1


def json_lines(report: Report, view: View) -> Iterator[Line]:
    """The document in lines."""
    for line in as_json(report, view).decode("ascii").splitlines():
        yield ((line, ""),)


def as_json(report: Report, view: View) -> bytes:
    """The document. It is ASCII, so that no encoding can spoil it."""
    return (json.dumps(as_data(report, view), indent=2) + "\n").encode("ascii")


def as_data(report: Report, view: View) -> dict[str, object]:
    """The document as plain data."""
    from neuronmigrate import __version__
    from neuronmigrate.registry import digest

    counts: dict[str, int] = {
        "scanned": report.scanned,
        "changed": sum(result.changed for result in report.results),
    }
    counts |= {state.value: report.count(state) for state in State}
    counts["problems"] = len(report.problems)
    return {
        "schema": SCHEMA,
        "tool": {"name": "neuronmigrate", "version": __version__, "codemods": digest()},
        "root": str(view.root),
        "command": view.command,
        "settings": view.settings.described(),
        "summary": counts,
        "notices": list(report.notices),
        "files": [_file(result) for result in report.results if result.findings or result.changed],
        "findings": [
            _finding(one) for result in report.results for one in entries(result) if isinstance(one, Finding)
        ],
        "groups": [_group(result.path, group) for result in report.results for group in result.groups],
        "problems": [_problem(problem) for problem in report.problems],
    }


def numerics(result: Result) -> list[str]:
    """What the rewrites applied to a file do to its numbers, in the order of the enumeration."""
    done = {
        each
        for finding in result.findings
        if finding.state in (State.FIXED, State.REVIEW)
        for each in finding.numerics
    }
    done |= {each for group in result.groups if group.applied for each in group.numerics}
    return [each.value for each in Numerics if each in done]


def _file(result: Result) -> dict[str, object]:
    return {"path": result.path, "changed": result.changed, "numerics": numerics(result)}


def _place(place: Place) -> dict[str, object]:
    return {"path": place.path, "cell": place.cell, "line": place.line, "column": place.column}


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "codemod": finding.codemod,
        "state": finding.state.value,
        **_place(finding.place),
        "end_line": finding.place.end_line,
        "end_column": finding.place.end_column,
        "found": finding.found,
        "why": finding.why,
        "todo": finding.todo,
        "group": finding.group,
        "numerics": [each.value for each in finding.numerics],
    }


def _group(path: str, group: GroupRecord) -> dict[str, object]:
    return {
        "path": path,
        "name": group.name,
        "codemods": list(group.codemods),
        "applied": group.applied,
        "refused": group.refused,
        "numerics": [each.value for each in group.numerics],
        "lines": list(group.lines),
    }


def _problem(problem: Problem) -> dict[str, object]:
    return {
        "kind": problem.kind.value,
        **_place(problem.place),
        "message": problem.message,
        "legacy": problem.legacy,
    }
