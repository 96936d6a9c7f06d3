"""Each fixture is rewritten exactly as its after side says, once and for all, and nothing else is.

`UPDATE_FIXTURES=1` writes the after sides and the reports anew; read the difference before you commit it.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import libcst as cst
import pytest

from neuronmigrate.plan import State
from neuronmigrate.report.diff import patch
from tests.fixtures_lib import Case, cases, report_of, result_of, rewritten, run_of
from tests.on_cpu import run_on_cpu

UPDATE = bool(os.environ.get("UPDATE_FIXTURES"))
BEFORE = cases("before")
KEEP = cases("keep")
RUNS = [case for case in BEFORE if case.processes]


def _id(case: Case) -> str:
    return case.id


def _as_is(text: bytes) -> bytes:
    return text


def _crlf(text: bytes) -> bytes:
    return text.replace(b"\n", b"\r\n")


def _no_final_newline(text: bytes) -> bytes:
    return text.removesuffix(b"\n")


VARIANTS = [_as_is, _crlf, _no_final_newline]


def _compare(path: Path, actual: bytes) -> None:
    """The file holds these bytes; with the switch set, from now on."""
    if UPDATE:
        if actual:
            path.write_bytes(actual)
        else:
            path.unlink(missing_ok=True)
    expected = path.read_bytes() if path.exists() else b""
    assert actual.decode("utf-8") == expected.decode("utf-8")


@pytest.mark.parametrize("case", BEFORE, ids=_id)
def test_after_side(case: Case) -> None:
    result = result_of(case)
    assert not result.problems
    assert result.after is not None
    ast.parse(result.after)
    _compare(case.after, result.after)


@pytest.mark.parametrize("case", BEFORE + KEEP, ids=_id)
def test_report(case: Case) -> None:
    _compare(case.report, report_of(result_of(case)).encode("utf-8"))


@pytest.mark.parametrize("case", KEEP, ids=_id)
def test_look_alikes_stay(case: Case) -> None:
    result = result_of(case)
    assert not result.problems
    assert result.after is None, "a look-alike was changed"
    states = {finding.state for finding in result.findings}
    assert states <= {State.NOTE}, "a look-alike was taken for the real thing"


@pytest.mark.parametrize("case", BEFORE, ids=_id)
def test_second_run_changes_nothing(case: Case) -> None:
    after = result_of(case).after
    assert after is not None
    again = rewritten(after)
    assert not again.problems
    assert again.after is None
    assert not [finding for finding in again.findings if finding.state in (State.FIXED, State.REVIEW)]


@pytest.mark.parametrize("case", BEFORE + KEEP, ids=_id)
def test_parsing_loses_nothing(case: Case) -> None:
    raw = case.source.read_bytes()
    assert cst.parse_module(raw).bytes == raw


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__.strip("_"))
@pytest.mark.parametrize("case", BEFORE, ids=_id)
def test_patch_applies(case: Case, variant: Callable[[bytes], bytes], tmp_path: Path) -> None:
    result = rewritten(variant(case.source.read_bytes()))
    assert not result.problems
    expected = result_of(case).after
    assert expected is not None
    # A line that comes to stand last because the one below it went keeps its newline.
    assert result.after in (variant(expected), expected)
    script = tmp_path / result.path
    script.write_bytes(result.before)
    lines = b"".join(patch([result]))
    subprocess.run(["git", "apply", "--check", "-"], input=lines, cwd=tmp_path, check=True)
    subprocess.run(["patch", "-p1", "--silent"], input=lines, cwd=tmp_path, check=True)
    assert script.read_bytes() == result.after


@pytest.mark.parametrize("case", RUNS, ids=_id)
def test_after_side_computes_what_plain_code_does(case: Case) -> None:
    ran = run_of(case.after, case.processes)
    plain = run_on_cpu(case.plain, processes=case.processes)
    # Only one process of several may print: the others' text would come in between.
    assert ran.stdout == plain.stdout
    assert ran.stdout.strip()
    both = ran.values.keys() & plain.values.keys()
    assert both
    for name in sorted(both):
        _same(ran.values[name], plain.values[name], name)


def _same(ran: object, plain: object, where: str) -> None:
    """Equal, numbers as far as float32 keeps them: threads that are free change the order of sums."""
    import torch

    assert type(ran) is type(plain), where
    if isinstance(ran, torch.Tensor):
        torch.testing.assert_close(ran, plain, rtol=1e-4, atol=1e-5, msg=lambda text: f"{where}: {text}")
    elif isinstance(ran, float):
        assert ran == pytest.approx(plain, rel=1e-4, abs=1e-5), where
    elif isinstance(ran, dict) and isinstance(plain, dict):
        assert ran.keys() == plain.keys(), where
        for key in ran:
            _same(ran[key], plain[key], f"{where}[{key!r}]")
    elif isinstance(ran, (list, tuple)) and isinstance(plain, (list, tuple)):
        assert len(ran) == len(plain), where
        for number, (one, other) in enumerate(zip(ran, plain, strict=True)):
            _same(one, other, f"{where}[{number}]")
    else:
        assert ran == plain, where
