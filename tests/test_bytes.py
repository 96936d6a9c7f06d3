"""Whatever bytes a program is written in, what is not rewritten comes out as it went in."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.plan import Result, State, Trouble
from neuronmigrate.project import Project
from tests.bytes_cases import BOM, FAR_TOO_DEEP, NOTHING_TO_DO, UNREADABLE, VARIANTS, Encode, split_lines

LEGACY = '''\
"""Train, and keep these words."""

import os  # keep this import

import torch_xla.core.xla_model as xm

keep_text = """first, keep
    second, keep
"""


def train(steps):
    device = xm.xla_device()
    keep_total = 0
    for step in range(steps):
        keep_total += step
        xm.mark_step()
        if step % 2:
            xm.mark_step()
        keep_after = step
    xm.master_print("done", device)
    return keep_total


class KeepThis:
    keep_value = 1

    def run(self):
        keep_local = self.keep_value  # keep
        xm.mark_step()
        return keep_local


keep_result = os.getpid() if train(3) else None
'''

QUIET = '''\
"""Nothing legacy here, though torch_xla and optimum.neuron are named."""

import torch

keep_device = torch.device("neuron")


def step(model, batch):
    # xm.mark_step() stood here once
    keep = model(batch.to(keep_device))
    return keep


class Optimum:
    keep_neuron = "neuron"
'''


def migrated(raw: bytes) -> Result:
    return migrate("program.py", raw, Project.empty(), Settings())


def kept_lines(raw: bytes) -> list[bytes]:
    """The lines that hold nothing legacy, byte for byte."""
    touched = re.compile(rb"xm\.|neuronmigrate")
    return [line for line in split_lines(raw) if b"keep" in line.lower() and not touched.search(line)]


@pytest.fixture(params=VARIANTS, scope="module")
def encode(request: pytest.FixtureRequest) -> Encode:
    return VARIANTS[request.param]


@pytest.fixture(scope="module")
def result(encode: Encode) -> Result:
    return migrated(encode(LEGACY))


def test_the_variant_is_python(encode: Encode) -> None:
    ast.parse(encode(LEGACY))
    ast.parse(encode(QUIET))


def test_it_is_rewritten_without_trouble(result: Result) -> None:
    assert result.problems == ()
    assert result.after is not None
    assert result.after != result.before
    assert any(finding.state is State.FIXED for finding in result.findings)
    ast.parse(result.after)


def test_kept_lines_are_the_same_bytes(result: Result) -> None:
    assert result.after is not None
    assert kept_lines(result.after) == kept_lines(result.before)


def test_line_ends_and_edges_stay(result: Result) -> None:
    after, before = result.after, result.before
    assert after is not None
    assert after.startswith(BOM) == before.startswith(BOM)
    assert after.count(BOM) == before.count(BOM)
    for end in (rb"\r\n", rb"\r(?!\n)", rb"(?<!\r)\n", rb"\t", rb"\f"):
        if not re.search(end, before):
            assert not re.search(end, after), end
    assert before.count(b"\f") == after.count(b"\f")
    assert _tail(after) == _tail(before)


def _tail(raw: bytes) -> bytes:
    """From the last statement of the program, which nothing touches, to the end of the file."""
    return raw[raw.rindex(b"keep_") :]


def test_places_are_lines_of_the_file(result: Result) -> None:
    lines = split_lines(result.before)
    named = {number for number, line in enumerate(lines, start=1) if b"xm." in line}
    assert named <= {finding.place.line for finding in result.findings}
    for finding in result.findings:
        place = finding.place
        assert re.search(rb"xm|xla", lines[place.line - 1]), finding
        assert place.column <= len(lines[place.line - 1]) + 1


def test_a_second_run_changes_nothing(result: Result) -> None:
    assert result.after is not None
    again = migrated(result.after)
    assert again.after is None
    assert again.problems == ()


def test_ignore_comments_are_read(encode: Encode) -> None:
    ignored = "xm.mark_step()  # neuronmigrate: ignore\n        return"
    result = migrated(encode(LEGACY.replace("xm.mark_step()\n        return", ignored)))
    assert result.after is not None
    assert result.after.count(b"xm.mark_step()") == 1
    assert not [finding for finding in result.findings if finding.codemod == "ignore"]


def test_what_holds_nothing_legacy_is_not_written(encode: Encode) -> None:
    quiet = migrated(encode(QUIET))
    assert quiet.after is None
    assert quiet.problems == ()
    assert not [finding for finding in quiet.findings if finding.state is not State.NOTE]


@pytest.mark.parametrize("name", NOTHING_TO_DO)
def test_files_with_nothing_to_do(name: str) -> None:
    nothing = migrated(NOTHING_TO_DO[name])
    assert nothing.after is None
    assert nothing.problems == ()
    assert nothing.findings == ()


@pytest.mark.parametrize("name", UNREADABLE)
def test_files_that_cannot_be_read(name: str) -> None:
    unreadable = migrated(UNREADABLE[name])
    assert unreadable.after is None
    (problem,) = unreadable.problems
    assert problem.kind in (Trouble.READ, Trouble.PARSE)
    assert problem.place.path == "program.py"
    assert 1 <= problem.place.line <= len(split_lines(UNREADABLE[name]))
    assert problem.message
    assert "\n" not in problem.message
    assert problem.legacy


def test_a_file_that_would_end_the_process_is_only_reported(tmp_path: Path) -> None:
    deep = tmp_path / "deep.py"
    deep.write_bytes(FAR_TOO_DEEP)
    code = (
        "import pathlib, sys\n"
        "from neuronmigrate.config import Settings\n"
        "from neuronmigrate.engine import migrate\n"
        "from neuronmigrate.project import Project\n"
        "raw = pathlib.Path(sys.argv[1]).read_bytes()\n"
        "result = migrate('deep.py', raw, Project.empty(), Settings())\n"
        "print([problem.kind.value for problem in result.problems], result.after)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(deep)],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "['parse'] None\n")
