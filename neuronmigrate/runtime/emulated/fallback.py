"""The one function that runs every operation without a kernel of its own: on the CPU, over shared memory.

`observers` is the hook for whoever wants to see operations: each entry is called as
`observer(name, args, kwargs)` before an operation runs, with the operation's qualified name
(`aten::mm`, `aten::add.Tensor`) and its arguments as they stand on the emulated device. All operations
that compute, copy or synchronise pass it, those with a kernel of their own too; views do not. The
arguments are only to be looked at: an operation on them inside an observer would be observed as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload

from neuronmigrate.runtime.emulated.retag import to_cpu, to_neuron

Kernel: TypeAlias = Callable[..., object]
Observer: TypeAlias = Callable[[str, tuple[object, ...], dict[str, object]], None]

observers: list[Observer] = []

CPU = torch.device("cpu")
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

# Operations whose indices or source may stay on the CPU, as on every PyTorch device.
MIXED_ALLOWED = frozenset(
    {"_foreach_copy_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
    | {"index", "index_put", "index_put_"}
)

_NUMBERS = (bool, int, float, complex)
_kernels: dict[OpOverload, Kernel] = {}


class MixedDevices(RuntimeError):
    """An operation was given tensors of the CPU and of the device."""

    def __init__(self, op: str) -> None:
        super().__init__(
            "Expected all tensors to be on the same device, but found at least two devices, neuron:0 and"
            f" cpu! (in {op}, on the emulated neuron device: move the CPU tensor with .to('neuron'))"
        )


def fallback(op: OpOverload, *args: object, **kwargs: object) -> object:
    """Run `op` on the CPU over the memory of its neuron arguments; what it makes is labelled neuron."""
    if observers:
        tell(op._name, args, kwargs)
    try:
        kernel = _kernels[op]
    except KeyError:
        kernel = _kernels[op] = _kernel_for(op)
    return kernel(*args, **kwargs)


def tell(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Show an operation to the observers."""
    for observer in tuple(observers):
        observer(name, args, kwargs)


def _kernel_for(op: OpOverload) -> Kernel:
    arguments = op._schema.arguments
    if any(argument.is_write for argument in arguments):
        return _writing(op)
    return _pure(op)


def _pure(op: OpOverload) -> Kernel:
    """The kernel of an operation that writes to none of its arguments."""
    run = op._op
    numbers = Numbers(op)
    tensor_at = numbers.positions
    mixed_allowed = op._schema.name.partition("::")[2] in MIXED_ALLOWED
    # Without lists, devices and the like, only the tensor positions need a look.
    simple = all(
        str(argument.type) in _PLAIN or position in tensor_at
        for position, argument in enumerate(op._schema.arguments)
    )
    single = len(op._schema.returns) == 1 and str(op._schema.returns[0].type) == "Tensor"

    def kernel(*args: object, **kwargs: object) -> object:
        given = list(args)
        host = device = number = False
        if simple:
            count = len(given)
            for at in tensor_at:
                if at >= count:
                    break
                value = given[at]
                if isinstance(value, Tensor):
                    if value.get_device() == 0:
                        device = True
                        given[at] = to_cpu(value)
                    elif value.dim():
                        host = True
                elif value is not None:
                    number = True
        else:
            seen = Seen()
            given = [seen.enter(value) for value in given]
            kwargs = {name: seen.enter(value) for name, value in kwargs.items()}
            host, device = seen.host, bool(seen.pairs)
            number = any(at < len(given) and type(given[at]) in _NUMBERS for at in tensor_at)
            if seen.elsewhere:
                return run(*given, **kwargs)
        if host and device and not mixed_allowed:
            raise MixedDevices(op._name)
        try:
            made = numbers.run(given, kwargs) if number else run(*given, **kwargs)
        except NotImplementedError as error:
            made = _in_float(op, given, kwargs, error)
        return to_neuron(made) if single and type(made) is Tensor else leave(made)

    return kernel


