"""The whole projects in `fixtures/scripts`: rewritten as projects, then run on a CPU.

`UPDATE_FIXTURES=1` writes the after sides anew.
"""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from neuronmigrate import files, run
from neuronmigrate.config import Settings
from neuronmigrate.plan import Report, State
from tests.fixtures_lib import FOLDER, run_of
from tests.on_cpu import run_on_cpu
from tests.tiny_models import save_classifier, save_llama, save_rows

SCRIPTS = sorted(each for each in (FOLDER / "scripts").iterdir() if each.is_dir() and each.name[0] != ".")


def _report(folder: Path) -> Report:
    return run.run(files.discover([folder], Settings(), root=folder), Settings(), run.engine())


def _name(folder: Path) -> str:
    return folder.name


@pytest.mark.parametrize("script", SCRIPTS, ids=_name)
def test_after_side(script: Path, tmp_path: Path) -> None:
    before = tmp_path / "project"
    shutil.copytree(script / "before", before)
    report = _report(before)
    assert not report.problems
    for result in report.results:
        if result.after is not None:
            (before / result.path).write_bytes(result.after)
    if os.environ.get("UPDATE_FIXTURES"):
        shutil.copytree(before, script / "after", dirs_exist_ok=True)
    expected = {path.name: path.read_bytes() for path in (script / "after").iterdir()}
    assert {path.name: path.read_bytes() for path in before.iterdir()} == expected
    again = _report(before)
    assert not any(result.changed for result in again.results)
    assert not [each for each in again.findings if each.state in (State.FIXED, State.REVIEW)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("model"))


def _plain_scores(folder: Path, texts: list[str], dtype: str) -> list[list[float]]:
    """Class probabilities of texts one by one, by plain code written by hand."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=getattr(torch, dtype))
    with torch.inference_mode():
        return [
            model(**tokenizer(text, return_tensors="pt")).logits.float().softmax(-1)[0].tolist()
            for text in texts
        ]


def test_the_classifier_computes_what_plain_code_does(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["a fine film", "this long film was dull"]
    monkeypatch.setenv("MODEL_DIR", str(model_dir))
    ran = run_of(FOLDER / "scripts" / "classify" / "after" / "classify.py", 1, tuple(texts))
    scores = ran.values["scores"]
    assert isinstance(scores, list)
    # Sums of float32 are taken in another order when another number of threads is free.
    for row, plain in zip(scores, _plain_scores(model_dir, texts, "float32"), strict=True):
        assert row == pytest.approx(plain, rel=1e-5)


def test_the_service_computes_what_plain_code_does(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a fine film", "this long film was dull", "good"]
    monkeypatch.setenv("MODEL_DIR", str(model_dir))
    folder = FOLDER / "scripts" / "sentiment_service" / "after"
    ran = run_of(folder / "app.py", 1, ("--once", *texts))
    answers = json.loads(ran.stdout)
    # The legacy compiler cast to bfloat16, so the weights are bfloat16 now; the padding is the script's own.
    for answer, row in zip(answers, _plain_scores(model_dir, texts, "bfloat16"), strict=True):
        assert answer["score"] == pytest.approx(max(row), abs=2e-2)
        assert answer["label"] == ("NEGATIVE" if row[0] > row[1] else "POSITIVE")


def test_the_traced_service_computes_what_plain_code_does(
    model_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What the one script saves the other one loads, in a class of a third file."""
    texts = ["a fine film", "this long film was dull", "good"]
    folder = FOLDER / "scripts" / "traced_embedder"
    env = {"MODEL_DIR": str(model_dir), "COMPILED_DIR": str(tmp_path)}
    run_on_cpu(folder / "after" / "compile_model.py", env=env)
    assert (tmp_path / "embedder.pt").exists()
    served = json.loads(run_on_cpu(folder / "after" / "serve.py", *texts, env=env).stdout)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["plain.py", str(model_dir), *texts])
    runpy.run_path(str(folder / "plain.py"))
    plain = json.loads(capsys.readouterr().out)
    for row, expected in zip(served, plain, strict=True):
        assert row == pytest.approx(expected, abs=1e-5)


