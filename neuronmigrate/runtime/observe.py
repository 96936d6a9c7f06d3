"""What a program does that will cost compilations, copies and waiting on the device, by line of its source.

On the emulated device each operation is shown to an `Observer` before it runs. TorchNeuron compiles one
program for each operation and shape that it meets in eager mode, so the number of distinct ones is an
estimate of compilations - only an estimate, since its own kernels take operations apart in other ways.
"""

from __future__ import annotations

import collections
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from neuronmigrate.runtime.observation import (
    FLOAT64,
    HOST_SYNC,
    INT64,
    ON_CPU,
    PLACEMENT,
    SHAPED_BY_DATA,
    Observation,
    Seen,
    combine,
)
from neuronmigrate.runtime.places import NOWHERE, Inside, Place, Places
from neuronmigrate.targets import operators

_WIDE = frozenset({torch.float64, torch.complex128})
_TRUTH = frozenset({torch.bool, torch.uint8})


_VALUE = ("value", "the program asks for a number: .item(), int(), bool() or a test in Python")
_COPY = ("copy", "copied to the host: .cpu(), .to('cpu'), .numpy() or .tolist()")
_PRINT = ("print", "printing computes on the device: print tensor.cpu() or a number")


class _WatchedCall:
    """Stands where `torch.nn.Module._call_impl` does, and tells of each call as the method is looked up.

    So nothing of ours is on the stack while a module runs, and torch.compile, which takes the function from
    the class, traces what it did before. (Global hooks would do neither: torch.compile warns of them.)
    """

    def __init__(
        self, original: Callable[..., object], tell: Callable[[torch.nn.Module, tuple[object, ...]], None]
    ) -> None:
        self.original = original
        self.tell = tell

    def __get__(self, module: torch.nn.Module | None, owner: type) -> Callable[..., object]:
        if module is None:
            return self.original
        caller = sys._getframe(1)
        if caller.f_code is _CALLER and not torch.compiler.is_compiling():
            self.tell(module, caller.f_locals["args"])
        return types.MethodType(self.original, module)


_CALLER = torch.nn.Module._wrapped_call_impl.__code__


