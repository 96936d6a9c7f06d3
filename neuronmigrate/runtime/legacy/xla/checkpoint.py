"""`torch_xla.utils.checkpoint`."""

from __future__ import annotations

from collections.abc import Callable

import torch.utils.checkpoint as plain

__all__ = ["checkpoint"]


def checkpoint(
    function: Callable[..., object], *args: object, use_reentrant: bool = True, **kwargs: object
) -> object:
    """Gradient checkpointing, reentrant by default; the barriers of the original change no number."""
    run: Callable[..., object] = plain.checkpoint
    return run(function, *args, use_reentrant=use_reentrant, **kwargs)