def test_the_training_loop_computes_what_plain_code_does(tmp_path: Path) -> None:
    import torch

    folder = FOLDER / "scripts" / "mnist_torchrun" / "after"
    ran = run_on_cpu(folder / "train.py", "--epochs", "1", "--output", str(tmp_path), cwd=folder)
    assert ran.values["losses"] == pytest.approx(_plain_losses(folder), rel=1e-4)
    assert set(torch.load(tmp_path / "digits.pt", weights_only=True)) >= {"layers.0.weight"}


def _plain_losses(folder: Path) -> list[float]:
    """One epoch of the same training, by plain code written by hand, on the same data and weights."""
    code = """
import torch
from digits import load_digits
from network import Network
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

torch.manual_seed(0)
digits = load_digits("")
sampler = DistributedSampler(digits, num_replicas=1, rank=0, seed=0, drop_last=True)
model = Network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for images, labels in DataLoader(digits, batch_size=32, sampler=sampler, drop_last=True):
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, check=True, capture_output=True, text=True
    )
    return [float(line) for line in done.stdout.split()]


@pytest.fixture(scope="module")
def llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


def _plain_of(name: str, *given: Path) -> list[float]:
    """The losses that the hand-written plain script of a project prints."""
    ran = run_on_cpu(FOLDER / "scripts" / name / "plain.py", *map(str, given))
    return [float(line) for line in ran.stdout.split()]


def test_the_adapters_learn_what_plain_code_does(llama_dir: Path, tmp_path: Path) -> None:
    folder = FOLDER / "scripts" / "sft_lora" / "after"
    options = "--num_train_epochs 3 --per_device_train_batch_size 4 --learning_rate 1e-3 --logging_steps 1"
    ran = run_on_cpu(
        folder / "finetune.py",
        *("--model_id", str(llama_dir), "--output_dir", str(tmp_path / "adapters")),
        *options.split(),
        *("--save_strategy", "no", "--report_to", "none"),
        cwd=folder,
        env={"HF_DATASETS_CACHE": str(tmp_path / "cache")},
    )
    assert ran.values["losses"] == pytest.approx(_plain_of("sft_lora", llama_dir), rel=1e-4)
    assert (tmp_path / "adapters" / "adapter_model.safetensors").exists()


def test_the_accelerated_loop_computes_what_plain_code_does(model_dir: Path, tmp_path: Path) -> None:
    folder = FOLDER / "scripts" / "accelerate_loop" / "after"
    ran = run_on_cpu(
        folder / "train.py",
        *("--model_name_or_path", str(model_dir), "--output_dir", str(tmp_path / "out")),
        cwd=folder,
    )
    assert ran.values["losses"] == pytest.approx(_plain_of("accelerate_loop", model_dir), rel=1e-4)
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_preferences_are_learnt_as_plain_code_does(llama_dir: Path, tmp_path: Path) -> None:
    folder = FOLDER / "scripts" / "orpo" / "after"
    ran = run_on_cpu(
        folder / "align.py", "--model_id", str(llama_dir), "--output_dir", str(tmp_path / "out"), cwd=folder
    )
    assert ran.values["losses"] == pytest.approx(_plain_of("orpo", llama_dir), rel=1e-4)


def test_two_files_train_as_plain_code_does(tmp_path: Path) -> None:
    model = save_llama(tmp_path / "meta-llama" / "Llama-3.2-1B")
    rows = save_rows(tmp_path / "rows")
    options = "--output_dir out --per_device_train_batch_size 2 --gradient_accumulation_steps 4 --max_steps 4"
    run_on_cpu(
        FOLDER / "scripts" / "train_over_files" / "after" / "main.py",
        *f"{options} --learning_rate 1e-3 --logging_steps 1 --save_steps 4 --report_to none".split(),
        cwd=tmp_path,
    )
    state = json.loads((tmp_path / "out" / "checkpoint-4" / "trainer_state.json").read_text("utf-8"))
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    assert losses == pytest.approx(_plain_of("train_over_files", model, rows), rel=1e-4)
