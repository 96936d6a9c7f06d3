"""Trainer in bfloat16 with evaluation, gradient checkpointing and accumulation, a worker process, and a
checkpoint from which a second run goes on."""

from __future__ import annotations

from transformers import Trainer, TrainingArguments

from tests.runtime.models import Rows, llama


def run(device: str) -> dict[str, object]:
    arguments = TrainingArguments(
        "out",
        max_steps=4,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        bf16=True,
        use_cpu=device == "cpu",  # bfloat16 on a CPU is refused otherwise
        dataloader_num_workers=1,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        report_to=[],
        save_steps=2,
        seed=3,
        disable_tqdm=True,
    )
    assert arguments.device.type == device
    whole = Trainer(llama(), arguments, train_dataset=Rows(), eval_dataset=Rows())
    whole.train()
    resumed = Trainer(llama(), arguments, train_dataset=Rows(), eval_dataset=Rows())
    resumed.train(resume_from_checkpoint="out/checkpoint-2")
    return {
        "losses": _losses(whole),
        "resumed": _losses(resumed),
        "whole_weight": whole.model.lm_head.weight,
        "resumed_weight": resumed.model.lm_head.weight,
    }


def _losses(trainer: Trainer) -> list[float]:
    return [
        entry[key] for entry in trainer.state.log_history for key in ("loss", "eval_loss") if key in entry
    ]
