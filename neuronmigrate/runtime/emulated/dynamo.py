"""`torch.compile(..., backend="neuron")`: Dynamo and AOTAutograd, with the graphs run operation by operation.

What TorchNeuron's page on the backend documents is kept: `dynamic=True` is refused, unset means static, so
that each new shape is compiled anew; any mode but "default" warns and acts as the default. Nothing is
compiled, so nothing is told about what neuronx-cc takes.

`torch._dynamo` takes over a second to import, so the backend is registered when something imports it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch

from neuronmigrate.runtime.emulated import module, touch

if TYPE_CHECKING:
    from torch.fx import GraphModule

    Compiled: TypeAlias = Callable[..., object]

DYNAMO = "torch._dynamo"

graphs: list[int] = []
"""Number of nodes of each graph that was handed to the backend in this process, backward graphs included."""


class DynamicShapes(RuntimeError):
    """Shapes that vary were asked for."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the neuron backend compiles static shapes alone, and {what}; use dynamic=False and pad the"
            " inputs to a few lengths (TorchNeuron, torch.compile backend reference)"
        )


def compile(model: Callable[..., object] | None = None, **options: object) -> object:
    """`torch.compile`, with static shapes for backend "neuron".

    Raises DynamicShapes for `dynamic=True`, and RuntimeError for another backend where the model is on the
    device already: Inductor, PyTorch's default and that of Transformers' CompileConfig, cannot generate code
    for it.
    """
    if options.get("backend") == "neuron":
        if options.get("dynamic"):
            raise DynamicShapes("dynamic=True was given")
        options["dynamic"] = False
    elif options.get("backend") in (None, "inductor") and _on_device(model):
        raise RuntimeError(
            "torch.compile was asked for backend 'inductor', its default, which has no code for the neuron"
            " device: pass backend='neuron', dynamic=False, and mode='default' in a CompileConfig"
        )
    return _compile(model, **options)  # type: ignore[call-overload]


def _on_device(model: object) -> bool:
    owner = getattr(model, "__self__", model)
    return isinstance(owner, torch.nn.Module) and any(p.device.type == "neuron" for p in owner.parameters())


_compile = torch.compile


def backend(
    graph: GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: dict[str, object] | None = None,
) -> Compiled:
    """The backend's entry: a compiled forward, and with it the backward.

    Raises DynamicShapes if a size of the inputs is a symbol.
    """
    from torch._dynamo.backends.common import aot_autograd

    if any(_is_symbolic(value) for value in example_inputs):
        raise DynamicShapes("a size of the compiled function's inputs varies")
    if mode not in (None, "default"):
        warnings.warn(f"the neuron backend has no mode {mode!r}; the default is used", stacklevel=2)
    compiled: Compiled = aot_autograd(fw_compiler=_boxed)(graph, list(example_inputs))
    return compiled


def _boxed(graph: GraphModule, example_inputs: Sequence[object]) -> Compiled:
    from functorch.compile import make_boxed_func  # type: ignore[import-untyped]

    graphs.append(len(graph.graph.nodes))
    boxed: Compiled = make_boxed_func(functools.partial(run, graph))
    return boxed


def run(graph: GraphModule, *inputs: object) -> object:
    """Run a graph; what runs below this function is one program on the device."""
    return graph.forward(*inputs)


def _is_symbolic(value: object) -> bool:
    if isinstance(value, torch.SymInt):
        return True
    return isinstance(value, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in value.shape)


def _register() -> None:
    """Tell Dynamo of the backend and of the device."""
    from torch._dynamo import register_backend
    from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

    class Interface(DeviceInterface):
        """The device as Dynamo and Inductor ask for it."""

        device = module.device
        Event = module.Event
        Stream = module.Stream

        class Worker:
            """The device in Inductor's worker processes."""

            set_device = staticmethod(module.set_device)
            current_device = staticmethod(module.current_device)
            get_device_properties = staticmethod(module.get_device_properties)

        current_device = staticmethod(module.current_device)
        set_device = staticmethod(module.set_device)
        exchange_device = staticmethod(module.exchange_device)
        maybe_exchange_device = staticmethod(module.exchange_device)
        device_count = staticmethod(module.device_count)
        is_available = staticmethod(module.is_available)
        stream = staticmethod(module.stream)
        current_stream = staticmethod(module.current_stream)
        set_stream = staticmethod(module.set_stream)
        synchronize = staticmethod(module.synchronize)
        get_compute_capability = staticmethod(module.get_device_capability)
        is_bf16_supported = staticmethod(module.is_bf16_supported)
        memory_allocated = staticmethod(module.memory_allocated)

        @staticmethod
        def get_raw_stream(device_idx: int) -> int:
            """0: there is no stream behind the device's."""
            return 0

    touch.register("torch._dynamo.trace_rules.SKIP_DIRS_RE", "Dynamo does not trace into the kernels")
    torch._dynamo.trace_rules.add("neuronmigrate.runtime")
    touch.register("torch._dynamo.register_backend", "torch.compile(backend='neuron')")
    register_backend(backend, name="neuron")  # type: ignore[arg-type]
    touch.register("torch._dynamo.device_interface", "the device's streams and events in compiled code")
    for name in ("neuron", *(f"neuron:{index}" for index in range(module.device_count()))):
        register_interface_for_device(name, Interface)


class _Finder(importlib.abc.MetaPathFinder):
    """Registers after the import of `torch._dynamo`, and leaves the path again."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The real spec, with the registration after its loader's work."""
        if name != DYNAMO:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(loaded: types.ModuleType) -> None:
            execute(loaded)
            _register()

        spec.loader.exec_module = execute_and_register  # type: ignore[assignment, method-assign]
        return spec


def install() -> None:
    """Replace `torch.compile`, and register the backend now or with the import of `torch._dynamo`."""
    compile.__doc__ = _compile.__doc__
    touch.replace(torch, "compile", compile, "dynamic=True is refused with backend='neuron'")
    if DYNAMO in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Finder())
