"""The recorder, as the one file that is copied to another machine."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from neuronmigrate.parity import recorder
from neuronmigrate.parity.comparing import compare
from neuronmigrate.parity.comparison import Status
from neuronmigrate.parity.recording import Recording, read
from neuronmigrate.parity.running import RECORDER
from tests.parity.recordings import Written, written
from tests.parity.scripts import TRAIN


def _record(script: str, folder: Path, *options: str, code: int = 0) -> Recording:
    """Record a text with the copied file in a process that cannot see this package."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(script, "utf-8")
    (folder / "recorder.py").write_bytes(RECORDER.read_bytes())
    command = [sys.executable, "recorder.py", "--out", "out", *options, "script.py", "an argument"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return read(folder / "out")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return _record(TRAIN, tmp_path_factory.mktemp("trained"))


def test_it_is_one_file_of_old_python() -> None:
    tree = ast.parse(RECORDER.read_bytes(), feature_version=(3, 8))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level
            imported.add(node.module.partition(".")[0])
    assert imported - sys.stdlib_module_names == {"torch"}


def test_a_training_loop_is_recorded(trained: Recording) -> None:
    rank = trained.first
    assert trained.complete
    assert not rank.notes
    assert rank.head["arguments"] == ["an argument"]
    counts = Counter(quantity for quantity, *_ in rank.by_key)
    assert counts["loss"] == counts["learning rate"] == counts["gradient norm"] == 6
    assert counts["norm before clipping"] == 6
    # Three steps of four parameters in full, and their last values.
    assert counts["gradient"] == 12
    assert counts["weight"] == 16
    assert counts["saved"] == 4
    assert counts["batch"] == 12
    assert counts["output"] == 3
    assert counts["inner output"] == 9
    events = Counter(str(event["event"]) for event in rank.events)
    assert events == {
        "seed": 1,
        "data": 2,
        "model": 1,
        "clip": 6,
        "optimizer step": 6,
        "epoch": 2,
        "save": 1,
    }
    losses = rank.by_key["result", "losses", "", ""].fields["value"]
    recorded = [value.fields["value"] for value in rank.values if value.quantity == "loss"]
    assert losses == recorded
    saved = rank.by_key["saved", "save 0", "0", "model.0.weight"].tensor()
    assert torch.equal(saved, rank.by_key["weight", "Sequential#0/0.weight", "end", ""].tensor())


def test_recording_changes_nothing_and_is_the_same_each_time(trained: Recording, tmp_path: Path) -> None:
    again = _record(TRAIN, tmp_path / "again")
    assert compare(trained, again).status is Status.EQUAL
    (tmp_path / "script.py").write_text(TRAIN + "print(losses)\n", "utf-8")
    plain = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(plain.stdout) == trained.first.by_key["result", "losses", "", ""].fields["value"]


def test_a_script_that_fails(tmp_path: Path) -> None:
    found = _record("import torch\ntorch.manual_seed(0)\nraise KeyError('x')\n", tmp_path, code=1)
    assert not found.complete
    assert found.first.error == "KeyError: 'x'"
    done = subprocess.run(
        [sys.executable, "recorder.py", "--out", "out", "script.py"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 2
    assert b"holds a recording" in done.stderr


def test_a_run_is_resumed(tmp_path: Path) -> None:
    first = "import torch\nmodel = torch.nn.Linear(2, 1)\n"
    first += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    first += "model(torch.ones(1, 2)).sum().backward()\noptimizer.step()\n"
    _record(first, tmp_path)
    found = _record(first, tmp_path, "--resume")
    assert sorted(path.name for path in (tmp_path / "out").glob("*.jsonl")) == [
        "rank0.run0.jsonl",
        "rank0.run1.jsonl",
    ]
    steps = [event["step"] for event in found.first.events if event["event"] == "optimizer step"]
    assert steps == [0, 1]
    assert ("loss", "loss", "1", "") in found.first.by_key


def test_initial_weights_are_carried_over(trained: Recording, tmp_path: Path) -> None:
    other = TRAIN.replace("torch.manual_seed(0)\n", "").replace("data =", "torch.manual_seed(7)\ndata =")
    found = _record(other, tmp_path, "--initial", str(trained.folder))
    ours = [each for each in found.first.values if each.quantity == "initial weight"]
    assert ours
    for value in ours:
        assert value.fields["digest"] == trained.first.by_key[value.key].fields["digest"]


def test_large_tensors_are_sampled_and_the_whole_is_bounded(tmp_path: Path) -> None:
    def write(made: Written) -> None:
        made.tensor("output", "large", torch.arange(1000.0))
        made.tensor("logits", "rows", torch.rand(50, 40))
        for number in range(100):
            made.tensor("output", f"m{number}", torch.rand(64 * 1024))

    found = written(tmp_path / "a", write, elements=1 << 16, megabytes=1)
    sampled = written(tmp_path / "b", write, elements=100)
    assert sampled.first.by_key["output", "large", "0", ""].tensor().tolist() == list(range(0, 1000, 10))
    assert sampled.first.by_key["logits", "rows", "0", ""].tensor().shape == (2, 40)
    size = sum(path.stat().st_size for path in (tmp_path / "a").glob("*.safetensors"))
    assert size < 1 << 20
    kept = [value.kept for value in found.first.values]
    assert any(kept) and not all(kept)


@pytest.mark.parametrize("dtype", [*recorder.DTYPES])
def test_each_dtype_is_read_back(tmp_path: Path, dtype: str) -> None:
    kind = getattr(torch, dtype)
    value = torch.tensor([0, 1, 3], dtype=torch.int64).to(kind)
    found = written(tmp_path, lambda made: made.tensor("output", "m", value))
    read_back = found.first.by_key["output", "m", "0", ""].tensor()
    assert read_back.dtype is kind
    assert read_back.view(torch.uint8).equal(value.view(torch.uint8))


def test_padding_is_left_out(tmp_path: Path) -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    value = torch.arange(12.0).reshape(2, 3, 2)

    def write(made: Written) -> None:
        made.put("output", "m", "0", "", value, mask)

    row = written(tmp_path, write).first.by_key["output", "m", "0", ""]
    assert row.tensor().tolist() == [[0, 1], [2, 3], [6, 7]]
    assert row.fields["unpadded from"] == [2, 3, 2]


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("sum", "sum"),
        (torch.distributed.ReduceOp.SUM, "sum"),
        (torch.distributed.ReduceOp.AVG, "mean"),
        (torch.distributed.ReduceOp.PRODUCT, "product"),
        (torch.distributed.ReduceOp.MAX, "max"),
        ("mul", "product"),
    ],
)
def test_reductions_have_one_name(op: object, name: str) -> None:
    assert recorder.op_name(op) == name


COMPILED = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
x = torch.randn(4, 8)
plain = model(x)
compiled = torch.compile(model, backend="eager", fullgraph=True)(x)
model.compile(backend="eager", fullgraph=True)
in_place = model(x)
traced = torch.jit.trace(torch.nn.Linear(8, 4), x)(x)
"""


@pytest.mark.nightly
def test_graphs_are_seen_from_outside(tmp_path: Path) -> None:
    """Compiled models count as what they were made of, and nothing is recorded while a graph is made."""
    rank = _record(COMPILED, tmp_path).first
    outputs = [key for key in rank.by_key if key[0] == "output"]
    assert [(name, call) for _, name, call, _ in outputs] == [
        ("Sequential#0", "train 0"),
        ("Sequential#0", "train 1"),
        ("Sequential#0", "train 2"),
        ("Linear#0", "train 0"),
    ]
    inside = {call for quantity, _, call, _ in rank.by_key if quantity == "inner output"}
    assert inside == {"train 0"}
    assert not rank.notes
