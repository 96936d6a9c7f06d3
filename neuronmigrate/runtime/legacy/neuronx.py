"""The legacy `torch_neuronx`: a traced module has fixed shapes, takes and gives CPU tensors, and no gradient.

After the package's documentation of its releases 1.0 to 2.8 (its sources are closed, the behaviour is that
of TorchScript around one compiled operator).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

import torch

from neuronmigrate.runtime.legacy.session import current

__version__ = "2.8.0"

__all__ = [
    "DataParallel",
    "PartitionerConfig",
    "__version__",
    "async_load",
    "dynamic_batch",
    "lazy_load",
    "move_trace_to_device",
    "multicore_context",
    "neuron_cores_context",
    "replace_weights",
    "set_multicore",
    "set_neuron_cores",
    "trace",
]

_SHAPES = "neuronmigrate_shapes.json"

Nested = object


class TracedModule(torch.nn.Module):
    """What `trace` gives: the traced CPU graph behind a check of shapes and dtypes."""

    def __init__(
        self,
        graph: torch.jit.ScriptModule,
        examples: Sequence[tuple[tuple[int, ...], str]],
        dynamic: bool = False,
    ) -> None:
        super().__init__()
        self.graph = graph
        self.examples = [(tuple(shape), dtype) for shape, dtype in examples]
        self.dynamic = dynamic

    def forward(self, *inputs: torch.Tensor) -> Nested:
        """Outputs as the traced function gave them.

        Raises RuntimeError for another number of inputs, another shape (but for the first dimension after
        `dynamic_batch`) or another dtype than those of the example.
        """
        if len(inputs) != len(self.examples):
            raise RuntimeError(f"traced with {len(self.examples)} inputs, called with {len(inputs)}")
        for number, (each, (shape, dtype)) in enumerate(zip(inputs, self.examples, strict=True)):
            given = tuple(each.shape)
            fits = given[1:] == shape[1:] and bool(given) if self.dynamic else given == shape
            if not fits or str(each.dtype) != dtype:
                raise RuntimeError(
                    f"input {number} is {list(given)} of {each.dtype}, the trace was made with {list(shape)} "
                    f"of {dtype}: a compiled graph takes nothing else"
                )
        with torch.no_grad():
            if not self.dynamic:
                return self.graph(*inputs)
            return self._in_batches(inputs)

    def save(self, f: str | os.PathLike[str], _extra_files: dict[str, str] | None = None) -> None:
        """Write the graph and its shapes to a file, as a ScriptModule's own `save` does."""
        options: dict[str, object] = {} if _extra_files is None else {"_extra_files": _extra_files}
        writer: Callable[..., None] = torch.jit.save
        writer(self, f, **options)

    def _in_batches(self, inputs: Sequence[torch.Tensor]) -> Nested:
        """Batches of the compiled size, the last one filled up."""
        size = self.examples[0][0][0]
        count = inputs[0].shape[0]
        parts = []
        for start in range(0, count, size):
            batch = [each[start : start + size] for each in inputs]
            missing = size - batch[0].shape[0]
            filled = [
                torch.cat([each, each.new_zeros((missing, *each.shape[1:]))]) if missing else each
                for each in batch
            ]
            parts.append(self.graph(*filled))
        return _joined(parts, 0, count)


def _joined(parts: Sequence[Nested], dimension: int, count: int | None = None) -> Nested:
    first = parts[0]
    if isinstance(first, torch.Tensor):
        whole = torch.cat([part for part in parts if isinstance(part, torch.Tensor)], dimension)
        return whole if count is None else whole.narrow(dimension, 0, count)
    if isinstance(first, tuple | list):
        rows = zip(*(part for part in parts if isinstance(part, tuple | list)), strict=True)
        return type(first)(_joined(row, dimension, count) for row in rows)
    if isinstance(first, Mapping):
        maps = [part for part in parts if isinstance(part, Mapping)]
        return {key: _joined([each[key] for each in maps], dimension, count) for key in first}
    return first


def trace(
    func: Callable[..., Nested],
    example_inputs: torch.Tensor | Sequence[torch.Tensor],
    *unused: object,
    **options: object,
) -> TracedModule:
    """Trace on the CPU for exactly these inputs; options of the compiler have no effect and are noted.

    The module is put to evaluation as it stands: like the original, nothing calls `.eval()`.
    """
    _install_files()
    examples = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else tuple(example_inputs)
    if options:
        current().note(f"torch_neuronx.trace: without effect here: {', '.join(sorted(options))}")
    with torch.no_grad():
        make: Callable[..., torch.jit.ScriptModule] = torch.jit.trace
        graph = make(_named(func), examples, strict=False, check_trace=False)
    return TracedModule(graph, [(tuple(each.shape), str(each.dtype)) for each in examples])


