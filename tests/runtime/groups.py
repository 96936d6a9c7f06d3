"""How a program for several processes begins: the process group first, then the device."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist


def join(device: str) -> torch.device:
    """Join the default process group of the device's own backend; returns this process's device."""
    dist.init_process_group("neuron" if device == "neuron" else "gloo")
    if device == "neuron":
        torch.get_device_module("neuron").set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device(device)
