"""`neuronmigrate parity` as it is typed: what it runs, and how it exits."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from neuronmigrate import cli
from neuronmigrate.parity.recording import read
from neuronmigrate.parity.running import Pair, is_legacy, numerics_of, run
from tests.fixtures_lib import FOLDER
from tests.parity.scripts import REDUCE, TRAIN

LAZY = FOLDER / "lazy_step"


@pytest.fixture
def typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> TypedCommand:
    return TypedCommand(tmp_path, monkeypatch, capfd)


class TypedCommand:
    """Types command lines in a folder."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self.monkeypatch, self.captured = folder, monkeypatch, captured
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.chdir(folder)

    def __call__(self, *arguments: str | Path, code: int) -> tuple[str, str]:
        """What it printed to standard output and standard error."""
        self.monkeypatch.setattr(sys, "argv", ["neuronmigrate", "parity", *map(str, arguments)])
        found = cli.main()
        out, err = self.captured.readouterr()
        assert found == code, err
        return out, err


def _script(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_a_legacy_script_and_its_after_side(typed: TypedCommand) -> None:
    before, after = LAZY / "training.before.py", LAZY / "training.after.py"
    out, err = typed("run", "--before", before, "--after", after, "--keep", "kept", code=0)
    assert out.startswith("equal")
    assert "stub reference" in out
    assert "emulated (CPU)" in out
    assert "aligned: Python, numpy and torch seeded with 0" in out
    # What the scripts print is no part of the verdict.
    assert "42811232.0" in err and "42811232.0" not in out
    out, _ = typed("compare", "kept/before", "kept/after", "--output-format", "json", code=0)
    assert json.loads(out)[0]["status"] == "equal"


def test_another_learning_rate(typed: TypedCommand) -> None:
    before = _script(typed.folder, "before.py", TRAIN)
    after = _script(typed.folder, "after.py", TRAIN.replace("1e-2", "2e-2"))
    out, _ = typed("run", "--before", before, "--after", after, code=1)
    assert out.startswith("diverged  first at learning rate group 0 [0]")


def test_a_sum_for_a_mean_on_two_processes(typed: TypedCommand) -> None:
    before = _script(typed.folder, "before.py", REDUCE)
    after = _script(typed.folder, "after.py", REDUCE.replace("parameter.grad.div_(world)", "pass"))
    arguments = ("run", "--before", before, "--after", after, "--devices", "2")
    out, _ = typed(*arguments, "--output-format", "markdown", code=1)
    assert "| reduction, 2 times | 0 | 0 | mean of 5 gradients | sum of 5 gradients | diverged |" in out
    assert "| reduction, 2 times | 0 | 1 | mean of 5 gradients | sum of 5 gradients | diverged |" in out


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("        dist.all_reduce(parameter.grad)\n", "", "mean of 5 gradients against nothing"),
        ("if rank == 0:", "if True:", "save at step 2 on rank 1: nothing against"),
        ("rank + 1.0", "1.0", "first at input Linear#0.input [train 0] on rank 1"),
    ],
    ids=["lost reduction", "save on every rank", "the same share on every rank"],
)
def test_faults_of_two_processes(typed: TypedCommand, old: str, new: str, told: str) -> None:
    before = _script(typed.folder, "before.py", REDUCE)
    after = _script(typed.folder, "after.py", REDUCE.replace(old, new))
    out, _ = typed("run", "--before", before, "--after", after, "--devices", "2", code=1)
    assert told in out


FORKED = """\
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

def train(index):
    model = torch.nn.Linear(2, 1).to(xm.xla_device())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(torch.ones(4, 2), batch_size=2, num_workers=1):
        model(batch).sum().backward()
        xm.optimizer_step(optimizer)

if __name__ == "__main__":
    xmp.spawn(train, nprocs=2)
"""


@pytest.mark.nightly
def test_forked_processes_are_recorded_and_workers_of_loaders_are_not(typed: TypedCommand) -> None:
    script = _script(typed.folder, "forked.py", FORKED)
    typed("record", "--legacy", "--out", "out", script, code=0)
    found = read(typed.folder / "out")
    assert found.complete
    assert sorted(found.ranks) == [0, 1]
    for rank in found.ranks.values():
        reduced = [event for event in rank.events if event["event"] == "reduction"]
        assert [(event["op"], event["world"]) for event in reduced] == [("mean", 2), ("mean", 2)]


