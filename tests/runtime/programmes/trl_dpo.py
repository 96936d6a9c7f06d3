"""TRL: direct preference optimization with a reference model."""

from __future__ import annotations

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from tests.runtime.models import llama, tokenizer


def run(device: str) -> dict[str, object]:
    arguments = DPOConfig(
        "out",
        max_steps=2,
        per_device_train_batch_size=2,
        bf16=False,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        max_length=32,
        seed=1,
        disable_tqdm=True,
        pad_to_multiple_of=128,
    )
    assert arguments.device.type == device
    rows = [{"prompt": "the cat sat", "chosen": " on a mat", "rejected": " dog"}] * 8
    model = llama()
    trainer = DPOTrainer(
        model=model,
        ref_model=llama(),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "weight": model.lm_head.weight}
