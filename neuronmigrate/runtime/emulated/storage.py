"""Storages on the device: making, freeing and pinning them, which C++ does not offer to Python backends.

`torch.save`, `torch.load`, `copy.deepcopy` and pickle make storages by `torch.UntypedStorage(n, device=...)`;
FSDP frees one by `resize_(0)` and gathers it again by `resize_(n)`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, UntypedStorage

from neuronmigrate.runtime.emulated import touch
from neuronmigrate.runtime.emulated.fallback import CPU
from neuronmigrate.runtime.emulated.retag import to_neuron

# The methods in C, which the stubs do not know.
_make: Callable[..., UntypedStorage] = torch._C.StorageBase.__new__
_resize: Callable[[UntypedStorage, int], UntypedStorage] = vars(torch._C.StorageBase)["resize_"]
_nbytes: Callable[[UntypedStorage], int] = vars(torch._C.StorageBase)["nbytes"]


def new(cls: type[UntypedStorage], *args: object, device: object = None, **kwargs: object) -> UntypedStorage:
    """`UntypedStorage(...)`: of a number of bytes, or from a sequence of them."""
    if device is None:
        return _make(cls, *args, **kwargs)
    if torch.device(device).type != "neuron":  # type: ignore[call-overload]
        return _make(cls, *args, device=device, **kwargs)
    content = args[0] if args else kwargs.get("size", 0)
    if isinstance(content, int):
        memory = torch.empty(content, dtype=torch.uint8, device=CPU)
    else:
        memory = torch.tensor(content, dtype=torch.uint8, device=CPU)
    return to_neuron(memory).untyped_storage()


def resize_(self: UntypedStorage, size: int) -> UntypedStorage:
    """`storage.resize_(n)`. Imported memory is neither freed nor grown: a smaller size is a mark.

    RuntimeError beyond the first size.
    """
    if self.device.type != "neuron":
        return _resize(self, size)
    if size > _nbytes(self):
        raise RuntimeError(
            f"a storage of the emulated neuron device cannot grow beyond its first {_nbytes(self)} bytes"
        )
    self._neuronmigrate_nbytes = size  # type: ignore[attr-defined]
    return self


def nbytes(self: UntypedStorage) -> int:
    """`storage.nbytes()`: the size last set by `resize_`, by which FSDP knows what is gathered."""
    marked: int | None = getattr(self, "_neuronmigrate_nbytes", None)
    return _nbytes(self) if marked is None else marked


def pin_tensor(self: Tensor, device: object = None) -> Tensor:
    """`tensor.pin_memory()`: the tensor itself, as all memory is the host's."""
    return self


def pin_storage(self: UntypedStorage, device: object = "neuron") -> UntypedStorage:
    """`storage.pin_memory()`: the storage itself."""
    return self


def install() -> None:
    """Replace the methods."""
    because = "Python backends have no allocator: torch.load, deepcopy, pickle"
    touch.replace(UntypedStorage, "__new__", staticmethod(new), because)
    because = "imported memory does not change size: FSDP frees and gathers by it"
    touch.replace(UntypedStorage, "resize_", resize_, because)
    for name in ("nbytes", "size", "__len__"):
        touch.replace(UntypedStorage, name, nbytes, because)
    because = "Python backends have no pinned memory: DataLoader(pin_memory=True)"
    touch.replace(Tensor, "pin_memory", pin_tensor, because)
    touch.replace(UntypedStorage, "pin_memory", pin_storage, because)