def test_pairs_of_the_configuration(typed: TypedCommand) -> None:
    _script(typed.folder, "before.py", "import torch\ntotal = torch.ones(3).sum().item()\n")
    _script(typed.folder, "after.py", "import torch\ntotal = torch.ones(4).sum().item()\n")
    table = "[[tool.neuronmigrate.parity.pairs]]\n"
    project = _script(
        typed.folder, "pyproject.toml", f'{table}before = "before.py"\nafter = "after.py"\ndevices = 1\n'
    )
    out, _ = typed("run", "--configured", code=1)
    assert "3.0 and 4.0" in out
    for content, message in (
        (f'{table}before = "before.py"\n', "pyproject.toml:1: after of a pair has to be a text"),
        (f'{table}before = "gone.py"\nafter = "after.py"\n', "gone.py: there is no such script"),
        (f'{table}before = "a"\nafter = "b"\nother = 1\n', "a pair has no key other"),
        ("[tool.neuronmigrate]\n", "has no pairs"),
    ):
        project.write_text(content)
        _, err = typed("run", "--configured", code=2)
        assert message in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "--before and --after: both are needed"),
        (("run", "--before", "gone.py", "--after", "gone.py"), "gone.py: there is no such script"),
        (("record", "--out", "out", "gone.py"), "gone.py: there is no such script"),
        (("record", "--out", ".", "script.py"), "holds something that is no recording"),
        (("record", "--out", "out", "--dropout", "x", "script.py"), "--dropout: x is none of"),
        (("compare", "gone", "gone"), "gone: there is no such recording"),
        (("compare", "gone", "gone", "--output-format", "x"), "x is none of text, json, markdown"),
        (("run", "--configured", "--before", "script.py"), "no scripts are named here"),
        (("run", "--configured", "--keep", "kept"), "--configured: --keep is not of use"),
        (
            ("run", "--before", "script.py", "--after", "script.py", "--data", "gone"),
            "gone: there is no such",
        ),
        (
            (
                "run",
                "--before",
                "script.py",
                "--after",
                "script.py",
                "--data",
                "script.py",
                "--data",
                "script.py",
            ),
            "another one is called script.py",
        ),
    ],
)
def test_what_cannot_be_done_is_told(typed: TypedCommand, arguments: tuple[str, ...], message: str) -> None:
    _script(typed.folder, "script.py", "import torch\n")
    _, err = typed(*arguments, code=2)
    assert message in err
    assert "Traceback" not in err


def test_the_recorder_is_printed(typed: TypedCommand) -> None:
    out, _ = typed("recorder", code=0)
    compile(out, "recorder.py", "exec")


def test_what_the_rewrite_declared(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    files = [
        {"path": "a/train.py", "numerics": ["same", "dtype"]},
        {"path": "b/other.py", "numerics": ["random"]},
    ]
    report.write_text(json.dumps({"root": str(tmp_path), "files": files}))
    assert numerics_of(report) == {"dtype", "random"}
    assert numerics_of(report, [tmp_path / "a"]) == {"dtype"}


def test_which_scripts_are_legacy(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    for text, legacy in (
        ("import torch_xla\n", True),
        ("from optimum.neuron import pipeline\n", True),
        ("import torch_neuronx\ntorch_neuronx.trace(f, x)\n", True),
        ("import torch\ntorch.neuron.synchronize()\n", False),
        ("print 'python 2'\n", False),
    ):
        script.write_text(text)
        assert is_legacy(script) is legacy, text


def test_a_side_that_fails_is_no_verdict(typed: TypedCommand) -> None:
    before = _script(typed.folder, "before.py", "import torch\nvalue = torch.ones(1)\n")
    after = _script(typed.folder, "after.py", 'import torch\nraise ValueError("no\\nlines")\n')
    found = run(Pair(before, after, devices=1))
    assert found.exit_code == 2
    assert "ended with rank 0: ValueError: no" in found.reason
    after.write_text("import torch, sys\nvalue = torch.ones(1)\nsys.exit(3)\n")
    found = run(Pair(before, after, devices=1))
    assert found.exit_code == 2
    assert "before.py ended with exit code 0" in found.reason and found.reason.endswith("with 3")


def test_files_that_are_read_by_relative_paths(typed: TypedCommand) -> None:
    script = _script(
        typed.folder, "script.py", 'import torch\nvalue = torch.tensor(float(open("rows").read()))\n'
    )
    _script(typed.folder, "rows", "3\n")
    out, _ = typed("run", "--before", script, "--after", script, code=2)
    assert "FileNotFoundError" in out and "--data NAME links" in out
    out, _ = typed("run", "--before", script, "--after", script, "--data", "rows", code=0)
    assert out.startswith("equal")


def test_a_side_that_does_not_end(typed: TypedCommand) -> None:
    before = _script(typed.folder, "before.py", "while True:\n    pass\n")
    after = _script(typed.folder, "after.py", "import torch\n")
    _, err = typed("run", "--before", before, "--after", after, "--timeout", "1", code=2)
    assert "before.py: is not over after 1 seconds" in err