def _writing(op: OpOverload) -> Kernel:
    """The kernel of an operation that writes to some of its arguments (in place, or to `out=`)."""
    run = op._op
    arguments = op._schema.arguments
    numbers = Numbers(op)
    tensor_at = numbers.positions
    mixed_allowed = op._schema.name.partition("::")[2] in MIXED_ALLOWED
    written_at = [at for at, argument in enumerate(arguments) if argument.is_write]
    written_by_name = {argument.name for argument in arguments if argument.is_write}
    # An operation in place keeps its shape; an `out=` may be resized.
    may_resize = (
        any(argument.is_write and argument.kwarg_only for argument in arguments) or op._schema.name[-1] != "_"
    )

    def kernel(*args: object, **kwargs: object) -> object:
        seen = Seen(resizable=may_resize)
        given = [seen.enter(value) for value in args]
        named = {name: seen.enter(value) for name, value in kwargs.items()}
        if seen.pairs and not mixed_allowed:
            written = [args[at] for at in written_at if at < len(args)]
            written += [value for name, value in kwargs.items() if name in written_by_name]
            if seen.host or _any_on_cpu(written):
                raise MixedDevices(op._name)
        if any(at < len(given) and type(given[at]) in _NUMBERS for at in tensor_at):
            made = numbers.run(given, named)
        else:
            made = run(*given, **named)
        if may_resize:
            for neuron, cpu in seen.pairs:
                if neuron.shape != cpu.shape or neuron.data_ptr() != cpu.data_ptr():
                    torch.ops.aten.set_.source_Tensor.redispatch(CPU_KEYS, neuron, to_neuron(cpu))
        return leave(made, seen.pairs)

    return kernel


_PLAIN = frozenset(
    {"number", "int", "float", "bool", "Optional[number]", "Optional[int]", "Optional[float]"}
    | {"Optional[bool]", "List[int]", "List[bool]", "List[float]", "Optional[List[int]]", "str"}
    | {"Optional[str]", "Optional[List[float]]", "Optional[Generator]", "Generator"}
)


class Seen:
    """The arguments of one call on their way to the CPU, and what was met among them."""

    __slots__ = ("elsewhere", "host", "pairs", "resizable")

    def __init__(self, *, resizable: bool = False) -> None:
        self.pairs: list[tuple[Tensor, Tensor]] = []
        """Each neuron tensor with its CPU twin; a tensor given twice has one twin."""
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
        if isinstance(value, Tensor):
            if value.get_device() == 0:
                return self._twin(value)
            if value.dim():
                self.host = True
        elif kind is torch.device:
            if value.type != "neuron":  # type: ignore[attr-defined]
                self.elsewhere = True
            return value if self.elsewhere else CPU
        return value

    def _twin(self, tensor: Tensor) -> Tensor:
        for neuron, cpu in self.pairs:
            if neuron is tensor:
                return cpu
        if self.resizable and tensor.numel() == 0:
            # An alias cannot grow; what the CPU makes of this one is taken over afterwards.
            cpu = torch.empty(tensor.shape, dtype=tensor.dtype, device=CPU)
        else:
            cpu = to_cpu(tensor)
        self.pairs.append((tensor, cpu))
        return cpu


def leave(made: object, pairs: Sequence[tuple[Tensor, Tensor]] = ()) -> object:
    """A result of the CPU as the device returns it; what was written is the argument itself."""
    if isinstance(made, Tensor):
        for neuron, cpu in pairs:
            if cpu is made:
                return neuron
        return to_neuron(made) if made.is_cpu else made
    if type(made) in (list, tuple):
        return type(made)([leave(item, pairs) for item in made])  # type: ignore[call-arg, attr-defined]
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
        self.positions = tuple(
            at
            for at, argument in enumerate(op._schema.arguments)
            if str(argument.type) in ("Tensor", "Optional[Tensor]") and not argument.kwarg_only
        )
        self._sisters: dict[tuple[int, ...], OpOverload | None] = {}

    def run(self, given: list[object], kwargs: dict[str, object]) -> object:
        """Run the operation on the CPU, with its numbers."""
        at = tuple(p for p in self.positions if p < len(given) and type(given[p]) in _NUMBERS)
        if at not in self._sisters:
            self._sisters[at] = self._sister(at)
        sister = self._sisters[at]
        if sister is not None:
            names = [argument.name for argument in self._op._schema.arguments]
            width = max(at[-1] + 1, 2)
            extra = dict(zip(names[width:], given[width:], strict=False))
            return sister._op(*given[:width], **extra, **kwargs)
        try:
            return self._op.overloadpacket(*given, **kwargs)
        except RuntimeError:
            wrapped = list(given)
            for p in at:
                wrapped[p] = torch.tensor(given[p], device=CPU)
            return self._op(*wrapped, **kwargs)

    def _sister(self, at: tuple[int, ...]) -> OpOverload | None:
        own = self._op._schema.arguments
        packet = self._op.overloadpacket
        for name in packet.overloads():
            arguments = getattr(packet, name)._schema.arguments
            if len(arguments) != len(own):
                continue
            if all(
                theirs.name == mine.name
                and theirs.is_write == mine.is_write
                and (str(theirs.type) == "number" if p in at else str(theirs.type) == str(mine.type))
                for p, (theirs, mine) in enumerate(zip(arguments, own, strict=True))
            ):
                return getattr(packet, name)  # type: ignore[no-any-return]
        return None


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
