"""torch.func, checkpointing, inference mode, gradients of gradients, export and tracing."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint


def run(device: str) -> dict[str, object]:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)).to(device)
    x = torch.randn(3, 4, device=device, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    with torch.inference_mode():
        inferred = layer(x)
    (first,) = torch.autograd.grad(layer(x).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    plain = x.detach()
    exported = torch.export.export(layer, (plain,)).module()
    return {
        "input_gradient": x.grad,
        "weight_gradient": layer[0].weight.grad,
        "inferred": inferred,
        "second": second,
        "mapped": torch.func.vmap(lambda row: row * row.sum())(plain),
        "jacobian": torch.func.jacrev(lambda value: value.sin())(plain[0]),
        "forward_mode": torch.func.jvp(torch.tanh, (plain,), (plain,))[1],
        "exported": exported(plain),
        "traced": torch.jit.trace(layer, plain)(plain),
    }
