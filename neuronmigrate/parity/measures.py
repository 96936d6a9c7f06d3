"""Distances between two tensors."""

from __future__ import annotations

import math

import torch

from neuronmigrate.parity.comparison import Measures
from neuronmigrate.parity.tolerance import EPSILON, FAR, OUTLIERS

_SMALL_INTEGERS = {torch.float64: torch.int64, torch.float32: torch.int32}


def measure(
    first: torch.Tensor, second: torch.Tensor, dtype: str, tolerance: float, floor: float = 0.0
) -> tuple[Measures, bool]:
    """How far two float tensors of one shape are apart, and whether that is within the tolerance.

    `dtype` is the coarser of the two: distances in units in the last place are counted in it. An element is
    within if the sides are at most one such unit apart, or if their difference is at most `tolerance` times
    the larger element plus the larger root mean square of the two tensors, plus `floor`, an absolute value.
    """
    a, b = (each.detach().to("cpu").reshape(-1) for each in (first, second))
    if a.is_complex() or b.is_complex():
        a, b = (torch.view_as_real(each.to(torch.complex128)).reshape(-1) for each in (a, b))
    steps = ulps(a, b, dtype)
    a, b = a.double(), b.double()
    alike = (a == b) | (a.isnan() & b.isnan())
    finite = a.isfinite() & b.isfinite()
    broken = int((~alike & ~finite).sum())
    a, b, steps = a[finite], b[finite], steps[finite]
    if not a.numel():
        return Measures(elements=int(first.numel()), nonfinite=broken), broken == 0
    difference = (a - b).abs()
    size = torch.maximum(a.abs(), b.abs()) + max(_scale(a), _scale(b))
    excess = (difference - floor).clamp_min(0.0)
    error = torch.where(size > 0, excess / size, torch.where(excess > 0, math.inf, 0.0))
    error = torch.where(steps <= 1, 0.0, error)
    over = int((error > tolerance).sum())
    allowed = int(a.numel() * OUTLIERS)
    needed = float(error.max()) if allowed == 0 else float(error.topk(allowed + 1).values[-1])
    needed = max(needed, float(error.max()) / FAR)
    norms = float(a.norm()), float(b.norm())
    away = float(difference.norm())
    found = Measures(
        elements=int(first.numel()),
        max_abs=float(difference.max()),
        max_rel=float((difference / size.clamp_min(1e-300)).max()),
        relative_l2=away / norms[0] if norms[0] else (math.inf if away else 0.0),
        cosine=_cosine(a, b, norms),
        ulp=float(steps.max()),
        outliers=over / a.numel(),
        needed=needed,
        nonfinite=broken,
    )
    return found, broken == 0 and needed <= tolerance


def _scale(values: torch.Tensor) -> float:
    """Root mean square. The largest comes out of the sum: its square may be over what float64 holds."""
    top = float(values.abs().max())
    return top * float((values / top).square().mean().sqrt()) if top else 0.0


def _cosine(a: torch.Tensor, b: torch.Tensor, norms: tuple[float, float]) -> float:
    if not norms[0] or not norms[1]:
        return 1.0 if norms[0] == norms[1] else 0.0
    return float(torch.dot(a / norms[0], b / norms[1]))


def ulps(first: torch.Tensor, second: torch.Tensor, dtype: str) -> torch.Tensor:
    """Distance of each pair in units in the last place of a dtype; float64.

    The values are rounded to that dtype first. Numbers of both signs are counted through zero.
    """
    kind = getattr(torch, dtype) if dtype in EPSILON else torch.float32
    a, b = (_ordered(each.to(kind)) for each in (first, second))
    return (a - b).abs()


def _ordered(tensor: torch.Tensor) -> torch.Tensor:
    """The place of each float among all floats of its dtype, counted from zero; float64."""
    integers = _SMALL_INTEGERS.get(tensor.dtype, torch.int16)
    bits = tensor.contiguous().view(integers)
    # Negative floats count down: clear the sign, and give it to the place.
    magnitude = bits & torch.iinfo(integers).max
    return torch.where(bits < 0, -magnitude.double(), magnitude.double())


def logits(first: torch.Tensor, second: torch.Tensor) -> tuple[float, float, float]:
    """Largest KL divergence of a row, share of rows with the same top token, overlap of the top five.

    Both are [..., vocabulary].
    """
    a, b = (each.double().reshape(-1, each.shape[-1]) for each in (first, second))
    logs = a.log_softmax(-1), b.log_softmax(-1)
    divergence = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)
    number = min(5, a.shape[-1])
    tops = a.topk(number).indices, b.topk(number).indices
    shared = (tops[0][:, :, None] == tops[1][:, None, :]).any(-1).double().mean()
    same = (tops[0][:, 0] == tops[1][:, 0]).double().mean()
    return max(0.0, float(divergence.max())), float(same), float(shared)


def prefix(first: torch.Tensor, second: torch.Tensor) -> list[int]:
    """Of each row of two [batch, length] tensors of tokens, how many tokens agree before the first that
    does not; rows may be of two lengths."""
    length = min(first.shape[-1], second.shape[-1])
    found = []
    for a, b in zip(first[:, :length], second[:, :length], strict=True):
        wrong = (a != b).nonzero()
        found.append(int(wrong[0, 0]) if wrong.numel() else length)
    return found
