"""What one run with stand-ins knows: the release, which stand-ins were used, and what they left out."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from neuronmigrate.runtime.legacy.releases import Release

OURS = tuple(
    os.path.join(Path(__file__).parents[number], name, "") for number, name in ((0, ""), (2, "parity"))
)
"""Folders whose files are never the user's."""


class LegacyProblem(Exception):
    """Something that stops a legacy script here and that its author can do something about.

    The message is for the user; `neuronmigrate run --legacy` prints it and ends with exit code 2.
    """


@dataclass
class Session:
    """The stand-ins of this process."""

    release: Release
    used: Counter[str] = field(default_factory=Counter)
    """Qualified legacy name to the number of times the script took it."""
    notes: dict[str, None] = field(default_factory=dict)
    """What differs here from the legacy run, each said once, in the order of appearance."""
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Lazy steps of torch_xla: (what caused it, `file:line` of the script) to their number."""
    operations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Tensor operations that these steps would have run."""
    pending: int = 0
    """Operations since the last step."""

    quiet: bool = False
    """Set while stand-ins themselves work with tensors, which is no operation of the script."""

    def use(self, name: str) -> None:
        """Count one use of a legacy name."""
        self.used[name] += 1

    def note(self, text: str) -> None:
        """Keep a sentence for the end of the run."""
        self.notes.setdefault(text)

    def step(self, cause: str) -> None:
        """Log that the lazy device would have run what was recorded, here."""
        key = (cause, place())
        self.steps[key] += 1
        self.operations[key] += self.pending
        self.pending = 0

    def data(self) -> dict[str, object]:
        """Everything above as plain data, for a report file."""
        return {
            "result": "stub reference",
            "release": str(self.release),
            "versions": versions(),
            "used": dict(sorted(self.used.items())),
            "notes": list(self.notes),
            "lazy_steps": [
                {"cause": cause, "place": where, "times": times, "operations": self.operations[cause, where]}
                for (cause, where), times in self.steps.items()
            ],
            "operations_after_the_last_step": self.pending,
        }

    def summary(self) -> list[str]:
        """Lines for the end of a run, for people: what was used, and what the result is worth."""
        if not self.used:
            return ["legacy stand-ins: none was used"]
        packages: dict[str, list[str]] = {}
        for name in sorted(self.used):
            owner, _, last = name.rpartition(".")
            packages.setdefault(owner, []).append(last)
        lines = [
            f"legacy stand-ins used (optimum-neuron {self.release}), on CPU tensors: "
            "the result is a stub reference, not a run on Neuron hardware"
        ]
        lines += [f"  {owner}: {', '.join(names)}" for owner, names in packages.items()]
        if self.steps:
            total = sum(self.steps.values())
            lines.append(f"  lazy steps: {total}")
            for (cause, where), times in self.steps.most_common(10):
                lines.append(f"    {where} {cause} x{times}, {self.operations[cause, where]} operations")
        lines += [f"  note: {text}" for text in self.notes]
        return lines


_current: Session | None = None


def activate(release: str | None = None) -> Session:
    """Let legacy imports of this process find stand-ins; a second call changes nothing.

    `release` is the release of Optimum Neuron whose names and defaults hold, the newest by default.
    Child processes are not touched, except those that `xmp.spawn` forks.

    Returns the session that counts uses. Raises ValueError for an unknown release.
    """
    global _current
    if _current is None:
        from neuronmigrate.runtime.legacy import finder

        # The Hugging Face libraries would take a stand-in for a TPU.
        os.environ["USE_TORCH_XLA"] = "0"
        _current = Session(Release(release))
        finder.install(_current)
    return _current


def current() -> Session:
    """The session of this process; stand-ins call it, so there is one."""
    assert _current is not None
    return _current


def place() -> str:
    """`file:line` of the innermost frame that belongs to neither torch nor us: the user's statement."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        path = frame.f_code.co_filename
        if not (
            path.startswith((*OURS, "<frozen"))
            or f"{os.sep}torch{os.sep}" in path
            or path.endswith("contextlib.py")
        ):
            break
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def versions() -> dict[str, str]:
    """Versions of the libraries that the numbers come from."""
    found = {}
    for name in ("torch", "transformers", "trl", "accelerate", "diffusers", "sentence-transformers", "peft"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
