"""Questions about ranks, such as `xm.get_ordinal()` and `xm.is_master_ordinal()`, and `xm.master_print()`.

The legacy functions answer at any time; `torch.distributed` raises before the process group stands. So
behind an `init_process_group` that surely ran `dist.get_rank()` is written, before it the variable that
the launcher sets, and where both may be the case a conditional, or one helper function in a file that
asks more than twice. The rank within the host is always `LOCAL_RANK`. `is_master_ordinal()` asks for the
host's first process and `master_print()` for that of the whole job, unless `local=` says otherwise.

A function that is passed on instead of called is marked, and so are arguments nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import is_harmless
from neuronmigrate.processes import Group as ProcessGroup
from neuronmigrate.processes import group_at
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)


@dataclass(frozen=True)
class Question:
    """Something to ask about the process, and who knows."""

    function: str
    """Of torch.distributed; empty when only the launcher knows."""
    variable: str
    default: str
    about: str

    @property
    def environment(self) -> str:
        return f'int(os.environ.get("{self.variable}", {{default}}))'

    @property
    def group(self) -> str:
        return f"torch.distributed.{self.function}()"

    @property
    def either(self) -> str:
        return f"{self.group} if torch.distributed.is_initialized() else {self.environment}"


RANK = Question(
    "get_rank", "RANK", "0", "The rank of this process in the job, with a process group or without."
)
WORLD = Question(
    "get_world_size", "WORLD_SIZE", "1", "How many processes the job has, with a process group or without."
)
LOCAL = Question("", "LOCAL_RANK", "0", "the rank within the host")
LOCAL_WORLD = Question("", "LOCAL_WORLD_SIZE", "1", "the number of processes of the host")
HOST = Question("", "GROUP_RANK", "0", "the number of the host")

QUESTIONS = {
    "torch_xla.core.xla_model.get_local_ordinal": LOCAL,
    "torch_xla.core.xla_model.get_ordinal": RANK,
    "torch_xla.core.xla_model.xrt_world_size": WORLD,
    "torch_xla.experimental.pjrt.global_ordinal": RANK,
    "torch_xla.experimental.pjrt.local_ordinal": LOCAL,
    "torch_xla.experimental.pjrt.world_size": WORLD,
    "torch_xla.runtime.global_device_count": WORLD,
    "torch_xla.runtime.global_ordinal": RANK,
    "torch_xla.runtime.global_runtime_device_count": WORLD,
    "torch_xla.runtime.host_index": HOST,
    "torch_xla.runtime.local_device_count": LOCAL_WORLD,
    "torch_xla.runtime.local_ordinal": LOCAL,
    "torch_xla.runtime.local_process_count": LOCAL_WORLD,
    "torch_xla.runtime.process_count": WORLD,
    "torch_xla.runtime.process_index": RANK,
    "torch_xla.runtime.world_size": WORLD,
}
MASTER = "torch_xla.core.xla_model.is_master_ordinal"
PRINTS = ("neuronx_distributed.utils.master_print", "torch_xla.core.xla_model.master_print")

KNOWS = {
    ProcessGroup.STANDS: "the process group was started before this, so it can be asked",
    ProcessGroup.ABSENT: "no process group was started before this, so `{}` of the launcher is read",
    ProcessGroup.UNKNOWN: "the process group is asked if there is one, else `{}` of the launcher is read",
}
FEW = 1
"""How often the conditional is written out in one file before a helper function is."""

PRINT_HELPER = '''\
def {{name}}(*values, file=None, flush=False):
    """Print on the first process of the {of}; the others only work the values out."""
    rank = {rank}
    if rank == 0:
        print(*values, file=file, flush=flush)
'''
ASK_HELPER = '''\
def {{name}}():
    """{about}"""
    if torch.distributed.is_initialized():
        return {group}
    return {environment}
'''


@codemod.uses(QUESTIONS)
def decide_question(site: Site, use: Use) -> None:
    """Ask the process group, the environment, or both."""
    question = QUESTIONS[use.claim]
    if use.call is None or use.method:
        site.mark(use.chain, use.name, "the function is passed on, not called", _instead(question))
        return
    bound = edits.arguments(use.call, ("defval",))
    default = bound.value("defval")
    if bound.spread or bound.extra or set(bound.by_name) - {"defval"}:
        site.mark(use.call, use.name, "it is called with arguments it does not have", _instead(question))
        return
    if default is not None and (edits.code_of(default) == "None" or not is_harmless(default, site.name_of)):
        why = f"`{edits.short(default)}` is asked for where nothing is known"
        site.mark(use.call, use.name, why, _instead(question))
        return
    if default is not None and edits.code_of(default) == question.default:
        default = None
    group = site.group(use)
    group.replace(use.call, _answer(site, group, use, question, default))
    group.fixed(use.call, use.name, _knows(site, use, question))


@codemod.uses([MASTER])
def decide_master(site: Site, use: Use) -> None:
    """Compare the rank with 0."""
    todo = 'ask whether `torch.distributed.get_rank()`, or `int(os.environ["LOCAL_RANK"])` per host, is 0'
    if use.call is None or use.method:
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(use.call, ("local",))
    if bound.spread or bound.extra or set(bound.by_name) - {"local"}:
        site.mark(use.call, use.name, "it is called with arguments it does not have", todo)
        return
    group = site.group(use)
    local = bound.value("local") or cst.Name("True")
    around = site.parent(use.call)
    whole: cst.BaseExpression = use.call
    sign = "=="
    if isinstance(around, cst.UnaryOperation) and isinstance(around.operator, cst.Not):
        whole, sign = around, "!="
    group.replace(whole, group.expression(f"{{rank}} {sign} 0", rank=_rank(site, group, use, local)))
    group.fixed(use.call, use.name, _who(site, use, local))


@codemod.uses(PRINTS)
def decide_print(site: Site, use: Use) -> None:
    """Print on one process only."""
    todo = "print where `torch.distributed.get_rank() == 0`"
    if use.call is None or use.method:
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    if not _is_plain(site, use.call):
        site.mark(use.call, use.name, "it is called with arguments that are not known here", todo)
        return
    if site.names.lookup("print", use.call) is not None:
        site.mark(use.call, use.name, "`print` means something else in this file", todo)
        return
    local = edits.arguments(use.call, ()).value("local") or cst.Name("False")
    skipped = _may_skip(site, use.call)
    if not skipped and not edits.is_literal(local):
        why = "which process prints is decided at run time, and each may have to work the arguments out"
        site.mark(use.call, use.name, why, "work them out before, and print them behind a test of the rank")
        return
    group = site.group(use)
    why = _who(site, use, local)
    alone = site.alone(use.call)
    if not skipped:
        of = "host" if edits.code_of(local) == "True" else "job"
        rank = (LOCAL.environment if of == "host" else RANK.either).format(default="0")
        name = "print_once_per_host" if of == "host" else "print_once"
        helper = group.helper(name, PRINT_HELPER.format(of=of, rank=rank))
        group.replace(use.call, _printed(use.call, helper))
        why += "; its arguments are still worked out on every process, which may be what they are for"
    elif alone is not None:
        new = group.statements("if {rank} == 0:\n    pass\n", rank=_rank(site, group, use, local))
        lines = []
        for each in [use, *_followers(site, use, alone, local)]:
            assert each.call is not None
            statement = site.alone(each.call)
            assert statement is not None
            lines.append(_line(_printed(each.call, cst.Name("print"))))
            if each is not use:
                # What is printed right after it stands behind the same test.
                site.settled.add(each)
                group.replace_statement(statement)
                group.fixed(each.call, each.name, why)
        assert isinstance(new[0], cst.If)
        group.replace_statement(alone, [new[0].with_changes(body=cst.IndentedBlock(lines))])
    else:
        holes = {"call": _printed(use.call, cst.Name("print")), "rank": _rank(site, group, use, local)}
        group.replace(use.call, group.expression("{call} if {rank} == 0 else None", **holes))
    group.fixed(use.call, use.name, why)


def _printed(call: cst.Call, function: cst.Name) -> cst.Call:
    """The call of a function that takes what `print` takes, in the layout of the old one."""
    args = [_print_arg(arg) for arg in call.args if arg.keyword is None or arg.keyword.value != "local"]
    return edits.with_arguments(call, args).with_changes(func=function)


def _line(call: cst.Call) -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine([cst.Expr(call)])


def _followers(site: Site, use: Use, alone: cst.Expr, local: cst.BaseExpression) -> list[Use]:
    """The calls that print on the same process right after this one, with nothing in between."""
    line = site.parent(alone)
    block = site.suite(alone)
    assert block is not None
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) > 1:
        return []
    if "neuronmigrate:" in edits.code_of(line):
        # What silences this one does not speak for the next.
        return []
    found = []
    for other in block.body[list(block.body).index(line) + 1 :]:
        follower = next((each for each in site.uses if _is_line_of(site, each, other)), None)
        if follower is None or not follower.certain or not use.certain:
            break
        assert follower.call is not None
        given = edits.arguments(follower.call, ()).value("local")
        if edits.code_of(given or cst.Name("False")) != edits.code_of(local) or not edits.is_literal(local):
            break
        if not all(check(site, follower.call) for check in (_is_plain, _may_skip, _is_quiet)):
            break
        found.append(follower)
    return found


def _is_line_of(site: Site, use: Use, line: cst.CSTNode) -> bool:
    """Whether a line without comments is a call of the printing function and nothing else."""
    if use.claim not in PRINTS or use.call is None or use.method or use.ambiguous:
        return False
    if not isinstance(line, cst.SimpleStatementLine) or line.leading_lines or len(line.body) > 1:
        return False
    return line.trailing_whitespace.comment is None and site.alone(use.call) is line.body[0]


def _is_plain(site: Site, call: cst.Call) -> bool:
    """Whether all arguments are known."""
    named = {arg.keyword.value for arg in call.args if arg.keyword is not None}
    return named <= {"fd", "flush", "local", "msg"} and all(arg.star != "**" for arg in call.args)


def _print_arg(arg: cst.Arg) -> cst.Arg:
    """The same argument for `print`."""
    if arg.keyword is None:
        return arg
    if arg.keyword.value == "fd":
        return arg.with_changes(keyword=cst.Name("file"))
    if arg.keyword.value == "msg":
        return arg.with_changes(keyword=None, equal=cst.MaybeSentinel.DEFAULT)
    return arg


def _may_skip(site: Site, call: cst.Call) -> bool:
    """Whether the other processes may do without working the arguments out."""
    return all(is_harmless(arg.value, site.name_of) for arg in call.args)


def _is_quiet(site: Site, call: cst.Call) -> bool:
    """Whether nothing in a call may get a comment, which has to stay with its statement."""
    foreign = [use.node for use in site.uses if use.claim not in codemod.claimed]
    marked = [answer.node for answer in site.answers]
    return not any(call in site.ancestors(node) for node in (*foreign, *marked))


def _rank(site: Site, group: Group, use: Use, local: cst.BaseExpression) -> cst.BaseExpression:
    """The rank in the job or on the host, as `local` says."""
    if edits.code_of(local) == "True":
        return _answer(site, group, use, LOCAL, None)
    everywhere = _answer(site, group, use, RANK, None)
    if edits.code_of(local) == "False":
        return everywhere
    here = _answer(site, group, use, LOCAL, None)
    return group.expression(
        "{here} if {local} else {everywhere}", here=here, local=local, everywhere=everywhere
    )


def _answer(
    site: Site, group: Group, use: Use, question: Question, default: cst.BaseExpression | None
) -> cst.BaseExpression:
    otherwise = default or cst.Integer(question.default)
    stands = group_at(site, use.whole)
    if not question.function or stands is ProcessGroup.ABSENT:
        return group.expression(question.environment, default=otherwise)
    if stands is ProcessGroup.STANDS:
        return group.expression(question.group)
    if default is None and len(_asked_both(site, question)) > FEW:
        code = ASK_HELPER.format(
            about=question.about,
            group=question.group,
            environment=question.environment.format(default=question.default),
        )
        return cst.Call(group.helper(question.function, code))
    return group.expression(question.either, default=otherwise)


def _asked_both(site: Site, question: Question) -> set[cst.CSTNode]:
    """The calls in this file that ask a question where the group may stand or not."""
    key = f"{codemod.name} {question.variable}"
    if key not in site.notes:
        site.notes[key] = {
            use.call
            for use in site.uses
            if use.call is not None
            and not use.ambiguous
            and _asks(use) is question
            and group_at(site, use.call) is ProcessGroup.UNKNOWN
        }
    return site.notes[key]


def _asks(use: Use) -> Question | None:
    """What a call asks the process group; nothing when it has a default of its own."""
    assert use.call is not None
    if use.claim in QUESTIONS:
        question = QUESTIONS[use.claim]
        default = edits.arguments(use.call, ("defval",)).value("defval")
        return question if default is None or edits.code_of(default) == question.default else None
    if use.claim == MASTER:
        local = edits.arguments(use.call, ("local",)).value("local")
        return RANK if local is not None and edits.code_of(local) != "True" else None
    if use.claim in PRINTS:
        local = edits.arguments(use.call, ()).value("local")
        return RANK if local is None or edits.code_of(local) != "True" else None
    return None


def _knows(site: Site, use: Use, question: Question) -> str:
    if not question.function:
        return f"the launcher sets `{question.variable}`, {question.about}"
    return KNOWS[group_at(site, use.whole)].format(question.variable)


def _who(site: Site, use: Use, local: cst.BaseExpression) -> str:
    if edits.code_of(local) == "True":
        return "the first process of each host is that with `LOCAL_RANK` 0"
    return f"the first process of the job has rank 0; {_knows(site, use, RANK)}"


def _instead(question: Question) -> str:
    if not question.function:
        return f'{question.about} is `int(os.environ["{question.variable}"])`'
    return f"use `{question.group}` where the process group was started"
