"""Strict mode, in processes of its own: it cannot be taken back either."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, sys, warnings

from neuronmigrate.runtime import activate

activation = activate(strict=True, quiet=True)

import torch

found = {}


def attempt(name, function):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            function()
            found[name] = [f"{w.category.__name__}: {w.message} ({w.filename}:{w.lineno})" for w in caught]
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"


def optimizer_before():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    weight = model.weight
    model.to("neuron")
    assert model.weight is not weight
    model(torch.ones(1, 2, device="neuron")).sum().backward()
    optimizer.step()


def optimizer_after():
    model = torch.nn.Linear(2, 2).to("neuron")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.bias.detach().cpu()
    model(torch.ones(1, 2, device="neuron")).sum().backward()
    optimizer.step()
    assert torch.equal(model.bias.detach().cpu(), before - 1)


def untied():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    model.to("neuron")
    assert model[1].weight is not model[0].weight


def in_place():
    for _ in range(3):
        torch.ones(2, dtype=torch.float64).to("neuron")


def after_fork():
    read, write = os.pipe()
    if os.fork() == 0:
        try:
            torch.ones(2, device="neuron")
        except Exception as error:
            os.write(write, type(error).__name__.encode())
        os._exit(0)
    os.wait()
    raise RuntimeError("child: " + os.read(read, 100).decode())


attempt("optimizer before", optimizer_before)
attempt("optimizer after", optimizer_after)
attempt("untied", untied)
attempt("generator", lambda: torch.Generator("neuron"))
attempt("cpu generator", lambda: torch.Generator().manual_seed(1))
attempt("float64 made", lambda: torch.ones(2, dtype=torch.float64, device="neuron"))
attempt("float64 moved", in_place)
attempt("float64 cast", lambda: torch.ones(2, device="neuron").double())
attempt("float64 asked for back", lambda: torch.ones(2, device="neuron").to("cpu", torch.float64))
attempt("int64", lambda: torch.arange(5).to("neuron") + 1)
attempt("wide int64", lambda: torch.tensor([2**31]).to("neuron"))
attempt("narrow int64", lambda: torch.tensor([2**31 - 1, -(2**31)]).to("neuron"))
attempt("fork", after_fork)
found["touched"] = [touch.part for touch in activation.touched]
found["selection"] = activation.selection.as_json()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    script = tmp_path_factory.mktemp("strict") / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def environment() -> dict[str, str]:
    import os

    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}


def test_parameters_are_replaced(found: dict[str, object]) -> None:
    assert str(found["optimizer before"]).startswith(
        "ReplacedParameters: 2 of 2 parameters of SGD were replaced"
    )
    assert found["optimizer after"] == []
    assert found["untied"] == []


def test_generators_are_refused(found: dict[str, object]) -> None:
    assert "draw on the CPU with torch.Generator()" in str(found["generator"])
    assert found["cpu generator"] == []


@pytest.mark.parametrize("case", ["float64 made", "float64 moved", "float64 cast", "wide int64"])
def test_wide_numbers_are_reported_once_a_line(case: str, found: dict[str, object]) -> None:
    reports = found[case]
    assert isinstance(reports, list) and len(reports) == 1
    assert reports[0].startswith("StrictWarning: torch.") and "64-bit types" in reports[0]
    assert "program.py:" in reports[0]


def test_what_fits_is_not_reported(found: dict[str, object]) -> None:
    assert found["int64"] == found["narrow int64"] == found["float64 asked for back"] == []


def test_forked_processes_are_refused(found: dict[str, object]) -> None:
    assert found["fork"] == "RuntimeError: child: ForkedProcess"


def test_it_says_so(found: dict[str, object]) -> None:
    touched, selection = found["touched"], found["selection"]
    assert isinstance(touched, list) and "torch.nn.modules.module.Module._apply" in touched
    assert isinstance(selection, dict) and selection["strict"] is True
