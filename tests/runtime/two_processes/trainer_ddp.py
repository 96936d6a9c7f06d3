"""Trainer on two processes, with evaluation and a checkpoint."""

from __future__ import annotations

from transformers import Trainer, TrainingArguments

from tests.runtime.models import Rows, llama


def run(device: str) -> dict[str, object]:
    arguments = TrainingArguments(
        "out",
        max_steps=4,
        per_device_train_batch_size=2,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=4,
        logging_steps=1,
        report_to=[],
        seed=3,
        disable_tqdm=True,
        ddp_find_unused_parameters=True,
        use_cpu=device == "cpu",  # several processes on a CPU train apart otherwise
    )
    assert arguments.device.type == device
    model = llama()
    trainer = Trainer(model, arguments, train_dataset=Rows(), eval_dataset=Rows())
    trainer.train()
    history = trainer.state.log_history
    losses = [entry[key] for entry in history for key in ("loss", "eval_loss") if key in entry]
    return {"losses": losses, "weight": model.lm_head.weight}
