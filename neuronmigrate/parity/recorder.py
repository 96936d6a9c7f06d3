"""Records what a PyTorch script computes, without a change to the script.

    python recorder.py --out DIR script.py [ARGUMENTS...]
    torchrun --nproc_per_node=2 recorder.py --out DIR script.py [ARGUMENTS...]

This is one file that needs Python 3.8, torch 1.13 and nothing else, so that it can be copied to where the
old script still runs: `neuronmigrate parity recorder > recorder.py`. A recording holds lines of json
and safetensors files, never a pickle; docs/parity.md of neuronmigrate describes them.

Nothing that goes wrong in here stops the script: what cannot be recorded is left out, and the recording says
so.
Copying a value of a lazy device to the host ends its step there, so a recorded run compiles other graphs.
"""

from __future__ import annotations

import argparse
import atexit
import collections
import contextlib
import ctypes
import functools
import glob
import hashlib
import importlib.abc
import importlib.machinery
import inspect
import json
import math
import multiprocessing.util
import os
import platform
import random
import re
import struct
import sys
import sysconfig
import threading
import time
import types
import weakref
from typing import IO, Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

FORMAT = 1
"""Version of the layout of a recording."""

Line = Dict[str, object]

# What the safetensors layout calls the dtypes.
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}

# Modules that compute nothing themselves: a call of one is a call of what it wraps.
WRAPPERS = frozenset(
    {
        "DistributedDataParallel",
        "FullyShardedDataParallel",
        "XlaFullyShardedDataParallel",
        "DataParallel",
        "CheckpointWrapper",
    }
)
_PREFIXES = ("_orig_mod", "module", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_fpw_module")
_LEFT_OUT = ("past_key_values", "past_key_value", "cache", "encoder_outputs")
"""Parts of inputs and outputs that hold what other parts say already, in a layout of their own."""

ACCELERATORS = ("neuron", "xla", "privateuseone")


HUGE = 1 << 24
"""Elements from which on a tensor is not read whole: digest and norm are those of the sample."""


class Options(NamedTuple):
    """What to record and how."""

    out: str
    """Folder of the recording."""
    seed: Optional[int] = None
    """Seeds Python, numpy and torch before the script begins."""
    dropout: str = "keep"
    """`replay` draws each mask from the seed and a counter, the same on every device; `off` drops nothing."""
    order: str = "keep"
    """`replay` shuffles each epoch of a loader by the seed and a counter, whatever was drawn before."""
    calls: int = 3
    """Calls of a model, optimizer steps and batches of an epoch that are recorded with their tensors."""
    elements: int = 1 << 16
    """Elements of a tensor that are kept; of a larger one, those at positions spread evenly."""
    megabytes: int = 512
    """Tensors of one process altogether; later ones are kept as a digest and their norm."""
    lines: int = 200_000
    """Lines of one process altogether."""
    resume: bool = False
    """Go on with a recording, as a script that goes on from its checkpoint."""
    initial: str = ""
    """A recording whose initial weights the models of this run take."""
    steps: int = 0
    """Optimizer steps after which the script is ended; 0 lets it go on."""


class Enough(SystemExit):
    """Ends the script, with exit code 0: what is asked for is recorded."""


class Store:
    """The files of one process: lines that describe, tensors that hold.

    Lines are written after the tensors that they name, so that a killed run leaves a readable recording.
    """

    def __init__(self, options: Options, rank: int) -> None:
        self.options = options
        self.folder = options.out
        os.makedirs(self.folder, exist_ok=True)
        run = 0
        while True:
            self.name = f"rank{rank}.run{run}"
            try:
                path = os.path.join(self.folder, self.name + ".jsonl")
                self.file = open(path, "x", encoding="ascii")  # noqa: SIM115 - it stays open for the run
                break
            except FileExistsError:
                run += 1
        self.rank, self.run = rank, run
        self.lines: List[str] = []
        self.written = 0
        self.tensors: Dict[str, Tuple[str, List[int], bytes]] = {}
        self.kept: Dict[str, Tuple[str, str]] = {}
        self.bytes = self.pending = self.shard = 0
        self.flushed = time.monotonic()

    def line(self, **fields: object) -> None:
        """Add one line; beyond the limit only a last one that says so."""
        self.written += 1
        if self.written > self.options.lines:
            if self.written == self.options.lines + 1:
                self.lines.append(json.dumps({"kind": "note", "text": "the limit of lines is reached"}))
            return
        self.lines.append(json.dumps(plain(fields), allow_nan=False))
        if self.pending > 8 << 20 or time.monotonic() - self.flushed > 5:
            self.flush()

    def keep(self, digest: str, dtype: str, shape: List[int], content: bytes) -> Optional[Tuple[str, str]]:
        """File and key under which a content stands, once however often it comes; None over the limit."""
        # One content may come in two shapes, and each is read back as it was.
        key = f"{digest}-{dtype}-{'x'.join(map(str, shape))}"
        if key not in self.kept:
            if self.bytes + len(content) > self.options.megabytes << 20:
                return None
            self.bytes += len(content)
            self.pending += len(content)
            self.tensors[key] = DTYPES[dtype], shape, content
            self.kept[key] = f"{self.name}.{self.shard:03}.safetensors", key
        return self.kept[key]

    def flush(self) -> None:
        """Write what was added."""
        if self.tensors:
            write_safetensors(self.path(f"{self.name}.{self.shard:03}.safetensors"), self.tensors)
            self.tensors = {}
            self.pending = 0
            self.shard += 1
        if self.lines:
            self.file.write("".join(line + "\n" for line in self.lines))
            self.lines = []
            self.file.flush()
        self.flushed = time.monotonic()

    def path(self, name: str) -> str:
        """A file of the recording."""
        return os.path.join(self.folder, name)


def write_safetensors(path: str, tensors: Dict[str, Tuple[str, List[int], bytes]]) -> None:
    """Write tensors, given as dtype, shape and little-endian content, in the safetensors layout."""
    header: Dict[str, object] = {}
    start = 0
    for key, (dtype, shape, content) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + len(content)]}
        start += len(content)
    head = json.dumps(header).encode("ascii")
    head += b" " * (-len(head) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _, _, content in tensors.values():
            file.write(content)
    os.replace(path + ".part", path)


def plain(value: object) -> object:
    """A value as json has it; what is no number is a text."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """What is computed inside neither builds a graph nor passes through modes of the script."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        yield


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a tensor in the CPU's memory, in one piece; of a distributed one, this process's part."""
    tensor = tensor.detach()
    tensor = getattr(tensor, "_local_tensor", tensor)
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = tensor.to("cpu")
    for bit in ("resolve_conj", "resolve_neg"):
        tensor = getattr(tensor, bit)()
    return tensor.contiguous()


def content_of(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor in the CPU's memory."""
    size = tensor.numel() * tensor.element_size()
    return ctypes.string_at(tensor.data_ptr(), size) if size else b""


def digest_of(content: bytes) -> str:
    """A name for a content."""
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def parts_of(value: object, path: str = "", depth: int = 0) -> Iterator[Tuple[str, torch.Tensor]]:
    """The tensors in a value of lists, tuples and mappings, each with its way there."""
    if depth > 8 or path.rpartition(".")[2] in _LEFT_OUT:
        return
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, collections.abc.Mapping):
        for key, each in list(value.items()):
            yield from parts_of(each, _joined(path, str(key)), depth + 1)
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", range(len(value)))
        for index, each in enumerate(value):
            yield from parts_of(each, _joined(path, str(names[index])), depth + 1)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def bare(name: str) -> str:
    """A module's or a parameter's name without what wrappers put into it."""
    return ".".join(part for part in name.split(".") if part not in _PREFIXES)


def rank_here() -> int:
    """Number of this process: of its group, or as its launcher says."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0


def world_here() -> int:
    """Number of processes, told as the rank is."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    text = os.environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdigit() else 1


