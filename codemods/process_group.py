"""Process groups of torch_xla: `dist.init_process_group("xla", init_method="xla://")`.

The backend becomes `"neuron"`, an `init_method` of torch_xla goes, and so does the import that registered
them (`torch_xla.distributed.xla_backend`): one unit, since half of it starts no group.

The native group has to stand before the first tensor is on the device. Where this file puts something on
the device earlier, the start moves up above that when both stand in one block and nothing in between has
a say; else the place is told. A group that also carries objects or CPU tensors is told as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.edits import Statement
from neuronmigrate.imports import imported_name
from neuronmigrate.processes import (
    GROUPS,
    REGISTERS,
    XLA_BACKENDS,
    comes_from_outside,
    starts_perhaps,
    xla_starts,
)
from neuronmigrate.site import Group, Site

codemod = Codemod(__name__)

START = "torch.distributed.init_process_group"
DEVICES = frozenset({"torch.device", "torch_xla.core.xla_model.xla_device", "torch_xla.device"})
OBJECTS = frozenset(
    {
        "torch.distributed.all_gather_object",
        "torch.distributed.broadcast_object_list",
        "torch.distributed.gather_object",
        "torch.distributed.monitored_barrier",
        "torch.distributed.scatter_object_list",
    }
)
WHY = "the native backend registers the process group `neuron` by itself"


@codemod.once
def decide(site: Site) -> None:
    """Rewrite all groups of the file and the imports that registered them as one."""
    starts = xla_starts(site)
    registers = [each for each in site.names.imports if imported_name(each) in REGISTERS]
    for call in site.names.calls:
        backend = _backend(site, call)
        if registers and call not in starts and backend is not None and comes_from_outside(site, backend):
            why = (
                f"its backend `{edits.short(backend)}` is named at run time, and `xla` is not there natively"
            )
            site.mark(call, START, why, "let whatever names it (arguments, environment) pass `neuron`")
    if not starts:
        return
    group = site.group()
    changed: set[cst.SimpleString] = set()
    for call, texts in starts.items():
        todo = _rewrite(site, group, call, changed)
        for text in texts:
            if text not in changed:
                changed.add(text)
                group.replace(text, edits.string("neuron"))
        if any(
            isinstance(site.parent(each), cst.Arg) and site.parent(each) not in call.args for each in texts
        ):
            todo.append(
                "the environment variable that names the backend has to say `neuron` where it said `xla`"
            )
        name = f"{site.name_of(call.func)}"
        if todo:
            group.review(call, name, WHY, "; ".join(todo))
        else:
            group.fixed(call, name, WHY)
    for binding in site.names.imports:
        alias, name = binding.node, imported_name(binding)
        unread = binding.dotted or not site.names.references(binding)
        if name in REGISTERS and isinstance(alias, cst.ImportAlias) and unread:
            group.releases.append(alias)


def _backend(site: Site, call: cst.Call) -> cst.BaseExpression | None:
    """The backend of a call that starts a group."""
    name = site.name_of(call.func)
    return edits.arguments(call, GROUPS[name]).value("backend") if name == START else None


def _rewrite(site: Site, group: Group, call: cst.Call, changed: set[cst.SimpleString]) -> list[str]:
    """Drop what torch_xla alone took, and put the call where it has to stand; tells what is to look at."""
    kept = [_native_rendezvous(arg) for arg in call.args if not _is_rendezvous(arg)]
    moved = False
    todo = []
    alone = site.alone(call)
    if site.name_of(call.func) == START and alone is not None and call in starts_perhaps(site):
        # The spawned processes had a group by themselves, and it is started where they were.
        new = _renamed(call, kept, changed)
        template = "if not torch.distributed.is_initialized():\n    {start}\n"
        group.replace_statement(alone, group.statements(template, start=new))
        todo.append("the group stands by then, since the spawned processes always had one: drop this start")
        moved = True
    elif site.name_of(call.func) == START:
        touching = _touching_before(site, call)
        moved = bool(touching) and _move(site, group, call, kept, touching[0], changed)
        lines = ", ".join(str(site.positions.span(each).line) for each in touching[:3])
        if moved:
            todo.append(
                f"it moved up above line {lines.partition(',')[0]} of the old file, which puts something on "
                "the device: natively the group has to stand before that"
            )
        elif touching:
            todo.append(
                f"natively it has to run before anything is on the device: move it above line {lines}"
            )
        if any(site.name_of(each.func) in OBJECTS for each in site.names.calls):
            todo.append(
                "objects are exchanged over this group: on the device each size of them is compiled anew, so "
                'give them a group of their own, `dist.new_group(backend="gloo")`'
            )
    if not moved and kept != list(call.args):
        group.replace(call, edits.with_arguments(call, kept))
    return todo


def _is_rendezvous(arg: cst.Arg) -> bool:
    """Whether an argument is an `init_method` of torch_xla."""
    text = arg.value.evaluated_value if isinstance(arg.value, cst.SimpleString) else None
    named = arg.keyword is None or arg.keyword.value == "init_method"
    return named and text in XLA_BACKENDS and text != "xla"


def _native_rendezvous(arg: cst.Arg) -> cst.Arg:
    """`"xla://" if on_xla else "env://"` is the latter in both cases."""
    value = arg.value
    if not isinstance(value, cst.IfExp) or not (arg.keyword is None or arg.keyword.value == "init_method"):
        return arg
    sides = [value.body, value.orelse]
    for number, side in enumerate(sides):
        if isinstance(side, cst.SimpleString) and side.evaluated_value in XLA_BACKENDS - {"xla"}:
            sides[number] = edits.string("env://")
    if sides == [value.body, value.orelse]:
        return arg
    if edits.code_of(sides[0]) == edits.code_of(sides[1]):
        return arg.with_changes(value=sides[0])
    return arg.with_changes(value=value.with_changes(body=sides[0], orelse=sides[1]))


# The order of things.


def _move(
    site: Site,
    group: Group,
    call: cst.Call,
    args: list[cst.Arg],
    first: cst.CSTNode,
    changed: set[cst.SimpleString],
) -> bool:
    """Move a start up above the first statement that needs it, where nothing speaks against that."""
    alone = site.alone(call)
    line = site.parent(alone) if alone is not None else None
    if alone is None or line is None or not _can_move_above(site, first, line, call):
        return False
    assert isinstance(first, Statement)
    group.insert(first, [cst.SimpleStatementLine([cst.Expr(_renamed(call, args, changed))])])
    group.replace_statement(alone)
    return True


def _renamed(call: cst.Call, args: list[cst.Arg], changed: set[cst.SimpleString]) -> cst.Call:
    """A start with the native backend, to stand elsewhere."""
    new_args = []
    for arg in args:
        if isinstance(arg.value, cst.SimpleString) and arg.value.evaluated_value == "xla":
            changed.add(arg.value)
            arg = arg.with_changes(value=edits.string("neuron"))
        new_args.append(arg)
    return edits.with_arguments(call, new_args)


def _can_move_above(site: Site, first: cst.CSTNode, line: cst.CSTNode, call: cst.Call) -> bool:
    """Whether a start with nothing but literals may run earlier in its block."""
    block = site.parent(line)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    if not isinstance(block, (cst.IndentedBlock, cst.Module)) or first not in block.body:
        return False
    if not all(edits.is_literal(arg.value) for arg in call.args):
        return False
    between = list(block.body[block.body.index(first) : block.body.index(line)])
    if any(_says_something(site, each) for each in between):
        return False
    # The name it is called by has to be bound by then.
    head = call.func
    while isinstance(head, cst.Attribute):
        head = head.value
    bindings = site.names.bindings_at(head) if isinstance(head, cst.Name) else ()
    span = site.positions.span(first)
    return bool(bindings) and all(
        binding.scope is site.names.module_scope and site.positions.span(binding.node) < span
        for binding in bindings
    )


def _says_something(site: Site, statement: cst.CSTNode) -> bool:
    """Whether a statement may decide how a group is started: environment, other groups, leaving."""
    for node in _runs(statement):
        if isinstance(node, (cst.Return, cst.Raise, cst.Continue, cst.Break)):
            return True
        if isinstance(node, (cst.Attribute, cst.Name)):
            name = site.name_of(node) or ""
            if name.startswith(("os.environ", "os.putenv", "torch.distributed.")):
                return True
    return False


def _touching_before(site: Site, call: cst.Call) -> list[cst.CSTNode]:
    """The statements before a call, as the file runs, that put something on the device."""
    found: list[cst.CSTNode] = []
    current: cst.CSTNode = call
    inside = [each for each in site.ancestors(call) if isinstance(each, cst.FunctionDef)]
    for around in site.ancestors(call):
        if isinstance(around, (cst.IndentedBlock, cst.Module)):
            in_function = isinstance(around, cst.Module) and isinstance(
                current, (cst.FunctionDef, cst.ClassDef)
            )
            earlier = []
            for statement in around.body:
                if statement is current and not in_function:
                    break
                if not isinstance(statement, (cst.FunctionDef, cst.ClassDef)) and not _is_guard(statement):
                    earlier.append(statement)
            # A statement that calls this very function is not before it.
            found = [each for each in earlier if _touches(site, each, set(inside))] + found
        current = around
    return found


def _is_guard(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.If) and "__name__" in edits.code_of(statement.test)


def _runs(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and what runs with it; the bodies of functions run later."""
    yield node
    for child in node.children:
        if not isinstance(child, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            yield from _runs(child)


def _touches(site: Site, node: cst.CSTNode, seen: set[cst.CSTNode]) -> bool:
    for part in _runs(node):
        if not isinstance(part, cst.Call):
            continue
        name = site.name_of(part.func) or ""
        if name in DEVICES:
            continue
        func = part.func
        moves = isinstance(func, cst.Attribute) and func.attr.value == "to"
        for arg in part.args:
            named = arg.keyword is not None and arg.keyword.value == "device"
            if (named or (moves and arg.keyword is None)) and _is_device(site, arg.value):
                return True
        if name.startswith("torch.neuron.") and name.rpartition(".")[2] in ("current_device", "set_device"):
            return True
        if isinstance(func, cst.Name):
            for binding in site.names.bindings_at(func):
                if isinstance(binding.node, cst.FunctionDef) and binding.node not in seen:
                    seen.add(binding.node)
                    if _touches(site, binding.node.body, seen):
                        return True
    return False


def _is_device(site: Site, value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.SimpleString):
        return value.evaluated_value in ("xla", "neuron")
    if isinstance(value, cst.Call):
        return site.name_of(value.func) in DEVICES
    if not isinstance(value, (cst.Name, cst.Attribute)):
        return False
    return any(
        producer.name in DEVICES or _is_device_text(producer.node)
        for producer in site.flow.origin_of(value).producers
    )


def _is_device_text(node: cst.CSTNode | None) -> bool:
    return isinstance(node, cst.SimpleString) and node.evaluated_value in ("xla", "neuron")
