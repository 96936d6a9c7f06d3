"""`get_peft_model`: that of PEFT (`peft/mapping_func.py`; fused projections have no stand-in)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from neuronmigrate.runtime.legacy.optimum.base import library
from neuronmigrate.runtime.legacy.session import LegacyProblem

__all__ = ["get_peft_model"]

_FUSED = ("gate_up_proj", "qkv_proj")


def get_peft_model(
    model: torch.nn.Module, peft_config: object, *args: object, **kwargs: object
) -> torch.nn.Module:
    """The model with adapters.

    Raises LegacyProblem for adapters on a fused projection, whose one matrix native models split.
    """
    targets = getattr(peft_config, "target_modules", None) or ()
    fused = sorted(set(targets) & set(_FUSED)) if not isinstance(targets, str) else []
    if fused:
        raise LegacyProblem(f"target_modules names {', '.join(fused)}, which only the fused classes had")
    wrap: Callable[..., torch.nn.Module] = getattr(library("peft"), "get_peft_model")  # noqa: B009
    return wrap(model, peft_config, *args, **kwargs)
