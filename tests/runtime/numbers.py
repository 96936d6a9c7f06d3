"""Comparing the device with the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def on_device(value: Any) -> Any:
    """Tensors in a structure as leaves on the device."""
    if isinstance(value, Tensor):
        return value.detach().to("neuron").requires_grad_(value.requires_grad)
    return value


def same(ours: object, theirs: object) -> None:
    """Assert that tensors of the device have the CPU's bits, dtype and shape."""
    mine, right = tree_leaves(ours), tree_leaves(theirs)
    assert len(mine) == len(right)
    for a, b in zip(mine, right, strict=True):
        if isinstance(b, Tensor):
            assert a.device.type == "neuron"
            torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=0, atol=0, equal_nan=True)
        else:
            assert a == b


def check(function: Callable[..., Any], *args: Any) -> None:
    """Assert that a function gives the same results and gradients on both, from the same seed."""
    twins = [tree_map(on_device, arg) for arg in args]
    torch.manual_seed(3)
    expected = function(*args)
    torch.manual_seed(3)
    found = function(*twins)
    same(found, expected)

    def gradients(results: Any, given: Any) -> list[Tensor | None]:
        leaves = [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor) and leaf.requires_grad]
        sums = [made.square().sum() for made in tree_leaves(results) if made.requires_grad]
        return list(torch.autograd.grad(sums, leaves)) if leaves else []

    same(gradients(found, twins), gradients(expected, args))
