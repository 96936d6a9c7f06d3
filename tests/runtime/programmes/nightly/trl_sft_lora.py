"""TRL: fine-tuning of LoRA adapters in bfloat16 with gradient checkpointing, on prompts and completions."""

from __future__ import annotations

from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

from tests.runtime.models import llama, tokenizer


def run(device: str) -> dict[str, object]:
    arguments = SFTConfig(
        "out",
        max_steps=2,
        per_device_train_batch_size=2,
        bf16=True,
        use_cpu=device == "cpu",  # bfloat16 on a CPU is refused otherwise
        gradient_checkpointing=True,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        max_length=32,
        seed=1,
        disable_tqdm=True,
        pad_to_multiple_of=128,
    )
    assert arguments.device.type == device
    rows = [
        {"prompt": "the cat sat", "completion": " on a mat"},
        {"prompt": "the dog", "completion": " ran home"},
    ]
    trainer = SFTTrainer(
        model=llama(),
        args=arguments,
        train_dataset=Dataset.from_list(rows * 8),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    adapters = {name: value for name, value in trainer.model.named_parameters() if "lora_B" in name}
    return {"losses": losses, **adapters}
