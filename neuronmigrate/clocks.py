"""Clocks that are read while the device works.

The legacy steps sent the work off, and some waited for it. The native device queues operations, so a
clock that is read beside them has to wait first, or it measures the queueing alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.edits import Statement
from neuronmigrate.site import Group, Site

CLOCKS = frozenset(
    {
        "time.monotonic",
        "time.monotonic_ns",
        "time.perf_counter",
        "time.perf_counter_ns",
        "time.time",
        "time.time_ns",
        "timeit.default_timer",
    }
)
SYNCHRONIZES = frozenset(
    {"torch.accelerator.synchronize", "torch.cuda.synchronize", "torch.neuron.synchronize"}
)
# Legacy steps that wait for the device, which is what they become.
_WAITS = "torch_xla.core.xla_model.wait_device_ops"
_MAY_WAIT = ("torch_xla.core.xla_model.mark_step", "torch_xla.sync")


WAIT = "torch.neuron.synchronize()\n"
WAIT_ANYWHERE = "if torch.accelerator.is_available():\n    torch.accelerator.synchronize()\n"
_DEVICES = re.compile(r"accelerator|available|backend|cuda|device|gpu|neuron|tpu|trainium|trn|xla|\bxm\b")


def synchronize_clocks(
    site: Site,
    group: Group,
    step: cst.CSTNode,
    is_gone: Callable[[cst.CSTNode], bool] = lambda node: False,
    cause: cst.CSTNode | None = None,
) -> str:
    """Put a synchronize before each clock read of the function around a legacy step; say where.

    `is_gone` tells the statements that the group takes out, and `cause` what the step came from, if that
    stands elsewhere. Where a test chose the device, the clocks run on others as well. Each function is done
    once, whichever codemod comes first; the answer is empty when nothing was put in.
    """
    timed = site.notes.setdefault("timed", set())
    function = site.names.function_of(step)
    key = site.module if function is None else function.node
    if key in timed or "neuronmigrate:" in edits.code_of(site.statement(step)):
        # A step that is silenced takes nothing along.
        return ""
    timed.add(key)
    lines: list[Statement] = []
    read: list[Statement] = []
    for call in site.names.calls:
        if site.name_of(call.func) in CLOCKS and site.names.function_of(call) is function:
            line = _place_before(site, call)
            if line is not None and line not in read:
                if not _is_waited_for(site, line, read, is_gone):
                    lines.append(line)
                read.append(line)
    for line in lines:
        choice = _chooses_device(site, step, line) or (
            cause is not None and _chooses_device(site, cause, line)
        )
        group.insert(line, group.statements(WAIT_ANYWHERE if choice else WAIT))
    if not lines:
        return ""
    numbers = sorted(site.positions.span(line).line for line in lines)
    where = f"line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
    return (
        f"a synchronize now stands before each clock read ({where} of the old file), so that the time "
        "has the work of the device in it: drop those that measure something else"
    )


def _chooses_device(site: Site, node: cst.CSTNode, line: Statement) -> bool:
    """Whether a test of the device stands around a node and not around a line."""
    around_line = set(site.ancestors(line))
    return any(
        isinstance(each, (cst.If, cst.IfExp))
        and each not in around_line
        and _DEVICES.search(edits.code_of(each.test)) is not None
        for each in site.ancestors(node)
    )


def calls_in(node: cst.CSTNode | None) -> Iterator[cst.Call]:
    """The calls in a statement; of a compound one, in its header."""
    todo: list[cst.CSTNode] = [] if node is None else [node]
    while todo:
        part = todo.pop()
        if isinstance(part, cst.Call):
            yield part
        if not isinstance(part, (cst.BaseSuite, cst.Lambda, cst.Else, cst.Finally, cst.ExceptHandler)):
            todo.extend(part.children)


def _place_before(site: Site, call: cst.Call) -> Statement | None:
    """The statement before which to wait, so that the device is done when a clock is read."""
    line = site.statement(call)
    if isinstance(line, cst.SimpleStatementLine):
        return line
    if isinstance(line, (cst.While, cst.FunctionDef, cst.ClassDef)):
        return None
    is_elif = isinstance(line, cst.If) and isinstance(site.parent(line), cst.If)
    return None if is_elif else line


def _is_waited_for(
    site: Site, line: Statement, read: Sequence[Statement], is_gone: Callable[[cst.CSTNode], bool]
) -> bool:
    """Whether the statement before a clock read waits for the device, or reads a clock itself."""
    block = site.parent(line)
    body = list(getattr(block, "body", ()))
    for earlier in reversed(body[: body.index(line)]):
        if isinstance(earlier, cst.SimpleStatementLine) and is_gone(earlier):
            continue
        if not isinstance(earlier, cst.SimpleStatementLine):
            return False
        return earlier in read or any(_waits(site, call) for call in calls_in(earlier))
    return False


def _waits(site: Site, call: cst.Call) -> bool:
    name = site.name_of(call.func)
    if name in SYNCHRONIZES or name == _WAITS:
        return True
    wait = edits.arguments(call, ("wait",)).value("wait") if name in _MAY_WAIT else None
    return wait is not None and edits.code_of(wait) == "True"
