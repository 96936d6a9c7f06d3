# written for optimum-neuron 0.3.0
"""Continues three prompts of different lengths."""

import os

from optimum.neuron import NeuronModelForCausalLM
from transformers import AutoTokenizer

folder = os.environ["CHAT"]
tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
model = NeuronModelForCausalLM.from_pretrained(
    folder, export=True, batch_size=3, sequence_length=64, num_cores=1, auto_cast_type="fp32"
)

prompts = ["abc", "the quick brown fox", "hello there"]
inputs = tokenizer(prompts, padding=True, return_tensors="pt")
outputs = model.generate(**inputs, max_new_tokens=16, do_sample=False)
length = inputs["input_ids"].shape[1]
answers = tokenizer.batch_decode(outputs[:, length:], skip_special_tokens=True)
print(answers)
