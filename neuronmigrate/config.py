"""The settings of a run: `[tool.neuronmigrate]` of the nearest pyproject.toml, then the options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Everything a run can be told, frozen before the first file is read."""

    from_version: str = ""
    """Release of optimum-neuron that the code was written for; empty: read it from the project."""
    python: tuple[int, int] = (3, 10)
    """Oldest Python that the rewritten code has to run on."""
    tpu: bool = False
    """Rewrite torch_xla code that looks as if it ran on a TPU."""
    compile: bool = False
    """Add torch.compile where the legacy class compiled by itself."""
    comment_reviews: bool = False
    """Leave a REVIEW comment on each statement that needs a look."""
