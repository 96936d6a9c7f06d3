"""The after sides of `fixtures/scripts`, by `neuronmigrate run`: they end well, and say what they computed.

What they compute is held against plain code in tests/test_scripts.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures_lib import FOLDER
from tests.runtime.running import run
from tests.tiny_models import save_classifier

SCRIPTS = FOLDER / "scripts"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("model"))


def test_classify(model_dir: Path) -> None:
    done = run(
        SCRIPTS / "classify" / "after" / "classify.py", "a fine film", env={"MODEL_DIR": str(model_dir)}
    )
    assert done.returncode == 0, done.stderr
    label, score, text = done.stdout.strip().split(maxsplit=2)
    assert label in ("NEGATIVE", "POSITIVE")
    assert 0.5 <= float(score) <= 1
    assert text == "a fine film"
    assert "emulated (CPU)" in done.stderr


def test_sentiment_service(model_dir: Path) -> None:
    folder = SCRIPTS / "sentiment_service" / "after"
    done = run(folder / "app.py", "--once", "a fine film", "good", env={"MODEL_DIR": str(model_dir)})
    assert done.returncode == 0, done.stderr
    assert {answer["label"] for answer in json.loads(done.stdout)} <= {"NEGATIVE", "POSITIVE"}


def test_mnist_torchrun(tmp_path: Path) -> None:
    folder = SCRIPTS / "mnist_torchrun" / "after"
    done = run(folder / "train.py", "--epochs", "1", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("epoch 0: loss ")
    assert (tmp_path / "digits.pt").exists()


def test_every_project_is_run() -> None:
    run_here = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {folder.name for folder in SCRIPTS.iterdir() if folder.name[0] != "."} <= run_here
