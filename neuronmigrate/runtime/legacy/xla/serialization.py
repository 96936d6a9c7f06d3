"""`torch_xla.utils.serialization`: one file a tensor, beside one that refers to them."""

from __future__ import annotations

import os
import shutil

import torch
from torch.utils._pytree import tree_map_only

from neuronmigrate.runtime.legacy.session import current
from neuronmigrate.runtime.legacy.xla import model

__all__ = ["TensorReference", "load", "save"]


class TensorReference:
    """Stands for a tensor in a file of its own."""

    def __init__(self, tid: int) -> None:
        self.tid = tid


def _file(path: str, number: int) -> str:
    return os.path.join(f"{path}.tensors", f"tensor_{number}.pt")


def save(data: object, path: str, master_only: bool = True, global_master: bool = False) -> None:
    """Write the data to `path` and its tensors to `path`.tensors, on the first process of each host."""
    current().step("save")
    if master_only and not model.is_master_ordinal(local=not global_master):
        return
    shutil.rmtree(f"{path}.tensors", ignore_errors=True)
    os.mkdir(f"{path}.tensors")
    tensors: list[torch.Tensor] = []

    def referred(tensor: torch.Tensor) -> TensorReference:
        tensors.append(tensor)
        torch.save(tensor.detach().cpu(), _file(path, len(tensors) - 1))
        return TensorReference(len(tensors) - 1)

    torch.save(tree_map_only(torch.Tensor, referred, data), path)


def load(path: str) -> object:
    """What `save` wrote; like the original it trusts the file."""
    data = torch.load(path, weights_only=False)
    return tree_map_only(TensorReference, lambda each: torch.load(_file(path, each.tid)), data)
