"""The one function that runs every operation without a kernel of its own: on the CPU, over shared memory.

`observers` is the hook for whoever wants to see operations: each entry is called as
`observer(name, args, kwargs)` before an operation runs, with the operation's qualified name
(`aten::mm`, `aten::add.Tensor`) and its arguments as they stand on the emulated device. All operations
that compute, copy or synchronise pass it, those with a kernel of their own too; views do not. The
arguments are only to be looked at: an operation on them inside an observer would be observed as well.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import Parameter

from neuronmigrate.runtime.emulated.module import check_index
from neuronmigrate.runtime.emulated.retag import to_cpu, to_cpu_with_bits, to_neuron

Kernel: TypeAlias = Callable[..., object]
Observer: TypeAlias = Callable[[str, tuple[object, ...], dict[str, object]], None]

observers: list[Observer] = []

CPU = torch.device("cpu")
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

# Operations whose indices or source may stay on the CPU, as on every PyTorch device.
MIXED_ALLOWED = frozenset(
    f"aten::{name}"
    for name in (
        *("_foreach_copy_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"),
        *("gru", "index", "index_put", "index_put_", "lstm", "rnn_relu", "rnn_tanh"),
    )
)

_NUMBERS = (bool, int, float, complex)
_kernels: dict[str, Kernel] = {}


class MixedDevices(RuntimeError):
    """An operation was given tensors of the CPU and of the device."""

    def __init__(self, op: str, given: Iterable[object]) -> None:
        left = next((f" of shape {list(value.shape)}" for value in _flat(given) if value.is_cpu), "")
        super().__init__(
            "Expected all tensors to be on the same device, but found at least two devices, neuron:0 and"
            f" cpu! (in {op}, on the emulated neuron device: move the CPU tensor{left} with .to('neuron'))"
        )


def _flat(values: Iterable[object]) -> Iterator[Tensor]:
    """The tensors with dimensions among arguments, and in their lists."""
    for value in values:
        if isinstance(value, Tensor):
            if value.dim():
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _flat(value)


def fallback(op: OpOverload, *args: object, **kwargs: object) -> object:
    """Run `op` on the CPU over the memory of its neuron arguments; what it makes is labelled neuron.

    Raises MixedDevices where a CPU tensor with dimensions stands among neuron tensors, and whatever the
    CPU's kernel raises.
    """
    return by_name(op._name, *args, **kwargs)


def by_name(name: str, *args: object, **kwargs: object) -> object:
    """`fallback` for a qualified name: operations by the thousand are registered, and few are ever used."""
    if observers:
        tell(name, args, kwargs)
    try:
        kernel = _kernels[name]
    except KeyError:
        kernel = _kernels[name] = _kernel_for(overload_of(name))
    return kernel(*args, **kwargs)


def tell(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Show an operation to the observers."""
    for observer in tuple(observers):
        observer(name, args, kwargs)


def take_out(observer: Observer) -> bool:
    """Take an observer out; False if that is done already, as by another thread at the same moment."""
    with contextlib.suppress(ValueError):
        observers.remove(observer)
        return True
    return False


@functools.cache
def overload_of(name: str) -> OpOverload:
    """The operation of a qualified name, such as `aten::add.Tensor`."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    assert isinstance(found, OpOverload)
    return found


def _kernel_for(op: OpOverload) -> Kernel:
    """The narrowest kernel that fits the operation's schema."""
    schema = op._schema
    written = [at for at, argument in enumerate(schema.arguments) if argument.is_write]
    simple = all(
        str(argument.type) in _PLAIN or (str(argument.type) in (_TENSOR | _LISTS) and not argument.kwarg_only)
        for argument in schema.arguments
    )
    lists = any(str(argument.type) in _LISTS for argument in schema.arguments)
    if simple and [str(made.type) for made in schema.returns] == ["Tensor"]:
        if not written:
            return _functional(op)
        if written == [0] and schema.name.endswith("_") and not lists:
            return _in_place(op)
    return _general(op)


_TENSOR = frozenset({"Tensor", "Optional[Tensor]"})
_LISTS = frozenset({"List[Tensor]", "List[Optional[Tensor]]"})
_PLAIN = frozenset(
    {"number", "int", "float", "bool", "str", "List[int]", "List[bool]", "List[float]", "Generator"}
    | {"Optional[number]", "Optional[int]", "Optional[float]", "Optional[bool]", "Optional[str]"}
    | {"Optional[List[int]]", "Optional[List[float]]", "Optional[Generator]"}
)
"""Types of arguments that are the same on each device. A dtype is an int to the schema."""


@functools.cache
def _takes_bits() -> frozenset[str]:
    """Operations before which the dispatcher does not resolve lazy conj or neg bits."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    return frozenset([*registered("Conjugate"), *registered("Negative")])


_EXACT = frozenset({Tensor, Parameter})
"""Asked for first: `isinstance` runs a metaclass's code for all but exact matches."""


