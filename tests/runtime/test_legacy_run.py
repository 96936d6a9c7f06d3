"""Running legacy scripts: what is said when one cannot run here, and at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronmigrate.runtime.legacy import LegacyProblem, explain
from neuronmigrate.runtime.legacy.releases import Release
from tests.runtime.legacy_scripts import run_legacy
from tests.runtime.legacy_session import begin


def test_a_name_without_a_stand_in_is_named(tmp_path: Path) -> None:
    script = tmp_path / "old.py"
    done = run_legacy(script, "import os\n\nfrom optimum.neuron.accelerate import NeuronPartialState\n")
    assert done.returncode == 2
    assert done.stdout == ""
    message, *rest = done.stderr.splitlines()
    assert message == (
        f"{script}:3: optimum.neuron.accelerate.NeuronPartialState is a legacy name without a stand-in: "
        "this script cannot run here. Record it where the real package is installed"
    )
    assert rest == ["legacy stand-ins: none was used"]


def test_packages_without_stand_ins_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    begin(monkeypatch)
    for name, why in (("neuronx_distributed", "split over"), ("torch_neuron", "Inf1")):
        message = explain(ModuleNotFoundError(f"No module named '{name}'", name=name))
        assert message is not None
        assert f"{name} is a legacy name without a stand-in (" in message
        assert why in message


def test_the_line_is_that_of_the_script(tmp_path: Path) -> None:
    text = """
from optimum.neuron import NeuronTrainingArguments

NeuronTrainingArguments("out", no_cuda=True)
"""
    done = run_legacy(tmp_path / "old.py", text, "--release", "0.3.0")
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"{tmp_path / 'old.py'}:4: TrainingArguments.no_cuda is not in transformers 5"
    )


def test_names_come_and_go_with_the_releases(tmp_path: Path) -> None:
    text = "from optimum.neuron import NeuronModelForSentenceTransformers\n"
    done = run_legacy(tmp_path / "old.py", text)
    assert done.returncode == 2
    assert "is not in optimum-neuron 0.4.5 (it is in 0.0.17 to 0.4.1" in done.stderr
    # A script that is prepared for it goes on.
    text = "try:\n    import neuronx_distributed\nexcept ImportError:\n    print('without')\n"
    done = run_legacy(tmp_path / "guarded.py", text)
    assert (done.returncode, done.stdout) == (0, "without\n")


def test_an_error_of_the_script_stays_one(tmp_path: Path) -> None:
    done = run_legacy(tmp_path / "wrong.py", "import json\n\njson.loads('{')\n")
    assert done.returncode == 1
    assert "JSONDecodeError" in done.stderr
    done = run_legacy(tmp_path / "leaves.py", "import sys\n\nsys.exit(7)\n")
    assert done.returncode == 7
    done = run_legacy(tmp_path / "any.py", "", "--release", "9.9")
    assert done.returncode == 2
    assert "optimum-neuron 9.9 is outside the releases known here" in done.stderr


def _raised(text: str) -> BaseException:
    try:
        exec(compile(text, "old.py", "exec"), {})
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_the_api_in_the_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With transformers 5.24 installed, code of the 4.x line meets what is gone."""
    session = begin(monkeypatch)
    text = "\nfrom transformers import TrainingArguments\nTrainingArguments('x', evaluation_strategy='no')\n"
    message = explain(_raised(text))
    assert message is not None
    assert message.startswith("old.py:3: TrainingArguments.evaluation_strategy is not in transformers 5.")
    assert "optimum-neuron 0.4.5 ran with transformers 4.57 and trl 0.24" in message
    message = explain(_raised("from transformers import is_torch_tpu_available"))
    assert message is not None
    assert message.startswith("old.py:1: transformers.is_torch_tpu_available is not in")
    message = explain(_raised("import transformers\ntransformers.TFBertModel\n"))
    assert message is not None
    assert "transformers.TFBertModel is not in transformers 5." in message
    text = "class NeuronTrainer:\n    def __init__(self): ...\nNeuronTrainer(tokenizer=None)\n"
    assert explain(_raised(text)) is None
    session.use("optimum.neuron.NeuronTrainer")
    message = explain(_raised(text))
    assert message == (
        "old.py:3: optimum.neuron.NeuronTrainer of optimum-neuron 0.4.5 has no argument tokenizer: "
        "choose the release that the script was written for with --from-version"
    )


def test_errors_of_the_script_are_not_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    begin(monkeypatch)
    for text in (
        "dict(1)",
        "def f(): pass\nf(a=1)",
        "import nowhere_to_be_found",
        "import json\njson.nothing",
        "int('x')",
        "''.nothing",
    ):
        assert explain(_raised(text)) is None, text
    assert explain(LegacyProblem("no such core")) == "the script: no such core"


def test_releases_know_what_they_ran_with() -> None:
    assert Release("0.4.5").pins == {"transformers": "4.57", "trl": "0.24"}
    assert Release("0.1.0").pins == {"transformers": "4.48", "trl": "0.11"}
    assert Release("0.0.28").has("0.0.17", "0.4.1")
    assert not Release("0.4.2").has("0.0.17", "0.4.1")
    assert not Release("0.4.5").has("main", "main")
    for wrong in ("latest", "0.5.0"):
        with pytest.raises(ValueError, match="optimum-neuron"):
            Release(wrong)


def test_the_session_is_plain_data(monkeypatch: pytest.MonkeyPatch) -> None:
    session = begin(monkeypatch)
    session.use("torch_xla.core.xla_model.mark_step")
    session.pending = 3
    session.step("mark_step")
    data = session.data()
    assert data["result"] == "stub reference"
    assert data["used"] == {"torch_xla.core.xla_model.mark_step": 1}
    steps = data["lazy_steps"]
    assert isinstance(steps, list)
    assert steps[0]["operations"] == 3
    assert steps[0]["place"].startswith("test_legacy_run.py:")
    assert "stub reference, not a run on Neuron hardware" in session.summary()[0]
