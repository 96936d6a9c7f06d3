"""Strict mode: refuse or report what the real device is reported to refuse, to hold otherwise or to replace.

- `torch.Generator("neuron")` raises (generator.py).
- `module.to("neuron")` replaces Parameter objects, as PyTorch does for a PrivateUse1 device that does not
  say otherwise, and `optimizer.step()` raises ReplacedParameters for an optimizer that holds old ones.
  Whether TorchNeuron says otherwise is not known.
- float64, complex128 and uint64 on the device, and int64 values that do not fit 32 bits, are reported as a
  StrictWarning once a source line: the hardware has no 64-bit types and computes in 32 bits.
- The device in a forked process raises ForkedProcess: it needs spawn.

Where these are reported: the sheet on TorchNeuron, of which docs/runtime.md has the extract.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neuronmigrate.runtime.emulated import fallback, touch
from neuronmigrate.runtime.emulated.fallback import CPU

WIDE = frozenset({torch.float64, torch.complex128, torch.uint64})
"""Dtypes that the hardware does not have, and that no library needs on it; int64 is everywhere."""


class StrictWarning(UserWarning):
    """Something that the real device does otherwise."""


class ReplacedParameters(RuntimeError):
    """An optimizer holds parameters that moving the module has replaced."""


class ForkedProcess(RuntimeError):
    """The device was used in a process that was forked from one that has it."""


_forked = False
_seen: set[tuple[str, str, int]] = set()
_replaced: dict[int, weakref.ref[Parameter]] = {}


def observe(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Look at an operation; raises ForkedProcess, and warns of 64-bit types."""
    if _forked:
        raise ForkedProcess(
            f"{name} in a forked process: the neuron device cannot be used after a fork; start the process"
            " with multiprocessing's 'spawn' (strict)"
        )
    for tensor in _tensors(args):
        if tensor.dtype in WIDE:
            _report(name, str(tensor.dtype))
            return
    dtype = kwargs.get("dtype")
    if dtype in WIDE and kwargs.get("device") != CPU:
        _report(name, str(dtype))
    elif name in ("aten::_copy_from", "aten::_to_copy"):
        source = args[0]
        if isinstance(source, Tensor) and source.is_cpu and source.dtype is torch.int64 and source.numel():
            low, high = source.aminmax()
            if int(low) < -(2**31) or int(high) >= 2**31:
                _report(name, "torch.int64 with values beyond 32 bits")


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _report(name: str, what: str) -> None:
    filename, line = caller()
    if (what, filename, line) in _seen:
        return
    _seen.add((what, filename, line))
    message = (
        f"{what} on the neuron device (in {name}): the hardware has no 64-bit types and computes in 32 bits"
    )
    warnings.warn_explicit(message, StrictWarning, filename, line)


_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parent.parent))


def caller() -> tuple[str, int]:
    """File and line of the innermost frame that is neither torch's nor the runtime's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*_LIBRARIES, "<")):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def apply(self: Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Module:
    """`Module._apply`, which every `.to` goes through; remembers the parameters that it replaces."""
    before = dict(self._parameters)
    _apply(self, fn, recurse)
    for name, parameter in before.items():
        if isinstance(parameter, Parameter) and self._parameters.get(name) is not parameter:
            _replaced[id(parameter)] = weakref.ref(parameter, _forget(id(parameter)))
    return self


_apply = Module._apply


def _forget(key: int) -> Callable[[object], None]:
    def forget(_: object) -> None:
        _replaced.pop(key, None)

    return forget


def before_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Raise ReplacedParameters if an optimizer would train what no module uses any more."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    lost = sum(id(parameter) in _replaced for parameter in held)
    if lost:
        raise ReplacedParameters(
            f"{lost} of {len(held)} parameters of {type(optimizer).__name__} were replaced when their module"
            " was moved to the device, so step() would train nothing: build the optimizer after"
            " .to('neuron') (strict)"
        )


def _in_child() -> None:
    global _forked
    _forked = True


def install() -> None:
    """Switch it on, for the rest of the process."""
    fallback.observers.append(observe)
    touch.replace(Module, "_apply", apply, "parameters that .to replaces are remembered (strict)")
    touch.register(
        "torch.optim.optimizer.register_optimizer_step_pre_hook", "optimizers of replaced parameters"
    )
    register_optimizer_step_pre_hook(before_step)
    os.register_at_fork(after_in_child=_in_child)
