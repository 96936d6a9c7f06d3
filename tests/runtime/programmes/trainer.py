"""Trainer, five steps in float32, with its own defaults for the optimizer and the data loader."""

from __future__ import annotations

from transformers import Trainer, TrainingArguments

from tests.runtime.models import Rows, llama


def run(device: str) -> dict[str, object]:
    arguments = TrainingArguments(
        "out",
        max_steps=5,
        per_device_train_batch_size=4,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        seed=3,
        disable_tqdm=True,
    )
    assert arguments.device.type == device
    model = llama()
    trainer = Trainer(model, arguments, train_dataset=Rows())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "weight": model.lm_head.weight}
