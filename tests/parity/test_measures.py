"""Invariants of the distances."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronmigrate.parity.measures import logits, measure, prefix, ulps
from neuronmigrate.parity.tolerance import EPSILON

DTYPES = {name: getattr(torch, name) for name in EPSILON}
numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
everything = st.floats(width=32)
dtypes = st.sampled_from(sorted(DTYPES))


def _tensor(values: list[float], dtype: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).to(DTYPES[dtype])


@settings(deadline=None)
@given(st.lists(everything, min_size=1, max_size=20), dtypes)
def test_a_tensor_is_within_any_tolerance_of_itself(values: list[float], dtype: str) -> None:
    tensor = _tensor(values, dtype)
    found, passes = measure(tensor, tensor.clone(), dtype, 0.0)
    assert passes
    assert found.max_abs == found.needed == found.ulp == found.nonfinite == 0


@settings(deadline=None)
@given(st.lists(numbers, min_size=1, max_size=20), dtypes, st.booleans())
def test_one_unit_in_the_last_place_never_fails(values: list[float], dtype: str, up: bool) -> None:
    tensor = _tensor(values, dtype)
    finite = tensor[tensor.isfinite()]
    # nextafter does not know the small dtypes everywhere: step through the bits.
    kind = {8: torch.int64, 4: torch.int32, 2: torch.int16}[finite.element_size()]
    bits = finite.view(kind)
    other = torch.where(bits >= 0, bits + 1, bits - 1) if up else torch.where(bits > 0, bits - 1, bits)
    neighbour = other.view(finite.dtype)
    both = neighbour.isfinite()
    if both.any():
        found, passes = measure(finite[both], neighbour[both], dtype, 0.0)
        assert passes
        assert found.ulp <= 1


@settings(deadline=None)
@given(st.lists(st.tuples(everything, everything), min_size=1, max_size=20), dtypes, st.floats(0, 10))
def test_either_side_may_come_first(pairs: list[tuple[float, float]], dtype: str, tolerance: float) -> None:
    a, b = _tensor([a for a, _ in pairs], dtype), _tensor([b for _, b in pairs], dtype)
    assert measure(a, b, dtype, tolerance)[1] == measure(b, a, dtype, tolerance)[1]


@settings(deadline=None)
@given(
    st.lists(st.tuples(everything, everything), min_size=1, max_size=20),
    dtypes,
    st.floats(0, 10),
    st.floats(0, 10),
)
def test_what_passes_passes_a_wider_tolerance(
    pairs: list[tuple[float, float]], dtype: str, narrow: float, more: float
) -> None:
    a, b = _tensor([a for a, _ in pairs], dtype), _tensor([b for _, b in pairs], dtype)
    found, passes = measure(a, b, dtype, narrow)
    if passes:
        assert measure(a, b, dtype, narrow + more)[1]
    elif not found.nonfinite and math.isfinite(found.needed):
        assert measure(a, b, dtype, found.needed)[1], "the smallest tolerance that would pass"


def test_a_difference_is_found() -> None:
    a = torch.ones(100)
    b = a.clone()
    b[7] += 0.01
    found, passes = measure(a, b, "float32", 1e-5)
    assert not passes
    assert found.max_abs == pytest.approx(0.01, rel=1e-4)
    assert found.outliers == 0.01
    assert found.needed == pytest.approx(0.01 / 2.01, rel=1e-3)


def test_two_of_a_million_may_be_over_and_not_far_over() -> None:
    a = torch.ones(1_000_000)
    b = a.clone()
    b[:2] += 1e-4
    assert measure(a, b, "float32", 1e-5)[1]
    b[0] += 1
    assert not measure(a, b, "float32", 1e-5)[1]


def test_infinite_and_missing_numbers_have_to_agree() -> None:
    a = torch.tensor([math.inf, math.nan, 1.0])
    assert measure(a, a.clone(), "float32", 0.0)[1]
    for other in ([-math.inf, math.nan, 1.0], [math.inf, 0.0, 1.0], [3e38, math.nan, 1.0]):
        found, passes = measure(a, torch.tensor(other), "float32", 1.0)
        assert found.nonfinite == 1
        assert not passes


def test_units_are_counted_through_zero() -> None:
    tiny = torch.finfo(torch.float32).smallest_normal * 2.0**-23
    a = torch.tensor([tiny, 0.0, 1.0])
    b = torch.tensor([-tiny, -0.0, 1.0 + 2.0**-23])
    assert ulps(a, b, "float32").tolist() == [2, 0, 1]


def test_logits() -> None:
    a = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0, -3.0]])
    assert logits(a, a) == (0, 1, 1)
    kl, top1, top5 = logits(a, a.flip(-1))
    assert kl > 1
    assert top1 == 0
    assert top5 == pytest.approx(0.8)


def test_prefix() -> None:
    assert prefix(torch.tensor([[1, 2, 3], [1, 2, 3]]), torch.tensor([[1, 2, 4, 5], [1, 2, 3, 3]])) == [2, 3]
