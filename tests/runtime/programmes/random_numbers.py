"""Random numbers: the seed, the factories, dropout, initialisers, and a state put back."""

from __future__ import annotations

import torch
from torch.nn import functional


def run(device: str) -> dict[str, object]:
    torch.manual_seed(5)
    drawn: dict[str, object] = {
        "normal": torch.randn(5, device=device),
        "integers": torch.randint(0, 100, (5,), device=device),
        "dropout": functional.dropout(torch.ones(20, device=device)),
        "permutation": torch.randperm(7, device=device),
        "bernoulli": torch.bernoulli(torch.full((9,), 0.5, device=device)),
        "uniform": torch.empty(3, device=device).uniform_(),
        "initialised": torch.nn.init.kaiming_uniform_(torch.empty(3, 3, device=device)),
        "chosen": torch.multinomial(torch.ones(5, device=device), 2),
        "like": torch.rand_like(torch.ones(2, 2, device=device)),
    }
    with torch.random.fork_rng():
        torch.rand(3, device=device)
    drawn["after_fork"] = torch.rand(3, device=device)
    state = torch.get_rng_state()
    first = torch.rand(3, device=device)
    torch.set_rng_state(state)
    assert torch.equal(first, torch.rand(3, device=device))
    return drawn
