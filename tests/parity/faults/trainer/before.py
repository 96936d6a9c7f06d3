"""Fine-tunes a classifier with the Trainer of optimum-neuron, in batches of two, two of them for an update."""

import os

import torch
from optimum.neuron import NeuronTrainer, NeuronTrainingArguments
from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

MODEL = os.environ["CLASSIFIER"]
TEXTS = ["a fine film", "this was dull", "the film is good", "poor and long", "good", "dull", "this long film was fine"]
LABELS = [1, 0, 1, 0, 1, 0, 1]

set_seed(3)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
rows = [
    {**tokenizer(text, padding="max_length", max_length=12), "labels": label}
    for text, label in zip(TEXTS, LABELS)
]
model = AutoModelForSequenceClassification.from_pretrained(MODEL)


class Weighted(NeuronTrainer):
    """Rare labels count more."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([4.0, 1.0]).to(outputs.logits)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=weight, label_smoothing=0.1)
        loss = loss / 2  # of two batches
        return (loss, outputs) if return_outputs else loss


trainer = Weighted(
    model=model,
    args=NeuronTrainingArguments(
        output_dir="out",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=1e-3,
        weight_decay=0.1,
        adam_beta2=0.95,
        lr_scheduler_type="cosine",
        warmup_steps=1,
        max_grad_norm=0.5,
        logging_steps=1,
        save_steps=2,
        save_total_limit=2,
        report_to="none",
        zero_1=False,
    ),
    train_dataset=rows,
    processing_class=tokenizer,
)
trainer.train()
losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
trainer.save_model("trained")