def _quietly(act: Callable[..., Any]) -> Callable[..., None]:
    """What the recorder does may fail, and the script goes on."""

    @functools.wraps(act)
    def guarded(self: Recorder, *args: object, **kwargs: object) -> None:
        local = self.local
        if local.busy or not self._awake():
            return
        local.busy = True
        try:
            with unseen():
                act(self, *args, **kwargs)
        except Exception as error:
            text = f"{act.__name__.strip('_')}: {type(error).__name__}: {str(error)[:200]}"
            if text not in self.failures:
                self.failures.add(text)
                self.store.line(kind="note", text="not recorded: " + text)
        finally:
            local.busy = False

    return guarded


class _Local(threading.local):
    """What one thread is in the middle of."""

    def __init__(self) -> None:
        self.busy = False
        """The recorder itself is at work."""
        self.paused = 0
        self.depth = 0
        """Calls of modules, one in the other."""
        self.on = False
        """Whether the model's call is recorded."""
        self.root = self.call = ""
        self.mask: Optional[torch.Tensor] = None
        """Which positions of [batch, sequence] are no padding."""
        self.generation: Optional[_Generation] = None
        self.backward = False
        self.stepping = 0
        self.library = 0
        """Calls of functions of torch_xla, one in the other."""


class _Generation:
    """One call of `generate`."""

    def __init__(self, number: int, mask: Optional[torch.Tensor]) -> None:
        self.number = number
        self.mask = mask
        self.forwards = 0


class _Reduced:
    """A tensor that was summed over the processes and may yet be divided."""

    def __init__(self, tensor: torch.Tensor, fields: Line) -> None:
        self.tensor = tensor
        self.fields = fields


