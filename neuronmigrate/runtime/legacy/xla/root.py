"""`torch_xla`."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import ParamSpec, TypeVar

import torch

from neuronmigrate.runtime.legacy.xla import model, processes

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

__version__ = "2.9.0"

__all__ = [
    "__version__",
    "compile",
    "device",
    "device_count",
    "devices",
    "launch",
    "manual_seed",
    "real_devices",
    "step",
    "sync",
]

sync = model.sync


def device(index: int | None = None) -> torch.device:
    """The device of this process."""
    return torch.device("xla", index or 0)


def devices() -> list[torch.device]:
    """The devices that this process addresses: one."""
    return [device()]


def real_devices() -> list[str]:
    """Names of the devices behind."""
    return ["CPU:0"]


def device_count() -> int:
    """Number of devices that this process addresses."""
    return 1


@contextlib.contextmanager
def step() -> Iterator[None]:
    """What is inside is one step, apart from what came before."""
    model.sync()
    try:
        yield
    finally:
        model.sync()


def compile(
    f: Callable[Parameters, Result] | None = None,
    full_graph: bool = False,
    name: str | None = None,
    num_different_graphs_allowed: int | None = None,
) -> object:
    """The function as one step; without one, a context manager."""
    if f is None:
        return step()
    function = f

    @functools.wraps(function)
    def in_one_step(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with step():
            return function(*args, **kwargs)

    return in_one_step


def manual_seed(seed: int, device: object = None) -> None:
    """Seed the device's generator."""
    model.set_rng_state(seed, device)


def launch(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Run `fn(index, *args)`: here under torchrun, else as `xmp.spawn` does."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        fn(int(os.environ["LOCAL_RANK"]), *args)
    else:
        processes.spawn(fn, args, nprocs=1 if debug_single_process else None)
