"""Classes of texts, in batches."""

import os

import torch
from optimum.neuron import NeuronModelForSequenceClassification
from transformers import AutoTokenizer

folder = os.environ["CLASSIFIER"]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = NeuronModelForSequenceClassification.from_pretrained(
    folder, export=True, batch_size=2, sequence_length=16, auto_cast="none"
)

texts = [
    "a fine film",
    "this long film was dull and poor",
    "good",
    "the film is long and the film is fine and the film is good and the film is dull and poor",
]
probabilities = []
for start in range(0, len(texts), 2):
    inputs = tokenizer(
        texts[start : start + 2], padding="max_length", max_length=16, truncation=True, return_tensors="pt"
    )
    logits = model(**inputs).logits
    probabilities += torch.softmax(logits, dim=-1).tolist()
labels = [model.config.id2label[row.index(max(row))] for row in probabilities]
print(labels)
