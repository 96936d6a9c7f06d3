"""`torch_xla.debug.profiler`: there is no device to profile."""

from __future__ import annotations

import contextlib

from neuronmigrate.runtime.legacy.session import current

__all__ = ["StepTrace", "Trace", "start_server", "start_trace", "stop_trace", "trace"]


class Trace(contextlib.nullcontext[None]):
    """A named span, which nobody records."""

    def __init__(self, name: str = "", **options: object) -> None:
        super().__init__(None)


class StepTrace(Trace):
    """A named span that ends with a step."""

    def __exit__(self, *error: object) -> None:
        current().step("StepTrace")


def start_server(port: int, only_on_master: bool = True) -> object:
    """Nothing is served; the object has to be kept alive, as the original one."""
    current().note("torch_xla.debug.profiler records nothing here")
    return object()


def start_trace(log_dir: str, **options: object) -> None:
    """Nothing is recorded."""
    current().note("torch_xla.debug.profiler records nothing here")


def stop_trace() -> None:
    """Nothing was recorded."""


def trace(service_addr: str, logdir: str, **options: object) -> None:
    """Nothing is recorded."""
    current().note("torch_xla.debug.profiler records nothing here")
