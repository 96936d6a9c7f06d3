"""`torch_xla.amp`."""

from __future__ import annotations

import torch

from neuronmigrate.runtime.legacy.xla import redirect

__all__ = ["autocast"]

redirect.install()


class autocast(torch.autocast):
    """`torch.autocast` on the lazy device, bfloat16 by default."""

    def __init__(
        self,
        device: torch.device | str = "xla",
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool | None = None,
    ) -> None:
        super().__init__("cpu", dtype or torch.bfloat16, enabled, cache_enabled)
