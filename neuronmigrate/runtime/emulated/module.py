"""`torch.neuron`: the functions that TorchNeuron documents and that Hugging Face's libraries call.

Everything happens at once and on the CPU, so streams and events are in order by themselves, and the memory
of the process is the memory of the device. All memory figures are 0 but `mem_get_info`.
"""

from __future__ import annotations

import os
import time
import types
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

Device: TypeAlias = "torch.device | str | int | None"

NAME = "neuron (emulated on CPU)"


class Properties(NamedTuple):
    """What `get_device_properties` returns."""

    name: str
    total_memory: int
    """Bytes: the memory of this machine."""
    is_emulated: bool


class Event(torch.Event):
    """A moment in a stream; everything before it is done when it is recorded."""

    _seconds: float | None = None

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Event:
        """An event of the device."""
        return super().__new__(cls, device="neuron", enable_timing=enable_timing)

    def record(self, stream: torch.Stream | None = None) -> None:
        """Take the time."""
        self._seconds = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is pending."""

    def elapsed_time(self, end_event: Event) -> float:  # type: ignore[override]
        """Milliseconds from this event to another; RuntimeError if one was not recorded."""
        if self._seconds is None or end_event._seconds is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1e3


class Stream(torch.Stream):
    """A stream; work is done when it is given, whatever the stream."""

    def __new__(cls, device: Device = None, priority: int = 0) -> Stream:
        """A stream of the device."""
        return super().__new__(cls, device="neuron", priority=priority)

    def record_event(self, event: torch.Event | None = None) -> Event:
        """Record an event, a new one if none is given."""
        event = Event() if event is None else event
        event.record(self)
        return event  # type: ignore[return-value]


class stream:
    """Context in which work goes to a stream."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self._stream = stream

    def __enter__(self) -> torch.Stream | None:
        return self._stream

    def __exit__(self, *exc: object) -> None:
        return None


class device:
    """Context in which a device is the current one."""

    def __init__(self, device: Device) -> None:
        index_of(device)

    def __enter__(self) -> device:
        return self

    def __exit__(self, *exc: object) -> None:
        return None


def index_of(device: Device) -> int:
    """The index that a device names, 0 if none; ValueError if it is another type's or there is none such."""
    if isinstance(device, int):
        index = device
    else:
        named = torch.device(device if device is not None else "neuron")
        if named.type != "neuron":
            raise ValueError(f"expected a neuron device, got {named}")
        index = named.index or 0
    refusal = why_not(index)
    if refusal is not None:
        raise ValueError(refusal)
    return index


def why_not(index: int) -> str | None:
    """Why this process may not use the device of an index; None if it may.

    Under torchrun a process owns the device of its local rank alone, as the early TorchNeuron source has it.
    """
    count = device_count()
    if not 0 <= index < count:
        there = "there is 1 emulated device" if count == 1 else f"there are {count} emulated devices"
        return (
            f"neuron:{index} is asked for, and {there}: a process owns one, "
            "and `neuronmigrate run --devices N` starts a process for each of N"
        )
    own = os.environ.get("LOCAL_RANK")
    if index and own is not None and own != str(index):
        return (
            f"neuron:{index} is asked for in the process of local rank {own}, which owns its own device"
            ' alone: write torch.device("neuron"), without an index'
        )
    return None


def check_index(device: torch.device | None) -> None:
    """Raise RuntimeError for a device with an index that is not this process's."""
    # 0 is also the index that every tensor here carries.
    if device is not None and device.index:
        refusal = why_not(device.index)
        if refusal is not None:
            raise RuntimeError(refusal)


_devices = 1
_chosen = 0


def device_count() -> int:
    """As many as were asked for at activation; under torchrun, one for each process of this machine."""
    return _devices


def set_device(device: Device) -> None:
    """Remember a device. Tensors carry the index 0 all the same: a process owns one device."""
    global _chosen
    _chosen = index_of(device)


def current_device() -> int:
    """0: the index that tensors of this process carry."""
    return 0


