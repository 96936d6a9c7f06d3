"""PyTorch's own database of operations: the device gives the CPU's numbers, forward and backward, bit by bit.

Plain pytest takes each tenth operation and its first sample; `-m nightly` takes all and three samples.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from neuronmigrate.runtime import Activation

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the database's imports use what torch itself deprecates
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

UNINITIALISED = "uninitialised memory: shapes and dtypes alone are equal"
EXCEPTIONS = {
    "as_strided.partial_views": "its input is a window of a larger memory, which does not move along",
    "empty": UNINITIALISED,
    "empty_like": UNINITIALISED,
    "empty_permuted": UNINITIALISED,
    "empty_strided": UNINITIALISED,
    "jiterator_2inputs_2outputs": "runs on CUDA and ROCm alone",
    "jiterator_4inputs_with_extra_args": "runs on CUDA and ROCm alone",
    "jiterator_binary": "runs on CUDA and ROCm alone",
    "jiterator_binary_return_by_ref": "runs on CUDA and ROCm alone",
    "jiterator_unary": "runs on CUDA and ROCm alone",
    "new_empty": UNINITIALISED,
    "new_empty_strided": UNINITIALISED,
    "sparse.mm.reduce": "sparse layout, which DLPack does not carry",
    "sparse.sampled_addmm": "sparse layout, which DLPack does not carry",
    "tensor_split": "takes its indices on the CPU whatever the device; the test moves them",
    "to_sparse": "sparse layout, which DLPack does not carry",
}
"""Operations that are not equal, with the reason; a test holds each of them to that."""


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


OPERATIONS = {name_of(op): op for op in op_db if torch.float32 in op.dtypes}


class Outcome(NamedTuple):
    """Results and gradients, moved to the CPU."""

    results: list[object]
    gradients: list[Tensor | None]


def moved(value: Any) -> Any:
    """A sample's part on the device; leaves stay leaves."""
    if isinstance(value, Tensor):
        return value.detach().to("neuron").requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or value == "cpu":
        return torch.device("neuron")
    return value


def run(op: OpInfo, sample: SampleInput, *, backward: bool) -> Outcome:
    torch.manual_seed(0)
    made = op(sample.input, *sample.args, **sample.kwargs)
    results = tree_leaves(made)
    gradients: list[Tensor | None] = []
    if backward:
        leaves = [
            leaf
            for leaf in tree_leaves((sample.input, sample.args, sample.kwargs))
            if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        sums = [
            r.sum() for r in results if isinstance(r, Tensor) and r.requires_grad and r.is_floating_point()
        ]
        if sums:
            gradients = list(torch.autograd.grad(sum(sums), leaves, allow_unused=True))  # type: ignore[arg-type]
    return Outcome(results, gradients)


def samples(op: OpInfo, count: int) -> Iterator[SampleInput]:
    torch.manual_seed(1)
    made = op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd)
    for _, sample in zip(range(count), made, strict=False):
        yield sample


def check(name: str, count: int, *, values: bool = True) -> None:
    op = OPERATIONS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the operations: deprecations, ignored resizes
        for sample in samples(op, count):
            expected = run(op, sample, backward=op.supports_autograd)
            twin = SampleInput(
                tree_map(moved, sample.input),
                args=tree_map(moved, sample.args),
                kwargs=tree_map(moved, sample.kwargs),
            )
            found = run(op, twin, backward=op.supports_autograd)
            for kind, ours, theirs in (
                ("result", found.results, expected.results),
                ("gradient", found.gradients, expected.gradients),
            ):
                assert len(ours) == len(theirs)
                for mine, right in zip(ours, theirs, strict=True):
                    if isinstance(right, Tensor):
                        assert isinstance(mine, Tensor)
                        assert mine.device.type == "neuron", f"{kind} on {mine.device}"
                        if values:
                            torch.testing.assert_close(
                                mine.detach().cpu(), right.detach(), rtol=0, atol=0, equal_nan=True
                            )
                        assert (mine.shape, mine.dtype) == (right.shape, right.dtype)
                    else:
                        assert mine == right or mine != mine, kind


EQUAL = sorted(set(OPERATIONS) - set(EXCEPTIONS))


@pytest.mark.parametrize("name", EQUAL[::10])
def test_an_operation(name: str, neuron: Activation) -> None:
    check(name, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("name", EQUAL)
def test_every_operation(name: str, neuron: Activation) -> None:
    check(name, 3)


@pytest.mark.parametrize("name", sorted(EXCEPTIONS))
def test_an_exception_is_one(name: str, neuron: Activation) -> None:
    if EXCEPTIONS[name] == UNINITIALISED:
        check(name, 3, values=False)
        return
    with pytest.raises((AssertionError, NotImplementedError, RuntimeError)):
        check(name, 3)