def _functional(op: OpOverload) -> Kernel:
    """For operations that take tensors and lists of them by position, write to none and return one."""
    run = op._op
    numbers = Numbers(op)
    tensor_at = numbers.tensor_at
    list_at = [at for at, argument in enumerate(op._schema.arguments) if str(argument.type) in _LISTS]
    mixed_allowed = op._schema.name in MIXED_ALLOWED
    enter = to_cpu_with_bits if op._name in _takes_bits() else to_cpu

    def kernel(*args: Any, **kwargs: Any) -> object:  # boxed: any type of the schema's
        given = list(args)
        count = len(given)
        host = device = False
        mask = 0
        for at, bit in tensor_at:
            if at >= count:
                break
            value = given[at]
            if type(value) in _EXACT or isinstance(value, Tensor):
                if value.get_device() == 0:
                    device = True
                    given[at] = enter(value)
                elif value.dim():
                    host = True
            elif value is not None:
                mask |= bit
        for at in list_at:
            entered = given[at] = list(given[at])
            for place, value in enumerate(entered):
                if value is not None:
                    if value.get_device() == 0:
                        device = True
                        entered[place] = enter(value)
                    elif value.dim():
                        host = True
        if host and device and not mixed_allowed:
            raise MixedDevices(op._name, args)
        made: Any
        try:
            made = numbers.run(mask, given, kwargs) if mask else run(*given, **kwargs)
        except NotImplementedError as error:
            made = _in_float(op, given, kwargs, error)
        return to_neuron(made)

    return kernel


def _in_place(op: OpOverload) -> Kernel:
    """For operations that take tensors by position, write to the first and return it."""
    run = op._op
    numbers = Numbers(op)
    tensor_at = numbers.tensor_at
    mixed_allowed = op._schema.name in MIXED_ALLOWED
    enter = to_cpu_with_bits if op._name in _takes_bits() else to_cpu

    def kernel(*args: Any, **kwargs: Any) -> object:  # boxed: any type of the schema's
        given = list(args)
        count = len(given)
        host = device = False
        mask = 0
        for at, bit in tensor_at:
            if at >= count:
                break
            value = given[at]
            if type(value) in _EXACT or isinstance(value, Tensor):
                if value.get_device() == 0:
                    device = True
                    given[at] = enter(value)
                elif value.dim() or at == 0:
                    host = True
            elif value is not None:
                mask |= bit
        if host and device and not mixed_allowed:
            raise MixedDevices(op._name, args)
        if mask:
            numbers.run(mask, given, kwargs)
        else:
            run(*given, **kwargs)
        return args[0]

    return kernel


def _general(op: OpOverload) -> Kernel:
    """For all other operations: lists of tensors, `out=`, a device, several results."""
    run = op._op
    arguments = op._schema.arguments
    numbers = Numbers(op)
    mixed_allowed = op._schema.name in MIXED_ALLOWED
    enter = to_cpu_with_bits if op._name in _takes_bits() else to_cpu
    written_at = [at for at, argument in enumerate(arguments) if argument.is_write]
    written_by_name = {argument.name for argument in arguments if argument.is_write}
    writes = bool(written_at)
    resizes = any(argument.is_write and argument.kwarg_only for argument in arguments)

    def kernel(*args: object, **kwargs: object) -> object:
        seen = Seen(enter, resizable=resizes)
        given = [seen.enter(value) for value in args]
        named = {name: seen.enter(value) for name, value in kwargs.items()}
        if seen.pairs and not mixed_allowed:
            written = [args[at] for at in written_at if at < len(args)]
            written += [value for name, value in kwargs.items() if name in written_by_name]
            if seen.host or _any_on_cpu(written):
                raise MixedDevices(op._name, [*args, *kwargs.values()])
        try:
            mask = numbers.mask(given)
            made = numbers.run(mask, given, named) if mask else run(*given, **named)
        except NotImplementedError as error:
            if writes:
                raise
            made = _in_float(op, given, named, error)
        if seen.elsewhere:
            return made
        for neuron, cpu in seen.pairs.values() if resizes else ():
            if neuron.shape != cpu.shape or neuron.data_ptr() != cpu.data_ptr():
                torch.ops.aten.set_.source_Tensor.redispatch(CPU_KEYS, neuron, to_neuron(cpu))
        return leave(made, {id(cpu): neuron for neuron, cpu in seen.pairs.values()} if writes else {})

    return kernel


