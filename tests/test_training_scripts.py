"""The training scripts in `fixtures/scripts`: their after sides train what plain code by hand trains.

The scripts run on the emulated device; the plain code runs on the CPU, on the same data and weights, and says
every default of the old release itself.
"""

from __future__ import annotations

import multiprocessing
import re
import shlex
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from tests.fixtures_lib import FOLDER
from tests.on_cpu import run_on_cpu
from tests.tiny_models import save_chat, save_classifier

SCRIPTS = FOLDER / "scripts"


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat(tmp_path_factory.mktemp("language_model"))


def _losses(values: dict[str, object]) -> list[float]:
    losses = values["losses"]
    assert isinstance(losses, list)
    return losses


def _apart(function: Callable[..., list[float]], *args: object, **kwargs: object) -> list[float]:
    """Call a function in a process of its own.

    A process that has computed gradients on the CPU alone can no longer be given another device.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def _train(
    folder: Path, rows: Sequence[dict[str, object]], batch: int, steps: int, collate: str, **settings: object
) -> list[float]:
    """The losses of a Trainer with these settings, on the CPU, with AdamW as torch has it."""
    import torch
    import transformers

    task = settings.pop("task", "SequenceClassification")
    divided = settings.pop("divided", False)
    auto = getattr(transformers, f"AutoModelFor{task}")
    model = auto.from_pretrained(folder, dtype=torch.float32)
    arguments = transformers.TrainingArguments(
        use_cpu=True,
        per_device_train_batch_size=batch,
        max_steps=steps,
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        average_tokens_across_devices=False,
        **settings,
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    collator = {
        "stack": transformers.default_data_collator,
        "pad": transformers.DataCollatorWithPadding(tokenizer),
    }[collate]
    trainer = transformers.Trainer(model, arguments, collator, list(rows))
    if divided:
        # The loss is a mean, and not divided by the number of micro-batches already.
        trainer.model_accepts_loss_kwargs = False
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_a_classifier_is_tuned(classifier: Path, tmp_path: Path) -> None:
    script = SCRIPTS / "finetune_classifier" / "after" / "train.py"
    ran = run_on_cpu(
        script, "--model_id", str(classifier), "--output_dir", str(tmp_path / "out"), cwd=tmp_path
    )
    assert "8 updates" in ran.stdout
    assert (tmp_path / "out" / "model.safetensors").is_file()

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(classifier)
    texts = re.findall(r'^    \("(.+)", (\d)\),$', script.read_text("utf-8"), re.MULTILINE)
    rows = [
        {**tokenizer(text, padding="max_length", max_length=16, truncation=True), "labels": int(label)}
        for text, label in texts
    ]
    plain = _apart(
        _train,
        classifier,
        rows,
        1,
        8,
        "pad",
        divided=True,
        output_dir=str(tmp_path / "plain"),
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        weight_decay=0.01,
        warmup_steps=2,
        lr_scheduler_type="cosine",
    )
    assert _losses(ran.values) == pytest.approx(plain, rel=1e-4, abs=1e-4)


def test_a_language_model_is_trained_as_its_launcher_says(language_model: Path, tmp_path: Path) -> None:
    folder = SCRIPTS / "train_language_model" / "after"
    words = _launched(folder / "run.sh", {"MODEL_DIR": str(language_model), "OUTPUT_DIR": str(tmp_path)})
    ran = run_on_cpu(folder / "train.py", *words)
    assert ran.values["device"] == "neuron"

    from transformers import AutoTokenizer, set_seed

    set_seed(42)
    tokenizer = AutoTokenizer.from_pretrained(language_model)
    ids = tokenizer("abcdefghijklmnopqrstuvwxyz" * 8)["input_ids"]
    blocks = [ids[start : start + 8] for start in range(0, len(ids) - 8, 8)]
    rows = [{"input_ids": row, "attention_mask": [1] * 8, "labels": row} for row in blocks]
    plain = _apart(
        _train,
        language_model,
        rows,
        2,
        6,
        "stack",
        task="CausalLM",
        output_dir=str(tmp_path / "plain"),
        learning_rate=1e-3,
    )
    assert len(plain) == 6
    assert _losses(ran.values) == pytest.approx(plain, rel=1e-4, abs=1e-4)


def _launched(launcher: Path, variables: dict[str, str]) -> list[str]:
    """The words that a launcher gives its script."""
    text = launcher.read_text("utf-8").replace("\\\n", " ")
    for name, value in variables.items():
        text = re.sub(rf"\$\{{{name}:-[^}}]*\}}", value, text)
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)
    line = next(line for line in text.splitlines() if line.startswith("torchrun"))
    words = shlex.split(line)
    return words[words.index("train.py") + 1 :]


def test_the_loss_of_a_derived_trainer_counts(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_DIR", str(classifier))
    monkeypatch.setenv("OUTPUT_DIR", str(tmp_path))
    ran = run_on_cpu(SCRIPTS / "weighted_loss" / "after" / "train.py")
    assert ran.values["seen"] == 12
    losses = _losses(ran.values)
    assert losses == pytest.approx(_apart(_weighted_losses, classifier, tmp_path), rel=1e-4, abs=1e-4)


def _weighted_losses(folder: Path, output: Path) -> list[float]:
    """Two epochs of a Trainer that weights its loss, written by hand."""
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
        set_seed,
    )

    def weighted(
        outputs: dict[str, torch.Tensor], labels: torch.Tensor, num_items_in_batch: int | None = None
    ) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(outputs["logits"], labels, weight=torch.tensor([4.0, 1.0]))

    set_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = ["a fine film", "this film is good", "the long film was good", "dull", "a good film", "fine"]
    rows = [
        {**tokenizer(text, padding="max_length", max_length=16), "labels": int(text != "dull")}
        for text in texts
    ]
    arguments = TrainingArguments(
        output_dir=str(output),
        use_cpu=True,
        per_device_train_batch_size=2,
        num_train_epochs=2,
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    collator = DataCollatorWithPadding(tokenizer)
    trainer = Trainer(model, arguments, collator, rows, compute_loss_func=weighted)
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
