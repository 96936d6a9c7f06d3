"""What can be left out of a program, or run on some processes only, without anybody missing it."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable

import libcst as cst

from neuronmigrate.edits import is_literal
from neuronmigrate.names import Binding
from neuronmigrate.site import Site

NameOf = Callable[[cst.BaseExpression], str | None]

# Builtins that do something, or hand on something that runs later.
_ACTING = frozenset(
    {"breakpoint", "compile", "delattr", "eval", "exec", "exit", "help", "input", "iter", "next", "open"}
) | {"print", "quit", "setattr", "super", "__import__"}
_BUILTINS = frozenset(f"builtins.{name}" for name in dir(builtins) if name not in _ACTING)
_FUNCTIONS = _BUILTINS | {
    "json.dumps",
    "os.environ.get",
    "os.getcwd",
    "os.getenv",
    "os.getpid",
    "platform.node",
    "pprint.pformat",
    "socket.gethostname",
    "torch.accelerator.device_count",
    "torch.accelerator.is_available",
    "torch.cuda.is_available",
    "torch.distributed.get_rank",
    "torch.distributed.get_world_size",
    "torch.distributed.is_available",
    "torch.distributed.is_initialized",
    "torch.finfo",
}
_MODULES = ("copy.", "datetime.", "math.", "os.path.", "statistics.", "time.")
# Libraries that say what is installed.
_PROBING = ("accelerate", "diffusers", "optimum", "peft", "torch", "transformers", "trl")
_TENSOR_FUNCTIONS = """
    abs exp isfinite isinf isnan is_tensor linalg.norm log max mean min norm numel sqrt sum
"""
_ASKED = sys.stdlib_module_names | {"packaging"}
# Legacy questions about the process. They are answered without the other processes.
_QUESTIONS = """
    device core.xla_model.xla_device debug.metrics.metrics_report debug.metrics.short_metrics_report
    core.xla_model.get_local_ordinal core.xla_model.get_ordinal core.xla_model.is_master_ordinal
    core.xla_model.xrt_world_size
    experimental.pjrt.global_ordinal experimental.pjrt.local_ordinal experimental.pjrt.world_size
    runtime.global_ordinal runtime.local_ordinal runtime.world_size
"""
_READING = (
    _FUNCTIONS
    | {f"torch.{name}" for name in _TENSOR_FUNCTIONS.split()}
    | {f"torch_xla.{name}" for name in _QUESTIONS.split()}
)
# Methods of text, numbers, containers, tensors and schedulers, as messages are made of them.
_METHODS = """
    capitalize center count endswith find format isoformat join ljust lower lstrip replace rjust rstrip
    split startswith strftime strip timestamp title total_seconds upper zfill
    copy get index items keys values
    abs argmax bool clone cpu detach dim double float half int item long max mean min named_parameters
    norm numel numpy parameters round size sqrt squeeze std sum to tolist view
    get_last_lr
"""
_READING_METHODS = frozenset(_METHODS.split())


def is_harmless(node: cst.BaseExpression, name_of: NameOf) -> bool:
    """Whether an expression reads, computes and formats, and acts on nothing.

    What is not known is not harmless: `next(batches)` moves on, and any function of the project may
    talk to the other processes.
    """
    todo: list[cst.CSTNode] = [node]
    while todo:
        part = todo.pop()
        if isinstance(part, (cst.Await, cst.Yield, cst.NamedExpr, cst.Asynchronous)):
            return False
        if isinstance(part, cst.Lambda) or (isinstance(part, cst.BaseExpression) and is_literal(part)):
            continue
        if isinstance(part, cst.Call) and not _is_reading(part.func, name_of):
            return False
        todo.extend(part.children)
    return True


def _is_reading(func: cst.BaseExpression, name_of: NameOf) -> bool:
    name = name_of(func)
    if name is None:
        return isinstance(func, cst.Attribute) and func.attr.value in _READING_METHODS
    return name in _READING or name.startswith(_MODULES) or is_probe(name)


def is_probe(name: str) -> bool:
    """Whether a qualified name is a library's question what is installed, `is_torch_xla_available`."""
    last = name.rpartition(".")[2]
    return last.startswith("is_") and last.endswith("_available") and name.partition(".")[0] in _PROBING


def forget(site: Site, node: cst.CSTNode) -> None:
    """Let the names that are read in code that goes lose their last reader.

    An import from the standard library, or of a library's probe, goes once nothing reads it; what else
    is left without a reader stays.
    """
    todo = [node]
    while todo:
        part = todo.pop()
        todo.extend(part.children)
        if isinstance(part, cst.Name):
            site.kept_names.add(part.value)
            site.released.update(
                binding.node for binding in site.names.bindings_at(part) if _only_brings_a_name(site, binding)
            )


def _only_brings_a_name(site: Site, binding: Binding) -> bool:
    """Whether an import does nothing else, and nobody outside looks for the name."""
    if not binding.target or binding.name in site.exported or site.path.endswith("__init__.py"):
        return False
    return is_probe(binding.target) or binding.target.partition(".")[0] in _ASKED