class Seen:
    """The arguments of one call on their way to the CPU, and what was met among them."""

    __slots__ = ("alias", "elsewhere", "host", "pairs", "resizable")

    def __init__(self, alias: Callable[[Tensor], Tensor], *, resizable: bool) -> None:
        self.alias = alias
        self.pairs: dict[int, tuple[Tensor, Tensor]] = {}
        """Each neuron tensor with its CPU twin, by the tensor's id: one given twice has one twin."""
        self.host = False
        """Whether a CPU tensor with dimensions was among them; one without counts as a number."""
        self.elsewhere = False
        """Whether the result was asked for on another device."""
        self.resizable = resizable

    def enter(self, value: object) -> object:
        """One argument as the CPU is to see it."""
        kind = type(value)
        if kind is list or kind is tuple:
            return [self.enter(item) for item in value]  # type: ignore[attr-defined]
        if kind in _EXACT or isinstance(value, Tensor):
            if value.get_device() == 0:  # type: ignore[attr-defined]
                return self._twin(value)  # type: ignore[arg-type]
            if value.dim():  # type: ignore[attr-defined]
                self.host = True
        elif kind is torch.device:
            if value.type != "neuron":  # type: ignore[attr-defined]
                self.elsewhere = True
            elif value.index:  # type: ignore[attr-defined]
                check_index(value)  # type: ignore[arg-type]
            return value if self.elsewhere else CPU
        return value

    def _twin(self, tensor: Tensor) -> Tensor:
        known = self.pairs.get(id(tensor))
        if known is not None:
            return known[1]
        if self.resizable and tensor.numel() == 0:
            # An alias cannot grow; what the CPU makes of this one is taken over afterwards.
            cpu = torch.empty(tensor.shape, dtype=tensor.dtype, device=CPU)
        else:
            cpu = self.alias(tensor)
        self.pairs[id(tensor)] = (tensor, cpu)
        return cpu


def leave(made: object, given: dict[int, Tensor]) -> object:
    """A result of the CPU as the device returns it; `given` has the argument behind a written CPU twin."""
    if isinstance(made, Tensor):
        if id(made) in given:
            return given[id(made)]
        return to_neuron(made) if made.is_cpu else made
    if type(made) in (list, tuple):
        return type(made)([leave(item, given) for item in made])  # type: ignore[call-arg, attr-defined]
    return made


def _any_on_cpu(values: Sequence[object]) -> bool:
    for value in values:
        if isinstance(value, Tensor):
            if value.is_cpu:
                return True
        elif type(value) in (list, tuple) and _any_on_cpu(value):  # type: ignore[arg-type]
            return True
    return False


class Numbers:
    """Calls in which a plain number stands where the schema wants a tensor.

    The dispatcher unwraps the 0-dimensional tensors that stand for Python numbers, and does not wrap them
    again for the next call. A sister overload that takes a number promotes dtypes as the wrapped one did.
    """

    def __init__(self, op: OpOverload) -> None:
        self._op = op
        self.tensor_at = tuple(
            (at, 1 << at)
            for at, argument in enumerate(op._schema.arguments)
            if str(argument.type) in _TENSOR and not argument.kwarg_only
        )
        """Positions of tensors, each with its bit in a mask."""
        self._runs: dict[int, Kernel] = {}

    def mask(self, given: Sequence[object]) -> int:
        """The positions at which a number stands for a tensor, as a mask; 0 if there is none."""
        return sum(bit for at, bit in self.tensor_at if at < len(given) and type(given[at]) in _NUMBERS)

    def run(self, mask: int, given: list[object], kwargs: dict[str, object]) -> object:
        """Run the operation on the CPU, with numbers at the positions in the mask."""
        try:
            run = self._runs[mask]
        except KeyError:
            run = self._runs[mask] = self._runner(mask)
        return run(*given, **kwargs)

    def _runner(self, mask: int) -> Kernel:
        own = self._op._schema.arguments
        packet = self._op.overloadpacket
        for name in packet.overloads():
            sister: OpOverload = getattr(packet, name)
            theirs = sister._schema.arguments
            if len(theirs) == len(own) and all(
                their.name == mine.name
                and their.is_write == mine.is_write
                and str(their.type) == ("number" if mask >> at & 1 else str(mine.type))
                for at, (their, mine) in enumerate(zip(theirs, own, strict=True))
            ):
                return sister._op
        return functools.partial(self._wrapped, mask)

    def _wrapped(self, mask: int, *args: object, **kwargs: object) -> object:
        packet = self._op.overloadpacket
        try:
            return packet(*args, **kwargs)
        except RuntimeError:
            given = [torch.tensor(v, device=CPU) if mask >> at & 1 else v for at, v in enumerate(args)]
            return self._op(*given, **kwargs)


_NARROW = (torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def _in_float(
    op: OpOverload, given: list[object], kwargs: dict[str, object], error: NotImplementedError
) -> object:
    """Run in float32 what the CPU has no kernel for in this dtype, and cast back; raises the error otherwise.

    Libraries take other branches on an accelerator than on the CPU, and those may use dtypes that only
    accelerators have kernels for (`torch.histc` of integers in Transformers' mixtures of experts).
    """
    if "not implemented for" not in str(error):
        raise error
    source = next((v.dtype for v in given if isinstance(v, Tensor) and v.dtype in _NARROW), None)
    if source is None:
        raise error
    wide = [v.float() if isinstance(v, Tensor) and v.dtype is source else v for v in given]
    made = op._op(*wide, **kwargs)
    results = made if isinstance(made, tuple) else (made,)
    narrow = tuple(v.to(source) if isinstance(v, Tensor) and v.dtype is torch.float32 else v for v in results)
    return narrow if isinstance(made, tuple) else narrow[0]
