"""The result was not brought back before numpy."""

from __future__ import annotations

from tests.runtime.models import bert, prompts


def run(device: str) -> dict[str, object]:
    logits = bert().to(device)(prompts().to(device)).logits.detach()
    return {"classes": logits.numpy().argmax(-1).tolist()}
