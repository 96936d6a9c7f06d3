"""The model is moved before the Accelerator, which joins the group, is made."""

from __future__ import annotations

from accelerate import Accelerator

from tests.runtime.models import llama


def run(device: str) -> dict[str, object]:
    model = llama().to(device)
    return {"weight": Accelerator().prepare(model).module.lm_head.weight}
