"""LSTM, GRU and RNN run whole on the CPU: the CPU's bits, gradients included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.numbers import check, same

pytestmark = pytest.mark.usefixtures("neuron")


def run_layer(layer: nn.Module, *args: Any) -> None:
    """The layer's function of its input and its parameters."""
    names = [name for name, _ in layer.named_parameters()]

    def run(values: list[Tensor], *args: Any) -> Any:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), args)

    check(run, [p.detach().requires_grad_(p.requires_grad) for p in layer.parameters()], *args)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("gradient", [True, False])
def test_layers(kind: type[nn.RNNBase], gradient: bool) -> None:
    inputs = torch.randn(3, 2, 4, requires_grad=gradient)
    for options in (
        {},
        {"num_layers": 2, "bidirectional": True},
        {"batch_first": True, "bias": False},
        {"num_layers": 2, "dropout": 0.5},
    ):
        layer = kind(4, 5, **options)  # type: ignore[arg-type]
        run_layer(layer.requires_grad_(gradient), inputs)


@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(kind: type[nn.RNNCellBase]) -> None:
    run_layer(kind(4, 5), torch.randn(2, 4, requires_grad=True))  # type: ignore[call-arg]
    run_layer(kind(4, 5, bias=False), torch.randn(2, 4))  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("gradient", [True, False])
def test_packed_sequences(kind: type[nn.RNNBase], gradient: bool) -> None:
    layer = kind(4, 5).requires_grad_(gradient)  # type: ignore[arg-type, call-arg]
    names = [name for name, _ in layer.named_parameters()]

    def run(values: list[Tensor], padded: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(padded, torch.tensor([3, 1]))
        assert packed.batch_sizes.device.type == "cpu"
        made = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (packed,))[0]
        unpacked: Tensor = nn.utils.rnn.pad_packed_sequence(made)[0]
        return unpacked

    check(run, [p.detach().requires_grad_(gradient) for p in layer.parameters()], torch.randn(3, 2, 4))


def test_backward_twice_and_no_second_derivative() -> None:
    layer = nn.LSTM(2, 2).to("neuron")
    weight = layer.get_parameter("weight_ih_l0")
    inputs = torch.ones(1, 1, 2, device="neuron")
    made = layer(inputs)[0].sum()
    made.backward(retain_graph=True)
    assert weight.grad is not None
    first = weight.grad.clone()
    made.backward()
    same(weight.grad, (first * 2).cpu())
    (gradient,) = torch.autograd.grad(layer(inputs)[0].sum(), [weight], create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        gradient.sum().backward()
