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

import libcst as cst
import libcst.matchers as m

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

SPAWN = "torch_xla.distributed.xla_multiprocessing.spawn"
LAUNCH = "torch_xla.launch"
WRAPPER = "torch_xla.distributed.xla_multiprocessing.MpModelWrapper"
PARAMETERS = {
    LAUNCH: ("fn", "args", "start_method", "debug_single_process"),
    SPAWN: ("fn", "args", "nprocs", "join", "daemon", "start_method"),
}
STARTS = frozenset(
    {"accelerate.Accelerator", "accelerate.PartialState", "torch.distributed.init_process_group"}
)
ASKED = frozenset({"LOCAL_RANK", "RANK", "WORLD_SIZE"})


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


@codemod.uses(PARAMETERS)
def decide(site: Site, use: Use) -> None:
    """Call the function once; torchrun starts the processes."""
    call = use.call
    if call is None or use.method:
        todo = "call the function itself, and start the script with torchrun"
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(call, PARAMETERS[use.claim])
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
    one = count is not None and edits.code_of(count) == "1"
    where = _branch(site, call)
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
    started = where != "without torchrun" and _start_group(site, group, alone)
    if started:
        why += ", once the process group that the old processes had by themselves is started"
    number = "auto" if count is None or edits.code_of(count) == "None" else edits.short(count)
    todo = f"start the script with `torchrun --nproc-per-node={number}`: without it, it runs as one process"
    if use.claim == LAUNCH:
        todo += "; the index it gets is that within the host"
    group.review(call, use.name, why, todo)


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


def _branch(site: Site, call: cst.Call) -> str:
    """Whether a test of the launcher's variables keeps torchrun away from a call."""
    current: cst.CSTNode = call
    for around in site.ancestors(call):
        if isinstance(around, cst.If) and current is not around.test and _asks_for_torchrun(around.test):
            return (
                "with torchrun"
                if (current is around.body) == _is_positive(around.test)
                else "without torchrun"
            )
        if isinstance(around, (cst.FunctionDef, cst.Lambda)):
            break
        current = around
    return ""


def _asks_for_torchrun(test: cst.BaseExpression) -> bool:
    strings = m.findall(test, m.SimpleString())
    return any(isinstance(each, cst.SimpleString) and each.evaluated_value in ASKED for each in strings)


def _is_positive(test: cst.BaseExpression) -> bool:
    """Whether a test of a variable is true when the variable is there."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return not _is_positive(test.expression)
    operators = [each.operator for each in test.comparisons] if isinstance(test, cst.Comparison) else []
    return not any(isinstance(each, (cst.Is, cst.NotIn, cst.Equal)) for each in operators)


def _start_group(site: Site, group: Group, alone: cst.Expr) -> bool:
    """Start a process group where the program starts none."""
    if any(site.name_of(call.func) in STARTS for call in site.names.calls):
        return False
    line = site.parent(alone)
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    if site.notes.setdefault("group started", set()):
        return False
    site.notes["group started"].add(line)
    template = 'if "RANK" in os.environ:\n    torch.distributed.init_process_group("neuron")\n'
    group.insert(line, group.statements(template))
    return True