class Observer:
    """Sees the operations of one process."""

    def __init__(self) -> None:
        self.emulated = False
        self._signatures: dict[tuple[object, ...], list[object]] = {}
        """Operation, shapes and dtypes: how often, and the line that had it first."""
        self._calls: collections.Counter[Place] = collections.Counter()
        self._notes: collections.Counter[tuple[str, Place, str, str]] = collections.Counter()
        self._forwards: set[tuple[Place, int]] = set()
        self._left_on_cpu: set[Place] = set()
        self._parts: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        """Modules below those that were found on the CPU."""
        self._places = Places()
        self._in_graphs = 0
        self._graphs: Sequence[int] = ()
        self._call: _WatchedCall | None = None

    # Seeing

    def begin(self, *, emulated: bool) -> None:
        """Start to see operations and calls of modules."""
        self.emulated = emulated
        self._call = _WatchedCall(torch.nn.Module._call_impl, self._see_module)
        torch.nn.Module._call_impl = self._call  # type: ignore[method-assign, assignment]
        if emulated:
            from neuronmigrate.runtime.emulated import dynamo, fallback

            fallback.observers.append(self.see)
            self._places = Places(dynamo.run.__code__)
            self._graphs = dynamo.graphs

    def end(self) -> None:
        """See no more."""
        if self._call is None:
            return
        torch.nn.Module._call_impl = self._call.original  # type: ignore[method-assign]
        self._call = None
        if self.emulated:
            from neuronmigrate.runtime.emulated import fallback

            fallback.take_out(self.see)

    def see(self, name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """One operation, with its arguments as they stand on the device; called before it runs."""
        place, inside = self._places.now(sys._getframe(1))
        printed = inside is Inside.PRINT
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        operation = name.partition("::")[2]
        if operation == "_local_scalar_dense":
            self._note(HOST_SYNC, place, *(_PRINT if printed else _VALUE))
            return
        moved = _moved(operation, tensors, kwargs)
        if moved is not None:
            if moved == "cpu":
                self._note(HOST_SYNC, place, *(_PRINT if printed else _COPY))
            return
        if inside is Inside.GRAPH:
            self._in_graphs += 1
            return
        self._calls[place] += 1
        given: list[tuple[object, ...]] = [(each.shape, each.dtype) for each in tensors]
        key = (name, *(given or [_asked_for(args, kwargs)]))
        seen = self._signatures.get(key)
        if seen is None:
            self._signatures[key] = [1, place]
        else:
            seen[0] += 1  # type: ignore[operator]
        if not printed:
            dtypes = {each.dtype for each in tensors}
            asked = kwargs.get("dtype")
            if isinstance(asked, torch.dtype):
                dtypes.add(asked)
            self._judge(operation, args, dtypes, place)

    def _judge(
        self, operation: str, args: tuple[object, ...], dtypes: set[torch.dtype], place: Place
    ) -> None:
        base = operation.partition(".")[0]
        depends = operators.SHAPED_BY_DATA.get(operation) or operators.SHAPED_BY_DATA.get(base)
        if depends is not None:
            self._note(SHAPED_BY_DATA, place, base, f"its shape is {depends}")
        elif base in ("index", "index_put_", "_index_put_impl_", "index_put") and any(
            each.dtype in _TRUTH for each in _tensors(args[1:2])
        ):
            self._note(
                SHAPED_BY_DATA, place, base, "indexed with a mask: its shape is the number of true elements"
            )
        source = operators.ON_CPU.get(base.rstrip("_"))
        if source is not None:
            self._note(ON_CPU, place, base, source)
        if dtypes & _WIDE:
            self._note(FLOAT64, place, base, "the device has no 64 bits: it computes in 32")
        elif torch.int64 in dtypes:
            self._note(INT64, place, "", "the device has no 64 bits: values beyond 32 bits are lost")

    def _see_module(self, module: torch.nn.Module, args: tuple[object, ...]) -> None:
        """Before a module's forward: whether its parameters are on the CPU."""
        place, _ = self._places.now(sys._getframe(1))
        if (place, id(module)) in self._forwards:
            return
        self._forwards.add((place, id(module)))
        parameter = next(module.parameters(), None)
        # The whole comes before its parts, and stands for them.
        if parameter is None or parameter.device.type != "cpu" or place in self._left_on_cpu:
            return
        if module in self._parts:
            return
        self._left_on_cpu.add(place)
        self._parts.update(each for each in module.modules() if each is not module)
        inputs = {each.device.type for each in _tensors(args)}
        also = ", and so are its inputs" if inputs == {"cpu"} else ""
        self.note_placement(place, type(module).__name__, f"its parameters are on the CPU{also}")

    def note_placement(self, place: Place, what: str, why: str) -> None:
        """Something that stays on the CPU without a word."""
        self._note(PLACEMENT, place, what, why)

    def _note(self, kind: str, place: Place, what: str, why: str) -> None:
        self._notes[kind, place, what, why] += 1

    # What came of it

    def seen(self) -> Seen:
        """Everything up to now, as plain data."""
        signatures = []
        for (name, *tensors), (count, place) in self._signatures.items():
            assert isinstance(count, int) and isinstance(place, Place)
            signatures.append(((str(name), tuple(map(_written, tensors))), count, place))
        notes = [(*note, count) for note, count in self._notes.items()]
        notes += _told_by_the_package() if not self.emulated else []
        return Seen(
            self.emulated,
            tuple(signatures),
            tuple(self._calls.items()),
            tuple(notes),
            len(self._graphs),
            self._in_graphs,
        )

    def observation(self) -> Observation:
        """What everything up to now comes to."""
        return combine({0: self.seen()})


def _moved(operation: str, tensors: list[Tensor], kwargs: dict[str, object]) -> str | None:
    """The device type that an operation copies to from another one; None if it does no such thing."""
    if operation == "_to_copy":
        device = kwargs.get("device")
        target = device.type if isinstance(device, torch.device) else tensors[0].device.type
        source = tensors[0].device.type
    elif operation == "_copy_from":
        source, target = tensors[0].device.type, tensors[1].device.type
    elif operation == "copy_":
        target, source = tensors[0].device.type, tensors[-1].device.type
    else:
        return None
    return None if source == target else target


def _tensors(values: Iterable[object]) -> list[Tensor]:
    """The tensors among arguments and in their lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found.extend(each for each in value if isinstance(each, Tensor))
    return found


def _asked_for(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
    """What an operation without tensors makes: its shape, or the numbers it counts by, and its dtype."""
    numbers = args[0] if args and isinstance(args[0], (list, tuple)) else args
    assert isinstance(numbers, (list, tuple))
    return tuple(each for each in numbers if isinstance(each, int | float)), kwargs.get("dtype")


def _written(tensor: object) -> str:
    assert isinstance(tensor, tuple)
    shape, dtype = tensor
    name = "" if dtype is None else f" {str(dtype).removeprefix('torch.')}"
    return f"{list(shape)}{name}"


def _told_by_the_package() -> list[tuple[str, Place, str, str, int]]:
    """On the real device: the operations that its own package says it ran on the CPU."""
    told = getattr(sys.modules.get("torch_neuronx"), "get_fallback_ops", None)
    if told is None:
        return []
    counts = collections.Counter(map(str, told()))
    return [
        (ON_CPU, NOWHERE, name, "torch_neuronx.get_fallback_ops()", count) for name, count in counts.items()
    ]
