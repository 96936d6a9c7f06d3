"""Sentence vectors: the mean over the words, normalized."""

import os

import torch
from optimum.neuron import NeuronModelForFeatureExtraction
from transformers import AutoTokenizer

folder = os.environ["CLASSIFIER"]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = NeuronModelForFeatureExtraction.from_pretrained(
    folder, export=True, batch_size=3, sequence_length=12, auto_cast="none"
)

inputs = tokenizer(
    ["a fine film", "this was dull", "the long film is good and fine"], padding=True, return_tensors="pt"
)
hidden = model(**inputs).last_hidden_state
mask = inputs["attention_mask"].unsqueeze(-1).float()
vectors = (hidden * mask).sum(1) / mask.sum(1)
vectors = torch.nn.functional.normalize(vectors, dim=-1)
similar = (vectors @ vectors.T).tolist()
print(similar)
