"""Traced models that one script saves and another one loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronmigrate.artefacts import from_traces
from neuronmigrate.plan import State
from tests.test_project import rewritten, write
from tests.texts import on_one_line

COMPILE = """\
import copy
import os

import torch
import torch_neuronx
from transformers import AutoModelForSequenceClassification as Auto

NAME = "a/b"
model = Auto.from_pretrained(NAME, torchscript=True)
model.eval()
traced = torch_neuronx.trace(copy.deepcopy(model), torch.ones(1, 8))
torch.jit.save(traced, os.path.join("models", "model.pt"))
"""
SERVE = """\
import torch
import torch_neuronx

model = torch.jit.load("models/model.pt")
print(model(torch.ones(1, 8))[0].argmax(-1))
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            COMPILE,
            (
                "models/model.pt",
                "transformers.AutoModelForSequenceClassification.from_pretrained('a/b', torchscript=True)",
                False,
            ),
        ),
        (
            "import torch_neuronx\nfrom nets import Net\ntorch_neuronx.trace(Net(), example).save('net.pt')",
            ("net.pt", "Net()", True),
        ),
        (
            "import torch, torch_neuronx\nnet = torch.nn.Linear(2, 3).eval()\n"
            "net = torch_neuronx.trace(func=net, example_inputs=x)\nnet.save('net.pt')",
            ("net.pt", "torch.nn.Linear(2, 3)", False),
        ),
        (
            "import torch, torch_neuronx\ndef f(size):\n    net = torch.nn.Linear(size, 3)\n"
            "    torch.jit.save(torch_neuronx.trace(net, x), 'net.pt')",
            ("net.pt", "torch.nn.Linear(size, 3)", True),
        ),
        ("import torch, torch_neuronx\ntorch.jit.save(torch.jit.trace(net, x), 'net.pt')", None),
        ("import torch_neuronx\ntorch_neuronx.trace(net, x).save(name)", ("*", "net", True)),
        (
            "import argparse, os, torch_neuronx\nfrom model import load\n"
            "parser = argparse.ArgumentParser()\nparser.add_argument('-w', '--weights', default='w.pt')\n"
            "args = parser.parse_args()\nFOLDER = os.environ.get('FOLDER', 'models')\n"
            "torch_neuronx.trace(load(args.weights), x).save(f'{FOLDER}/{args.name}.pt')",
            ("models/*.pt", "model.load('w.pt')", False),
        ),
        ("import torch_neuronx\ndef broken(:\n  save", None),
    ],
)
def test_what_a_script_says(text: str, expected: tuple[str, str, bool] | None) -> None:
    made = from_traces("a.py", text.encode(), {}, "a", ["a", "model"])
    found = [(each.folder, each.checkpoint, each.unseen) for each in made]
    assert found == ([expected] if expected else [])


def test_a_model_is_built_where_it_is_served(tmp_path: Path) -> None:
    write(tmp_path, {"compile.py": COMPILE, "serve.py": SERVE})
    report, after = rewritten(tmp_path)
    served = on_one_line(after["serve.py"])
    assert (
        "AutoModelForSequenceClassification.from_pretrained('a/b', return_dict=False, dtype=torch.float32)"
        in served
    )
    compiled = on_one_line(after["compile.py"])
    assert "Auto.from_pretrained(NAME, return_dict=False, dtype=torch.float32)" in compiled
    assert "with_weights(" in served and 'model(torch.ones(1, 8).to("neuron"))' in served
    load = next(each for each in report.findings if each.found == "torch.jit.load")
    assert load.state is State.REVIEW
    assert "compile.py:11" in load.todo


def test_a_file_that_loads_without_the_legacy_import(tmp_path: Path) -> None:
    served = SERVE.replace("import torch_neuronx\n", "# compiled for neuron\n")
    write(
        tmp_path, {"compile.py": COMPILE, "serve.py": served, "other.py": served.replace("model.pt", "x.pt")}
    )
    _, after = rewritten(tmp_path)
    assert "torch.jit.load" not in after["serve.py"]
    assert "other.py" not in after


def test_a_model_of_the_script_is_named_not_guessed(tmp_path: Path) -> None:
    local = COMPILE.replace("Auto.from_pretrained(NAME, torchscript=True)", "make(NAME)")
    write(tmp_path, {"compile.py": local, "serve.py": SERVE})
    report, after = rewritten(tmp_path)
    load = next(each for each in report.findings if each.found == "torch.jit.load")
    assert load.state is State.MARKED
    assert "compile.py:11 traces `make(NAME)`" in load.why
    assert "torch.jit.load" in after["serve.py"]


def test_two_scripts_that_save_different_models_under_one_name(tmp_path: Path) -> None:
    other = COMPILE.replace('"a/b"', '"c/d"')
    write(
        tmp_path,
        {"one/compile.py": COMPILE, "two/compile.py": other, "one/serve.py": SERVE, "serve.py": SERVE},
    )
    report, after = rewritten(tmp_path)
    assert "from_pretrained('a/b'" in on_one_line(after["one/serve.py"])
    states = {each.place.path: each.state for each in report.findings if each.found == "torch.jit.load"}
    assert states == {"one/serve.py": State.REVIEW, "serve.py": State.MARKED}


def test_a_trace_that_another_module_saves_and_spreads(tmp_path: Path) -> None:
    traced = "import torch_neuronx\n\n\ndef make(model, x):\n    return torch_neuronx.trace(model, x)\n"
    use = """\
import torch
import torch_neuronx
from traced import make

model = make(torch.nn.Linear(2, 2), torch.ones(1, 2))
torch.jit.save(model, "model.pt")
replicas = torch_neuronx.DataParallel(model, device_ids=[0, 1])
print(replicas(torch.ones(2, 2)))
"""
    write(tmp_path, {"traced.py": traced, "use.py": use})
    report, after = rewritten(tmp_path)
    assert "compile_behind_cpu(" in after["traced.py"], "its callers are not all of that module"
    assert 'torch.save(to_device(model.state_dict(), "cpu"), "model.pt")' in after["use.py"]
    assert "replicas = model\n" in after["use.py"]
    assert "print(replicas(torch.ones(2, 2)))" in after["use.py"]
    assert not [each for each in report.findings if each.state is State.MARKED]
