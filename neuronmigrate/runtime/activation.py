"""Bringing the selected backend about."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from neuronmigrate.runtime.autoload import DEVICES, STRICT, VARIABLE
from neuronmigrate.runtime.select import (
    Backend,
    Selection,
    package_version,
    real_package_present,
    select,
)

if TYPE_CHECKING:
    from neuronmigrate.runtime.emulated.touch import Touch

Observer: TypeAlias = Callable[[str, tuple[object, ...], dict[str, object]], None]


@dataclass(frozen=True)
class Activation:
    """What runs now, and what was changed for it."""

    selection: Selection

    @property
    def touched(self) -> tuple[Touch, ...]:
        """Parts of torch that were changed so far; none but on the emulated device.

        Parts that belong to a module which is not imported yet are changed when it is.
        """
        if self.selection.backend is not Backend.EMULATED:
            return ()
        from neuronmigrate.runtime.emulated import touch

        return tuple(touch.touched)


def activate(
    *,
    strict: bool = False,
    devices: int | None = None,
    observe: Observer | None = None,
    quiet: bool = False,
) -> Activation:
    """Make the program that follows run on the real neuron device, or on an emulated one.

    With the real package installed nothing is changed. Says on stderr, on rank 0, what runs and why. A
    second call changes nothing but the observers, and returns what is there.

    Args:
        strict: refuse or report what the hardware is reported to refuse.
        devices: emulated devices; None for one a process of this machine (LOCAL_WORLD_SIZE), else 1.
        observe: called as `observe(name, args, kwargs)` before each operation of the emulated device.
        quiet: print nothing.

    Raises:
        UnsupportedTorch: torch is missing, or of a release that TorchNeuron is not built for.
        RuntimeError: another backend has taken PyTorch's place for one, or the device is there already,
            with other devices than are asked for, or without the strict mode that is.
    """
    selection = select(devices=devices, strict=strict)
    if selection.backend is Backend.EMULATED:
        from neuronmigrate.runtime.emulated import fallback
        from neuronmigrate.runtime.emulated.install import install, settings

        install(devices=selection.devices, strict=strict)
        count, is_strict = settings()
        if (strict and not is_strict) or (devices is not None and devices != count):
            raise RuntimeError(
                f"the emulated neuron device is active already, with {count} device(s) and"
                f" {'with' if is_strict else 'without'} strict mode, which cannot be changed:"
                f" ask for it the first time (in the environment: {STRICT}=1, {DEVICES}=n)"
            )
        selection = dataclasses.replace(selection, devices=count, strict=is_strict)
        if observe is not None:
            fallback.observers.append(observe)
    if not quiet and is_first():
        print(selection.line(), file=sys.stderr)
    return Activation(selection)


def activate_from_environment() -> None:
    """Activate as `NEURONMIGRATE_STRICT=1` and `NEURONMIGRATE_DEVICES=n` say, unless a real package is there.

    Called while torch is being imported, before other backends may have been loaded.
    """
    if package_version() is not None or real_package_present():
        if is_first():
            print(f"neuronmigrate: {VARIABLE}=1 is ignored, torch_neuronx is installed", file=sys.stderr)
        return
    devices = os.environ.get(DEVICES)
    activate(strict=os.environ.get(STRICT) == "1", devices=None if devices is None else int(devices))


_LAUNCHERS = frozenset(
    {"accelerate", "accelerate-launch", "torchrun"}
    | {"torch.distributed.launch", "torch.distributed.run", "accelerate.commands.launch"}
)


def is_first() -> bool:
    """Whether this is the process that speaks: of rank 0, neither a launcher nor a worker."""
    command = sys.orig_argv[1:]
    if any(os.path.basename(word) in _LAUNCHERS for word in command[: _before_arguments(command)]):
        return False
    if any(word.startswith(("--multiprocessing-fork", "from multiprocessing.")) for word in command):
        return False
    return os.environ.get("RANK", "0") == "0"


def _before_arguments(command: list[str]) -> int:
    """The words up to the program's name, in a command line of Python without Python itself."""
    for at, word in enumerate(command):
        if word == "-m":
            return at + 2
        if not word.startswith("-") and command[at - 1 : at] not in (["-W"], ["-X"]):
            return at + 1
    return len(command)
