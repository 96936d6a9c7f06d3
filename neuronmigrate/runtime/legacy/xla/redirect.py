"""Makes the device type `xla` mean the CPU in this process.

`torch.device("xla")` exists in any PyTorch, but nothing can be put on it. While the stand-ins are active
each device argument that says so is replaced on its way into a torch function, in every thread;
`torch.autocast("xla")` becomes the CPU's with bfloat16, which is torch_xla's default, and so does
`torch.autocast("cuda")`, which the Neuron fork of torch_xla took for its own.

`tensor.device` says `cpu`: a tensor that a script forgot to move cannot be told here from one it moved.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch.overrides import TorchFunctionMode

from neuronmigrate.runtime.legacy.session import Session, current

_READS = frozenset(
    {
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.Tensor.__bool__,
        torch.Tensor.__float__,
        torch.Tensor.__int__,
        torch.Tensor.__index__,
        torch.Tensor.__repr__,
        torch.Tensor.__format__,
    }
)
"""What needs a value on the host, and so ran the recorded graph early."""

_INSIDE_TORCH = f"{os.sep}torch{os.sep}"

_MOVED = "_neuronmigrate_xla"

MEANS_CPU = {"xla"}
"""Types of device that mean the CPU; `mixed` adds `neuron`."""


def is_xla(value: object) -> bool:
    """Whether a device argument names the lazy device."""
    if isinstance(value, torch.device):
        return value.type in MEANS_CPU
    return isinstance(value, str) and value.partition(":")[0] in MEANS_CPU


def to_cpu(value: object) -> object:
    """The device argument, or the CPU if it names the lazy device."""
    return torch.device("cpu") if is_xla(value) else value


class _Redirect(TorchFunctionMode):
    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is torch.device or self.session.quiet or getattr(func, "__name__", "") == "__get__":
            return func(*args, **kwargs)
        if func in _READS:
            # Values that were read already do not run the graph a second time, and what torch itself
            # reads, as the seed of a loader, never was on the device.
            if self.session.pending and _INSIDE_TORCH not in sys._getframe(1).f_code.co_filename:
                self.session.step("value read on the host")
            return func(*args, **kwargs)
        self.session.pending += 1
        if not any(map(is_xla, args)) and not any(map(is_xla, kwargs.values())):
            return func(*args, **kwargs)
        result = func(*map(to_cpu, args), **{key: to_cpu(value) for key, value in kwargs.items()})
        if isinstance(result, torch.Tensor):
            # A copy onto the device does not share memory with the tensor on the host.
            if args and result is args[0] and not hasattr(result, _MOVED):
                result = result.clone()
            with contextlib.suppress(AttributeError):
                setattr(result, _MOVED, True)
        return result


@functools.lru_cache(maxsize=1)
def install() -> None:
    """Start the replacement, once in a process."""
    session = current()
    run = threading.Thread.run

    # A mode belongs to one thread.
    def redirected_run(thread: threading.Thread) -> None:
        with _Redirect(session):
            run(thread)

    setattr(threading.Thread, "run", redirected_run)  # noqa: B010 - no hook is made for this
    contextlib.ExitStack().enter_context(_Redirect(session))
    _replace_classes()


def _replace_classes() -> None:
    """Replace device arguments where no torch function is called."""

    class Autocast(torch.autocast):
        def __init__(self, device_type: str, dtype: torch.dtype | None = None, **options: bool) -> None:
            if device_type == "cuda" or device_type in MEANS_CPU:
                device_type, dtype = "cpu", dtype or torch.bfloat16
            super().__init__(device_type, dtype, **options)

    load: Callable[..., object] = torch.load

    def redirected_load(f: object, map_location: object = None, **options: object) -> object:
        return load(f, to_cpu(map_location), **options)

    for owner, name, value in (
        (torch, "autocast", Autocast),
        (torch.amp, "autocast", Autocast),
        (torch.amp.autocast_mode, "autocast", Autocast),
        (torch, "load", redirected_load),
    ):
        setattr(owner, name, value)
