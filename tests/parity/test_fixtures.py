"""Parity proven on ourselves: the fixtures that can run, as both sides and against committed recordings.

A few run every day, all of them in the nightly tier.
"""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file

from neuronmigrate import catalogue
from neuronmigrate.parity import running
from neuronmigrate.parity.comparing import compare
from neuronmigrate.parity.comparison import Comparison, Status
from neuronmigrate.parity.recording import Recording, read
from neuronmigrate.parity.tolerance import BY_DTYPE, Policy
from neuronmigrate.report import comparison as printed
from neuronmigrate.report.data import numerics
from neuronmigrate.runtime.legacy import finder
from tests.fixtures_lib import FOLDER, Case, cases, result_of
from tests.oracle.cases import CASES, FIXTURES
from tests.oracle.cases import Case as Oracle
from tests.oracle.record import save_model
from tests.parity.recordings import Written, written
from tests.tiny_models import save_classifier

NO_OLD_SIDE = {
    "decoders/forward": "a direct call of a compiled decoder has no stand-in",
    "decoders/families": "its stand-in feeds no streamer, so its thread is waited for in vain",
    "diffusion/runs": "the stand-in refuses a height that the release ignored",
    "export_api/runs": "it asks for export functions, which have no stand-in",
    "pipelines/runs": "Transformers 5 has no question answering pipeline",
    "sentence_encoders/run": "it takes names of several releases",
    "seq2seq/run": "scores have no stand-in",
    "spawned_processes/torchrun": "it reduces in a process group that torch_xla made",
    "rendezvous/exchange": "xm.xla_rendezvous has no stand-in",
    "traced_models/derived": "its stand-in wants token_type_ids, which the call leaves out",
    "traced_models/frozen": "it loads an export that a stand-in does not write",
    "vision_models/run": "it loads an export that a stand-in does not write",
}
"""Old sides that cannot run on stand-ins here, and why."""
DAILY = {"step_closures/training", "optimizer_step/torchrun"}
_RELEASE = re.compile(r"^# written for optimum-neuron ([\d.]+)", re.MULTILINE)


def _id(case: Case) -> str:
    return case.id.removesuffix(".before")


