"""CPU memory under another device label, both ways and without a copy.

A tensor is exported as a DLPack capsule, the device type in the capsule is replaced, and the capsule is
imported again: kDLExtDev (12) is what PyTorch imports as PrivateUse1, kDLCPU (1) as CPU. The new tensor
shares memory with the old one and keeps it alive through the capsule's deleter. Values of the enumeration
and the layout of DLTensor (data pointer, then device type) are part of the stable DLPack ABI (dlpack.h).

The index is always 0: the device guard that PyTorch offers to Python backends has one device
(torch/csrc/acc/Module.cpp), and the autograd engine sizes its queues by it.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

CPU_TYPE = 1
NEURON_TYPE = 12

_export = torch._C._to_dlpack
_import = torch._C._from_dlpack
_int32_at = ctypes.c_int32.from_address
_pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_in.restype = ctypes.c_void_p
_pointer_in.argtypes = [ctypes.py_object, ctypes.c_char_p]


def to_cpu(tensor: Tensor) -> Tensor:
    """The memory of a neuron tensor as a CPU tensor: same shape, strides and dtype, no autograd history.

    Lazy conj and neg bits are not carried over. The dispatcher resolves them before most operations;
    `to_cpu_with_bits` is for the others.
    """
    capsule = _export(tensor)
    _int32_at(_pointer_in(capsule, b"dltensor") + 8).value = CPU_TYPE
    return _import(capsule)


def to_cpu_with_bits(tensor: Tensor) -> Tensor:
    """`to_cpu`, with the lazy conj and neg bits of the tensor."""
    alias = to_cpu(tensor)
    if tensor.is_conj():
        alias = alias.conj()
    return alias._neg_view() if tensor.is_neg() else alias


def to_neuron(tensor: Tensor) -> Tensor:
    """The memory of a CPU tensor as a neuron tensor: same shape, strides and dtype, no autograd history.

    DLPack knows no lazy conj and neg bits, so a tensor that has one is made plain, which copies.
    NotImplementedError for what has no strided memory or no dtype of DLPack's: sparse, quantised.
    """
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.resolve_conj().resolve_neg()
    try:
        capsule = _export(tensor)
    except (BufferError, RuntimeError) as error:
        raise NotImplementedError(
            f"the emulated neuron device holds strided tensors of plain dtypes alone: {error}"
        ) from error
    _int32_at(_pointer_in(capsule, b"dltensor") + 8).value = NEURON_TYPE
    return _import(capsule)
