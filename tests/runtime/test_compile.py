"""`torch.compile(backend="neuron")`: the CPU's numbers, and the refusals that TorchNeuron documents."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from neuronmigrate.runtime.emulated import dynamo
from tests.runtime.numbers import same

pytestmark = [
    pytest.mark.usefixtures("neuron"),
    # What Dynamo's own imports use.
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mix(self.norm(x)).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        made = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.out(made.transpose(1, 2).flatten(2))
        return x + out


def test_a_training_step_gives_the_cpus_bits() -> None:
    torch.manual_seed(0)
    model, inputs = Block(), torch.randn(2, 5, 16)
    twin = copy.deepcopy(model).to("neuron")
    compiled = torch.compile(twin, backend="neuron", fullgraph=True)
    expected = model(inputs)
    found = compiled(inputs.to("neuron"))
    same(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    same([p.grad for p in twin.parameters()], [p.grad for p in model.parameters()])


def test_each_shape_is_compiled_anew() -> None:
    compiled = torch.compile(lambda x: x * 2 + 1, backend="neuron")
    before = len(dynamo.graphs)
    for length in (3, 4, 3, 5):
        same(compiled(torch.ones(length, device="neuron")), torch.full((length,), 3.0))
    assert len(dynamo.graphs) - before == 3


def test_module_compile_and_decorator() -> None:
    module = nn.Linear(2, 2).to("neuron")
    inputs = torch.ones(1, 2, device="neuron")
    expected = module(inputs).detach().cpu()
    module.compile(backend="neuron")
    same(module(inputs), expected)

    @torch.compile(backend="neuron")  # type: ignore[untyped-decorator, unused-ignore]
    def double(x: Tensor) -> Tensor:
        return x * 2

    same(double(inputs), torch.full((1, 2), 2.0))


class TestRefusals:
    """What the real backend refuses."""

    def test_dynamic(self) -> None:
        with pytest.raises(dynamo.DynamicShapes, match="dynamic=True was given"):
            torch.compile(lambda x: x, backend="neuron", dynamic=True)
        with pytest.raises(dynamo.DynamicShapes):
            nn.Linear(2, 2).compile(backend="neuron", dynamic=True)

    def test_a_dynamic_size(self) -> None:
        inputs = torch.ones(4, 2, device="neuron")
        torch._dynamo.mark_dynamic(inputs, 0)
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="inputs varies"):
            torch.compile(lambda x: x * 2, backend="neuron")(inputs)

    def test_other_backends(self) -> None:
        module = nn.Linear(2, 2).to("neuron")
        for target in (module, module.forward):
            with pytest.raises(RuntimeError, match="no code for the neuron device"):
                torch.compile(target)
            with pytest.raises(RuntimeError, match="backend='neuron', dynamic=False"):
                torch.compile(target, backend="inductor", mode="reduce-overhead")

    def test_the_defaults_of_transformers(self) -> None:
        from transformers import CompileConfig

        with pytest.raises(RuntimeError, match="mode='default' in a CompileConfig"):
            torch.compile(nn.Linear(2, 2).to("neuron"), **CompileConfig().to_dict())

    def test_a_mode(self) -> None:
        compiled = torch.compile(lambda x: x * 2, backend="neuron", mode="reduce-overhead")
        with pytest.warns(UserWarning, match="no mode 'reduce-overhead'"):
            same(compiled(torch.ones(2, device="neuron")), torch.full((2,), 2.0))

    def test_an_input_on_the_cpu(self) -> None:
        module = torch.compile(nn.Linear(2, 2).to("neuron"), backend="neuron")
        with pytest.raises(RuntimeError, match="same device"):
            module(torch.ones(1, 2))


def test_the_cpu_compiles_as_before() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="eager", dynamic=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


def test_dynamo_knows_the_device() -> None:
    from torch._dynamo.device_interface import get_interface_for_device

    interface = get_interface_for_device("neuron:0")
    assert interface.is_available() and interface.device_count() == 1
    assert interface.exchange_device(0) == interface.current_device() == 0
    assert "neuron" in torch._dynamo.list_backends()
