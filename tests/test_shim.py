"""With `--shim` the longer helpers are imported, exist there, and compute the same."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from neuronmigrate import runtime
from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.project import Project
from tests.fixtures_lib import FOLDER, cases, run_of
from tests.on_cpu import run_on_cpu

HELPERS = "neuronmigrate.runtime.helpers"
SHIMMED = Settings(shim=True)
OFFERED = {
    node.name
    for node in ast.parse((Path(runtime.__file__).parent / "helpers.py").read_text()).body
    if isinstance(node, (ast.FunctionDef, ast.ClassDef))
}


def _imported(raw: bytes) -> set[str]:
    return {
        alias.name
        for node in ast.walk(ast.parse(raw))
        if isinstance(node, ast.ImportFrom) and node.module == HELPERS
        for alias in node.names
    }


def test_what_is_imported_exists() -> None:
    imported: set[str] = set()
    for case in cases("before"):
        result = migrate("script.py", case.source.read_bytes(), Project.empty(), SHIMMED)
        assert not result.problems, case.source
        imported |= _imported(result.after or b"")
    assert imported <= OFFERED
    assert {"DeviceLoader", "gather_object", "reduce_gradients", "to_cpu"} <= imported


@pytest.mark.parametrize(
    "name",
    ["checkpoints/torchrun", "collectives/torchrun", "optimizer_step/torchrun", "rendezvous/exchange"],
)
def test_it_computes_the_same(name: str, tmp_path: Path) -> None:
    case = next(each for each in cases("before") if each.source == FOLDER / f"{name}.before.py")
    result = migrate("script.py", case.source.read_bytes(), Project.empty(), SHIMMED)
    assert result.after is not None and _imported(result.after)
    script = tmp_path / "script.py"
    script.write_bytes(result.after)
    root = str(Path(runtime.__file__).parents[2])
    ran = run_on_cpu(script, processes=case.processes, env={"PYTHONPATH": root})
    assert ran.stdout == run_of(case.after, case.processes).stdout
    assert ran.stdout.strip()
