"""The model is on the device, the batch was left on the CPU."""

from __future__ import annotations

from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    return {"logits": llama().to(device)(prompts()).logits}
