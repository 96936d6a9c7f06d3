"""What `doctor` found, on one screen or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from neuronmigrate.doctor import Diagnosis, Level
from neuronmigrate.report.view import Line, printable

STYLES = {Level.OK: "green", Level.NOTE: "dim", Level.WARNING: "yellow", Level.ERROR: "red"}


def text(diagnosis: Diagnosis) -> Iterator[Line]:
    """A line for each check, what to do below it, and the verdict."""
    wide = max(len(check.name) for check in diagnosis.checks)
    for check in diagnosis.checks:
        level = (f"{check.level.value:<8}", STYLES[check.level])
        yield level, (f"{printable(check.name):<{wide}}", "bold"), (f"  {printable(check.found)}", "")
        if check.todo:
            yield ((f"{'':8}{'':{wide}}  -> {printable(check.todo)}", STYLES[check.level]),)
    errors = sum(check.level is Level.ERROR for check in diagnosis.checks)
    if diagnosis.ready:
        yield (("ready to run on the native neuron device", "bold green"),)
    else:
        things = "1 thing stands" if errors == 1 else f"{errors} things stand"
        yield ((f"not ready to run on the native neuron device: {things} in the way", "bold red"),)


def json_lines(diagnosis: Diagnosis) -> Iterator[Line]:
    """The diagnosis as JSON; ASCII, so that no encoding can spoil it."""
    for line in json.dumps(diagnosis.as_json(), indent=2).splitlines():
        yield ((line, ""),)


FORMATS = {"text": text, "json": json_lines}
