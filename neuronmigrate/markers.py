"""The byte filter in front of everything: a file without one of these is never parsed.

It stands alone because it has to be quick to import: for most files it is all that runs.
"""

from __future__ import annotations

# Searched one after the other: eight times as fast as a regular expression with alternatives.
MARKERS = (
    b"torch_xla",
    b"optimum",
    b"neuron",
    b'"xla',
    b"'xla",
    b"XLA_",
    b"PJRT_",
    b"NEURON_",
    b"TRAINIUM",
    b"Trainium",
    b"trainium",
)


def has_marker(raw: bytes) -> bool:
    """Whether a file can hold anything that concerns us; most files end here."""
    return any(map(raw.__contains__, MARKERS))
