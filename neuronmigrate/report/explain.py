"""What `explain` prints: a codemod's own description, or what becomes of a legacy name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from neuronmigrate.report.view import Line

if TYPE_CHECKING:
    from neuronmigrate.codemod import Codemod


def explained(name: str, codemods: Sequence[Codemod]) -> Iterator[Line]:
    """The lines. Raises UserError when the name is known to nobody."""
    raise NotImplementedError
    yield ()