def _named(func: Callable[..., Nested]) -> Callable[..., Nested]:
    """The callable, or for a partial and the like, which torch.jit cannot name, a function that calls it."""
    if isinstance(func, torch.nn.Module) or hasattr(func, "__name__"):
        return func

    def function(*inputs: torch.Tensor) -> Nested:
        return func(*inputs)

    return function


@functools.lru_cache(maxsize=1)
def _install_files() -> None:
    """Let `torch.jit.save` and `torch.jit.load` keep the shapes beside the graph."""
    save: Callable[..., None] = torch.jit.save
    load: Callable[..., torch.jit.ScriptModule] = torch.jit.load

    def save_traced(
        m: torch.nn.Module, f: str | os.PathLike[str] | IO[bytes], _extra_files: dict[str, str] | None = None
    ) -> None:
        if isinstance(m, TracedModule):
            extra = {**(_extra_files or {}), _SHAPES: json.dumps([m.examples, m.dynamic])}
            save(m.graph, f, _extra_files=extra)
        else:
            save(m, f, _extra_files=_extra_files)

    def load_traced(
        f: str | os.PathLike[str] | IO[bytes],
        map_location: object = None,
        _extra_files: dict[str, str] | None = None,
        **options: object,
    ) -> torch.nn.Module:
        extra = {**(_extra_files or {}), _SHAPES: ""}
        graph = load(f, map_location=map_location, _extra_files=extra, **options)
        shapes = extra.pop(_SHAPES)
        if _extra_files is not None:
            _extra_files.update(extra)
        if not shapes:
            return graph
        examples, dynamic = json.loads(shapes)
        return TracedModule(graph, [(tuple(shape), dtype) for shape, dtype in examples], dynamic)

    for name, value in (("save", save_traced), ("load", load_traced)):
        setattr(torch.jit, name, value)


_install_files()


def dynamic_batch(neuron_script: TracedModule) -> TracedModule:
    """Let a traced module take any number of rows; it runs in batches of the traced size."""
    neuron_script.dynamic = True
    return neuron_script


class DataParallel(torch.nn.Module):
    """Copies on several cores, a thread each: splits the inputs, joins the outputs.

    Without `device_ids` all cores were used: NEURON_RT_NUM_CORES here, two without it.
    """

    def __init__(
        self,
        model: TracedModule,
        device_ids: Sequence[int | str] | None = None,
        dim: int = 0,
        set_dynamic_batching: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.device_ids = list(device_ids or range(int(os.environ.get("NEURON_RT_NUM_CORES", "2"))))
        self.dim = dim
        if set_dynamic_batching and dim == 0:
            dynamic_batch(model)

    def disable_dynamic_batching(self) -> None:
        """Take only what splits into the traced size."""
        self.model.dynamic = False

    def forward(self, *inputs: torch.Tensor) -> Nested:
        """Outputs joined on `dim`, in the order of the inputs."""
        parts = list(zip(*(each.chunk(len(self.device_ids), self.dim) for each in inputs), strict=True))
        with ThreadPoolExecutor(len(parts)) as pool:
            results = list(pool.map(lambda part: self.model(*part), parts))
        return _joined(results, self.dim)


def replace_weights(
    neuron_model: TracedModule, weights: Mapping[str, torch.Tensor] | torch.nn.Module
) -> None:
    """Give a traced module other weights, by name."""
    state = weights.state_dict() if isinstance(weights, torch.nn.Module) else weights
    neuron_model.graph.load_state_dict(state, strict=False)


def async_load(trace: torch.nn.Module, enable_async_load: bool = True) -> None:
    """Nothing: there is no program to load."""


def lazy_load(trace: torch.nn.Module, enable_lazy_load: bool = True) -> None:
    """Nothing: there is no program to load."""


def move_trace_to_device(trace: torch.nn.Module, device_id: int) -> None:
    """Nothing: there is no core."""


def set_neuron_cores(trace: torch.nn.Module, start_nc: int = -1, nc_count: int = -1) -> None:
    """Nothing: there is no core."""


def set_multicore(trace: torch.nn.Module) -> None:
    """Nothing: there is no core."""


@contextlib.contextmanager
def neuron_cores_context(start_nc: int = -1, nc_count: int = -1) -> Iterator[None]:
    """Nothing: there is no core."""
    yield


@contextlib.contextmanager
def multicore_context() -> Iterator[None]:
    """Nothing: there is no core."""
    yield


class PartitionerConfig:
    """Which operations stay on the CPU: all of them here."""

    def __init__(self, **options: object) -> None:
        self.options = options
