"""The releases of Optimum Neuron, and the libraries that each of them ran with."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

NEWEST = "0.4.5"
OLDEST = "0.0.1"

PINS: tuple[tuple[str, dict[str, str]], ...] = (
    ("0.0.1", {"transformers": "4.20"}),
    ("0.0.12", {"transformers": "4.33"}),
    ("0.0.15", {"transformers": "4.35"}),
    ("0.0.18", {"transformers": "4.36"}),
    ("0.0.23", {"transformers": "4.41"}),
    ("0.0.25", {"transformers": "4.43"}),
    ("0.0.26", {"transformers": "4.43", "trl": "0.11"}),
    ("0.0.28", {"transformers": "4.48", "trl": "0.11"}),
    ("0.2.0", {"transformers": "4.51", "trl": "0.11"}),
    ("0.4.0", {"transformers": "4.55", "trl": "0.11"}),
    ("0.4.2", {"transformers": "4.57", "trl": "0.24"}),
)
"""First release with a set of requirements, and the minor versions it names (setup.py, later
pyproject.toml, of Optimum Neuron at the tags)."""


class Release:
    """One release of Optimum Neuron, compared by version.

    Raises ValueError for a text that is no version, or one outside the releases that were read.
    """

    def __init__(self, text: str | None = None) -> None:
        self.text = text or NEWEST
        try:
            self.version = Version(self.text)
        except InvalidVersion:
            raise ValueError(f"{self.text!r} is no release of optimum-neuron, such as {NEWEST}") from None
        if not Version(OLDEST) <= self.version < Version("0.5"):
            raise ValueError(f"optimum-neuron {self.text} is outside the releases known here, up to {NEWEST}")

    def since(self, first: str) -> bool:
        """Whether this release is `first` or a later one."""
        return self.version >= Version(first)

    def has(self, first: str, last: str) -> bool:
        """Whether a name that came with `first` and was last in `last` (or is in `main`) is in it."""
        if first == "main" or (first and not self.since(first)):
            return False
        return last in ("", "main") or self.version <= Version(last)

    @property
    def pins(self) -> dict[str, str]:
        """Minor versions of the libraries that this release ran with."""
        found: dict[str, str] = {}
        for first, pins in PINS:
            if self.since(first):
                found = pins
        return found

    def __str__(self) -> str:
        return self.text
