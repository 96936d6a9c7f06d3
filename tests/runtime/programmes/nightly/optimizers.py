"""The optimizers of torch.optim with a schedule, foreach and one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adafactor": torch.optim.Adafactor,
}


def run(device: str) -> dict[str, object]:
    outcome: dict[str, object] = {}
    for name, kind in OPTIMIZERS.items():
        for foreach in (False, True):
            torch.manual_seed(0)
            layer = torch.nn.Linear(6, 6).to(device)
            optimizer = kind(layer.parameters(), lr=0.1, foreach=foreach)
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
            for _ in range(3):
                layer(torch.ones(2, 6, device=device)).square().sum().backward()
                torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0, foreach=foreach)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            outcome[f"{name}_{'foreach' if foreach else 'single'}"] = layer.weight
    return outcome
