"""Named meetings of all processes: `xm.rendezvous("checkpoint saved")`.

With a tag alone, as a statement, it becomes `dist.barrier()`: plain where the process group was surely
started before, else behind `dist.is_initialized()`, since the old one returned at once where there was
nobody to wait for. The tag goes.

The native barrier is a real one. A pair in which each process meets exactly one (`if not master:` it
waits, then `if master:` it waits) still works. One that only some processes reach, or that stands in an
`except` or `finally`, is rewritten and said, because the others then wait forever. With a payload, or with
its result in use, it is an exchange of data, which a helper makes. One of some processes is marked.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.processes import Group, group_at, is_about_ranks
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

MEETING = "torch_xla.core.xla_model.rendezvous"
EXCHANGE = "torch_xla.core.xla_model.xla_rendezvous"
EXCHANGE_TODO = (
    "the payloads travel as objects: on the device each size of them is compiled anew, so give them a group "
    'of their own, `dist.new_group(backend="gloo")`'
)
EXCHANGE_PAYLOADS = '''\
def {name}(payload=b""):
    """What all processes have to say, in the order of their ranks; they wait for each other."""
    if not torch.distributed.is_initialized():
        return [payload]
    payloads = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(payloads, payload)
    return payloads
'''
PARAMETERS = {
    EXCHANGE: ("payload", "ordinals", "tag"),
    MEETING: ("tag", "payload", "replicas"),
}
SOME_TODO = (
    "let every process create `group = dist.new_group(ranks)`, and those ranks all-reduce one element over "
    "it: the native barrier knows the default group only"
)


@dataclass(frozen=True)
class Condition:
    """Which processes get somewhere: those for which a test is true, or false."""

    test: str
    wanted: bool


@codemod.uses([EXCHANGE, MEETING])
def decide(site: Site, use: Use) -> None:
    """Put a barrier in its place, or say why it is none."""
    call = use.call
    if call is None or use.method:
        todo = "pass `torch.distributed.barrier`, which takes no tag"
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(call, PARAMETERS[use.claim])
    tag, payload = bound.value("tag"), bound.value("payload")
    if (tag is None and use.claim == MEETING) or bound.spread or bound.extra:
        site.mark(call, use.name, "its tag cannot be seen from here", "write `torch.distributed.barrier()`")
        return
    for name in ("ordinals", "replicas"):
        given = bound.value(name)
        if given is not None and not _is_empty(given):
            site.mark(call, use.name, "only some processes meet here", SOME_TODO)
            return
    alone = site.alone(call)
    said = payload is not None and not _is_empty(payload)
    tag = tag if tag is not None else cst.Name("None")
    if not is_harmless(tag, site.name_of):
        why = f"its tag `{edits.short(tag)}` is worked out by a call that may do more"
        site.mark(call, use.name, why, "write `torch.distributed.barrier()`, with that call before it")
        return
    if said or alone is None:
        _exchange(site, use, call, tag, payload if said else None)
        return
    for arg in call.args:
        forget(site, arg)
    group = site.group(use)
    if group_at(site, call) is Group.STANDS:
        group.replace(call, group.expression("torch.distributed.barrier()"))
        why = "all processes wait for each other, and the process group was started before this"
    else:
        template = "if torch.distributed.is_initialized():\n    torch.distributed.barrier()\n"
        group.replace_statement(alone, group.statements(template))
        why = "all processes wait for each other if a process group was started"
    warning = _warning(site, use, call)
    if warning:
        group.review(call, use.name, why, warning)
    else:
        group.fixed(call, use.name, why)


def _exchange(
    site: Site, use: Use, call: cst.Call, tag: cst.BaseExpression, payload: cst.BaseExpression | None
) -> None:
    """Let a helper collect what all processes say."""
    group = site.group(use)
    helper = group.helper("exchange_payloads", EXCHANGE_PAYLOADS, shim="gather_object")
    if payload is None and site.settings.shim:
        payload = cst.SimpleString('b""')
    args = [] if payload is None else [cst.Arg(payload)]
    group.replace(call, edits.with_arguments(call.with_changes(func=helper), args))
    forget(site, tag)
    why = "a helper collects the payloads of all processes"
    # The helper of the runtime sends few sizes.
    sizes = "" if site.settings.shim else EXCHANGE_TODO
    todo = "; ".join(each for each in (sizes, _warning(site, use, call)) if each)
    if todo:
        group.review(call, use.name, why, todo)
    else:
        group.fixed(call, use.name, why)


def _is_empty(value: cst.BaseExpression) -> bool:
    return edits.code_of(value).lower() in ('b""', "b''", "[]", "()", "none")


def _warning(site: Site, use: Use, call: cst.Call) -> str:
    """What to look at, because the processes may not all get here."""
    for around in site.ancestors(call):
        if isinstance(around, (cst.ExceptHandler, cst.ExceptStarHandler, cst.Finally)):
            where = "finally" if isinstance(around, cst.Finally) else "except"
            return f"it stands in `{where}`: a process that gets here alone waits forever"
        if isinstance(around, (cst.FunctionDef, cst.Lambda)):
            break
    condition = _condition(site, call)
    if condition is None:
        return ""
    tag = _tag(call)
    partners = [
        _condition(site, other.call)
        for other in site.uses
        if other is not use
        and other.claim == MEETING
        and other.call is not None
        and site.names.function_of(other.call) is site.names.function_of(call)
        and _tag(other.call) == tag
    ]
    if partners == [Condition(condition.test, not condition.wanted)]:
        return ""
    if len(partners) == 1 and partners[0] is not None:
        return f"make sure that each process meets exactly one of the two barriers that were called {tag}"
    which = "" if condition.wanted else "not "
    return (
        f"only processes with `{condition.test}` {which}true reach it, and nothing else here was called "
        f"{tag}: without a partner it waits forever, as it did before"
    )


def _tag(call: cst.Call) -> str:
    tag = edits.arguments(call, ("tag",)).value("tag")
    return "" if tag is None else edits.code_of(tag).replace("'", '"')


def _condition(site: Site, node: cst.CSTNode) -> Condition | None:
    """The innermost question about the rank that decides whether a process gets to a node."""
    current = node
    for around in site.ancestors(node):
        if isinstance(around, cst.If) and current is not around.test and is_about_ranks(around.test):
            return _asked(around.test, current is around.body)
        if isinstance(around, (cst.IndentedBlock, cst.Module)):
            for statement in around.body:
                if statement is current:
                    break
                if (
                    isinstance(statement, cst.If)
                    and statement.orelse is None
                    and is_about_ranks(statement.test)
                    and _leaves(statement.body)
                ):
                    return _asked(statement.test, False)
        if isinstance(around, (cst.FunctionDef, cst.Lambda)):
            return None
        current = around
    return None


def _asked(test: cst.BaseExpression, wanted: bool) -> Condition:
    """The condition without `not` and without a comparison with 0."""
    while isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        test, wanted = test.expression, not wanted
    if isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
        only = test.comparisons[0]
        if edits.code_of(only.comparator) == "0":
            text = f"{edits.short(test.left)} == 0"
            if isinstance(only.operator, cst.Equal):
                return Condition(text, wanted)
            if isinstance(only.operator, (cst.NotEqual, cst.GreaterThan)):
                return Condition(text, not wanted)
    return Condition(edits.short(test.with_changes(lpar=[], rpar=[])), wanted)


def _leaves(block: cst.BaseSuite) -> bool:
    last = block.body[-1] if block.body else None
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(small, (cst.Return, cst.Continue, cst.Break, cst.Raise))
