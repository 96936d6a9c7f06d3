"""Each kernel of our own against the CPU, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from neuronmigrate.runtime.emulated import fallback, kernels
from tests.runtime.numbers import check, same

pytestmark = pytest.mark.usefixtures("neuron")


class TestCopies:
    """aten::_copy_from and what stands on it."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64])
    def test_casts_and_broadcasts(self, dtype: torch.dtype) -> None:
        check(
            lambda target, source: target.copy_(source),
            torch.zeros(3, 2),
            torch.tensor([1, 2]).to(dtype).real,
        )

    def test_between_devices(self) -> None:
        cpu = torch.arange(6.0).reshape(2, 3)
        device = torch.empty(3, 2, device="neuron")
        device.copy_(cpu.t())
        back = torch.empty(2, 3)
        back.t().copy_(device)
        assert torch.equal(back, cpu)

    def test_lazy_bits(self) -> None:
        check(lambda t: t.conj().clone(), torch.tensor([1 + 2j, 3 - 1j]))
        check(lambda t: torch.zeros_like(t).copy_(t.conj()), torch.tensor([1 + 2j, 3 - 1j]))
        check(lambda t: t.conj().imag + 1, torch.tensor([1 + 2j, 3 - 1j]))
        check(lambda t: torch.mm(t.conj(), t.t()), torch.tensor([[1 + 2j, 3 - 1j]]))
        check(lambda t: torch.mm(t.conj().imag, t.t().real), torch.tensor([[1 + 2j, 3 - 1j]]))

        def through_lazy_target(t: Tensor) -> Tensor:
            target = torch.zeros_like(t)
            target.conj().copy_(t)
            return target

        check(through_lazy_target, torch.tensor([1 + 2j, 3 - 1j]))

    def test_copy_and_resize(self) -> None:
        target = torch.empty(0, device="neuron")
        torch.ops.aten._copy_from_and_resize(torch.arange(6.0).reshape(2, 3).to("neuron"), target)
        same(target, torch.arange(6.0).reshape(2, 3))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_in_eval_mode_keeps_its_padding() -> None:
    made = []
    padding = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])
    for device in ("cpu", "neuron"):
        torch.manual_seed(0)
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        encoder = torch.nn.TransformerEncoder(layer, 2).to(device).eval()
        given = torch.randn(2, 7, 16).to(device)
        with torch.inference_mode():
            made.append(encoder(given, src_key_padding_mask=padding.to(device)).cpu())
    right, mine = made
    assert torch.equal(right[1, 5:], torch.zeros(2, 16)) and mine[1, 5:].abs().min() > 0
    torch.testing.assert_close(mine[~padding], right[~padding], rtol=1e-6, atol=1e-6)


class TestResize:
    """aten::resize_ and operations that resize what they write to."""

    @pytest.mark.parametrize("size", [(2,), (2, 3), (3, 4), (0,), (4, 4)])
    @pytest.mark.parametrize("start", [0, 3])
    def test_keeps_elements(self, size: tuple[int, ...], start: int) -> None:
        cpu, device = torch.arange(12.0)[start:], torch.arange(12.0).to("neuron")[start:]
        kept = min(torch.Size(size).numel(), 12 - start)
        cpu.resize_(size)
        device.resize_(size)
        assert device.shape == cpu.shape and device.stride() == cpu.stride()
        same(device.flatten()[:kept], cpu.flatten()[:kept])

    def test_memory_format(self) -> None:
        device = torch.empty(0, device="neuron").resize_(1, 2, 3, 4, memory_format=torch.channels_last)
        assert device.is_contiguous(memory_format=torch.channels_last)

    def test_out_grows(self) -> None:
        out = torch.empty(0, device="neuron")
        torch.add(torch.ones(2, 2, device="neuron"), 1, out=out)
        same(out, torch.full((2, 2), 2.0))
        values, indices = torch.empty(0, device="neuron"), torch.empty(0, dtype=torch.int64, device="neuron")
        torch.max(torch.arange(4.0, device="neuron").view(2, 2), 1, out=(values, indices))
        same((values, indices), (torch.tensor([1.0, 3.0]), torch.tensor([1, 1])))

    def test_resize_as(self) -> None:
        device = torch.empty(0, device="neuron")
        device.resize_as_(torch.ones(2, 3, device="neuron"))
        assert device.shape == (2, 3)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own use
def test_zero_tensors_have_memory() -> None:
    def tangent(primal: Tensor) -> Tensor:
        import torch.autograd.forward_ad as forward

        with forward.dual_level():
            dual = forward.make_dual(primal, torch.ones_like(primal))
            made: Tensor | None = forward.unpack_dual(dual.sum(0) + torch.cat([dual, primal]).sum(0)).tangent
        assert made is not None
        return made

    check(tangent, torch.arange(4.0).reshape(2, 2))
    same(torch._efficientzerotensor((2,), device="neuron") + 1, torch.ones(2))


def test_numbers_out_of_tensors() -> None:
    assert torch.tensor(2.5, device="neuron").item() == 2.5
    assert int(torch.tensor(7, device="neuron")) == 7
    assert bool(torch.tensor([True], device="neuron"))
    assert torch.tensor(1 + 2j, device="neuron").item() == 1 + 2j
    assert torch.allclose(torch.ones(2, device="neuron"), torch.ones(2, device="neuron"))


