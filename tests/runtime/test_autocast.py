"""Mixed precision follows the CPU's rules."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from neuronmigrate.runtime.emulated import autocast
from neuronmigrate.runtime.emulated.fallback import overload_of
from tests.runtime.numbers import on_device, same

pytestmark = pytest.mark.usefixtures("neuron")

ON_CPU = {
    name.partition("::")[2] for name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
}

a, b, c = torch.randn(3, 3), torch.randn(3, 3), torch.rand(3)
image, volume = torch.randn(1, 2, 4, 4), torch.randn(1, 2, 4, 4, 4)
positive = a @ a.t() + 3 * torch.eye(3)
target = torch.tensor([0, 2, 1])

CALLS: dict[str, tuple[Any, ...]] = {
    "_addmm_activation": (c, a, b),
    "addbmm": (a, a[None], b[None]),
    "addmm": (c, a, b),
    "avg_pool3d": (volume, [2, 2, 2]),
    "baddbmm": (a[None], a[None], b[None]),
    "binary_cross_entropy_with_logits": (c, c),
    "bmm": (a[None], b[None]),
    "cat": ([a, b.to(torch.bfloat16)],),
    "cdist": (a, b),
    "cholesky_inverse": (positive,),
    "conv1d": (image[0, :, :, 0][None], torch.randn(3, 2, 2)),
    "conv2d": (image, torch.randn(3, 2, 2, 2)),
    "conv3d": (volume, torch.randn(3, 2, 2, 2, 2)),
    "conv_transpose1d": (image[0, :, :, 0][None], torch.randn(2, 3, 2)),
    "conv_transpose2d.input": (image, torch.randn(2, 3, 2, 2)),
    "conv_transpose3d.input": (volume, torch.randn(2, 3, 2, 2, 2)),
    "cosine_embedding_loss": (a, b, torch.ones(3)),
    "cross_entropy_loss": (a, target),
    "fft_fft": (a,),
    "hinge_embedding_loss": (a, torch.ones(3, 3)),
    "huber_loss": (a, b),
    "index_copy": (a, 0, target, b.to(torch.bfloat16)),
    "kl_div": (a, b),
    "l1_loss": (a, b),
    "linalg_inv": (positive,),
    "linalg_solve": (positive, b),
    "linalg_vecdot": (a, b),
    "linear": (a, b, c),
    "matmul": (a, b),
    "mm": (a, b),
    "mse_loss": (a, b),
    "nll_loss": (a, target),
    "poisson_nll_loss": (a, b, True, False, 1e-8, 1),
    "prelu": (a, c[:1]),
    "prod": (a,),
    "prod.dim_int": (a, 0),
    "quantile": (a, c),
    "reflection_pad2d": (image, [1, 1, 1, 1]),
    "scaled_dot_product_attention": (image, image, image),
    "smooth_l1_loss": (a, b),
    "soft_margin_loss": (a, b),
    "stack": ([a, b.to(torch.bfloat16)],),
    "trace": (a,),
}
"""Arguments for operations with an autocast rule."""


def test_lists_are_those_of_this_torch() -> None:
    assert autocast.LOWER <= ON_CPU
    assert autocast.PROMOTE <= ON_CPU
    # The first region registers them.
    torch.autocast("neuron", torch.bfloat16)
    on_neuron = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastPrivateUse1")
    assert {name.partition("::")[2] for name in on_neuron} == ON_CPU
    assert set(CALLS) <= ON_CPU


@pytest.mark.parametrize("name", sorted(CALLS))
def test_a_rule(name: str) -> None:
    """Full and half inputs come out with the CPU's dtype and bits."""
    op = overload_of(f"aten::{name}")
    half = tree_map(lambda t: t.to(torch.bfloat16) if floating(t) else t, CALLS[name])
    for given in (CALLS[name], half):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = op(*given)
        with torch.autocast("neuron", dtype=torch.bfloat16):
            found = op(*tree_map(on_device, given))
        same(found, expected)


def floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def test_rules_that_cast_down_are_listed() -> None:
    """Every operation that casts down on the CPU, of those called here, is in the list, and no other is."""
    for name, given in CALLS.items():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            made = overload_of(f"aten::{name}")(*given)
        made = made[0] if isinstance(made, tuple) else made
        assert (made.dtype is torch.bfloat16) == (name in autocast.LOWER), name


def train(device: str, *, cache: bool) -> Iterator[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 4), nn.Softmax(-1)).to(
        device
    )
    tied = model[3]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    inputs = torch.randn(6, 4).to(device)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16, cache_enabled=cache):
            hidden = model(inputs)
            with torch.no_grad():
                model(inputs)
            loss = (tied(torch.cat([hidden, hidden.float()], -1)) - 1).square().mean()
        loss.backward()
        yield loss.detach()
        yield from (p.grad for p in model.parameters() if p.grad is not None)
        optimizer.step()


@pytest.mark.parametrize("cache", [True, False])
def test_training_gives_the_cpus_bits(cache: bool) -> None:
    same(list(train("neuron", cache=cache)), list(train("cpu", cache=cache)))
    assert not autocast._casts


def test_regions_nest_and_end() -> None:
    weight = torch.ones(2, 2, device="neuron", requires_grad=True)
    with torch.autocast("neuron", dtype=torch.bfloat16):
        assert (weight @ weight).dtype is torch.bfloat16
        assert len(autocast._casts) == 1
        with torch.autocast("neuron", enabled=False):
            assert (weight @ weight).dtype is torch.float32
        assert (weight @ weight).dtype is torch.bfloat16
        assert len(autocast._casts) == 1
    assert not autocast._casts
    assert (weight @ weight).dtype is torch.float32


def test_dtypes() -> None:
    weight = torch.ones(2, 2, device="neuron")
    assert torch.get_autocast_dtype("neuron") is torch.float16
    with torch.autocast("neuron", dtype=torch.float16):
        assert (weight @ weight).dtype is torch.float16
        assert (weight.double() @ weight.double()).dtype is torch.float64
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.autocast("neuron", dtype=torch.int8):
            assert (weight @ weight).dtype is torch.float32
    assert "not supported" in str(caught[0].message)