class Recorder:
    """One process's recording."""

    def __init__(self, options: Options, about: Optional[Line] = None) -> None:
        self.options = options
        self.about = about or {}
        self.local = _Local()
        self.lock = threading.RLock()
        self.active = True
        self.failures: set[str] = set()
        self.counts: collections.Counter[str] = collections.Counter()
        self.roots: collections.Counter[str] = collections.Counter()
        self.names: Dict[int, Tuple[weakref.ref[Any], str, str]] = {}
        self.parameters: Dict[int, Tuple[weakref.ref[Any], str]] = {}
        self.optimizers: List[weakref.ref[Any]] = []
        self.placed: weakref.WeakSet[Any] = weakref.WeakSet()
        self.watched: Dict[int, _Reduced] = {}
        self.undo: List[Tuple[object, str, object]] = []
        self.step = 0
        self.backwards = 0
        self.reducing: List[torch.nn.Module] = []
        self.process = os.getpid()
        self.rank_at_fork: Optional[str] = None
        self.spawned = False
        """Whether this process was started by multiprocessing, and no group of processes is its parent's."""
        self._store: Optional[Store] = None
        if options.resume:
            self._continue()

    # Files

    @property
    def store(self) -> Store:
        """The files, opened by the first line: a forked process learns its rank only later."""
        if self._store is None:
            self._store = Store(self.options, rank_here())
            self._store.line(**self._head())
        return self._store

    def _head(self) -> Line:
        head: Line = {
            "kind": "recording",
            "format": FORMAT,
            "rank": rank_here(),
            "world": world_here(),
            "script": os.path.basename(sys.argv[0]) if sys.argv else "",
            "arguments": list(sys.argv[1:]),
            "versions": versions(),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "system": platform.system(),
            "threads": torch.get_num_threads(),
            "device": device_here(),
            "default dtype": str(torch.get_default_dtype()).replace("torch.", ""),
            "environment": {
                name: value
                for name, value in sorted(os.environ.items())
                if name.startswith(("NEURON_", "XLA_", "PJRT_")) or name == "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
            },
            "seed": self.options.seed,
            "dropout": self.options.dropout,
            "order": self.options.order,
            "calls": self.options.calls,
            "elements": self.options.elements,
            "initial": bool(self.options.initial),
            "first step": self.step,
        }
        if self.options.steps:
            head["steps"] = self.options.steps
        head.update(self.about)
        return head

    def _continue(self) -> None:
        """Count on from where the recording in the folder ended."""
        for path in sorted(glob.glob(os.path.join(self.options.out, f"rank{rank_here()}.run*.jsonl"))):
            with open(path, encoding="ascii", errors="replace") as file:
                for line in file:
                    try:
                        fields = json.loads(line)
                    except ValueError:
                        continue
                    if fields.get("kind") == "counts":
                        self.step = int(fields["step"])
                        self.counts = collections.Counter(fields["counts"])

    def forked(self) -> None:
        """In a new process of fork: nothing of the parent's files, and silent until it has a rank of its own.

        Workers of a loader never get one.
        """
        self._store = None
        self.local = _Local()
        self.lock = threading.RLock()
        self.active = False
        self.rank_at_fork = os.environ.get("RANK")

    def _awake(self) -> bool:
        if not self.active and (self.rank_at_fork != os.environ.get("RANK") or self._has_own_group()):
            self.active = True
            self.rank_at_fork = None
        return self.active

    def _has_own_group(self) -> bool:
        # What was forked has its parent's group.
        return self.spawned and torch.distributed.is_available() and torch.distributed.is_initialized()

    # Values

    def put(
        self,
        quantity: str,
        name: str,
        call: str,
        part: str,
        tensor: torch.Tensor,
        mask: Optional[torch.Tensor] = None,
        elements: int = 0,
    ) -> None:
        """Record one tensor. `mask` says which positions of its first two dimensions count."""
        if tensor.device.type == "meta":
            return
        whole = list(tensor.shape)
        tensor = getattr(tensor, "_local_tensor", tensor)
        raw = list(tensor.shape)
        huge = tensor.numel() > HUGE
        if huge:
            # Not even a copy to the host is made of all of it.
            tensor, _ = sampled(tensor.detach(), min(elements or self.options.elements, HUGE), rows=False)
        host = on_host(tensor)
        if mask is not None and raw[:2] == list(mask.shape) and not huge:
            host = host[mask]
        dtype = str(host.dtype).replace("torch.", "")
        if dtype not in DTYPES:
            host, dtype = host.float(), "float32"
        content = content_of(host)
        fields: Line = {
            "kind": "tensor",
            "quantity": quantity,
            "name": name,
            "call": call,
            "part": part,
            "step": self.step,
            "dtype": dtype,
            "shape": list(host.shape),
            "digest": digest_of(content),
        }
        if huge:
            fields.update(shape=raw, sampled="elements")
        elif raw != list(host.shape):
            fields["unpadded from"] = raw
        if raw != whole:
            fields["part of"] = whole
        limit = elements or self.options.elements
        if host.dtype.is_floating_point and host.numel():
            wide = host.reshape(-1).double()
            finite = torch.isfinite(wide)
            fields["nonfinite"] = int(host.numel() - int(finite.sum()))
            wide = wide[finite]
            fields["norm"] = float(wide.norm()) if wide.numel() else 0.0
            fields["largest"] = float(wide.abs().max()) if wide.numel() else 0.0
        if host.numel() > limit:
            rows = quantity == "logits" and host.dim() >= 2
            host, taken = sampled(host, limit, rows)
            fields["sampled"] = taken
            content = content_of(host)
        with self.lock:
            kept = self.store.keep(str(fields["digest"]), dtype, list(host.shape), content)
            if kept is not None:
                fields["file"], fields["key"] = kept
            self.store.line(**fields)

    def scalar(self, quantity: str, name: str, call: str, value: object, dtype: str = "float64") -> None:
        """Record one number."""
        with self.lock:
            self.store.line(
                kind="scalar",
                quantity=quantity,
                name=name,
                call=call,
                step=self.step,
                value=value,
                dtype=dtype,
            )

    def event(self, event: str, **fields: object) -> Line:
        """Record that something was done. Returns the fields, to which some may yet be added."""
        line: Line = {"kind": "event", "event": event, "step": self.step, **fields}
        with self.lock:
            self._settle()
            self.store.line(**line)
        return line

    @_quietly
    def note(self, text: str) -> None:
        """Record what could not be recorded."""
        self.store.line(kind="note", text=text)

    @_quietly
    def note_event(self, event: str, **fields: object) -> None:
        """Record that something was done."""
        self.event(event, **fields)

    # Models

    def call_module(
        self,
        usual: Callable[..., Any],
        module: torch.nn.Module,
        args: Tuple[Any, ...],
        kwargs: Dict[str, Any],
    ) -> Any:
        """Call a module, and record what goes in and what comes out."""
        local = self.local
        if local.busy or local.paused or not self._awake() or _is_traced():
            return usual(module, *args, **kwargs)
        if type(module).__name__ in WRAPPERS:
            self._wrapper(module)
            return usual(module, *args, **kwargs)
        # What torch.compile gives back runs the graph of the module that it was given.
        called, module = module, getattr(module, "_orig_mod", module)
        if local.depth == 0:
            local.on = False
            self._begin_call(module, args, kwargs)
        recorded = local.on
        if recorded:
            self._put_inputs(module, args, kwargs)
        local.depth += 1
        try:
            result = usual(called, *args, **kwargs)
        finally:
            local.depth -= 1
        if recorded:
            self._put_outputs(module, result)
        if local.depth == 0:
            if local.generation is not None:
                self._put_scores(result)
            local.on = False
            local.mask = None
        return result

    def _wrapper(self, module: torch.nn.Module) -> None:
        """DDP averages the gradients in the backward pass that follows."""
        if (
            type(module).__name__ == "DistributedDataParallel"
            and torch.is_grad_enabled()
            and getattr(module, "require_backward_grad_sync", True)
            and not any(each is module for each in self.reducing)
        ):
            self.reducing.append(module)

    @_quietly
    def _begin_call(self, module: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        local = self.local
        root, name = self._name(module)
        if not root:
            kind = original_name(module)
            root, name = f"{kind}#{self.roots[kind]}", ""
            self.roots[kind] += 1
            self._register(module, root)
            self._first_call(module, root)
        local.root = root
        mode = "train" if module.training else "eval"
        generation = local.generation
        if generation is not None:
            generation.forwards += 1
            local.call = f"generate {generation.number}"
            local.on = generation.forwards == 1 and generation.number < self.options.calls
        else:
            key = f"call {root} {name} {mode}"
            local.call = f"{mode} {self.counts[key]}"
            local.on = self.counts[key] < self.options.calls
            self.counts[key] += 1
        local.mask = self._mask(args, kwargs) if local.on else None

    def _register(self, module: torch.nn.Module, root: str) -> None:
        for name, each in module.named_modules():
            if self._name(each)[0] == "":
                self.names[id(each)] = weakref.ref(each), root, bare(name)
        for name, parameter in module.named_parameters():
            known = self.parameters.get(id(parameter))
            if known is None or known[0]() is not parameter:
                self.parameters[id(parameter)] = weakref.ref(parameter), f"{root}/{bare(name)}"

    def _name(self, module: torch.nn.Module) -> Tuple[str, str]:
        """The model that a module belongs to, and its name in there; empty if it was never seen."""
        known = self.names.get(id(module))
        if known is None or known[0]() is not module:
            return "", ""
        return known[1], known[2]

    def _first_call(self, module: torch.nn.Module, root: str) -> None:
        if self.options.initial:
            self._take_weights(module, root)
        number = 0
        device = dtype = ""
        for name, tensor in module.state_dict().items():
            if isinstance(tensor, torch.Tensor):
                self.put("initial weight", f"{root}/{bare(name)}", "start", "", tensor, elements=4096)
                number += tensor.numel()
        for parameter in module.parameters():
            device, dtype = device_name(parameter.device), str(parameter.dtype).replace("torch.", "")
            break
        if module in self.placed:
            device = "accelerator"
        self.event("model", model=root, elements=number, device=device, dtype=dtype)
        self._put_random("first call of " + root)

    def _take_weights(self, module: torch.nn.Module, root: str) -> None:
        """Start from the initial weights of another recording, as far as they are whole in there."""
        taken, left = 0, []
        values = initial_weights(self.options.initial, root)
        for name, tensor in module.state_dict(keep_vars=True).items():
            value = values.get(bare(name))
            if value is not None and list(value.shape) == list(tensor.shape):
                tensor.data.copy_(value.to(tensor.dtype))
                taken += 1
            else:
                left.append(bare(name))
        self.event("initial weights", model=root, taken=taken, left=left[:20])

    def _mask(self, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Optional[torch.Tensor]:
        ids = kwargs.get("input_ids", args[0] if args and isinstance(args[0], torch.Tensor) else None)
        mask = kwargs.get("attention_mask")
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.dtype.is_floating_point:
            return None
        batch, length = int(ids.shape[0]), int(ids.shape[1])
        generation = self.local.generation
        if generation is not None and (not isinstance(mask, torch.Tensor) or mask.dim() != 2):
            # With a static cache `forward` gets a mask of four dimensions.
            mask = generation.mask
        if not isinstance(mask, torch.Tensor) or mask.dim() != 2:
            return torch.ones(batch, length, dtype=torch.bool)
        if int(mask.shape[0]) != batch or int(mask.shape[1]) < length:
            return None
        # With a static cache the mask is as long as the cache; positions count from the left.
        return on_host(mask)[:, :length].bool()

    @_quietly
    def _put_inputs(self, module: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        root, name = self._inner(module)
        for part, tensor in parts_of(bound(module, args, kwargs)):
            if self.local.depth and ("mask" in part or "position" in part):
                continue
            quantity = "input" if self.local.depth == 0 else "inner input"
            limit = 0 if self.local.depth == 0 else 4096
            self.put(
                quantity, _joined_name(root, name), self.local.call, part, tensor, self.local.mask, limit
            )

    @_quietly
    def _put_outputs(self, module: torch.nn.Module, result: object) -> None:
        root, name = self._inner(module)
        outer = self.local.depth == 0
        for part, tensor in parts_of(result):
            quantity = "output" if outer else "inner output"
            if outer and tensor.dim() >= 2 and part.rpartition(".")[2] == "logits":
                quantity = "logits"
            self.put(quantity, _joined_name(root, name), self.local.call, part, tensor, self.local.mask)

    def _inner(self, module: torch.nn.Module) -> Tuple[str, str]:
        root, name = self._name(module)
        return (root, name) if root else (self.local.root, f"<{type(module).__name__}>")

    # Generation

    def generate(
        self, usual: Callable[..., Any], model: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> Any:
        """Call `generate`, and record the new tokens."""
        local = self.local
        if local.busy or local.paused or local.generation is not None or not self._awake():
            return usual(model, *args, **kwargs)
        self._begin_generation(model, args, kwargs)
        depth, local.depth = local.depth, 0
        try:
            result = usual(model, *args, **kwargs)
        finally:
            generation = local.generation
            local.generation = None
            local.depth = depth
        self._put_tokens(generation, result, args, kwargs)
        return result

    @_quietly
    def _begin_generation(self, model: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask")
        host = on_host(mask).bool() if isinstance(mask, torch.Tensor) and mask.dim() == 2 else None
        self.local.generation = _Generation(self.counts["generate"], host)
        self.counts["generate"] += 1
        settings = kwargs.get("generation_config") or getattr(model, "generation_config", None)
        said = {
            name: kwargs.get(name, getattr(settings, name, None))
            for name in ("do_sample", "num_beams", "max_new_tokens", "temperature", "top_k", "top_p")
        }
        self.event("generate", **{name: value for name, value in said.items() if value is not None})

    @_quietly
    def _put_tokens(
        self, generation: Optional[_Generation], result: object, args: Tuple[Any, ...], kwargs: Dict[str, Any]
    ) -> None:
        tokens = getattr(result, "sequences", result)
        if generation is None or not isinstance(tokens, torch.Tensor):
            return
        prompt = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
        tokens = on_host(tokens)
        if isinstance(prompt, torch.Tensor) and prompt.dim() == 2 and tokens.shape[1] > prompt.shape[1]:
            length = int(prompt.shape[1])
            if torch.equal(tokens[:, :length], on_host(prompt)):
                tokens = tokens[:, length:]
        self.put("tokens", "generate", str(generation.number), "", tokens)

    @_quietly
    def _put_scores(self, result: object) -> None:
        """The logits of the next token: whole at the first step, the highest of them at later ones."""
        generation = self.local.generation
        logits = getattr(result, "logits", None)
        if generation is None or not isinstance(logits, torch.Tensor) or logits.dim() != 3:
            return
        if generation.number >= self.options.calls or generation.forwards > 256:
            return
        call = f"{generation.number} {generation.forwards - 1}"
        last = on_host(logits[:, -1, :])
        if generation.forwards == 1:
            self.put("first logits", "generate", str(generation.number), "", last)
        values, indices = last.float().topk(min(16, int(last.shape[-1])), dim=-1)
        self.put("score values", "generate", call, "", values)
        self.put("score tokens", "generate", call, "", indices)

    # Training

    def backward(
        self, usual: Callable[..., Any], loss: torch.Tensor, args: Tuple[Any, ...], kwargs: Any
    ) -> Any:
        """Call `backward`, and record the loss."""
        local = self.local
        if local.backward or local.busy or local.paused or not self._awake():
            return usual(loss, *args, **kwargs)
        self._put_loss(loss)
        local.backward = True
        try:
            result = usual(loss, *args, **kwargs)
        finally:
            local.backward = False
        self._after_backward()
        return result

    @_quietly
    def _put_loss(self, loss: torch.Tensor) -> None:
        if loss.numel() == 1:
            value = float(on_host(loss).double().reshape(-1)[0])
            call = str(self.counts["loss"])
            self.scalar("loss", "loss", call, value, str(loss.dtype).replace("torch.", ""))
            self.counts["loss"] += 1

    @_quietly
    def _after_backward(self) -> None:
        self.backwards += 1
        for module in self.reducing:
            elements = sum(each.numel() for each in module.parameters() if each.requires_grad)
            self.event(
                "reduction", op="mean", elements=elements, world=world_here(), of="gradients", by="DDP"
            )
        self.reducing = []

    @_quietly
    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record gradients and learning rates."""
        local = self.local
        local.stepping += 1
        if local.stepping > 1:
            return
        self._settle(all_of_them=True)
        detailed = self.counts["step"] < self.options.calls
        squares = 0.0
        dtype = "float32"
        for group, index, parameter in parameters_of(optimizer):
            if parameter.grad is None:
                continue
            name = self._parameter(parameter, group, index)
            dtype = str(parameter.grad.dtype).replace("torch.", "")
            if detailed:
                self.put("gradient", name, str(self.counts["step"]), "", parameter.grad)
            squares += norm_of(parameter.grad) ** 2
        call = str(self.counts["step"])
        self.scalar("gradient norm", "all", call, math.sqrt(squares), dtype)
        rates = [float(group["lr"]) for group in optimizer.param_groups if "lr" in group]
        for index, rate in enumerate(rates):
            self.scalar("learning rate", f"group {index}", call, rate)
        settings = {
            name: value
            for name, value in sorted(optimizer.param_groups[0].items())
            if name not in ("params", "lr", "initial_lr") and isinstance(value, (bool, int, float, tuple))
        }
        self.event(
            "optimizer step",
            optimizer=type(optimizer).__name__,
            parameters=sum(1 for _ in parameters_of(optimizer)),
            backwards=self.backwards,
            settings=settings,
        )
        self.backwards = 0

    @_quietly
    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Record the first weights that the optimizer made."""
        local = self.local
        local.stepping = max(0, local.stepping - 1)
        if local.stepping:
            return
        if self.counts["step"] < self.options.calls:
            for group, index, parameter in parameters_of(optimizer):
                name = self._parameter(parameter, group, index)
                self.put("weight", name, str(self.counts["step"]), "", parameter, elements=4096)
            self._put_random(f"step {self.counts['step']}")
        self.counts["step"] += 1
        self.step += 1

    def _parameter(self, parameter: torch.Tensor, group: int, index: int) -> str:
        known = self.parameters.get(id(parameter))
        if known is not None and known[0]() is parameter:
            return known[1]
        return f"group {group}/{index}"

    @_quietly
    def clipped(self, how: str, limit: object, total: object) -> None:
        """Gradients were clipped."""
        self.event("clip", how=how, limit=limit)
        if isinstance(total, torch.Tensor) and total.numel() == 1:
            self.scalar(
                "norm before clipping", "all", str(self.counts["clip"]), float(on_host(total)), "float32"
            )
        self.counts["clip"] += 1

    # Collectives

    @_quietly
    def reduced(self, op: str, tensors: List[torch.Tensor], scale: float, by: str, of: str = "") -> None:
        """Tensors were reduced over the processes."""
        elements = sum(each.numel() for each in tensors)
        divisor = 1.0 / scale if scale else 0.0
        fields: Line = {"op": op, "divisor": divisor, "elements": elements, "world": world_here(), "by": by}
        fields["of"] = of or ("gradients" if any(self._is_gradient(each) for each in tensors) else "values")
        if op == "sum" and divisor == 1.0 and world_here() > 1 and len(tensors) == 1:
            # It is often divided by a statement of its own, so the line waits for it.
            with self.lock:
                self._settle()
                line: Line = {"kind": "event", "event": "reduction", "step": self.step, **fields}
                self.watched[id(tensors[0])] = _Reduced(tensors[0], line)
            watch_divisions(self)
            return
        self.event("reduction", **fields)

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        for reference in self.optimizers:
            optimizer = reference()
            if optimizer is not None and any(each.grad is tensor for _, _, each in parameters_of(optimizer)):
                return True
        return False

    def divided(self, tensor: torch.Tensor, divisor: float) -> None:
        """A tensor that was reduced is divided by a number."""
        with self.lock:
            found = self.watched.pop(id(tensor), None)
            if found is not None and found.tensor is tensor:
                found.fields["divisor"] = divisor
                self.store.line(**found.fields)

    def _settle(self, all_of_them: bool = True) -> None:
        """Write the reductions that nobody divided."""
        for found in list(self.watched.values()):
            self.store.line(**found.fields)
        self.watched = {}

    # Data

    @_quietly
    def epoch_begins(self, loader: Any, iterator: Any) -> None:
        """A loader starts to give out batches."""
        number = getattr(loader, "_recorded_as", None)
        if number is None:
            number = self.counts["loader"]
            self.counts["loader"] += 1
            loader._recorded_as = number
        epoch = self.counts[f"epoch {number}"]
        self.counts[f"epoch {number}"] += 1
        iterator._recorded_as = [number, epoch, 0]
        self.event("data", loader=number, epoch=epoch, **shard_of(loader))

    @_quietly
    def batch(self, iterator: Any, batch: object) -> None:
        """A loader gave out a batch."""
        known = getattr(iterator, "_recorded_as", None)
        if known is None:
            return
        number, epoch, index = known
        known[2] += 1
        if index < self.options.calls and epoch < self.options.calls:
            for part, tensor in parts_of(batch):
                self.put("batch", f"loader {number}", f"{epoch}.{index}", part, tensor)

    @_quietly
    def epoch_ends(self, iterator: Any) -> None:
        """A loader has no more batches."""
        known = getattr(iterator, "_recorded_as", None)
        if known is not None:
            self.event("epoch", loader=known[0], epoch=known[1], batches=known[2])

    # Files of the script

    @_quietly
    def saved(self, content: object, target: object, by: str) -> None:
        """The script writes a file."""
        if not isinstance(target, (str, os.PathLike)) or _is_random_state(content):
            return
        name = os.path.basename(os.fspath(target))
        tensors = list(parts_of(content))
        number = self.counts["save"]
        # Settings that a Trainer saves between are not what the other side's files are counted by.
        self.counts["save"] += bool(tensors)
        self.event(
            "save",
            file=str(name),
            by=by,
            rank=rank_here(),
            tensors=len(tensors),
            elements=sum(tensor.numel() for _, tensor in tensors),
            keys=sorted(map(str, content))[:200] if isinstance(content, dict) else [],
        )
        for part, tensor in tensors[:5000]:
            self.put("saved", f"save {number}", str(number), bare(part), tensor, elements=4096)

    # Random streams

    def _put_random(self, at: str) -> None:
        state: Line = {"torch": digest_of(content_of(torch.get_rng_state()))}
        state["python"] = digest_of(repr(random.getstate()).encode())
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            state["numpy"] = digest_of(repr(numpy.get_state()).encode())
        self.store.line(kind="random", at=at, step=self.step, **state)

    # The end

    def end(self) -> None:
        """Record what the script leaves behind. Called as it ends, however it ends."""
        if os.getpid() != self.process and not self.active:
            return
        self._put_end()
        with contextlib.suppress(Exception):
            self.store.flush()
        self.active = False

    @_quietly
    def _put_end(self) -> None:
        self._settle()
        seen = set()
        for reference in self.optimizers:
            optimizer = reference()
            if optimizer is None or not self.step:
                continue
            for group, index, parameter in parameters_of(optimizer):
                name = self._parameter(parameter, group, index)
                if name not in seen:
                    seen.add(name)
                    self.put("weight", name, "end", "", parameter)
        for name, value in results_of(sys.modules.get("__main__")):
            if isinstance(value, torch.Tensor):
                self.put("result", name, "end", "", value)
            else:
                self.store.line(kind="result", name=name, step=self.step, value=value)
        self._put_random("end")
        self.store.line(kind="counts", step=self.step, counts=dict(self.counts))
        self.store.line(kind="end", error=_told_error(getattr(sys, "last_value", None)))

    # What is replaced in torch

    def replace(self, owner: object, name: str, value: object) -> None:
        """Replace an attribute until `remove`."""
        self.undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def remove(self) -> None:
        """Give torch back what it had."""
        for owner, name, value in reversed(self.undo):
            setattr(owner, name, value)
        self.undo = []
        _watch_imports.acts = {}
        self.active = False


def _told_error(error: Optional[BaseException]) -> Optional[str]:
    """What ended the script, in one line."""
    if error is None:
        return None
    first = str(error).strip().split("\n")[0][:200]
    name = type(error).__name__
    return f"{name}: {first}" if first else name


def _is_traced() -> bool:
    """Whether a graph is being made: then no module of it is really called."""
    # First what Dynamo knows as a constant: it reads this function as a part of the graph.
    compiler = getattr(torch, "compiler", None)
    if compiler is not None and hasattr(compiler, "is_compiling") and compiler.is_compiling():
        return True
    return torch._C._get_tracing_state() is not None


def _joined_name(root: str, name: str) -> str:
    return f"{root}/{name}" if name else root


def original_name(module: torch.nn.Module) -> str:
    """The class of a module, of a TorchScript one the class that it was made of."""
    name = getattr(module, "original_name", None)
    return name if isinstance(name, str) else type(module).__name__


def device_name(device: torch.device) -> str:
    """`accelerator` for what a Neuron device was called, in old and in new code."""
    return "accelerator" if device.type in ACCELERATORS else device.type


def bound(module: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Dict[str, Any]:
    """The arguments of a call by the names that `forward` has for them."""
    names = _argument_names(getattr(type(module), "forward", None))
    named = {names[i] if i < len(names) else f"argument {i}": value for i, value in enumerate(args)}
    named.update(kwargs)
    return named


@functools.lru_cache(maxsize=1024)
def _argument_names(forward: Any) -> List[str]:
    """Names of the arguments of `forward` that can be given by position, through its decorators."""
    try:
        parameters = list(inspect.signature(forward).parameters.values())[1:]
    except (AttributeError, TypeError, ValueError):
        return []
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [each.name for each in parameters if each.kind in by_position]


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[Tuple[int, int, torch.Tensor]]:
    """Group, place in it, and parameter."""
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            yield number, index, parameter


def norm_of(tensor: torch.Tensor) -> float:
    """The 2-norm; of a large tensor computed where it is, in float32."""
    tensor = getattr(tensor.detach(), "_local_tensor", tensor.detach())
    if tensor.numel() <= 1 << 20:
        return float(on_host(tensor).double().norm())
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float32))


def sampled(tensor: torch.Tensor, limit: int, rows: bool) -> Tuple[torch.Tensor, str]:
    """Elements at positions spread evenly, or whole rows of the last dimension."""
    if rows:
        table = tensor.reshape(-1, tensor.shape[-1])
        number = max(1, min(limit // int(table.shape[1]), int(table.shape[0])))
        places = torch.arange(number) * int(table.shape[0]) // number
        return table[places].contiguous(), "rows"
    places = (torch.arange(limit) * tensor.numel() // limit).to(tensor.device)
    return tensor.reshape(-1)[places].contiguous(), "elements"


def shard_of(loader: Any) -> Line:
    """How a loader cuts its data: sizes, order, and this process's share."""
    found: Line = {
        "batch": getattr(loader, "batch_size", None),
        "drop_last": getattr(loader, "drop_last", None),
    }
    with contextlib.suppress(Exception):
        found["length"] = len(loader.dataset)
    seen = [loader, getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    names = {
        "num_replicas": "shards",
        "num_processes": "shards",
        "rank": "shard",
        "process_index": "shard",
        "shuffle": "shuffle",
        "batch_size": "batch",
        "drop_last": "drop_last",
    }
    for _ in range(4):
        seen.append(getattr(seen[-1], "sampler", None) or getattr(seen[-1], "batch_sampler", None))
    for each in seen:
        for theirs, ours in names.items():
            value = getattr(each, theirs, None)
            if isinstance(value, (bool, int)) and (found.get(ours) is None or ours in ("shards", "shard")):
                found[ours] = value
        if type(each).__name__ in ("RandomSampler", "SeedableRandomSampler"):
            found["shuffle"] = True
    found.setdefault("shards", 1)
    found.setdefault("shard", 0)
    found.setdefault("shuffle", False)
    return found


def _is_random_state(content: object) -> bool:
    """Whether it is the state of random streams, which newer Trainers save beside a checkpoint."""
    return isinstance(content, dict) and {"python", "numpy", "cpu"} <= set(content) and len(content) <= 6


def results_of(main: Optional[types.ModuleType]) -> Iterator[Tuple[str, object]]:
    """The script's global names that hold numbers, texts, lists of them, or tensors."""
    for name, value in list(vars(main).items()) if main is not None else ():
        if name.startswith("_"):
            continue
        if isinstance(value, torch.Tensor):
            yield name, value
            continue
        if type(value).__module__ == "numpy" and hasattr(value, "dtype"):
            with contextlib.suppress(Exception):
                yield name, torch.as_tensor(value)
            continue
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            checked = result(value)
            if len(json.dumps(plain(checked))) <= 1 << 16:
                yield name, checked


def result(value: object) -> object:
    """A value made of numbers, texts, lists and dictionaries; raises TypeError for any other."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        if value.numel() > 4096:
            raise TypeError("a large tensor in a list")
        return on_host(value).tolist()
    if type(value) in (list, tuple) and isinstance(value, (list, tuple)):
        return [result(each) for each in value]
    if type(value) is dict:
        return {str(key): result(each) for key, each in value.items()}
    raise TypeError(type(value).__name__)


def initial_weights(folder: str, root: str) -> Dict[str, torch.Tensor]:
    """The initial weights of one model in a recording, those that are whole in there, by their names."""
    found: Dict[str, torch.Tensor] = {}
    files: Dict[str, Tuple[Dict[str, Any], bytes]] = {}
    for path in sorted(glob.glob(os.path.join(folder, "rank0.run*.jsonl"))):
        with open(path, encoding="ascii", errors="replace") as lines:
            for line in lines:
                fields = json.loads(line) if line.endswith("}\n") else {}
                if fields.get("quantity") != "initial weight" or "sampled" in fields or "file" not in fields:
                    continue
                owner, _, name = fields["name"].partition("/")
                if owner == root:
                    if fields["file"] not in files:
                        files[fields["file"]] = read_safetensors(os.path.join(folder, fields["file"]))
                    header, content = files[fields["file"]]
                    start, stop = header[fields["key"]]["data_offsets"]
                    dtype = getattr(torch, fields["dtype"])
                    # A bytearray, as torch warns of memory that cannot be written.
                    value = bytearray(content[start:stop])
                    flat = torch.frombuffer(value, dtype=dtype) if value else torch.empty(0, dtype=dtype)
                    found[name] = flat.reshape(fields["shape"])
    return found


def read_safetensors(path: str) -> Tuple[Dict[str, Any], bytes]:
    """Header and content of a file in the safetensors layout."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return json.loads(file.read(length)), file.read()


def device_here() -> str:
    """What the script's device is, as far as the environment tells: none is touched."""
    import importlib.util

    if importlib.util.find_spec("torch_xla") is not None:
        return f"xla ({os.environ.get('PJRT_DEVICE', 'NEURON')})"
    return "native" if importlib.util.find_spec("torch_neuronx") is not None else "cpu"


def versions() -> Dict[str, str]:
    """Versions of the libraries that numbers may come from."""
    import importlib.metadata

    found = {"torch": str(torch.__version__)}
    for name in (
        "transformers",
        "accelerate",
        "diffusers",
        "peft",
        "trl",
        "sentence-transformers",
        "safetensors",
        "numpy",
        "torch-xla",
        "torch-neuronx",
        "neuronx-cc",
        "optimum-neuron",
    ):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


# Hooks


def begin(options: Options, about: Optional[Line] = None, spawned: bool = False) -> Recorder:
    """Seed, hook into torch, and record until the process ends.

    One that the script `spawned` is recorded from when on it is one of a group.
    """
    recorder = Recorder(options, about)
    if options.seed is not None:
        random.seed(options.seed)
        torch.manual_seed(options.seed)
        after_import("numpy.random", lambda numpy: numpy.seed(options.seed))
    _hook_modules(recorder)
    _hook_training(recorder)
    _hook_data(recorder)
    _hook_files(recorder)
    _hook_collectives(recorder)
    _hook_settings(recorder)
    for name, act in _LATER.items():
        after_import(name, functools.partial(act, recorder))
    _reach_importers(recorder)
    _watch_programs(recorder)
    if spawned:
        recorder.forked()
        recorder.spawned = True
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=recorder.forked)
    atexit.register(recorder.end)
    # A process of multiprocessing leaves without what atexit holds.
    multiprocessing.util.register_after_fork(recorder, _end_with_process)
    return recorder


def _reach_importers(recorder: Recorder) -> None:
    """Replace functions where libraries that are there already have imported them by name."""
    ours = {
        id(usual): (usual, getattr(owner, name))
        for owner, name, usual in recorder.undo
        if isinstance(owner, types.ModuleType)
    }
    for loaded, module in list(sys.modules.items()):
        # A module can be None, or any object that a library put there.
        if loaded.partition(".")[0] in ("torch", "torch_xla") or not hasattr(module, "__dict__"):
            continue
        for name, value in list(vars(module).items()):
            usual, hooked = ours.get(id(value), (None, None))
            if usual is not None and usual is value:
                recorder.replace(module, name, hooked)


def _watch_programs(recorder: Recorder) -> None:
    """Say which programs the script starts: their processes are not recorded."""

    def heard(event: str, args: Tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and recorder.active and os.getpid() == recorder.process:
            command = args[1] if isinstance(args[1], str) else " ".join(map(os.fsdecode, args[1]))
            if re.search(
                r"torchrun|torch\.distributed|accelerate|deepspeed|xla_dist|python[\d.]* \S+\.py", command
            ):
                recorder.note(f"processes of {command[:120]!r}, which the script starts, are not recorded")

    sys.addaudithook(heard)


def _end_with_process(recorder: Recorder) -> None:
    multiprocessing.util.Finalize(None, recorder.end, exitpriority=0)


def _hook_modules(recorder: Recorder) -> None:
    usual = torch.nn.Module.__call__

    def call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if _is_traced():
            return usual(module, *args, **kwargs)
        return recorder.call_module(usual, module, args, kwargs)

    recorder.replace(torch.nn.Module, "__call__", call)
    to = torch.nn.Module.to

    @functools.wraps(to)
    def moved(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = to(module, *args, **kwargs)
        for each in (*args, *kwargs.values()):
            name = each.type if isinstance(each, torch.device) else each
            if isinstance(name, str):
                target = "accelerator" if name.split(":")[0] in ACCELERATORS else name.split(":")[0]
                if target == "accelerator":
                    for part in result.modules():
                        recorder.placed.add(part)
                recorder.note_event("move", what=type(module).__name__, device=target)
        return result

    recorder.replace(torch.nn.Module, "to", moved)
    trace: Callable[..., Any] = torch.jit.trace

    @functools.wraps(trace)
    def traced(*args: Any, **kwargs: Any) -> Any:
        recorder.local.paused += 1
        try:
            return trace(*args, **kwargs)
        finally:
            recorder.local.paused -= 1

    recorder.replace(torch.jit, "trace", traced)


def _hook_training(recorder: Recorder) -> None:
    backward = torch.Tensor.backward

    @functools.wraps(backward)
    def recorded(loss: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return recorder.backward(backward, loss, args, kwargs)

    recorder.replace(torch.Tensor, "backward", recorded)
    initialise = torch.optim.Optimizer.__init__

    @functools.wraps(initialise)
    def made(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        initialise(optimizer, *args, **kwargs)
        recorder.optimizers.append(weakref.ref(optimizer))
        _hook_step(recorder, type(optimizer))

    recorder.replace(torch.optim.Optimizer, "__init__", made)
    for name, how in (("clip_grad_norm_", "norm"), ("clip_grad_value_", "value")):
        _hook_clip(recorder, name, how)


def _hook_step(recorder: Recorder, kind: Any) -> None:
    """torch 1.13 has no hooks for all optimizers, so the class's `step` is replaced."""
    usual = kind.step
    if getattr(usual, "_recorded", False):
        return

    @functools.wraps(usual)
    def step(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not recorder._awake():
            return usual(optimizer, *args, **kwargs)
        recorder.before_step(optimizer)
        try:
            result = usual(optimizer, *args, **kwargs)
        finally:
            recorder.after_step(optimizer)
        if recorder.options.steps and recorder.step >= recorder.options.steps and not recorder.local.stepping:
            raise Enough(0)
        return result

    step._recorded = True  # type: ignore[attr-defined]  # a mark of ours
    recorder.replace(kind, "step", step)


def _hook_clip(recorder: Recorder, name: str, how: str) -> None:
    usual = getattr(torch.nn.utils, name)

    @functools.wraps(usual)
    def clip(parameters: Any, limit: Any, *args: Any, **kwargs: Any) -> Any:
        parameters = parameters if isinstance(parameters, torch.Tensor) else list(parameters)
        total = usual(parameters, limit, *args, **kwargs)
        recorder.clipped(how, float(limit), total)
        return total

    for owner in (torch.nn.utils, sys.modules["torch.nn.utils.clip_grad"]):
        recorder.replace(owner, name, clip)


def _hook_data(recorder: Recorder) -> None:
    from torch.utils.data import DataLoader, RandomSampler
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    begin_epoch = DataLoader.__iter__
    advance = _BaseDataLoaderIter.__next__

    def begin(loader: Any) -> Any:
        iterator = begin_epoch(loader)
        recorder.epoch_begins(loader, iterator)
        return iterator

    def following(iterator: Any) -> Any:
        try:
            batch = advance(iterator)
        except StopIteration:
            recorder.epoch_ends(iterator)
            raise
        recorder.batch(iterator, batch)
        return batch

    recorder.replace(DataLoader, "__iter__", begin)
    recorder.replace(_BaseDataLoaderIter, "__next__", following)
    if recorder.options.order != "replay":
        return
    usual = RandomSampler.__iter__

    def shuffled(sampler: Any) -> Iterator[int]:
        if sampler.generator is not None and not _draws_by_the_global_seed(sampler):
            yield from usual(sampler)
            return
        own = sampler.generator
        sampler.generator = torch.Generator()
        sampler.generator.manual_seed((recorder.options.seed or 0) * 1_000_003 + recorder.counts["order"])
        recorder.counts["order"] += 1
        try:
            yield from usual(sampler)
        finally:
            sampler.generator = own

    recorder.replace(RandomSampler, "__iter__", shuffled)


def _draws_by_the_global_seed(sampler: Any) -> bool:
    """Whether the generator of a sampler is seeded by torch's, as accelerate makes those of a Trainer."""
    return getattr(sampler, "initial_seed", None) == torch.initial_seed()


def _hook_files(recorder: Recorder) -> None:
    usual = torch.save

    @functools.wraps(usual)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.saved(obj, f, "torch.save")
        return usual(obj, f, *args, **kwargs)

    for owner in (torch, torch.serialization):
        recorder.replace(owner, "save", save)


def _hook_collectives(recorder: Recorder) -> None:
    if not torch.distributed.is_available():
        return
    for name, make in _COLLECTIVES.items():
        usual = getattr(torch.distributed, name, None)
        if usual is not None:
            hooked = make(recorder, usual)
            for owner in (torch.distributed, sys.modules.get("torch.distributed.distributed_c10d")):
                if owner is not None and hasattr(owner, name):
                    recorder.replace(owner, name, hooked)


def _collective(
    recorder: Recorder, usual: Callable[..., Any], tell: Callable[..., None]
) -> Callable[..., Any]:
    """A function whose outermost call is told: under a mode of torch they call themselves once more."""

    @functools.wraps(usual)
    def function(*args: Any, **kwargs: Any) -> Any:
        local = recorder.local
        local.library += 1
        try:
            result = usual(*args, **kwargs)
        finally:
            local.library -= 1
        if not local.library:
            # A call that we cannot read is still the script's own.
            with contextlib.suppress(TypeError):
                tell(*args, **kwargs)
        return result

    return function


def _all_reduce(recorder: Recorder, usual: Callable[..., Any]) -> Callable[..., Any]:
    def tell(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        # The second argument of `reduce` is the process that gets the result.
        position = 1 if usual.__name__ == "reduce" else 0
        op = kwargs.get("op", args[position] if len(args) > position else "sum")
        recorder.reduced(op_name(op), [tensor], 1.0, usual.__name__)

    return _collective(recorder, usual, tell)


def _told(event: str) -> Callable[[Recorder, Callable[..., Any]], Callable[..., Any]]:
    """A function whose call is an event, and nothing more."""

    def make(recorder: Recorder, usual: Callable[..., Any]) -> Callable[..., Any]:
        def tell(*args: Any, **kwargs: Any) -> None:
            recorder.note_event(event, world=world_here(), by=usual.__name__)

        return _collective(recorder, usual, tell)

    return make


_COLLECTIVES = {
    "all_reduce": _all_reduce,
    "reduce": _all_reduce,
    "barrier": _told("meeting"),
    "broadcast": _told("broadcast"),
    "all_gather": _told("gathering"),
    "all_gather_into_tensor": _told("gathering"),
    "all_gather_object": _told("gathering"),
    "gather": _told("gathering"),
    "reduce_scatter_tensor": _told("scattering"),
    "init_process_group": _told("group"),
}


def op_name(op: object) -> str:
    """`sum` for `ReduceOp.SUM`, `RedOpType.SUM` and `"sum"`; AVG is the mean."""
    name = re.split(r"[.\s(:<]", str(getattr(op, "name", op)).strip("<>"))
    last = [each for each in name if each][-1].lower() if name else ""
    if last.isdigit():
        last = "sum"
    return {"avg": "mean", "mul": "product"}.get(last, last)


_DIVISIONS = ("div_", "mul_", "div", "mul", "__truediv__", "__mul__", "__itruediv__", "__imul__")


def watch_divisions(recorder: Recorder) -> None:
    """From the first sum over the processes on, notice by which number it is divided."""
    if getattr(torch.Tensor.div_, "_recorded", False):
        return
    for name in _DIVISIONS:
        usual = getattr(torch.Tensor, name)
        recorder.replace(torch.Tensor, name, _division(recorder, usual, "mul" in name))


def _division(recorder: Recorder, usual: Callable[..., Any], times: bool) -> Callable[..., Any]:
    @functools.wraps(usual)
    def divide(tensor: torch.Tensor, other: Any, *args: Any, **kwargs: Any) -> Any:
        if recorder.watched and id(tensor) in recorder.watched and isinstance(other, (int, float)) and other:
            recorder.divided(tensor, 1.0 / other if times else float(other))
        return usual(tensor, other, *args, **kwargs)

    divide._recorded = True  # type: ignore[attr-defined]  # a mark of ours
    return divide


_LIBRARIES = tuple(
    os.path.join(path, "")
    for path in {*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))}
)
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_HERE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
"""The package that this file belongs to, if it does."""
_IS_PACKAGED = os.path.basename(_HERE[:-1]) == "neuronmigrate"


def asked_by_script() -> bool:
    """Whether the script asked for what is called just now, itself or through one function of a library.

    What libraries seed and cast by themselves is theirs, and differs between old and new ones.
    """
    frame: Optional[types.FrameType] = sys._getframe(2)
    libraries = 0
    while frame is not None and libraries < 2:
        path = frame.f_code.co_filename
        own = path == __file__ or (_IS_PACKAGED and path.startswith(_HERE))
        if own and path != __file__:
            return False  # a stand-in for a legacy library
        if not own and not path.startswith((_TORCH, "<")):
            if not path.startswith(_LIBRARIES):
                return True
            if not path.endswith("contextlib.py"):
                libraries += 1
        frame = frame.f_back
    return False


def _tell_seed(recorder: Recorder, value: Any) -> None:
    if asked_by_script():
        recorder.note_event("seed", value=int(value))


def _hook_settings(recorder: Recorder) -> None:
    seed = torch.manual_seed

    @functools.wraps(seed)
    def manual_seed(value: Any) -> Any:
        if asked_by_script():
            recorder.note_event("seed", value=int(value))
        return seed(value)

    for owner in (torch, torch.random):
        recorder.replace(owner, "manual_seed", manual_seed)
    neuron = getattr(torch, "neuron", None)
    for name in ("manual_seed", "manual_seed_all"):
        if hasattr(neuron, name):
            tell = functools.partial(_tell_seed, recorder)
            recorder.replace(neuron, name, _collective(recorder, getattr(neuron, name), tell))
    kind = torch.autocast
    enter: Callable[..., Any] = kind.__enter__

    @functools.wraps(enter)
    def entered(region: Any) -> Any:
        if not asked_by_script():
            return enter(region)
        dtype = str(getattr(region, "fast_dtype", "")).replace("torch.", "")
        enabled = bool(getattr(region, "_enabled", True))
        # Libraries switch it off around sensitive parts; where it was not on, nothing is done by that.
        if enabled or _in_autocast(str(getattr(region, "device", "cpu"))):
            recorder.note_event("autocast", dtype=dtype, enabled=enabled)
        return enter(region)

    recorder.replace(kind, "__enter__", entered)
    if recorder.options.dropout != "keep":
        recorder.replace(torch.nn.functional, "dropout", _dropout(recorder))
    _hook_recomputation(recorder)


def _hook_recomputation(recorder: Recorder) -> None:
    """What is computed once more for the backward pass draws the masks that it drew before."""
    from torch.utils import checkpoint as owner

    usual = owner.checkpoint

    @functools.wraps(usual)
    def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        begin: List[int] = []

        @functools.wraps(function)
        def again(*inputs: Any, **named: Any) -> Any:
            if not begin:
                begin.append(recorder.counts["dropout"])
                return function(*inputs, **named)
            now, recorder.counts["dropout"] = recorder.counts["dropout"], begin[0]
            # It is no call of the script's.
            recorder.local.paused += 1
            try:
                return function(*inputs, **named)
            finally:
                recorder.local.paused -= 1
                recorder.counts["dropout"] = now

        return usual(again, *args, **kwargs)

    recorder.replace(owner, "checkpoint", checkpoint)


def _in_autocast(device: str) -> bool:
    """Whether an autocast region is entered, for a type of device where torch can tell."""
    try:
        return bool(torch.is_autocast_enabled(device))
    except (TypeError, RuntimeError):
        return bool(torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled())


def _dropout(recorder: Recorder) -> Callable[..., torch.Tensor]:
    def dropout(
        input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or p == 0 or recorder.options.dropout == "off":
            return input
        generator = torch.Generator()
        generator.manual_seed((recorder.options.seed or 0) * 1_000_003 + recorder.counts["dropout"])
        recorder.counts["dropout"] += 1
        drawn = torch.rand(input.shape, generator=generator) >= p
        mask = (drawn.to(input.dtype) / (1 - p) if p < 1 else drawn.to(input.dtype)).to(input.device)
        return input.mul_(mask) if inplace else input * mask

    return dropout


# What is hooked when the script imports it


def _later_generate(recorder: Recorder, module: Any) -> None:
    """The classes of a module that generate: Transformers' mixin, and those that Optimum Neuron had."""
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and kind.__module__ == module.__name__ and "generate" in vars(kind):
            recorder.replace(kind, "generate", _generating(recorder, vars(kind)["generate"]))


def _generating(recorder: Recorder, usual: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def generate(model: Any, *args: Any, **kwargs: Any) -> Any:
        return recorder.generate(usual, model, args, kwargs)

    return generate


def _later_safetensors(recorder: Recorder, module: Any) -> None:
    usual = module.save_file

    @functools.wraps(usual)
    def save_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.saved(tensors, filename, "safetensors")
        return usual(tensors, filename, *args, **kwargs)

    recorder.replace(module, "save_file", save_file)


def _later_processing(recorder: Recorder, module: Any) -> None:
    """What a model needs beside its weights: a tokenizer, or a processor of images or sounds."""
    for name in ("PreTrainedTokenizerBase", "ImageProcessingMixin", "FeatureExtractionMixin"):
        kind = vars(module).get(name)
        if kind is not None:
            recorder.replace(kind, "save_pretrained", _saving(recorder, kind.save_pretrained))


def _saving(recorder: Recorder, usual: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(usual)
    def save_pretrained(processing: Any, *args: Any, **kwargs: Any) -> Any:
        what = "tokenizer" if hasattr(processing, "vocab_size") else "processor"
        recorder.note_event(
            "save", file="", by="save_pretrained", rank=rank_here(), tensors=0, elements=0, keys=[what]
        )
        return usual(processing, *args, **kwargs)

    return save_pretrained


def _later_clip(recorder: Recorder, module: Any) -> None:
    usual = module.clip

    def clip(gradients: Any, limit: float) -> Any:
        total = usual(gradients, limit)
        recorder.clipped("norm", limit, total)
        return total

    recorder.replace(module, "clip", clip)


def _later_xla(recorder: Recorder, module: Any) -> None:
    """The functions of torch_xla.core.xla_model, those of its own or of its stand-in."""
    tells: Dict[str, Callable[..., None]] = {
        "mark_step": lambda *a, **k: recorder.note_event("step barrier", by="mark_step"),
        "sync": lambda *a, **k: recorder.note_event("step barrier", by="sync"),
        "rendezvous": lambda *a, **k: recorder.note_event("meeting", world=world_here(), by="rendezvous"),
        "wait_device_ops": lambda *a, **k: recorder.note_event("step barrier", by="wait_device_ops"),
        "all_reduce": lambda kind, inputs, scale=1.0, *a, **k: recorder.reduced(
            op_name(kind), [each for _, each in parts_of(inputs)], float(scale), "xm.all_reduce"
        ),
        "reduce_gradients": lambda optimizer, *a, **k: recorder.reduced(
            "mean",
            [each.grad for _, _, each in parameters_of(optimizer) if each.grad is not None],
            1.0,
            "xm.reduce_gradients",
            "gradients",
        ),
        "all_gather": lambda *a, **k: recorder.note_event(
            "gathering", world=world_here(), by="xm.all_gather"
        ),
        "mesh_reduce": lambda *a, **k: recorder.note_event(
            "gathering", world=world_here(), by="xm.mesh_reduce"
        ),
        "broadcast_master_param": lambda *a, **k: recorder.note_event(
            "broadcast", world=world_here(), by="xm.broadcast_master_param"
        ),
        "set_rng_state": lambda seed, *a, **k: recorder.note_event("seed", value=int(seed)),
    }
    for name, tell in tells.items():
        if name in vars(module):
            recorder.replace(module, name, _collective(recorder, vars(module)[name], tell))


_LATER: Dict[str, Callable[[Recorder, Any], None]] = {
    "transformers.generation.utils": _later_generate,
    "optimum.neuron.generation.utils": _later_generate,
    "optimum.neuron.modeling": _later_generate,
    "optimum.neuron.modeling_decoder": _later_generate,
    "optimum.neuron.models.inference.backend.modules.generation.generation_utils": _later_generate,
    "optimum.neuron.models.inference.nxd.backend.modules.generation.generation_utils": _later_generate,
    "neuronmigrate.runtime.legacy.optimum.decoder": _later_generate,
    "neuronmigrate.runtime.legacy.optimum.seq2seq": _later_generate,
    "neuronmigrate.runtime.legacy.optimum.optimizer": _later_clip,
    "transformers.tokenization_utils_base": _later_processing,
    "transformers.image_processing_base": _later_processing,
    "transformers.feature_extraction_utils": _later_processing,
    "safetensors.torch": _later_safetensors,
    "torch_xla.core.xla_model": _later_xla,
    "neuronmigrate.runtime.legacy.xla.model": _later_xla,
}


class _WatchImports(importlib.abc.MetaPathFinder):
    """Acts right after a module was imported, without importing it."""

    def __init__(self) -> None:
        self.acts: Dict[str, List[Callable[[Any], object]]] = {}

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> Optional[importlib.machinery.ModuleSpec]:
        if name not in self.acts:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        loader = spec.loader
        if loader is not None:
            execute = loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                for act in self.acts.pop(name, ()):
                    act(module)

            # On this one loader, which was made for this one import.
            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_watch_imports = _WatchImports()


def after_import(name: str, act: Callable[[Any], object]) -> None:
    """Call `act` with a module once it is imported; at once if it is."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        act(module)
        return
    _watch_imports.acts.setdefault(name, []).append(act)
    if _watch_imports not in sys.meta_path:
        sys.meta_path.insert(0, _watch_imports)


# The command


def existing(folder: str) -> bool:
    """Whether a folder holds a recording."""
    return bool(glob.glob(os.path.join(folder, "rank*.run*.jsonl")))


def parse(arguments: List[str]) -> argparse.Namespace:
    """Read a command line."""
    parser = argparse.ArgumentParser(prog="recorder.py", description="Record what a PyTorch script computes.")
    parser.add_argument("--out", required=True, help="folder of the recording")
    parser.add_argument("--seed", type=int, help="seed Python, numpy and torch before the script begins")
    parser.add_argument("--dropout", choices=("keep", "replay", "off"), default="keep")
    parser.add_argument("--order", choices=("keep", "replay"), default="keep", help="order of shuffled data")
    parser.add_argument("--calls", type=int, default=3, help="calls, steps and batches with their tensors")
    parser.add_argument("--elements", type=int, default=1 << 16, help="elements of a tensor that are kept")
    parser.add_argument("--steps", type=int, default=0, help="end the script after so many optimizer steps")
    parser.add_argument("--megabytes", type=int, default=512, help="tensors of one process altogether")
    parser.add_argument("--resume", action="store_true", help="go on with the recording in the folder")
    parser.add_argument("--initial", default="", help="a recording whose initial weights are taken")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args(arguments)


def main(arguments: List[str]) -> int:
    """Run a script as `__main__` and record it; its own exit code."""
    given = parse(arguments)
    if not os.path.isfile(given.script):
        print(f"recorder.py: {given.script}: there is no such script", file=sys.stderr)
        return 2
    # Of several processes, only the first can know that nobody else began.
    if existing(given.out) and not given.resume and rank_here() == 0 and world_here() == 1:
        print(f"recorder.py: {given.out} holds a recording; --resume goes on with it", file=sys.stderr)
        return 2
    known = {name: value for name, value in vars(given).items() if name in Options._fields}
    sys.argv = [given.script, *given.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(given.script))
    begin(Options(**{**known, "out": os.path.abspath(given.out)}))
    module = types.ModuleType("__main__")
    module.__file__ = given.script
    sys.modules["__main__"] = module
    with open(given.script, "rb") as file:
        code = compile(file.read(), given.script, "exec")
    exec(code, module.__dict__)
    return 0


__all__ = ["FORMAT", "IO", "Options", "Recorder", "begin", "main"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
