"""`torch_xla.distributed.xla_multiprocessing`: processes by fork, since stand-ins are inherited so."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from neuronmigrate.runtime.legacy.session import current

Result = TypeVar("Result")

__all__ = ["MpModelWrapper", "MpSerialExecutor", "spawn"]


def spawn(
    fn: Callable[..., object],
    args: Sequence[object] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Run `fn(index, *args)` in `nprocs` processes, or here when it is one.

    None was every core of the machine: NEURON_RT_NUM_CORES of them here, one without it. The
    processes are forked whatever `start_method` says. Raises RuntimeError if one of them fails.
    """
    count = nprocs or int(os.environ.get("NEURON_RT_NUM_CORES", "1"))
    if count == 1 or "TORCHELASTIC_RUN_ID" in os.environ:
        fn(int(os.environ.get("LOCAL_RANK", "0")), *args)
        return
    current().note(f"xmp.spawn: {count} processes, forked; what they use is not listed here")
    context = multiprocessing.get_context("fork")
    port = _free_port()
    children = [
        context.Process(target=_child, args=(fn, args, number, count, port), daemon=daemon)
        for number in range(count)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    failed = [number for number, child in enumerate(children) if child.exitcode]
    if failed:
        raise RuntimeError(f"xmp.spawn: process {failed[0]} of {count} failed; its error stands above")


def _child(fn: Callable[..., object], args: Sequence[object], number: int, count: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(number),
        LOCAL_RANK=str(number),
        WORLD_SIZE=str(count),
        LOCAL_WORLD_SIZE=str(count),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    fn(number, *args)


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class MpModelWrapper:
    """A model that is made before the processes and moved in each of them, one after the other."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._lock = multiprocessing.get_context("fork").Lock()

    def to(self, device: torch.device) -> torch.nn.Module:
        """The model on the device."""
        with self._lock:
            return self._model.to(device)


class MpSerialExecutor:
    """Lets the processes do something one after the other."""

    def __init__(self) -> None:
        self._lock = multiprocessing.get_context("fork").Lock()

    def run(self, fn: Callable[[], Result]) -> Result:
        """What `fn` returns."""
        with self._lock:
            return fn()