def _has_stand_ins(case: Case) -> bool:
    """Whether all legacy modules that an old side imports have one (docs/legacy.md names those without)."""
    imported = [
        name
        for node in ast.walk(ast.parse(case.source.read_bytes()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    ]
    return all(finder.has_stand_in(name) for name in imported if catalogue.is_legacy(name))


BOTH = [
    pytest.param(each, id=_id(each), marks=() if _id(each) in DAILY else pytest.mark.nightly)
    for each in cases("before")
    if each.processes and _id(each) not in NO_OLD_SIDE and _has_stand_ins(each)
]


def _told(found: Comparison) -> str:
    return "\n".join("".join(piece for piece, _ in line) for line in printed.text([found]))


@pytest.mark.parametrize("case", BOTH)
def test_the_after_side_computes_what_the_old_side_does(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    release = _RELEASE.search(case.source.read_text("utf-8"))
    pair = running.Pair(
        case.source,
        case.after,
        devices=case.processes,
        release=release[1] if release else None,
        numerics=frozenset(numerics(result_of(case))) - {"same"},
        legacy=True,
        timeout=1800,
    )
    found = running.run(pair)
    assert found.status.fine, _told(found)


def test_every_fixture_without_an_old_side_is_one() -> None:
    assert NO_OLD_SIDE.keys() <= {_id(each) for each in cases("before") if each.processes}


RECORDED = [
    pytest.param(
        case,
        id=f"{case.kind}-{case.name}",
        marks=() if case.before == "lazy_step/training.before.py" else pytest.mark.nightly,
    )
    for case in CASES
]


def _of_oracle(case: Oracle, folder: Path) -> Recording:
    """What was kept of the old side in its own environment: its global names."""
    content = json.loads(case.recording.read_text("utf-8"))
    tensors = load_file(case.recording.with_suffix(".safetensors")) if content["tensors"] else {}

    def write(made: Written) -> None:
        for name, value in content["values"].items():
            if name not in case.left_out and not (isinstance(value, str) and "{folder}" in value):
                made.store.line(kind="result", name=name, step=0, value=value)
        for name, tensor in tensors.items():
            if name not in case.left_out:
                made.tensor("result", name, tensor, "end")

    return written(folder, write, {**running.ALIGNED.orders(folder), "world": case.processes})


@pytest.mark.parametrize("case", RECORDED)
def test_the_after_side_computes_what_was_recorded(
    case: Oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    if case.model:
        monkeypatch.setenv("MODEL_DIR", str(save_model(case, tmp_path / "model")))
    choices = running.Choices(seed=0, dropout="replay", order="replay")
    arguments = [each.format(folder=tmp_path / "written") for each in case.arguments]
    script = FIXTURES / case.after
    out = tmp_path / "after"
    code = running.record([str(script), *arguments], out, choices, devices=case.processes, cwd=tmp_path)
    assert code == 0
    factor = max(case.relative, case.absolute) / BY_DTYPE["float32"]
    found = compare(_of_oracle(case, tmp_path / "before"), read(out), Policy(factor=max(1.0, factor)))
    rows = [row for row in found.rows if row.quantity == "result"]
    judged = [row for row in rows if row.status is not Status.NOT_COMPARABLE]
    assert judged, "nothing to compare"
    assert all(row.status.fine for row in judged), _told(found)


@pytest.mark.nightly
@pytest.mark.parametrize("devices", [1, 2])
def test_the_training_project(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = FOLDER / "scripts" / "mnist_torchrun"
    found = running.run(
        running.Pair(
            folder / "before" / "train.py",
            folder / "after" / "train.py",
            ("--epochs", "1", "--output", "checkpoints"),
            devices=devices,
        )
    )
    assert found.status.fine, _told(found)
    assert {"loss", "gradient", "saved", "batch", "weight"} <= found.by_quantity().keys()
    reductions = [event for event in found.events if event.event == "reduction"]
    assert not reductions


@pytest.mark.nightly
def test_the_launched_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    folder = FOLDER / "scripts" / "pair_25"
    pair = running.Pair(
        folder / "before" / "train.py", folder / "after" / "train.py", ("--steps", "2"), devices=2
    )
    found = running.run(pair)
    assert found.status is Status.EQUAL, _told(found)
    assert {"loss", "gradient", "weight"} <= found.by_quantity().keys()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("project", "script", "arguments"),
    [
        ("classify", "classify.py", ("a fine film", "this long film was dull")),
        ("sentiment_service", "app.py", ("--once", "a fine film", "good")),
    ],
)
def test_the_projects_of_a_classifier(
    project: str, script: str, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("MODEL_DIR", str(save_classifier(tmp_path / "model")))
    folder = FOLDER / "scripts" / project
    release = "0.0.28" if project == "sentiment_service" else None
    pair = running.Pair(
        folder / "before" / script,
        folder / "after" / script,
        arguments,
        devices=1,
        release=release,
        # The compiler cast matrix products to bfloat16; the migrated side holds bfloat16 weights.
        numerics=frozenset(["dtype"] if release else []),
    )
    found = running.run(pair)
    assert found.status.fine, _told(found)


TRAINING = {
    "accelerate_loop": (
        "train.py",
        "0.4.5",
        ("--model_name_or_path", "{model}", "--output_dir", "out"),
    ),
    "finetune_classifier": (
        "train.py",
        "0.4.5",
        ("--model_id", "{model}", "--output_dir", "out"),
    ),
}
"""Training projects whose old sides run here: script, release, arguments."""
DIVERGES = {
    # The classifiers of Transformers 5 take num_items_in_batch and return the mean all the same. Its Trainer
    # then divides by nothing, and the gradients of the two micro-batches are summed.
    "finetune_classifier": "loss",
}
"""Those that diverge, and the quantity that does first."""
ELSEWHERE = {"mnist_torchrun", "classify", "pair_25", "sentiment_service"}
NO_OLD_PROJECT = {
    "chat": "0.3.0 ignored repetition_penalty, which the new side follows",
    "orpo": "it needs trl of that time; its committed recording is compared",
    "poster_service": "it loads exports with adapters by id, which have no stand-in",
    "sft_lora": "its stand-in has no fused gate_up_proj, so fewer adapters learn",
    "text_and_speech": "a translator of random weights writes other tokens in bfloat16",
    "traced_embedder": "it takes two scripts, and no numbers are recorded of files",
    "train_language_model": "Transformers 5 has no --overwrite_output_dir",
    "train_over_files": "its optimizer held bfloat16, as ZeRO-1 did by default",
    "weighted_loss": "Transformers 5 has no evaluation_strategy",
}
"""Projects whose two sides are not compared here, and why; test_training_scripts and test_scripts hold most
of their new sides against plain code."""


@pytest.mark.nightly
@pytest.mark.parametrize("project", TRAINING)
def test_the_training_projects(project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = save_classifier(tmp_path / "model")
    script, release, arguments = TRAINING[project]
    folder = FOLDER / "scripts" / project
    pair = running.Pair(
        folder / "before" / script,
        folder / "after" / script,
        tuple(each.format(model=model) for each in arguments),
        devices=1,
        release=release,
        legacy=True,
        timeout=1800,
    )
    found = running.run(pair)
    assert {"loss", "gradient", "weight", "learning rate"} <= found.by_quantity().keys()
    if project in DIVERGES:
        assert found.status is Status.DIVERGED, _told(found)
        assert found.divergence is not None
        assert found.divergence.quantity == DIVERGES[project], _told(found)
    else:
        assert found.status.fine, _told(found)


def test_every_project_is_compared_or_named() -> None:
    projects = {each.name for each in (FOLDER / "scripts").iterdir() if each.is_dir()}
    assert projects == TRAINING.keys() | ELSEWHERE | NO_OLD_PROJECT.keys()
    assert DIVERGES.keys() <= TRAINING.keys()
