"""`torch_xla.distributed.xla_backend`: importing it registers the process group `xla`, gloo here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, Store
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

from neuronmigrate.runtime.legacy.xla import redirect

__all__ = ["ProcessGroupXla"]

ProcessGroupXla = dist.ProcessGroupGloo


def _rendezvous(
    url: str, timeout: timedelta = timedelta(minutes=30), **options: object
) -> Iterator[tuple[Store, int, int]]:
    """Meet where torchrun says; alone without it."""
    if "MASTER_ADDR" in os.environ:
        yield from rendezvous("env://", timeout=timeout)
    else:
        yield HashStore(), 0, 1


redirect.install()
dist.Backend.register_backend("xla", dist.ProcessGroupGloo, devices=["cpu", "xla"])
for _scheme in ("xla", "pjrt"):
    register_rendezvous_handler(_scheme, _rendezvous)  # type: ignore[no-untyped-call]  # of torch
