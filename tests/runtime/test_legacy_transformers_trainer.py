"""The stand-ins of the trainers before 0.4.0: updates, divisions, precision, shares of ranks."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from neuronmigrate.runtime.legacy import LegacyProblem
from tests.runtime.legacy_scripts import run_legacy
from tests.runtime.legacy_session import begin

ROWS = [{"values": [float(number), 1.0, -float(number)], "labels": number % 2} for number in range(22)]


@pytest.fixture(autouse=True)
def states() -> Iterator[None]:
    """Accelerate's states are shared by all its objects of a process."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    def reset() -> None:
        for each in (AcceleratorState, GradientState, PartialState):
            getattr(each, "_reset_state")()  # noqa: B009 - of a class

    reset()
    yield
    reset()


class Classifier(torch.nn.Module):
    """Takes `values` of float32 `(batch, 3)`; its forward takes no loss arguments."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(3, 4)
        self.outer = torch.nn.Linear(4, 2)

    def forward(self, values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.outer(torch.tanh(self.inner(values)))
        return {"loss": torch.nn.functional.cross_entropy(logits.float(), labels), "logits": logits}


class Counting(Classifier):
    """The same, but its forward takes loss arguments, and divides by what it is given."""

    def forward(
        self, values: torch.Tensor, labels: torch.Tensor, **kwargs: object
    ) -> dict[str, torch.Tensor]:
        made = super().forward(values, labels)
        items = kwargs.get("num_items_in_batch")
        if isinstance(items, torch.Tensor):
            made["loss"] = made["loss"] * len(labels) / items
        return made


def _trainer(folder: Path, model: torch.nn.Module, rows: object = ROWS, **fields: object) -> Any:
    from neuronmigrate.runtime.legacy.optimum.transformers_arguments import training_arguments
    from neuronmigrate.runtime.legacy.optimum.transformers_trainer import NeuronTrainer
    from neuronmigrate.runtime.legacy.session import current

    defaults: dict[str, object] = {
        "learning_rate": 0.01,
        "logging_steps": 1,
        "per_device_train_batch_size": 2,
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    make: Callable[..., object] = training_arguments(str(current().release))
    args = make(output_dir=str(folder), **{**defaults, **fields})
    build: Callable[..., object] = NeuronTrainer
    return build(model, args, train_dataset=rows, eval_dataset=rows)


def _losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize(
    ("release", "epochs", "rest"),
    [
        # Eleven batches, four to an update: a rest of three goes on in the next epoch.
        pytest.param("0.0.28", [4 / 11, 8 / 11, 1 + 1 / 11, 1 + 5 / 11], 1.0, id="0.0.28"),
        # 22 rows leave 2 to the last update, of which there are 3 batches: no update, and the gradients stay.
        pytest.param("0.3.0", [4 / 11, 8 / 11, 1 + 4 / 11, 1 + 8 / 11], 1.5, id="0.3.0"),
    ],
)
def test_an_epoch_counts_whole_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, epochs: list[float], rest: float
) -> None:
    begin(monkeypatch, release)
    trainer = _trainer(tmp_path, Classifier(), gradient_accumulation_steps=4, num_train_epochs=2)
    done = trainer.train()
    assert (done.global_step, trainer.state.max_steps) == (4, 4)
    reached = [entry["epoch"] for entry in trainer.state.log_history if "loss" in entry]
    assert reached == pytest.approx(epochs)
    # Four losses of about 0.7 to an update, divided by four; what a rest brought in is on top.
    assert _losses(trainer)[2] == pytest.approx(0.7 * rest, rel=0.25)


def test_a_short_rest_is_an_update_of_its_own_from_0_1_0_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(monkeypatch, "0.2.0")
    trainer = _trainer(tmp_path, Classifier(), ROWS[:20], gradient_accumulation_steps=4, num_train_epochs=3)
    assert trainer.train().global_step == 6
    reached = [entry["epoch"] for entry in trainer.state.log_history if "loss" in entry]
    assert reached == pytest.approx([0.4, 0.8, 1.0, 1.4, 1.8, 2.0])


@pytest.mark.parametrize(
    ("release", "model", "gradient", "logged"),
    [
        pytest.param("0.0.22", Classifier, 1 / 2, 1 / 2, id="0.0.22 mean"),
        pytest.param("0.0.27", Classifier, 1, 1 / 2, id="0.0.27 sum"),
        pytest.param("0.0.28", Classifier, 1 / 2, 1 / 2, id="0.0.28 mean"),
        pytest.param("0.0.28", Counting, 1, 1, id="0.0.28 sum where loss arguments are taken"),
        pytest.param("0.3.0", Classifier, 1 / 2, 1 / 2, id="0.3.0 mean"),
        pytest.param("0.3.0", Counting, 1 / 2, 1 / 2, id="0.3.0 items"),
    ],
)
def test_what_an_update_divides_by(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    release: str,
    model: type[Classifier],
    gradient: float,
    logged: float,
) -> None:
    """With SGD a step shows the gradient: two micro-batches of two rows, against their two means by hand."""
    begin(monkeypatch, release)
    twice = [ROWS[1], ROWS[1], ROWS[1], ROWS[1]]
    own = model()
    trainer = _trainer(
        tmp_path,
        own,
        twice,
        gradient_accumulation_steps=2,
        max_steps=1,
        optim="sgd",
        max_grad_norm=0,
        lr_scheduler_type="constant",
    )
    trainer.train()
    plain = Classifier()
    values, labels = torch.tensor([ROWS[1]["values"]] * 2), torch.tensor([ROWS[1]["labels"]] * 2)
    losses = [plain(values, labels)["loss"] for _ in range(2)]
    (sum(losses, torch.zeros(())) * gradient).backward()
    for name, weight in plain.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(own.state_dict()[name], weight.detach() - 0.01 * weight.grad)
    assert _losses(trainer) == pytest.approx([2 * losses[0].item() * logged], abs=1e-4)


@pytest.mark.parametrize(
    ("release", "backend", "weights"),
    [
        pytest.param("0.0.28", "xla", torch.bfloat16, id="0.0.28 xla"),
        pytest.param("0.0.28", "amp", torch.float32, id="0.0.28 amp"),
        pytest.param("0.3.0", "amp", torch.bfloat16, id="0.3.0 amp"),
    ],
)
def test_bfloat16_is_that_of_the_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, backend: str, weights: torch.dtype
) -> None:
    begin(monkeypatch, release)
    seen: list[torch.dtype] = []

    class Watching(Classifier):
        def forward(self, values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            made = super().forward(values.to(self.inner.weight.dtype), labels)
            seen.append(made["logits"].dtype)
            return made

    model = Watching()
    trainer = _trainer(tmp_path, model, bf16=True, half_precision_backend=backend, max_steps=1)
    trainer.train()
    assert trainer.args.bf16
    assert next(model.parameters()).dtype == weights
    assert set(seen) == {torch.bfloat16}


def test_only_registered_norms_and_biases_are_spared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(monkeypatch, "0.3.0")

    class Net(Classifier):
        def __init__(self) -> None:
            super().__init__()
            self.layernorm = torch.nn.LayerNorm(3)
            # Of a class that was not registered: it decays, whatever its name.
            self.q_norm = torch.nn.RMSNorm(3)

    model = Net()
    names = _trainer(tmp_path, model).get_decay_parameter_names(model)
    assert sorted(names) == ["inner.weight", "outer.weight", "q_norm.weight"]


def test_a_run_goes_on_from_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuronmigrate.runtime.legacy.optimum.transformers_arguments import training_arguments

    session = begin(monkeypatch, "0.3.0")
    # Checkpoints pickle the arguments, by the name that the import hook would answer to.
    package = types.ModuleType("optimum.neuron")
    package.__dict__["NeuronTrainingArguments"] = training_arguments("0.3.0")
    monkeypatch.setitem(sys.modules, "optimum", types.ModuleType("optimum"))
    monkeypatch.setitem(sys.modules, "optimum.neuron", package)
    whole = _trainer(tmp_path / "whole", Classifier(), ROWS[:8], max_steps=8, seed=3)
    whole.train()
    first = _trainer(
        tmp_path, Classifier(), ROWS[:8], max_steps=8, seed=3, save_strategy="steps", save_steps=4
    )
    first.train()
    folder = tmp_path / "checkpoint-4"
    assert {each.name for each in folder.iterdir()} >= {"optimizer.pt", "scheduler.pt", "trainer_state.json"}
    model = Classifier()
    second = _trainer(tmp_path, model, ROWS[:8], max_steps=8, seed=3)
    second.train(resume_from_checkpoint=str(folder))
    assert second.state.global_step == 8
    for name, weight in whole.model.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], weight)
    # Inside an epoch it begins anew.
    third = _trainer(
        tmp_path / "third", Classifier(), ROWS[:8], max_steps=6, save_strategy="steps", save_steps=2
    )
    third.train()
    again = _trainer(tmp_path / "third", Classifier(), ROWS[:8], max_steps=6)
    again.train(resume_from_checkpoint=str(tmp_path / "third" / "checkpoint-2"))
    assert any("began with its first batch" in note for note in session.notes)
    assert again.state.global_step == 6


def test_two_ranks_share_and_average(tmp_path: Path) -> None:
    """Evaluation pads to whole batches by rank, and training is that of one process with the same rows."""
    text = """
