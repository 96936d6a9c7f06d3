"""torch.compile: a forward, and a training step as one graph."""

from __future__ import annotations

import torch

from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    backend = "neuron" if device == "neuron" else "aot_eager"
    model = llama().to(device)
    ids = prompts().to(device)
    forward = torch.compile(model.eval(), backend=backend, dynamic=False)
    with torch.no_grad():
        logits = forward(ids).logits
    step = torch.compile(model.train(), backend=backend, dynamic=False, fullgraph=True)
    loss = step(input_ids=ids, labels=ids).loss
    loss.backward()
    return {"logits": logits, "loss": loss, "gradient": model.lm_head.weight.grad}
