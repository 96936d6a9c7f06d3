"""Migrated scripts against what their legacy sides computed in the environments of `tests/oracle`.

A recording belongs to one text of a script: when a fixture changes, it has to be recorded anew.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fixtures_lib import run_of
from tests.on_cpu import Completed
from tests.oracle.cases import CASES, FIXTURES, PAIRS, RECORDINGS, Case
from tests.oracle.record import digest, save_model

ALONE = [
    pytest.param(case, marks=pytest.mark.nightly if case.arguments else ())
    for case in CASES
    if case.kind == "xla" and case.processes == 1
]


def _id(case: Case) -> str:
    return f"{case.kind}-{case.name}"


@pytest.mark.parametrize("case", CASES, ids=_id)
def test_the_after_side_computes_what_the_legacy_side_did(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = json.loads(case.recording.read_text("utf-8"))
    assert recorded["sha256"] == digest(FIXTURES / case.before), "record this script anew"
    if case.model:
        model = save_model(case, tmp_path / "model")
        monkeypatch.setenv("MODEL_DIR", str(model))
        assert recorded["inputs"]["model.safetensors"] == digest(model / "model.safetensors")
    ran = _run(case, tmp_path)
    expected = _values(case, recorded)
    both = (ran.values.keys() & expected.keys()) - set(case.left_out)
    assert both, "nothing to compare"
    for name in sorted(both):
        assert _alike(ran.values[name], expected[name], case), (name, ran.values[name], expected[name])


@pytest.mark.parametrize("case", ALONE, ids=_id)
def test_the_stand_ins_compute_what_torch_xla_did(case: Case, tmp_path: Path) -> None:
    """The legacy side itself, on stand-ins: written without a look at the codemods, so two ways agree."""
    import torch

    kept = tmp_path / "values.pt"
    command = [sys.executable, str(RECORDINGS.parent / "keep.py"), "stand_ins", case.release, str(kept)]
    command += [str(FIXTURES / case.before), *(each.format(folder=tmp_path) for each in case.arguments)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "stub reference" in done.stderr
    values: dict[str, object] = torch.load(kept, weights_only=True)
    expected = _values(case, json.loads(case.recording.read_text("utf-8")))
    # The real device has a name of its own, and plain data are all that is kept.
    assert values.keys() >= expected.keys()
    for name, value in expected.items():
        if not (isinstance(value, str) and "{folder}" in value):
            assert _alike(values[name], value, case), (name, values[name], value)


def _run(case: Case, folder: Path) -> Completed:
    # A script that writes gets a folder of its own, the same one for all cases of that script.
    written = folder.parent / case.after.replace("/", "_")
    arguments = tuple(each.format(folder=written) for each in case.arguments)
    return run_of(FIXTURES / case.after, case.processes, arguments)


def _values(case: Case, recorded: Mapping[str, object]) -> dict[str, object]:
    from safetensors.torch import load_file

    values = recorded["values"]
    assert isinstance(values, dict)
    tensors = load_file(case.recording.with_suffix(".safetensors")) if recorded["tensors"] else {}
    return {**values, **tensors}


def _alike(ours: object, theirs: object, case: Case) -> bool:
    """Whether two values are equal, floats within the tolerance of the case."""
    import torch

    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return False
        return torch.allclose(ours, theirs, rtol=case.relative, atol=case.absolute)
    if isinstance(ours, torch.Tensor):
        ours = ours.tolist()
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(
            _alike(one, other, case) for one, other in zip(ours, theirs, strict=True)
        )
    if isinstance(ours, dict) and isinstance(theirs, dict):
        # JSON has no keys but texts.
        texts = {str(key): value for key, value in ours.items()}
        return texts.keys() == theirs.keys() and all(
            _alike(value, theirs[key], case) for key, value in texts.items()
        )
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=case.relative, abs_tol=case.absolute)
    return type(ours) is type(theirs) and ours == theirs


def test_each_recording_has_a_case() -> None:
    recordings = set(RECORDINGS.rglob("*.json"))
    assert recordings == {case.recording for case in (*CASES, *PAIRS)}


def test_a_difference_is_found() -> None:
    import torch

    case = CASES[0]
    assert not _alike([1.0, 2.0], [1.0, 2.001], case)
    assert not _alike(torch.ones(2), torch.ones(2, 1), case)
    assert not _alike({"a": 1}, {"a": True}, case)
    assert _alike({1: [1.0]}, {"1": [1.0 + 1e-7]}, case)
