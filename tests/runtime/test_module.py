"""`torch.neuron`, `torch.accelerator`, streams, events and random numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from neuronmigrate.runtime.emulated import module
from tests.runtime.numbers import check, same

pytestmark = pytest.mark.usefixtures("neuron")

neuron: Any


@pytest.fixture(autouse=True)
def the_module() -> None:
    global neuron
    neuron = torch.get_device_module("neuron")


def test_the_device_is_found() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("neuron")
    assert torch.accelerator.device_count() == 1
    assert torch.device(0) == torch.device("neuron", 0)
    assert neuron.is_available() and neuron.is_initialized() and not neuron._is_in_bad_fork()
    assert neuron.device_count() == 1 and neuron.current_device() == 0
    assert neuron.is_bf16_supported()
    assert neuron.is_emulated


def test_devices_are_checked() -> None:
    for given in (0, "neuron", "neuron:0", torch.device("neuron"), None):
        assert module.index_of(given) == 0
        neuron.set_device(given)
        with neuron.device(given):
            pass
    with pytest.raises(ValueError, match="there is 1 emulated device: a process owns one"):
        neuron.set_device("neuron:1")
    with pytest.raises(ValueError, match="expected a neuron device"):
        neuron.set_device("cpu")


@pytest.mark.parametrize(
    "use",
    [
        lambda device: torch.ones(2, device=device),
        lambda device: torch.arange(2, device=device),
        lambda device: torch.ones(2).to(device),
        lambda device: torch.ones(2, device="neuron").to(device),
        lambda device: torch.zeros_like(torch.ones(2), device=device),
        lambda device: torch.nn.Linear(2, 2).to(device),
    ],
)
def test_a_process_owns_one_device(use: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    use("neuron:0")
    with pytest.raises(RuntimeError, match="neuron:1 is asked for, and there is 1 emulated device"):
        use("neuron:1")
    monkeypatch.setattr(module, "_devices", 2)
    use("neuron:1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    use("neuron:1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(RuntimeError, match="in the process of local rank 0, which owns its own device alone"):
        use("neuron:1")


def test_libraries_find_the_package() -> None:
    import torch_neuronx  # type: ignore[import-not-found]
    from accelerate.utils import is_neuron_available
    from transformers.utils.import_utils import is_torch_neuron_available

    assert is_torch_neuron_available() and is_neuron_available()
    assert "emulated" in torch_neuronx.__version__
    with pytest.raises(AttributeError, match="needs the real package"):
        torch_neuronx.trace  # noqa: B018


def test_memory_is_the_machines() -> None:
    free, total = neuron.mem_get_info()
    assert 0 < free <= total
    assert torch.accelerator.get_memory_info()[1] == total == neuron.get_device_properties().total_memory
    for owner in (neuron, torch.accelerator):
        owner.empty_cache()
        owner.synchronize()
        owner.reset_peak_memory_stats()
        assert owner.memory_allocated() == owner.max_memory_allocated() == owner.memory_reserved() == 0
        assert not owner.memory_stats()
    assert "does not measure" in neuron.memory_summary()
    assert torch.bfloat16 in torch.accelerator.get_device_capability()["supported_dtypes"]


def test_streams_and_events() -> None:
    stream = neuron.Stream()
    assert isinstance(stream, torch.Stream) and stream.device == torch.device("neuron", 0)
    first, second = neuron.Event(enable_timing=True), neuron.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="must be recorded"):
        first.elapsed_time(second)
    with neuron.stream(stream):
        first.record()
        before = time.perf_counter()
        made = torch.ones(64, 64, device="neuron") @ torch.ones(64, 64, device="neuron")
        between = (time.perf_counter() - before) * 1e3
        stream.record_event(second)
    stream.wait_event(second)
    stream.wait_stream(neuron.current_stream())
    stream.synchronize()
    second.synchronize()
    assert stream.query() and second.query()
    assert first.elapsed_time(second) >= between
    same(made, torch.full((64, 64), 64.0))
    neuron.set_stream(stream)
    torch.accelerator.set_stream(stream)
    with stream:
        assert neuron.default_stream().device.type == "neuron"


class TestRandom:
    """One generator for both devices, so that seeds give the CPU's numbers."""

    def test_draws(self) -> None:
        for draw in (
            lambda x: torch.nn.functional.dropout(x, 0.3),
            lambda x: torch.nn.functional.alpha_dropout(x, 0.3, training=True),
            lambda x: torch.rand_like(x),
            lambda x: torch.randperm(7, device=x.device),
            lambda x: torch.bernoulli(x.sigmoid()),
            lambda x: torch.multinomial(x.exp(), 2),
            lambda x: x.clone().normal_(1, 2),
            lambda x: x.clone().exponential_(),
            lambda x: torch.nn.init.trunc_normal_(x.clone()),
            lambda x: torch.nn.init.orthogonal_(torch.empty(3, 3, device=x.device)),
        ):
            check(draw, torch.randn(3, 4))

    def test_states(self) -> None:
        state = neuron.get_rng_state()
        first = torch.rand(3, device="neuron")
        neuron.set_rng_state(state)
        same(torch.rand(3, device="neuron"), first.cpu())
        neuron.set_rng_state_all(neuron.get_rng_state_all())
        torch.manual_seed(5)
        expected = torch.rand(2)
        neuron.manual_seed(5)
        same(torch.rand(2, device="neuron"), expected)
        neuron.manual_seed_all(5)
        same(torch.rand(2, device="neuron"), expected)
        assert neuron.initial_seed() == 5
        neuron.seed()
        assert neuron.initial_seed() != 5
        neuron.seed_all()

    def test_fork(self) -> None:
        torch.manual_seed(7)
        expected = torch.rand(2)
        torch.manual_seed(7)
        with torch.random.fork_rng(device_type="neuron"):
            torch.rand(5, device="neuron")
        same(torch.rand(2, device="neuron"), expected)

    def test_generators(self) -> None:
        generator = torch.Generator("neuron").manual_seed(3)
        assert isinstance(generator, torch.Generator)
        assert generator.device == torch.device("neuron", 0)
        expected = torch.randn(4, generator=torch.Generator().manual_seed(3))
        same(torch.randn(4, generator=generator, device="neuron"), expected)
        generator.manual_seed(3)
        same(torch.empty(4, device="neuron").normal_(generator=generator), expected)
        state = generator.get_state()
        drawn = torch.randperm(5, generator=generator, device="neuron").cpu()
        generator.set_state(state)
        same(torch.randperm(5, generator=generator, device="neuron"), drawn)

    def test_other_generators(self) -> None:
        assert torch.Generator().device.type == "cpu"
        assert torch.Generator(device="cpu").device.type == "cpu"
        assert isinstance(torch.default_generator, torch.Generator)
        assert not isinstance(3, torch.Generator)


def test_the_default_device() -> None:
    torch.set_default_device("neuron")
    try:
        made: Tensor = torch.nn.Linear(2, 2)(torch.ones(1, 2))
        assert made.device.type == "neuron"
    finally:
        torch.set_default_device(None)
    with torch.device("neuron"):
        assert torch.ones(2).device.type == "neuron"


def test_transforms() -> None:
    check(lambda x, w: torch.vmap(lambda row: (row * w).sum())(x), torch.randn(3, 4), torch.randn(4))
    check(lambda x: torch.func.grad(lambda v: v.sin().sum())(x), torch.randn(4))
    check(lambda x: torch.func.jacrev(lambda v: v**2)(x), torch.randn(3))

    def checkpointed(x: Tensor) -> Tensor:
        made = torch.utils.checkpoint.checkpoint(
            lambda v: torch.nn.functional.dropout(v.relu(), 0.5), x, use_reentrant=False
        )
        assert isinstance(made, Tensor)
        return made

    check(checkpointed, torch.randn(8, requires_grad=True))
