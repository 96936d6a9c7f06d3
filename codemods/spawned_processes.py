"""Processes that torch_xla started: `xmp.spawn(fn, args=(...))` and `torch_xla.launch(fn)`.

Natively torchrun starts the processes, one per device. The spawned function is called directly, with the
rank that torchrun gives (`RANK` where the old index counted all processes, `LOCAL_RANK` for
`torch_xla.launch`), and a process group is started before it, when torchrun is there and the program
starts none itself: the old processes found each other unasked. Started without torchrun it runs as one
process. `xmp.MpModelWrapper(model)`, which shared one copy between forks, is the model itself.

Marked are a spawn whose result is used or that does not wait, arguments that cannot be seen, and
`MpSerialExecutor`, whose lock has no native counterpart.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.processes import (
    GROUPS,
    SPAWNS,
    When,
    branch_of,
    is_of_another_device,
    is_one,
    needs_group,
    own_starts,
)
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

LAUNCH = "torch_xla.launch"
_INIT = "torch.distributed.init_process_group"
WRAPPER = "torch_xla.distributed.xla_multiprocessing.MpModelWrapper"
ACTING = ("os.", "shutil.", "subprocess.")
"""Modules whose functions do to the machine what one process should do."""


@codemod.uses([WRAPPER])
def decide_wrapper(site: Site, use: Use) -> None:
    """Put the model in the place of its wrapper."""
    call = use.call
    if call is None or use.method or len(call.args) != 1 or call.args[0].star:
        site.mark(use.whole, use.name, "more than a call with a model", "build the model in each process")
        return
    group = site.group(use)
    group.replace(call, call.args[0].value)
    why = "each process builds a model of its own, so there is nothing to share"
    group.fixed(call, use.name, why)


@codemod.uses(SPAWNS)
def decide(site: Site, use: Use) -> None:
    """Call the function once; torchrun starts the processes."""
    call = use.call
    if call is None or use.method:
        todo = "call the function itself, and start the script with torchrun"
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(call, SPAWNS[use.claim])
    function = bound.value("fn")
    todo = 'call the function with the rank, `int(os.environ["RANK"])`, and start the script with torchrun'
    alone = site.alone(call)
    if function is None or bound.spread or bound.extra:
        site.mark(call, use.name, "its arguments cannot be seen from here", todo)
        return
    if alone is None:
        site.mark(call, use.name, "its result is used", todo)
        return
    join, single = bound.value("join"), bound.value("debug_single_process")
    if join is not None and edits.code_of(join) != "True":
        site.mark(call, use.name, "it does not wait for the processes", todo)
        return
    if single is not None and edits.code_of(single) != "False":
        site.mark(call, use.name, "whether it starts processes is decided at run time", todo)
        return
    if isinstance(function, cst.Lambda):
        function = edits.parenthesized(function)
    group = site.group(use)
    args = _arguments(bound.value("args"))
    count = bound.value("nprocs")
    one = is_one(count)
    where = branch_of(site, call)
    variable = "LOCAL_RANK" if use.claim == LAUNCH else "RANK"
    index: cst.BaseExpression = cst.Integer("0")
    if not one and where != "without torchrun":
        index = group.expression(f'int(os.environ.get("{variable}", 0))')
    new = cst.Call(function, [cst.Arg(index), *args])
    group.replace(call, edits.with_arguments(new, list(new.args)))
    for name in ("nprocs", "daemon", "start_method", "join"):
        value = bound.value(name)
        if value is not None and is_harmless(value, site.name_of):
            forget(site, value)
    if one:
        group.fixed(call, use.name, "one process needs no start: its function is called directly")
        return
    why = "torchrun starts the processes, so the function is called directly"
    starts = own_starts(site, call)
    started = needs_group(site, call) and _start_group(site, group, alone)
    if started:
        why += ", once the process group that the old processes had by themselves is started"
    known = count is not None and edits.is_literal(count) and edits.code_of(count) != "None"
    number = edits.short(count) if count is not None and known else "auto"
    todo = f"start the script with `torchrun --nproc-per-node={number}`"
    if count is not None and not known and edits.code_of(count) != "None":
        todo += f", or what `{edits.short(count)}` gives"
    todo += ": without it, it runs as one process"
    wanting = _lines(
        site, [each for each, when in starts.items() if when is When.ALWAYS and _wants_torchrun(site, each)]
    )
    if wanting:
        todo += f", and the start of a group in {wanting} fails"
    if use.claim == LAUNCH:
        todo += "; the index it gets is that within the host"
    if started and site.name_of(function) is not None:
        todo += f"; drop the start here if `{edits.short(function)}` starts a group by itself"
    others = _lines(site, [each for each in starts if is_of_another_device(site, each)])
    if others and (started or When.ALWAYS in starts.values()):
        todo += (
            f"; {others} starts a group of another backend: tensors on the device need `neuron`, "
            "and only one group can be the default"
        )
    once = "" if where == "without torchrun" else _lines(site, _ran_once(site, alone))
    if once:
        todo += f"; {once} ran in the one process that started the others, and runs in each of them now"
    group.review(call, use.name, why, todo)


def _wants_torchrun(site: Site, start: cst.Call) -> bool:
    """Whether a group is started with the rank and the number of processes that torchrun gives."""
    if site.name_of(start.func) != _INIT:
        return False
    bound = edits.arguments(start, GROUPS[_INIT])
    told = [name for name in ("rank", "store", "world_size") if bound.value(name) is not None]
    return not (bound.spread or told)


def _arguments(given: cst.BaseExpression | None) -> list[cst.Arg]:
    """`args=(a, b)` as arguments of the function."""
    if given is None:
        return []
    if isinstance(given, (cst.Tuple, cst.List)):
        args = []
        for element in given.elements:
            starred = isinstance(element, cst.StarredElement)
            args.append(cst.Arg(element.value, star="*" if starred else ""))
        return args
    return [cst.Arg(given, star="*")]


def _start_group(site: Site, group: Group, alone: cst.Expr) -> bool:
    """Start a process group where the program starts none, or only behind a flag."""
    line = site.parent(alone)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    earlier = site.notes.setdefault("group started", set())
    around = list(site.ancestors(line))
    if any(site.parent(each) in around for each in earlier):
        return False
    test = '"RANK" in os.environ'
    if earlier or any(isinstance(each, (cst.FunctionDef, cst.For, cst.While)) for each in around):
        # What is run twice must not start it twice.
        test += " and not torch.distributed.is_initialized()"
    earlier.add(line)
    template = f'if {test}:\n    torch.distributed.init_process_group("neuron")\n'
    group.insert(line, group.statements(template))
    return True


def _ran_once(site: Site, alone: cst.Expr) -> list[cst.CSTNode]:
    """What stands behind a spawn, or acts on the machine before it, in its function or in the script.

    The started processes ran the top of the module as well.
    """
    found: list[cst.CSTNode] = []
    current: cst.CSTNode = alone
    for around in site.ancestors(alone):
        is_top = isinstance(around, cst.Module) and site.parent(alone) not in around.body
        if isinstance(around, (cst.IndentedBlock, cst.Module)) and not is_top:
            place = around.body.index(current) if current in around.body else len(around.body)
            found += [each for each in around.body[:place] if _acts(site, each)]
            found += [each for each in around.body[place + 1 :] if _does_something(site, each)]
        if isinstance(around, (cst.FunctionDef, cst.ClassDef)):
            break
        current = around
    return found


def _acts(site: Site, statement: cst.CSTNode) -> bool:
    value = _lone_call(statement)
    name = "" if value is None else site.name_of(value.func) or ""
    return name.startswith(ACTING) and not name.startswith("os.environ")


def _does_something(site: Site, statement: cst.CSTNode) -> bool:
    if isinstance(statement, cst.SimpleStatementLine):
        value = _lone_call(statement)
        if value is None or site.name_of(value.func) in (*SPAWNS, "builtins.print"):
            return False
        # What is logged once more is seen and does no harm.
        return not (
            isinstance(value.func, cst.Attribute) and value.func.attr.value in ("debug", "info", "warning")
        )
    return isinstance(statement, (cst.For, cst.While, cst.With, cst.Try))


def _lone_call(statement: cst.CSTNode) -> cst.Call | None:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    value = small.value if isinstance(small, (cst.Expr, cst.Assign)) else None
    return value if isinstance(value, cst.Call) else None


def _lines(site: Site, nodes: Sequence[cst.CSTNode]) -> str:
    numbers = sorted({site.positions.span(each).line for each in nodes})[:3]
    return f"line{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}" if numbers else ""
