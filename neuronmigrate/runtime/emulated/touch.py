"""Changes to torch, made in one place so that each of them is known."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Touch:
    """One part of torch that the emulated device changes."""

    part: str
    """Dotted name of what is replaced or added, or the registration made."""
    because: str


touched: list[Touch] = []
"""What has been changed in this process, in order. Some parts wait for the import of their module."""


def replace(owner: object, name: str, value: object, because: str) -> object:
    """Set an attribute of torch and note it; returns what stood there, None if nothing did."""
    before = getattr(owner, name, None)
    setattr(owner, name, value)
    touched.append(Touch(f"{_name_of(owner)}.{name}", because))
    return before


def register(part: str, because: str) -> None:
    """Note a registration with one of torch's own registries."""
    touched.append(Touch(part, because))


def _name_of(owner: object) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}"
    return str(getattr(owner, "__name__", owner))
