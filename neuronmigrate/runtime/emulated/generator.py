"""`torch.Generator("neuron")`: a CPU generator that names the device.

Python backends cannot make generators. Everything random on the device is drawn by the CPU's kernels, so a
CPU generator serves; and with the CPU's default generator as the device's too, `torch.manual_seed` gives the
numbers that it gives on the CPU. (The real device draws other numbers.)
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from neuronmigrate.runtime.emulated import touch

_Base = torch._C.Generator
_make: Callable[..., Generator] = _Base.__new__


class _Meta(type(_Base)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Base)


class Generator(_Base, metaclass=_Meta):
    """Stands in for `torch.Generator`; for other devices it makes what that makes."""

    _device: torch.device  # what it names; C++ knows a CPU generator

    def __new__(cls, device: object = "cpu") -> Generator:
        """A generator for a device; RuntimeError for neuron in strict mode."""
        named = torch.device(device)  # type: ignore[call-overload]
        if named.type != "neuron":
            return _make(_Base, named)
        if refuse:
            raise RuntimeError(
                "torch.Generator('neuron') is reported not to exist on the real device (strict): draw on the"
                " CPU with torch.Generator() and move the numbers with .to('neuron')"
            )
        made = _make(cls, torch.device("cpu"))
        made._device = torch.device("neuron", 0)
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """neuron:0."""
        return self._device


refuse = False
"""Whether a generator for neuron is refused."""


def install(*, strict: bool) -> None:
    """Replace the class."""
    global refuse
    refuse = strict
    Generator.__module__ = _Base.__module__
    Generator.__qualname__ = Generator.__name__
    touch.replace(torch, "Generator", Generator, "Python backends cannot make generators")
