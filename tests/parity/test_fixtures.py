"""Parity proven on ourselves: the fixtures that can run, as both sides and against committed recordings.

A few run every day, all of them in the nightly tier.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from safetensors.torch import load_file

from neuronmigrate import catalogue, files, run
from neuronmigrate.config import Settings
from neuronmigrate.parity import running
from neuronmigrate.parity.comparing import compare
from neuronmigrate.parity.comparison import Comparison, Status
from neuronmigrate.parity.recording import Recording, read
from neuronmigrate.parity.tolerance import BY_DTYPE, Policy
from neuronmigrate.plan import Report
from neuronmigrate.report import comparison as printed
from neuronmigrate.report.data import numerics
from neuronmigrate.runtime.legacy import finder
from tests.fixtures_lib import FOLDER, Case, cases, result_of
from tests.oracle.cases import CASES, FIXTURES, RECORDINGS, WHOLE
from tests.oracle.cases import Case as Oracle
from tests.oracle.record import CHOICES, save_model, sources
from tests.parity.recordings import Written, written
from tests.tiny_models import (
    WORDS,
    save_classifier,
    save_llama,
    save_recognizer,
    save_sentence_encoder,
    save_translator,
)

NO_OLD_SIDE = {
    "decoders/forward": "a direct call of a compiled decoder has no stand-in",
    "decoders/families": "its stand-in feeds no streamer, so its thread is waited for in vain",
    "diffusion/runs": "the stand-in refuses a height that the release ignored",
    "export_api/runs": "it asks for export functions, which have no stand-in",
    "pipelines/runs": "Transformers 5 has no question answering pipeline",
    "sentence_encoders/run": "it takes names of several releases",
    "seq2seq/run": "scores have no stand-in",
    "serial_executors/torchrun": "under torchrun its lock is each process's own, so any may come first",
    "spawned_processes/torchrun": "it reduces in a process group that torch_xla made",
    "traced_models/derived": "its stand-in wants token_type_ids, which the call leaves out",
    "traced_models/frozen": "it loads an export that a stand-in does not write",
    "vision_models/run": "it loads an export that a stand-in does not write",
}
"""Old sides that cannot run on stand-ins here, and why."""
NO_STAND_IN = {
    "optimizer_step/within": "neuronx_distributed",
    "parallel_checkpoints/shards": "neuronx_distributed",
    "parallel_checkpoints/torchrun": "neuronx_distributed",
    "parallel_helpers/gradients": "neuronx_distributed",
    "parallel_layers/pair_19": "neuronx_distributed",
    "parallel_layers/training": "neuronx_distributed",
    "parallel_regions/logprobs": "neuronx_distributed",
    "parallel_regions/torchrun": "neuronx_distributed",
    "parallel_state/messages": "neuronx_distributed",
    "parallel_state/stages": "neuronx_distributed",
    "parallel_trainer/passes": "neuronx_distributed",
    "parallel_trainer/training": "neuronx_distributed",
    "sharded_models/torchrun": "torch_xla.distributed.fsdp",
    "sharded_optimizers/tensor_parallel": "neuronx_distributed",
    "sharded_optimizers/torchrun": "torch_xla.distributed.zero_redundancy_optimizer",
}
"""Old sides that import what has no stand-in (docs/legacy.md), and what it is."""
DAILY = {"step_closures/training", "optimizer_step/torchrun"}
_RELEASE = re.compile(r"^# written for optimum-neuron ([\d.]+)", re.MULTILINE)


def _id(case: Case) -> str:
    return case.id.removesuffix(".before")


def _without_stand_in(case: Case) -> list[str]:
    """The legacy modules that an old side imports and that have none."""
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
    return [name for name in imported if catalogue.is_legacy(name) and not finder.has_stand_in(name)]


RUNNABLE = [case for case in cases("before") if case.processes]
BOTH = [
    pytest.param(each, id=_id(each), marks=() if _id(each) in DAILY else pytest.mark.nightly)
    for each in RUNNABLE
    if _id(each) not in NO_OLD_SIDE and _id(each) not in NO_STAND_IN
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
    assert NO_OLD_SIDE.keys() | NO_STAND_IN.keys() <= {_id(each) for each in RUNNABLE}
    assert not NO_OLD_SIDE.keys() & NO_STAND_IN.keys()
    for case in RUNNABLE:
        lacks = _without_stand_in(case)
        if _id(case) not in NO_OLD_SIDE:
            assert bool(lacks) == (_id(case) in NO_STAND_IN), (case.id, lacks)
        if _id(case) in NO_STAND_IN:
            assert all(name.startswith(NO_STAND_IN[_id(case)]) for name in lacks), (case.id, lacks)


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


@dataclass(frozen=True)
class Project:
    """A project whose two sides run here."""

    script: str
    arguments: tuple[str, ...] = ()
    release: str | None = None
    devices: int = 1
    models: Mapping[str, Callable[[Path], object]] = field(default_factory=dict)
    """What saves each folder that the script reads, by the path that it is known under."""
    files: tuple[str, ...] = ()
    """Files beside the script that it reads."""
    diverges: tuple[str, str] | None = None
    """The quantity that differs first, and a piece of the finding by which `rewrite` says so."""
    has: frozenset[str] = frozenset({"loss", "gradient", "weight"})
    """Quantities that have to be among those that are compared."""


_PROMPT = (*WORDS, "translate", "English", "to", "German:")


def _save_rows(folder: Path) -> None:
    from datasets import Dataset

    rows = [[(start + place) % 26 for place in range(8)] for start in range(8)]
    Dataset.from_list(
        [{"input_ids": row, "attention_mask": [1] * 8, "labels": row} for row in rows]
    ).save_to_disk(folder)


TRAINING = ("--logging_steps", "1", "--save_strategy", "no", "--report_to", "none", "--learning_rate", "1e-3")
READ = frozenset({"input", "logits", "result"})
PROJECTS = {
    "accelerate_loop": Project(
        "train.py",
        ("--model_name_or_path", "model", "--output_dir", "out"),
        "0.4.5",
        models={"model": save_classifier},
    ),
    "classify": Project(
        "classify.py", ("a fine film", "this long film was dull"), models={"model": save_classifier}, has=READ
    ),
    "finetune_classifier": Project(
        "train.py",
        ("--model_id", "model", "--output_dir", "out"),
        "0.4.5",
        models={"model": save_classifier},
    ),
    "mnist_torchrun": Project(
        "train.py",
        ("--epochs", "1", "--output", "checkpoints"),
        devices=2,
        has=frozenset({"loss", "gradient", "saved", "batch", "weight"}),
    ),
    "pair_25": Project("train.py", ("--steps", "2"), devices=2),
    "sentiment_service": Project(
        "app.py", ("--once", "a fine film", "good"), "0.0.28", models={"model": save_classifier}, has=READ
    ),
    "sft_lora": Project(
        "finetune.py",
        ("--model_id", "model", "--output_dir", "out", "--num_train_epochs", "3", *TRAINING),
        "0.4.3",
        models={"model": save_llama},
        files=("recipes.jsonl",),
        diverges=("batch", "padding counted in the loss, which was a fault"),
        has=frozenset({"loss", "batch"}),
    ),
    "text_and_speech": Project(
        "app.py",
        ("recognizer",),
        "0.4.5",
        models={
            "google-t5": lambda folder: save_translator(folder / "t5-small", _PROMPT, spread=0.7),
            "BAAI": lambda folder: save_sentence_encoder(folder / "bge-small-en-v1.5", _PROMPT),
            "recognizer": save_recognizer,
        },
        has=frozenset({"tokens", "output", "result"}),
    ),
    "train_over_files": Project(
        "main.py",
        ("--output_dir", "out", "--max_steps", "4", "--per_device_train_batch_size", "2", *TRAINING),
        "0.4.5",
        models={"meta-llama": lambda folder: save_llama(folder / "Llama-3.2-1B"), "rows": _save_rows},
        diverges=("loss", "is L/(L-1) times the old one"),
        has=frozenset({"loss", "batch"}),
    ),
}
RECORDED_WHOLE = {case.before.split("/")[1]: case for case in WHOLE}
NO_OLD_PROJECT = {
    "chat": "the old decoder fed no streamer, so that its second half is waited for in vain",
    "orpo": "it needs trl of that time; what its globals held there is compared above",
    "poster_service": "it loads exports with adapters by id, which have no stand-in",
    "traced_embedder": "it takes two scripts, and no numbers are recorded of files",
}
"""Projects whose two sides are not compared, and why."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", PROJECTS)
def test_the_projects(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    project = PROJECTS[name]
    data = tmp_path / "data"
    for path, save in project.models.items():
        save(data / path)
    monkeypatch.setenv("MODEL_DIR", "model")
    folder = FOLDER / "scripts" / name
    report = _rewritten(folder / "before")
    pair = running.Pair(
        folder / "before" / project.script,
        folder / "after" / project.script,
        project.arguments,
        devices=project.devices,
        release=project.release,
        numerics=frozenset(each for result in report.results for each in numerics(result)) - {"same"},
        legacy=True,
        timeout=1800,
        data=(
            *(data / each for each in project.models),
            *(folder / "before" / each for each in project.files),
        ),
    )
    found = running.run(pair)
    assert project.has <= found.by_quantity().keys()
    if project.diverges is None:
        assert found.status.fine, _told(found)
        return
    quantity, announced = project.diverges
    assert found.status is Status.DIVERGED and found.divergence is not None, _told(found)
    assert found.divergence.quantity == quantity, _told(found)
    assert any(announced in finding.message for finding in report.findings)


def _rewritten(folder: Path) -> Report:
    """What `rewrite` says of a project today; test_scripts holds the after side to it."""
    return run.run(files.discover([folder], Settings(), root=folder), Settings(), run.engine())


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.nightly) for each in sorted(RECORDED_WHOLE)]
)
def test_the_projects_that_were_recorded_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = RECORDED_WHOLE[name]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("MODEL_DIR", "model")
    save_model(case, tmp_path / "model")
    out = tmp_path / "after"
    code = running.record([str(FIXTURES / case.after), *case.arguments], out, CHOICES, cwd=tmp_path)
    assert code == 0
    found = compare(read(case.whole), read(out))
    assert found.status.fine, _told(found)
    assert {"batch", "loss", "gradient", "weight"} <= found.by_quantity().keys()


def test_whole_recordings_belong_to_their_scripts() -> None:
    assert set((RECORDINGS / "whole").iterdir()) == {case.whole for case in WHOLE}
    for case in WHOLE:
        assert read(case.whole).first.head["sources"] == sources(FIXTURES / case.before)


def test_every_project_is_compared_or_named() -> None:
    projects = [*PROJECTS, *RECORDED_WHOLE, *NO_OLD_PROJECT]
    assert sorted(projects) == sorted(each.name for each in (FOLDER / "scripts").iterdir() if each.is_dir())
