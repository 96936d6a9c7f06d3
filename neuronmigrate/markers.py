"""The byte filter in front of everything: a file without one of these is never parsed.

It stands alone because it has to be quick to import: for most files it is all that runs.
"""

from __future__ import annotations

# Searched one after the other: eight times as fast as a regular expression with alternatives.
# `optimum` alone is not among them: it is an English word, and every legacy name below it says `neuron`.
MARKERS = (
    b"torch_xla",
    b"neuron",
    b'"xla',
    b"'xla",
    b"NEURON",
    b"XLA_",
    b"_XLA",
    b"PJRT_",
    b"XRT_",
    b"NXD_",
    b"OPTIMUM_",
    b"CUSTOM_CACHE_REPO",
    b"tpu_available",
    b"TRAINIUM",
    b"rainium",
)


def has_marker(raw: bytes) -> bool:
    """Whether a file can hold anything that concerns us; most files end here."""
    return any(map(raw.__contains__, MARKERS))