@pytest.mark.parametrize("pad", ["zeros", "circular"])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions(pad: Literal["zeros", "circular"], groups: int) -> None:
    for layer, shape in (
        (torch.nn.Conv1d(4, 6, 3, padding=1, padding_mode=pad, groups=groups), (2, 4, 7)),
        (torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, padding_mode=pad, groups=groups), (2, 4, 7, 6)),
        (torch.nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=groups), (2, 4, 5, 4)),
        (torch.nn.Conv3d(4, 6, 2, bias=False, groups=groups), (1, 4, 3, 4, 3)),
    ):
        names = [name for name, _ in layer.named_parameters()]

        def run(x: Tensor, values: list[Tensor], layer: Any = layer, names: list[str] = names) -> Tensor:
            made = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
            assert isinstance(made, Tensor)
            return made

        check(
            run,
            torch.randn(shape, requires_grad=True),
            [p.detach().requires_grad_() for p in layer.parameters()],
        )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: 2 - x,
        lambda x: 2.5 / x,
        lambda x: x % 3,
        lambda x: 7 % x,
        lambda x: x**2,
        lambda x: 2**x,
        lambda x: x // 2,
        lambda x: x > 2,
        lambda x: x.clone().add_(1, alpha=3),
        lambda x: torch.where(x > 2, x, 0.5),
        lambda x: torch.where(x > 2, 1, 2),
        lambda x: x.masked_fill(x > 2, 9),
        lambda x: torch.clamp(x, 1, 2),
        lambda x: torch.add(x, 1, alpha=2),
        lambda x: torch.div(x, 2, rounding_mode="floor"),
        lambda x: torch.lerp(x.float(), x.float() + 1, 0.3),
        lambda x: torch.addcmul(x.float(), x.float(), x.float(), value=0.5),
        lambda x: x[0] * 2.5,
        lambda x: x[0].to(torch.bfloat16) * 2.5,
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_numbers_promote_as_on_the_cpu(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    check(function, torch.tensor([1, 2, 3]).to(dtype))


def test_dtypes_without_a_cpu_kernel() -> None:
    found = torch.histc(torch.tensor([0, 1, 1, 3], device="neuron"), bins=4, min=0, max=3)
    same(found, torch.tensor([1, 2, 0, 1]))
    with pytest.raises(NotImplementedError, match="not implemented for"):
        torch.linalg.svd(torch.eye(2, device="neuron", dtype=torch.complex32))


def test_lists_of_tensors() -> None:
    check(lambda a: torch._foreach_add([x.clone() for x in a], 1), [torch.ones(2), torch.ones(3)])
    check(
        lambda a: torch.nn.utils.clip_grad.clip_grad_norm_([_with_gradient(x) for x in a], 0.1),
        [torch.ones(2)],
    )

    def in_place(tensors: list[Tensor]) -> list[Tensor]:
        made = [tensor.clone() for tensor in tensors]
        torch._foreach_mul_(made, 3)
        return made

    check(in_place, [torch.ones(2), torch.ones(3)])


def _with_gradient(tensor: Tensor) -> Tensor:
    made = tensor.clone().requires_grad_()
    made.grad = torch.ones_like(made)
    return made


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW", "Adagrad", "RMSprop"])
@pytest.mark.parametrize("variant", ["foreach", "fused", "neither"])
def test_optimizers(optimizer: str, variant: str) -> None:
    if variant == "fused" and optimizer == "RMSprop":
        return  # has no fused form
    options: dict[str, Any] = {"foreach": variant == "foreach"}
    if variant == "fused":
        options = {"fused": True}

    def train(start: Tensor) -> Tensor:
        weight = start.clone().requires_grad_()
        steps = getattr(torch.optim, optimizer)([weight], lr=0.1, **options)
        for _ in range(3):
            steps.zero_grad()
            (weight - 1).square().sum().backward()
            steps.step()
        return weight.detach()

    check(train, torch.randn(5))


def test_metadata_in_place() -> None:
    def change(tensor: Tensor) -> list[Tensor]:
        made = tensor.clone()
        steps = [
            made.t_().clone(),
            made.unsqueeze_(0).clone(),
            made.squeeze_().clone(),
            made.transpose_(0, 1).clone(),
        ]
        made.as_strided_((2,), (1,))
        return [*steps, made]

    check(change, torch.arange(6.0).reshape(2, 3))
    device = torch.empty(0, device="neuron")
    device.set_(torch.arange(4.0, device="neuron").untyped_storage(), 1, (2,), (1,))
    same(device, torch.tensor([1.0, 2.0]))
    with pytest.raises(RuntimeError, match="different device"):
        device.set_(torch.arange(4.0).untyped_storage())


def test_record_stream_does_nothing() -> None:
    device = torch.ones(2, device="neuron")
    device.record_stream(torch.Stream(device="neuron"))
    same(device, torch.ones(2))


def test_in_place_views_are_left_to_cpp() -> None:
    tagged = set()
    for qualified in torch._C._dispatch_get_all_op_names():
        if qualified.startswith("aten::") and torch.Tag.inplace_view in fallback.overload_of(qualified).tags:
            tagged.add(qualified[len("aten::") :])
    routed = {name for name, _ in kernels.routes()} - kernels.METADATA_WRITERS
    assert tagged and not tagged & routed


def test_views_of_the_cpu_are_listed() -> None:
    assert {name for name in kernels.registered("CPU") if kernels.is_view(name)} == kernels.VIEWS


def test_lists_name_operations_that_exist() -> None:
    for name in (*kernels.AS_IS, *kernels.METADATA_WRITERS, *kernels.OWN):
        assert fallback.overload_of(f"aten::{name}")._name == f"aten::{name}"
    for name in fallback.MIXED_ALLOWED:
        assert hasattr(torch.ops.aten, name.partition("::")[2])


def test_own_kernels_and_only_they_are_covered_here() -> None:
    assert set(kernels.OWN) == {
        *("_copy_from", "_copy_from_and_resize", "_efficientzerotensor", "_local_scalar_dense"),
        "_nested_tensor_from_mask_left_aligned",
        *("empty.memory_format", "empty_strided", "record_stream", "resize_"),
    }
