"""Translates two sentences with a compiled T5."""

import os

from optimum.neuron import NeuronModelForSeq2SeqLM
from transformers import AutoTokenizer

folder = os.environ["TRANSLATOR"]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = NeuronModelForSeq2SeqLM.from_pretrained(
    folder, export=True, batch_size=2, sequence_length=24, num_beams=2, auto_cast="none"
)

inputs = tokenizer(["a fine film", "this long film was dull"], padding=True, return_tensors="pt")
outputs = model.generate(**inputs, num_return_sequences=1, max_length=12)
texts = tokenizer.batch_decode(outputs, skip_special_tokens=True)
print(texts)