def exchange_device(device: int) -> int:
    """Make a device current, unless it is negative; returns the one that was."""
    return current_device()


def is_available() -> bool:
    """True."""
    return True


def is_initialized() -> bool:
    """True."""
    return True


def init() -> None:
    """Nothing is left to do."""


def _lazy_init() -> None:
    """Nothing is left to do."""


def _is_in_bad_fork() -> bool:
    return False


def synchronize(device: Device = None) -> None:
    """Nothing is pending."""


def current_stream(device: Device = None) -> Stream:
    """The current stream, of which there is one."""
    return Stream()


default_stream = current_stream


def set_stream(stream: torch.Stream | None) -> None:
    """Work is done when it is given, whatever the stream."""


def get_rng_state(device: Device = None) -> Tensor:
    """The state of the CPU's generator, which is the device's too: uint8, on the CPU."""
    return torch.default_generator.get_state()


def set_rng_state(state: Tensor, device: Device = None) -> None:
    """Set the state of the one generator."""
    torch.default_generator.set_state(state.cpu())


def get_rng_state_all() -> list[Tensor]:
    """One state for each device; there is one generator."""
    return [get_rng_state()] * device_count()


def set_rng_state_all(states: list[Tensor]) -> None:
    """Set the state of the one generator from the first."""
    set_rng_state(states[0])


def manual_seed(seed: int) -> None:
    """Seed the one generator."""
    torch.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> None:
    """Seed the one generator with a random number."""
    torch.default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """The seed of the one generator."""
    return torch.default_generator.initial_seed()


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that `torch.autocast("neuron", ...)` takes; it asks before its rules are needed."""
    from neuronmigrate.runtime.emulated import autocast

    autocast.install()
    return [torch.bfloat16, torch.float16, torch.float32]


def get_device_name(device: Device = None) -> str:
    """A name that says emulated."""
    return NAME


def get_device_properties(device: Device = None) -> Properties:
    """Name and memory."""
    return Properties(NAME, mem_get_info()[1], True)


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """(0, 0)."""
    return 0, 0


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of this machine's memory; zeros where the system does not tell."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page
    except (AttributeError, OSError, ValueError):
        return 0, 0


def empty_cache() -> None:
    """There is no cache."""


def memory_allocated(device: Device = None) -> int:
    """0: not measured."""
    return 0


max_memory_allocated = memory_reserved = max_memory_reserved = memory_allocated


def memory_stats(device: Device = None) -> dict[str, int]:
    """Empty: not measured."""
    return {}


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """A sentence that says so."""
    return "The emulated neuron device does not measure memory."


def reset_peak_memory_stats(device: Device = None) -> None:
    """Nothing is measured."""


reset_accumulated_memory_stats = reset_max_memory_allocated = reset_peak_memory_stats


def build(devices: int) -> types.ModuleType:
    """The module to be found as `torch.neuron`, for a number of devices."""
    global _devices
    _devices = devices
    module = types.ModuleType("torch.neuron", __doc__)
    exported = {name: value for name, value in globals().items() if name in _PUBLIC}
    module.__dict__.update(exported)
    module.__dict__["is_emulated"] = True
    return module


_PUBLIC = frozenset(
    {"Event", "Stream", "_is_in_bad_fork", "_lazy_init", "current_device", "current_stream"}
    | {"default_stream", "device", "device_count", "empty_cache", "get_amp_supported_dtype"}
    | {"get_device_capability", "get_device_name", "get_device_properties", "get_rng_state"}
    | {"get_rng_state_all", "init", "initial_seed", "is_available", "is_bf16_supported"}
    | {"is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated"}
    | {"max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved", "memory_stats"}
    | {"memory_summary", "reset_accumulated_memory_stats", "reset_max_memory_allocated"}
    | {"reset_peak_memory_stats", "seed", "seed_all", "set_device", "set_rng_state"}
    | {"set_rng_state_all", "set_stream", "stream", "synchronize"}
)
