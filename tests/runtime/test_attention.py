"""Attention takes the CPU's way: flash or formula, with the same bits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from neuronmigrate.runtime.emulated import attention
from tests.runtime.numbers import check

pytestmark = pytest.mark.usefixtures("neuron")

VARIANTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 4, 5, 8), (2, 4, 7, 8), {}),
    "causal": ((2, 4, 5, 8), (2, 4, 5, 8), {"is_causal": True}),
    "grouped": ((2, 4, 5, 8), (2, 2, 5, 8), {"enable_gqa": True}),
    "grouped, dropout": ((2, 4, 5, 8), (2, 2, 5, 8), {"enable_gqa": True, "dropout_p": 0.3}),
    "scale": ((2, 4, 5, 8), (2, 4, 7, 8), {"scale": 0.3}),
    "dropout": ((2, 4, 5, 8), (2, 4, 7, 8), {"dropout_p": 0.5}),
    "three dimensions": ((4, 5, 8), (4, 7, 8), {}),
    "bool mask": ((2, 4, 5, 8), (2, 4, 7, 8), {"attn_mask": torch.rand(2, 1, 5, 7) > 0.3}),
    "two-dimensional mask": ((2, 4, 5, 8), (2, 4, 7, 8), {"attn_mask": torch.rand(5, 7)}),
    "three-dimensional mask": ((2, 4, 5, 8), (2, 4, 7, 8), {"attn_mask": torch.rand(4, 5, 7)}),
    "row without keys": ((1, 1, 2, 8), (1, 1, 3, 8), {"attn_mask": torch.tensor([[True] * 3, [False] * 3])}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants(variant: str, gradient: bool, dtype: torch.dtype) -> None:
    query, key, options = VARIANTS[variant]

    def run(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return scaled_dot_product_attention(q, k, v, **{**options, "attn_mask": mask})

    mask = options.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        mask = mask.to(dtype)
    tensors = [torch.randn(shape).to(dtype).requires_grad_(gradient) for shape in (query, key, key)]
    check(run, *tensors, mask)


def test_a_mask_with_a_gradient_takes_the_formula() -> None:
    tensors = [torch.randn(2, 4, 5, 8, requires_grad=True) for _ in range(3)]
    check(scaled_dot_product_attention, *tensors, torch.randn(5, 5, requires_grad=True))
    check(scaled_dot_product_attention, *(t.detach() for t in tensors), torch.randn(5, 5, requires_grad=True))


def test_inference_mode() -> None:
    def run(q: Tensor) -> Tensor:
        with torch.inference_mode():
            return scaled_dot_product_attention(q, q, q)

    check(run, torch.randn(2, 4, 5, 8))


def test_second_derivatives_of_the_formula() -> None:
    def run(q: Tensor) -> Tensor:
        made = scaled_dot_product_attention(q, q, q)
        (gradient,) = torch.autograd.grad(made.square().sum(), q, create_graph=True)
        return gradient

    # Five dimensions, as no flash kernel takes them.
    check(run, torch.randn(1, 1, 4, 5, 8, requires_grad=True))


def test_shapes_alone_decide_as_the_cpu_does() -> None:
    """What is used while tracing agrees with the CPU's own chooser, over the grid of what it looks at."""
    choose = torch.ops.aten._fused_sdp_choice.default
    sizes = itertools.product([(2, 4), (4,)], [1, 0, 5], [5, 0], [8, 6])
    masks = [None, (5, 5), (2, 1, 5, 5), (4, 5, 5)]
    for (lead, length, keys, size), mask_shape, dropout in itertools.product(sizes, masks, [0.0, 0.5]):
        if mask_shape is not None and len(mask_shape) > len(lead) + 2:
            continue
        query, key = torch.ones(*lead, length, 8), torch.ones(*lead, keys, 8)
        value = torch.ones(*lead, keys, size)
        for gradient in (False, True):
            mask = None
            if mask_shape is not None:
                mask = torch.zeros(*mask_shape[:-2], length, keys, requires_grad=gradient)
            operands = attention.lift(query, key, value, mask)
            expected = choose(*operands, dropout, False) == attention.FLASH
            found = attention.fits_flash(*operands, dropout)
            assert found == expected, (lead, length, keys, size, mask_shape, dropout, gradient)
