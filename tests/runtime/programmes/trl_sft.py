"""TRL: supervised fine-tuning in float32, at the padding that TRL chooses for the device."""

from __future__ import annotations

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from tests.runtime.models import llama, tokenizer


def run(device: str) -> dict[str, object]:
    arguments = SFTConfig(
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
        # What TRL takes on a neuron device; elsewhere it does not pad by itself.
        pad_to_multiple_of=128,
    )
    assert arguments.device.type == device
    rows = [{"text": "the cat sat on a mat"}, {"text": "the dog ran home"}] * 8
    model = llama()
    trainer = SFTTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer()
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"losses": losses, "weight": model.lm_head.weight}
