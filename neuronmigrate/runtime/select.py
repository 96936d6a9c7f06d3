"""Which backend runs a program: the real neuron device, the emulated one, or the CPU, and why."""

from __future__ import annotations

import enum
import importlib.machinery
import importlib.metadata
import json
import os
from dataclasses import asdict, dataclass

FAMILIES = ("2.13", "2.14")
"""Releases of torch that TorchNeuron is built for; the emulated device knows the same."""


class UnsupportedTorch(RuntimeError):
    """The torch that is installed is missing or of another release."""


class Backend(str, enum.Enum):
    """What runs a program."""

    NATIVE = "native"
    EMULATED = "emulated (CPU)"
    CPU = "cpu"


@dataclass(frozen=True)
class Selection:
    """The backend that runs and the reason."""

    backend: Backend
    reason: str
    torch: str
    """Version of torch."""
    package: str | None
    """Version of torch-neuronx, if it is installed."""
    devices: int
    """Devices that this process sees; 0 on the CPU."""
    strict: bool = False

    def line(self) -> str:
        """The choice as one line for people."""
        strict = ", strict" if self.strict else ""
        return f"neuronmigrate: running on {self.backend.value}{strict}, torch {self.torch}: {self.reason}"

    def as_json(self) -> dict[str, object]:
        """The choice for a report."""
        return {**asdict(self), "backend": self.backend.value}

    def __str__(self) -> str:
        return json.dumps(self.as_json())


def select(*, emulate: bool = True, devices: int | None = None, strict: bool = False) -> Selection:
    """Say what would run; changes nothing.

    Args:
        emulate: whether the emulated device is wanted where the real one is missing.
        devices: emulated devices; None for one a process of this machine (LOCAL_WORLD_SIZE), else 1.
        strict: recorded in the answer.

    Raises:
        UnsupportedTorch: torch is missing, or of a release that TorchNeuron is not built for.
    """
    version = torch_version()
    package = package_version()
    if package is not None or real_package_present():
        return _with_package(version, package)
    if not emulate:
        return Selection(Backend.CPU, "no torch-neuronx is installed", version, None, 0)
    count = devices if devices is not None else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    reason = "no torch-neuronx is installed; nothing here tells of Trainium's numbers or speed"
    return Selection(Backend.EMULATED, reason, version, None, count, strict)


def _with_package(version: str, package: str | None) -> Selection:
    """The choice where the name torch_neuronx is taken: the real device or the CPU."""
    shown = f"torch-neuronx {package or 'of unknown version'}"
    if package is not None and not is_native(package):
        reason = (
            f"{shown} is the legacy package on torch_xla, which has no neuron device; install 2.13 or 2.14"
        )
        return Selection(Backend.CPU, reason, version, package, 0)
    import torch

    module = getattr(torch, "neuron", None)
    if module is None or getattr(module, "is_emulated", False):
        reason = f"{shown} is installed and torch has not loaded it (TORCH_DEVICE_BACKEND_AUTOLOAD=0?)"
    elif not module.is_available():
        reason = f"{shown} is installed, but no Neuron device answers"
    else:
        return Selection(Backend.NATIVE, shown, version, package, int(module.device_count()))
    return Selection(Backend.CPU, reason, version, package, 0)


def torch_version() -> str:
    """The release of torch; UnsupportedTorch if there is none or another one."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise UnsupportedTorch(
            "torch is not installed: install neuronmigrate with its extra, neuronmigrate[runtime]"
        ) from None
    if ".".join(version.split(".")[:2]) not in FAMILIES:
        known = " and ".join(FAMILIES)
        raise UnsupportedTorch(
            f"torch {version} is installed; the runtime knows TorchNeuron's torch, {known}"
        )
    return version


def package_version() -> str | None:
    """The version of torch-neuronx, None if it is not installed."""
    try:
        return importlib.metadata.version("torch-neuronx")
    except importlib.metadata.PackageNotFoundError:
        return None


def real_package_present() -> bool:
    """Whether a module torch_neuronx lies on the path; the stand-in, which has no file, does not count."""
    return importlib.machinery.PathFinder.find_spec("torch_neuronx") is not None


def is_native(package: str) -> bool:
    """Whether a version of torch-neuronx is of the native family (2.10 and later, and the betas 0.x)."""
    major, minor = (int(part) for part in package.split(".")[:2])
    return major == 0 or (major, minor) >= (2, 10)
