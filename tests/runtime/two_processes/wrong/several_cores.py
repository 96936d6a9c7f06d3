"""The environment gives each process all cores."""

from __future__ import annotations

import os

import torch

from tests.runtime.groups import join


def run(device: str) -> dict[str, object]:
    os.environ["NEURON_RT_VISIBLE_CORES"] = "0-1"
    return {"ones": torch.ones(1, device=join(device))}
