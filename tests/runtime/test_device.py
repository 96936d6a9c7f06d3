"""Tensors of the emulated device: their label, their memory, and what does not mix."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from neuronmigrate.runtime import Activation
from neuronmigrate.runtime.emulated import fallback
from neuronmigrate.runtime.emulated.retag import to_cpu, to_neuron

pytestmark = pytest.mark.usefixtures("neuron")


def test_labels_share_memory() -> None:
    cpu = torch.arange(6.0).reshape(2, 3).t()
    device = to_neuron(cpu)
    assert device.device == torch.device("neuron", 0)
    assert device.is_neuron  # type: ignore[attr-defined]
    assert (device.shape, device.stride(), device.data_ptr()) == (cpu.shape, cpu.stride(), cpu.data_ptr())
    back = to_cpu(device)
    assert back.device.type == "cpu" and back.data_ptr() == cpu.data_ptr()
    device.add_(1)
    assert cpu[0, 0] == 1 and back[0, 0] == 1


def test_a_label_keeps_memory_alive_and_lets_go_of_it() -> None:
    cpu = torch.arange(1000.0)
    died = weakref.ref(cpu)
    device = to_neuron(cpu)
    del cpu
    gc.collect()
    assert died() is not None and device.sum().item() == 499500
    del device
    gc.collect()
    assert died() is None


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int64, torch.bfloat16, torch.complex64])
def test_dtypes(dtype: torch.dtype) -> None:
    cpu = torch.tensor([0, 1, 1]).to(dtype)
    device = cpu.to("neuron")
    assert device.dtype is dtype
    assert torch.equal(device.cpu(), cpu)


def test_lazy_bits_are_made_plain() -> None:
    cpu = torch.tensor([1 + 2j, 3 - 1j])
    assert torch.equal(to_cpu(to_neuron(cpu.conj())), torch.tensor([1 - 2j, 3 + 1j]))
    assert torch.equal(to_cpu(to_neuron(cpu.conj().imag)), torch.tensor([-2.0, 1.0]))


def test_sparse_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="strided tensors"):
        torch.eye(2).to("neuron").to_sparse()


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.zeros(2, 3, device=d),
        lambda d: torch.ones(2, dtype=torch.int32, device=d),
        lambda d: torch.full((2,), 7.5, device=d),
        lambda d: torch.arange(2, 9, 3, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.tensor([[1.0, 2.0]], device=d),
        lambda d: torch.randn(4, device=d),
        lambda d: torch.randint(9, (4,), device=d),
        lambda d: torch.randperm(9, device=d),
        lambda d: torch.zeros_like(torch.ones(2, device=d)),
        lambda d: torch.rand_like(torch.ones(2, device=d)),
        lambda d: torch.ones(2, device=d).new_full((3,), 4),
        lambda d: torch.ones(2, 3, device=d).to(torch.float64),
        lambda d: torch.empty(0, 3, device=d),
        lambda d: torch.tril_indices(3, 3, device=d),
        lambda d: torch.scalar_tensor(2.0, device=d),
        lambda d: torch.hann_window(5, device=d),
    ],
)
def test_factories(make: object) -> None:
    assert callable(make)
    torch.manual_seed(0)
    expected = make("cpu")
    torch.manual_seed(0)
    found = make("neuron")
    assert found.device.type == "neuron" and found.dtype is expected.dtype
    assert torch.equal(found.cpu(), expected)


def test_a_result_can_be_asked_for_on_the_cpu() -> None:
    device = torch.ones(2, device="neuron")
    assert torch.zeros_like(device, device="cpu").device.type == "cpu"
    assert device.new_ones(2, device="cpu").device.type == "cpu"
    assert device.to("cpu", torch.float64).dtype is torch.float64


def test_numpy_takes_cpu_tensors_alone() -> None:
    with pytest.raises(TypeError, match=r"Tensor.cpu\(\)"):
        torch.ones(2, device="neuron").numpy()
    assert np.array_equal(torch.ones(2, device="neuron").cpu().numpy(), [1, 1])


class TestMixedDevices:
    """What natively raises raises; what natively may mix may mix."""

    cpu = torch.ones(2)

    def test_arithmetic(self) -> None:
        with pytest.raises(
            fallback.MixedDevices, match=r"aten::add.Tensor.*CPU tensor of shape \[2\] with \.to\('neuron'\)"
        ):
            torch.ones(2, device="neuron") + self.cpu

    def test_lists(self) -> None:
        with pytest.raises(fallback.MixedDevices):
            torch.cat([torch.ones(2, device="neuron"), self.cpu])

    def test_in_place(self) -> None:
        with pytest.raises(fallback.MixedDevices):
            torch.ones(2, device="neuron").mul_(self.cpu)
        with pytest.raises(fallback.MixedDevices):
            self.cpu.mul_(torch.ones(2, device="neuron"))
        with pytest.raises(fallback.MixedDevices):
            torch.tensor(1.0).mul_(torch.ones((), device="neuron"))

    def test_out(self) -> None:
        with pytest.raises(fallback.MixedDevices):
            torch.add(torch.ones(2, device="neuron"), 1, out=torch.empty(2))

    def test_a_layer(self) -> None:
        with pytest.raises(fallback.MixedDevices):
            torch.nn.Linear(2, 2).to("neuron")(self.cpu)
        with pytest.raises(fallback.MixedDevices):
            torch.nn.functional.scaled_dot_product_attention(
                torch.ones(1, 1, 2, 2, device="neuron"), torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2)
            )
        with pytest.raises(fallback.MixedDevices):
            torch.nn.LSTM(2, 2).to("neuron")(torch.ones(1, 1, 2))

    def test_numbers_without_dimensions_mix(self) -> None:
        found = torch.ones(2, device="neuron") * torch.tensor(3.0)
        assert torch.equal(found.cpu(), torch.tensor([3.0, 3.0]))

    def test_indices_may_stay_on_the_cpu(self) -> None:
        device = torch.arange(4.0, device="neuron")
        assert torch.equal(device[torch.tensor([2, 0])].cpu(), torch.tensor([2.0, 0.0]))
        device[torch.tensor([1])] = 9.0
        assert torch.equal(device.cpu(), torch.tensor([0.0, 9.0, 2.0, 3.0]))

    def test_copies_cross(self) -> None:
        device = torch.zeros(2, device="neuron")
        device.copy_(self.cpu)
        torch._foreach_copy_([device], [self.cpu * 2])
        assert torch.equal(device.cpu(), torch.tensor([2.0, 2.0]))


class TestParameters:
    """`module.to` keeps Parameter objects unless strict mode is on (test_strict.py)."""

    def test_identity_and_ties(self) -> None:
        module = torch.nn.Linear(2, 2)
        module.tied = module.weight
        weight = module.weight
        optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
        module.to("neuron")
        assert module.weight is weight is module.tied and weight.device.type == "neuron"
        before = weight.detach().cpu()
        module(torch.ones(1, 2, device="neuron")).sum().backward()
        optimizer.step()
        assert torch.equal(weight.detach().cpu(), before - 1)

    def test_deepcopy(self) -> None:
        module = torch.nn.Linear(2, 2).to("neuron")
        twin = copy.deepcopy(module)
        twin.weight.data.zero_()
        assert twin.weight.device.type == "neuron" and module.weight.abs().sum().item() > 0


def test_views_share_storage_and_version() -> None:
    device = torch.zeros(4, device="neuron")
    view = device.view(2, 2)[1]
    version = device._version
    view.fill_(1)
    assert torch.equal(device.cpu(), torch.tensor([0.0, 0.0, 1.0, 1.0]))
    assert device._version == view._version == version + 1
    assert view._base is device


def test_a_write_to_a_saved_tensor_is_noticed() -> None:
    leaf = torch.ones(2, device="neuron", requires_grad=True)
    saved = leaf * 1
    made = saved.square().sum()
    saved.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.backward()


class TestObservers:
    """The hook through which each operation passes."""

    @pytest.fixture
    def seen(self) -> Iterator[list[str]]:
        names: list[str] = []

        def observe(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            names.append(name)

        fallback.observers.append(observe)
        yield names
        fallback.observers.remove(observe)

    def test_names_and_arguments(self) -> None:
        calls: list[tuple[str, tuple[object, ...], dict[str, object]]] = []
        device = torch.ones(2, 2, device="neuron")

        def observe(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            calls.append((name, args, kwargs))

        fallback.observers.append(observe)
        try:
            torch.sum(device @ device, 0, dtype=torch.float64)
        finally:
            fallback.observers.remove(observe)
        (name, args, _), (second, _, kwargs) = calls
        assert (name, second) == ("aten::mm", "aten::sum.dim_IntList")
        assert args[0] is device and kwargs == {"dtype": torch.float64}

    def test_synchronisations(self, seen: list[str]) -> None:
        device = torch.ones(2, device="neuron")
        target = torch.empty(2)
        seen.clear()
        device[0].item()
        device.cpu()
        target.copy_(device)
        assert seen == ["aten::_local_scalar_dense", "aten::_to_copy", "aten::_copy_from"]

    def test_own_routes(self, seen: list[str]) -> None:
        tensor = torch.ones(1, 1, 2, 2, device="neuron", requires_grad=True)
        plain = tensor.detach()
        cell = torch.nn.LSTMCell(2, 2).to("neuron")
        seen.clear()
        torch.nn.functional.scaled_dot_product_attention(tensor, tensor, tensor)
        torch.nn.functional.scaled_dot_product_attention(plain, plain, plain)
        cell(tensor[0, 0])
        assert "aten::_scaled_dot_product_flash_attention_for_cpu" in seen
        assert "aten::scaled_dot_product_attention" in seen
        assert "aten::lstm_cell" in seen


def test_the_device_says_that_it_is_emulated(neuron: Activation) -> None:
    assert "emulated" in neuron.selection.line()
    assert "emulated" in torch.get_device_module("neuron").get_device_name()
    assert neuron.selection.as_json()["backend"] == "emulated (CPU)"


def test_threads_that_use_the_device_first_at_the_same_moment() -> None:
    seen: list[str] = []

    def first(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        # Both threads are told of their operation before either takes the observer out.
        together.wait(timeout=60)
        if fallback.take_out(first):
            seen.append(name)

    together = threading.Barrier(2)
    fallback.observers.append(first)
    with ThreadPoolExecutor(2) as pool:
        moved = list(pool.map(lambda value: torch.full((2,), value).to("neuron"), (1.0, 2.0)))
    assert [each.tolist() for each in moved] == [[1.0, 1.0], [2.0, 2.0]]
    assert len(seen) == 1
    assert not fallback.take_out(first)