import json, sys
import torch
from optimum.neuron import NeuronTrainer, NeuronTrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(1, 2)

    def forward(self, values, labels):
        logits = self.inner(values)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

rows = [{"values": [float(number)], "labels": number % 2} for number in range(7)]
args = NeuronTrainingArguments("out", per_device_train_batch_size=2, max_steps=2, save_strategy="no",
                               learning_rate=0.1, optim="sgd", disable_tqdm=True, max_grad_norm=0)
trainer = NeuronTrainer(Net(), args, train_dataset=rows, eval_dataset=rows)
trainer.train()
seen = trainer.predict(rows)
if args.process_index == 0:
    weights = [each.tolist() for each in trainer.model.parameters()]
    print(json.dumps({"labels": seen.label_ids.tolist(), "weights": weights}))
"""
    done = run_legacy(tmp_path / "old.py", text, "--release", "0.3.0", processes=2)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # Rank 0 has rows 0, 2, 4 and 6, rank 1 rows 1, 3, 5 and row 0 again.
    assert found["labels"] == [0, 0, 0, 0, 1, 1, 1, 0]
    assert done.stderr.count("legacy stand-ins used") == 1

    from torch.utils.data import DistributedSampler

    torch.manual_seed(0)
    inner = torch.nn.Linear(1, 2)
    sampler: Callable[..., list[int]] = DistributedSampler  # type: ignore[assignment]
    shares = [list(sampler(ROWS[:7], 2, rank, shuffle=True)) for rank in (0, 1)]
    for step in range(2):
        inner.zero_grad()
        for share in shares:
            numbers = torch.tensor(share[2 * step : 2 * step + 2])
            logits = inner(numbers[:, None].float())
            (torch.nn.functional.cross_entropy(logits, numbers % 2) / 2).backward()
        with torch.no_grad():
            for weight in inner.parameters():
                assert weight.grad is not None
                weight.sub_(weight.grad, alpha=0.1 * (1 - step / 2))
    for expected, weight in zip(inner.parameters(), found["weights"], strict=True):
        torch.testing.assert_close(torch.tensor(weight), expected.detach())


def test_fields_are_those_of_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    from neuronmigrate.runtime.legacy.optimum.transformers_arguments import training_arguments

    begin(monkeypatch, "0.1.0")
    make: Callable[..., Any] = training_arguments("0.1.0")
    args = make(output_dir="out")
    assert (args.zero_1, args.per_device_train_batch_size, args.optim) == (False, 8, "adamw_torch")
    assert not args.average_tokens_across_devices
    with pytest.raises(TypeError, match="fuse_qkv"):
        make(output_dir="out", fuse_qkv=True)
    assert make(output_dir="out", evaluation_strategy="steps", eval_steps=1).eval_strategy == "steps"
    with pytest.raises(LegacyProblem, match=r"TrainingArguments.no_cuda is not in transformers 5"):
        make(output_dir="out", no_cuda=True)
    with pytest.raises(ValueError, match="fp16"):
        make(output_dir="out", fp16=True)
    with pytest.raises(RuntimeError, match="FSDP"):
        make(output_dir="out", fsdp="full_shard")
    from neuronmigrate.runtime.legacy.optimum.accelerator import lazy_load_for_parallelism
    from neuronmigrate.runtime.legacy.optimum.parser import NeuronHfArgumentParser

    build: Callable[..., Any] = NeuronHfArgumentParser
    line = "--output_dir out --bf16 --report_to none --zero_1 --learning_rate 1e-4"
    (read,) = build(make).parse_args_into_dataclasses(line.split())
    assert (read.bf16, read.zero_1, read.learning_rate, read.report_to) == (True, True, 1e-4, [])
    with lazy_load_for_parallelism(tensor_parallel_size=2):
        pass
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LegacyProblem, match="start one process"):
        make(output_dir="out", tensor_parallel_size=2)
    with pytest.raises(LegacyProblem, match="start one process"), lazy_load_for_parallelism(2):
        pass


def test_the_accelerator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from neuronmigrate.runtime.legacy.optimum.accelerator import NeuronAccelerator

    begin(monkeypatch, "0.3.0")
    with pytest.raises(NotImplementedError, match="fsdp_plugin"):
        NeuronAccelerator(fsdp_plugin=object())
    accelerator = NeuronAccelerator(gradient_accumulation_steps=2, zero_1=True, mixed_precision="bf16")
    model = Classifier()
    loader = torch.utils.data.DataLoader([1, 2, 3])  # type: ignore[arg-type,var-annotated]
    build: Callable[..., object] = torch.optim.SGD
    ready, optimizer, same = accelerator.prepare(model, build(model.parameters(), lr=0.5), loader)
    assert (ready, same) == (model, loader)
    assert next(model.parameters()).dtype == torch.bfloat16
    before = model.outer.bias.detach().clone()
    for step in range(2):
        with accelerator.accumulate(model):
            accelerator.backward((model.outer.bias * 4).sum())
            assert accelerator.clip_grad_norm_(model.parameters(), 1e9) is not None
            optimizer.step()
            optimizer.zero_grad()
        moved = (before - model.outer.bias.detach()).tolist()
        assert moved == ([0.0, 0.0] if step == 0 else pytest.approx([2.0, 2.0], rel=1e-2))
