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

# The address space as 64-bit words: one index is a third of the cost of ctypes' call and cast, twice for
# each operand of each operation. A capsule holds its pointer behind the object header.
_words = (ctypes.c_int64 * (1 << 44)).from_address(0)
_HEADER = object.__basicsize__


def _check_layout() -> None:
    """ImportError unless capsules and DLTensor lie in memory as this module takes it."""
    pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_in.restype, pointer_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    tensor = torch.empty(1, device="cpu")
    capsule = _export(tensor)
    address = pointer_in(capsule, b"dltensor")
    if ctypes.c_void_p.from_address(id(capsule) + _HEADER).value != address or (
        _words[address >> 3] != tensor.data_ptr() or _words[(address >> 3) + 1] != CPU_TYPE
    ):
        raise ImportError("DLPack capsules of this Python and torch have another layout than is known")


def to_cpu(tensor: Tensor) -> Tensor:
    """The memory of a neuron tensor as a CPU tensor: same shape, strides and dtype, no autograd history.

    Lazy conj and neg bits are not carried over. The dispatcher resolves them before most operations;
    `to_cpu_with_bits` is for the others.
    """
    capsule = _export(tensor)
    _words[(_words[(id(capsule) + _HEADER) >> 3] >> 3) + 1] = CPU_TYPE
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
    _words[(_words[(id(capsule) + _HEADER) >> 3] >> 3) + 1] = NEURON_TYPE
    return _import(capsule)


_check_layout()
