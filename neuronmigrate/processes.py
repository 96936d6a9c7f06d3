"""Whether the process group stands where a piece of code runs.

The legacy functions that ask for ranks, or wait for the other processes, answered at any time. Those of
`torch.distributed` raise before `init_process_group`, so what replaces them depends on the order.
"""

from __future__ import annotations

import enum
import re
from weakref import WeakKeyDictionary

import libcst as cst
import libcst.matchers as m

from neuronmigrate import edits
from neuronmigrate.flow import UseKind
from neuronmigrate.names import Kind, Names, ScopeKind
from neuronmigrate.site import Site

_STARTS = frozenset({"deepspeed.init_distributed", "torch.distributed.init_process_group"})
# Libraries that may start it on their own.
_MAY_START = frozenset(
    {"accelerate", "deepspeed", "lightning", "neuronx_distributed", "pytorch_lightning", "transformers"}
)
_ENDS = "torch.distributed.destroy_process_group"
_TEST = "torch.distributed.is_initialized"
_Block = cst.IndentedBlock | cst.SimpleStatementSuite | cst.Module


XLA_BACKENDS = frozenset({"xla", "xla://", "pjrt://"})
REGISTERS = {
    "torch_xla.distributed.xla_backend": 'it registers the process group "xla"',
    "torch_xla.experimental.pjrt_backend": "it registers the rendezvous pjrt://",
    "torch_xla.experimental.xla_backend": 'it registers the process group "xla"',
}
"""Modules that are imported for what they register, so that they look unused."""
_SEVERAL = frozenset(
    {
        "accelerate.notebook_launcher",
        "torch.distributed.init_process_group",
        "torch.multiprocessing.spawn",
        "torch_xla.distributed.xla_multiprocessing.spawn",
        "torch_xla.launch",
    }
)
"""Calls that tell of several processes."""
_ASKS = (
    "torch.distributed.",
    "torch.utils.data.DistributedSampler",
    "torch.utils.data.distributed.",
    "torch_xla.core.xla_model.get_local_ordinal",
    "torch_xla.core.xla_model.get_ordinal",
    "torch_xla.core.xla_model.is_master_ordinal",
    "torch_xla.core.xla_model.rendezvous",
    "torch_xla.core.xla_model.xrt_world_size",
    "torch_xla.distributed.",
    "torch_xla.runtime.",
)

_ABOUT_RANKS = re.compile(r"(?:^|_)(?:rank|ordinal|master|main_process|chief|leader)")
_A_RANK = re.compile(r"(?:get_)?(?:global_|local_|world_)?(?:rank|ordinal)")
_A_MASTER = re.compile(r"(?:is_)?(?:global_|local_)?(?:main|master)(?:_process|_ordinal|_rank)?")
GROUPS = {
    "torch.distributed.init_process_group": (
        "backend",
        "init_method",
        "timeout",
        "world_size",
        "rank",
        "store",
        "group_name",
    ),
    "torch.distributed.new_group": ("ranks", "timeout", "backend"),
}
"""What starts or makes a process group, and its parameters."""


def xla_starts(site: Site) -> dict[cst.Call, list[cst.SimpleString]]:
    """The calls that start or make a process group of torch_xla, and the strings that name it alone.

    A string that names the device as well is left to whoever rewrites devices.
    """
    found = {}
    for call in site.names.calls:
        name = site.name_of(call.func)
        if name in GROUPS:
            backend = edits.arguments(call, GROUPS[name]).value("backend")
            texts = [] if backend is None else _xla_texts(site, backend)
            if texts:
                found[call] = [each for each in texts if _only_names_groups(site, each)]
    return found


def _xla_texts(site: Site, backend: cst.BaseExpression) -> list[cst.SimpleString]:
    """The strings `"xla"` that may be the value of an expression."""
    if isinstance(backend, cst.IfExp):
        return [*_xla_texts(site, backend.body), *_xla_texts(site, backend.orelse)]
    if isinstance(backend, cst.SimpleString):
        return [backend] if backend.evaluated_value == "xla" else []
    fallback = _fallback(site, backend)
    if fallback is not None:
        return _xla_texts(site, fallback)
    made = [each.node for each in site.flow.origin_of(backend).producers]
    made += [
        found
        for each in made
        if isinstance(each, cst.BaseExpression) and (found := _fallback(site, each)) is not None
    ]
    return [each for each in made if isinstance(each, cst.SimpleString) and each.evaluated_value == "xla"]


def _fallback(site: Site, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """`"xla"` in `os.environ.get("BACKEND", "xla")`."""
    if isinstance(value, cst.Call) and site.name_of(value.func) in ("os.environ.get", "os.getenv"):
        return edits.arguments(value, ("key", "default")).value("default")
    return None


def comes_from_outside(site: Site, backend: cst.BaseExpression) -> bool:
    """Whether the name of a backend may be something that stands in no string of this file."""
    if isinstance(backend, cst.IfExp):
        return comes_from_outside(site, backend.body) or comes_from_outside(site, backend.orelse)
    if isinstance(backend, cst.SimpleString):
        return False
    made = site.flow.origin_of(backend)
    return not made.certain or not all(isinstance(each.node, cst.SimpleString) for each in made.producers)


def _only_names_groups(site: Site, text: cst.BaseExpression) -> bool:
    arg = site.parent(text)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    if isinstance(call, cst.Call) and _fallback(site, call) is text:
        return _only_names_groups(site, call)
    uses = site.flow.uses_of(text)
    for use in uses.uses:
        arg = site.parent(use.node)
        call = site.parent(arg) if isinstance(arg, cst.Arg) else None
        if use.kind is UseKind.BOUND or (isinstance(call, cst.Call) and site.name_of(call.func) in GROUPS):
            continue
        return False
    return not uses.lost


SPAWNS = {
    "torch_xla.distributed.xla_multiprocessing.spawn": (
        "fn",
        "args",
        "nprocs",
        "join",
        "daemon",
        "start_method",
    ),
    "torch_xla.launch": ("fn", "args", "start_method", "debug_single_process"),
}
"""What started processes, and its parameters."""
_UNDER_TORCHRUN = frozenset({"LOCAL_RANK", "RANK", "WORLD_SIZE"})
_START_BY_THEMSELVES = frozenset({"accelerate.Accelerator", "accelerate.PartialState"})


class When(enum.IntEnum):
    """Whether code runs in the processes that a spawn started."""

    NEVER = 0
    PERHAPS = 1
    ALWAYS = 2


def own_starts(site: Site, spawn: cst.Call) -> dict[cst.Call, When]:
    """The calls that start a process group in spawned processes, or before, and how certainly they run."""
    roots: set[cst.CSTNode] = set()
    known = True
    name = next((name for name in SPAWNS if site.name_of(spawn.func) == name), "")
    function = edits.arguments(spawn, SPAWNS[name]).value("fn") if name else None
    if function is not None:
        roots, known = _functions_in(site, function)
    roots |= {each for each in site.ancestors(spawn) if isinstance(each, (cst.FunctionDef, cst.Lambda))}
    found: dict[cst.Call, When] = {}
    for call in site.names.calls:
        if not site.gone.isdisjoint(site.ancestors(call)):
            continue
        called = site.name_of(call.func)
        if called in _STARTS or called in _START_BY_THEMSELVES:
            when = When.ALWAYS if called in _START_BY_THEMSELVES else _when(site, call, roots, known, set())
            if when is not When.NEVER:
                # A function that comes from elsewhere may well be what reaches a start of this module.
                found[call] = when if known else When.ALWAYS
    return found


def is_of_another_device(site: Site, start: cst.Call) -> bool:
    """Whether a group is certainly not for the native device."""
    if site.name_of(start.func) != "torch.distributed.init_process_group":
        return False
    backend = edits.arguments(start, GROUPS["torch.distributed.init_process_group"]).value("backend")
    return isinstance(backend, cst.SimpleString) and backend.evaluated_value in ("gloo", "mpi", "nccl", "ucc")


def needs_group(site: Site, spawn: cst.Call) -> bool:
    """Whether processes that are started here have a group by torch_xla alone."""
    name = site.name_of(spawn.func) or ""
    count = edits.arguments(spawn, SPAWNS[name]).value("nprocs") if name in SPAWNS else None
    if is_one(count) or branch_of(site, spawn) == "without torchrun":
        return False
    return When.ALWAYS not in own_starts(site, spawn).values()


def is_one(count: cst.BaseExpression | None) -> bool:
    """Whether a number of processes is one."""
    return count is not None and edits.code_of(count) == "1"


def starts_perhaps(site: Site) -> set[cst.Call]:
    """Starts behind a flag in processes that found each other without one."""
    perhaps: set[cst.Call] = set()
    for use in site.uses:
        if use.claim in SPAWNS and use.call is not None and not use.method and needs_group(site, use.call):
            starts = own_starts(site, use.call)
            perhaps |= {each for each in starts if not is_of_another_device(site, each)}
    return perhaps


def _functions_in(site: Site, expression: cst.BaseExpression) -> tuple[set[cst.CSTNode], bool]:
    """The functions of this module that are handed to a spawn, and whether those are all that may be."""
    if isinstance(expression, cst.Lambda):
        return {expression}, True
    if isinstance(expression, cst.Call) and site.name_of(expression.func) == "functools.partial":
        return _functions_in(site, expression.args[0].value) if expression.args else (set(), False)
    if site.name_of(expression) is not None:
        return set(), True
    bindings = site.names.bindings_at(expression) if isinstance(expression, cst.Name) else ()
    functions: set[cst.CSTNode] = {each.node for each in bindings if isinstance(each.node, cst.FunctionDef)}
    return functions, bool(bindings) and len(functions) == len(bindings)


def _when(
    site: Site, node: cst.CSTNode, roots: set[cst.CSTNode], known: bool, seen: set[cst.CSTNode]
) -> When:
    """Whether a node runs in functions, or in what they call, or when the module is run."""
    limit = When.ALWAYS
    current = node
    for around in site.ancestors(node):
        if isinstance(around, cst.If):
            if current is not around.test and not (
                _holds_in_spawned(site, around) or _starts_either_way(site, around, current)
            ):
                limit = When.PERHAPS
        elif isinstance(
            around, (cst.IfExp, cst.For, cst.While, cst.ExceptHandler, cst.BooleanOperation, cst.Match)
        ):
            limit = When.PERHAPS
        if around in roots:
            return limit
        if isinstance(around, (cst.FunctionDef, cst.Lambda)):
            if isinstance(around, cst.Lambda) or around in seen:
                return When.NEVER
            seen.add(around)
            reached = [_when(site, each, roots, known, seen) for each in _callers(site, around)]
            if not reached and not known:
                return limit
            return min(limit, max(reached, default=When.NEVER))
        current = around
    return limit


def _callers(site: Site, function: cst.FunctionDef) -> list[cst.CSTNode]:
    """Where a function is named; for a method, where its name is called, or its class is."""
    bindings = site.names.bound_by(function)
    if bindings and bindings[0].scope.kind is ScopeKind.CLASS:
        named: list[cst.CSTNode] = [
            call
            for call in site.names.calls
            if isinstance(call.func, cst.Attribute) and call.func.attr.value == function.name.value
        ]
        owner = next((each for each in site.ancestors(function) if isinstance(each, cst.ClassDef)), None)
        if function.name.value != "__init__" or owner is None:
            return named
        bindings = site.names.bound_by(owner)
    return [node for binding in bindings for node in site.names.references(binding)]


def _starts_either_way(site: Site, around: cst.If, side: cst.CSTNode) -> bool:
    """Whether the other side of a test starts a group as well."""
    other = around.orelse if side is around.body else around.body
    return other is not None and any(
        other in site.ancestors(call) for call in site.names.calls if site.name_of(call.func) in _STARTS
    )


def _holds_in_spawned(site: Site, around: cst.If) -> bool:
    """Whether a test is about the launcher, the module or the group, and not a choice of the user."""
    if _is_main_guard(around) or asks_for_torchrun(around.test):
        return True
    test = around.test
    return (
        isinstance(test, cst.UnaryOperation)
        and isinstance(test.expression, cst.Call)
        and site.name_of(test.expression.func) == _TEST
    )


def branch_of(site: Site, call: cst.Call) -> str:
    """Whether a test of the launcher's variables keeps torchrun away from a call."""
    current: cst.CSTNode = call
    for around in site.ancestors(call):
        if isinstance(around, cst.If) and current is not around.test and asks_for_torchrun(around.test):
            return (
                "with torchrun"
                if (current is around.body) == _is_positive(around.test)
                else "without torchrun"
            )
        if isinstance(around, (cst.FunctionDef, cst.Lambda)):
            break
        current = around
    return ""


def _is_positive(test: cst.BaseExpression) -> bool:
    """Whether a test of a variable is true when the variable is there."""
    if isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
        return not _is_positive(test.expression)
    operators = [each.operator for each in test.comparisons] if isinstance(test, cst.Comparison) else []
    return not any(isinstance(each, (cst.Is, cst.NotIn, cst.Equal)) for each in operators)


def asks_for_torchrun(test: cst.BaseExpression) -> bool:
    """Whether a test asks for the variables that torchrun sets."""
    strings = m.findall(test, m.SimpleString())
    return any(
        isinstance(each, cst.SimpleString) and each.evaluated_value in _UNDER_TORCHRUN for each in strings
    )


def runs_alone(site: Site) -> bool:
    """Whether a file is a whole program that nothing tells to be run by several processes."""
    for call in site.names.calls:
        name = site.name_of(call.func)
        if name is not None and (name in _SEVERAL or name.startswith(_ASKS)):
            return False
    if any(use.claim.startswith(_ASKS) or use.name.startswith(_ASKS) for use in site.uses):
        return False
    texts = {edits.code_of(each).strip("\"'") for each in site.nodes(cst.SimpleString)}
    if texts & {"RANK", "LOCAL_RANK", "WORLD_SIZE", "--local-rank", "--local_rank"}:
        return False
    others = [facts for _, facts in site.project.modules if facts.module != site.names.module_name]
    return not others and _is_script(site)


def _is_script(site: Site) -> bool:
    """Whether a file does something when it is run, not only when it is imported."""
    for statement in site.module.body:
        if isinstance(statement, cst.If) and "__name__" in edits.code_of(statement.test):
            return True
        if isinstance(statement, (cst.For, cst.While, cst.With)):
            return True
        if isinstance(statement, cst.SimpleStatementLine) and any(
            isinstance(small, cst.Expr) and isinstance(small.value, cst.Call) for small in statement.body
        ):
            return True
    return False


def is_about_ranks(test: cst.BaseExpression) -> bool:
    """Whether a test asks, by the names in it, which process this is."""
    todo: list[cst.CSTNode] = [test]
    while todo:
        node = todo.pop()
        if isinstance(node, cst.Name) and _ABOUT_RANKS.search(node.value):
            return True
        todo.extend(node.children)
    return False


def is_on_first_alone(site: Site, node: cst.CSTNode, of_all: bool) -> bool:
    """Whether a test around a node lets through the first process alone, of each host or of all."""
    current = node
    for around in site.ancestors(node):
        if isinstance(around, cst.If) and current is around.body and _is_first(around.test, of_all):
            return True
        if isinstance(around, (cst.FunctionDef, cst.Lambda)):
            return False
        current = around
    return False


def _is_first(test: cst.BaseExpression, of_all: bool) -> bool:
    """Whether a test is true on the first process alone, of each host or of all.

    A rank within tensor parallelism, or `rank != 0`, says something else.
    """
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return _is_first(test.left, of_all) or _is_first(test.right, of_all)
    if isinstance(test, cst.Comparison):
        other = test.comparisons[0]
        if len(test.comparisons) > 1 or not isinstance(other.operator, cst.Equal):
            return False
        if edits.code_of(other.comparator) != "0":
            return False
        test, pattern = test.left, _A_RANK
    else:
        pattern = _A_MASTER
    func = test.func if isinstance(test, cst.Call) else test
    name = func.attr.value if isinstance(func, cst.Attribute) else edits.code_of(func)
    if pattern.fullmatch(name) is None:
        return False
    # `is_master_ordinal()` asks for the first process of the host.
    of_host = "local" in name or (name == "is_master_ordinal" and "False" not in edits.code_of(test))
    return not (of_all and of_host)


class Group(enum.Enum):
    """What is certain about the process group at one place."""

    STANDS = "it was started before"
    ABSENT = "it is started later, if at all"
    UNKNOWN = "that depends on who calls"


def group_at(site: Site, node: cst.CSTNode) -> Group:
    """Whether the process group was certainly started when a node runs, or certainly not."""
    order = _ORDERS.get(site.names)
    if order is None:
        order = _ORDERS[site.names] = _Order(site)
    return order.at(node)


class _Order:
    """The order of starting the group and of everything else, in one module."""

    def __init__(self, site: Site) -> None:
        self.names = site.names
        self.positions = site.positions
        self.starts: set[cst.Call] = set()
        self.tests: set[cst.Call] = set()
        self.ends: list[cst.Call] = []
        self.local: dict[cst.Call, cst.FunctionDef] = {}
        may_start: set[cst.Call] = set()
        for call in site.names.calls:
            name = site.name_of(call.func)
            if name is None:
                function = self._function_called(call)
                if function is not None:
                    self.local[call] = function
            elif name in _STARTS:
                self.starts.add(call)
            elif name == _TEST:
                self.tests.add(call)
            elif name == _ENDS:
                self.ends.append(call)
            elif name.partition(".")[0] in _MAY_START:
                may_start.add(call)
        self.is_script = any(_is_main_guard(statement) for statement in site.module.body)
        self.holding = self._holders(self.starts | may_start)
        self.known: dict[cst.FunctionDef, Group] = {}
        # Functions that are being looked at: recursion has to end.
        self.asking: set[cst.CSTNode] = set()
        self.entering: set[cst.CSTNode] = set()

    def _holders(self, calls: set[cst.Call]) -> set[cst.CSTNode]:
        """The statements that may start the group, themselves or through functions of this module."""
        holding: set[cst.CSTNode] = set()
        functions: set[cst.CSTNode] = set()
        callers: dict[cst.FunctionDef, list[cst.Call]] = {}
        for call, function in self.local.items():
            callers.setdefault(function, []).append(call)
        todo = list(calls)
        while todo:
            for around in self.names.ancestors(todo.pop()):
                if isinstance(around, cst.Lambda):
                    break
                if isinstance(around, cst.FunctionDef):
                    if around not in functions:
                        functions.add(around)
                        todo += callers.get(around, [])
                    break
                holding.add(around)
        return holding

    def at(self, node: cst.CSTNode) -> Group:
        """What is certain at a node."""
        current = node
        may_have_run = False
        for around in self.names.ancestors(node):
            if isinstance(around, cst.Lambda) and current is around.body:
                return Group.UNKNOWN
            if isinstance(around, cst.FunctionDef) and current is around.body:
                return self._at_calls(around)
            if isinstance(around, (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)):
                found, earlier = self._in_block(around, current)
                if found is not None:
                    return Group.UNKNOWN if self._ended_before(node) else found
                may_have_run = may_have_run or earlier
            current = around
        return Group.UNKNOWN if may_have_run else Group.ABSENT

    def _in_block(self, block: _Block, current: cst.CSTNode) -> tuple[Group | None, bool]:
        """What the statements of a block say about one of them, and whether the group may stand there."""
        if not self.holding:
            return None, False
        # What stands further down in a loop may have run in an earlier round.
        may_have_run = passed = False
        looping = self._is_repeated(block)
        for statement in block.body:
            passed = passed or statement is current
            if statement not in self.holding:
                continue
            if self._starts(statement):
                if not passed:
                    return Group.STANDS, True
                # Code that asks whether the group stands may find it there.
                if looping or may_have_run or self.tests:
                    return None, True
                return Group.ABSENT, False
            may_have_run = may_have_run or not passed or looping
        return None, may_have_run

    def _is_repeated(self, block: _Block) -> bool:
        """Whether a block runs several times while its function runs once."""
        for around in self.names.ancestors(block):
            if isinstance(around, (cst.FunctionDef, cst.Lambda)):
                return False
            if isinstance(around, (cst.For, cst.While)):
                return True
        return False

    def _at_calls(self, function: cst.FunctionDef) -> Group:
        """What is certain in the body of a function: what holds at its definition or at each call."""
        known = self.known.get(function)
        if known is not None:
            return known
        if not self.starts:
            return Group.UNKNOWN
        if function in self.asking:
            return Group.STANDS
        self.asking.add(function)
        try:
            answer = self._worst_call(function)
        finally:
            self.asking.discard(function)
        if not self.asking:
            # Inside a recursion the answer leans on a question that is still open.
            self.known[function] = answer
        return answer

    def _worst_call(self, function: cst.FunctionDef) -> Group:
        if self.at(function) is Group.STANDS:
            return Group.STANDS
        bindings = self.names.bound_by(function)
        if not self.is_script or not bindings or bindings[0].scope.kind is ScopeKind.CLASS:
            return Group.UNKNOWN
        references = [node for binding in bindings for node in self.names.references(binding)]
        for node in references:
            call = self.names.parent(node)
            if not isinstance(call, cst.Call) or call.func is not node:
                return Group.UNKNOWN
            if self.at(call) is not Group.STANDS:
                return Group.UNKNOWN
        return Group.STANDS if references else Group.UNKNOWN

    def _starts(self, statement: cst.CSTNode) -> bool:
        """Whether the group stands once a statement has run to its end."""
        if statement not in self.holding:
            return False
        if isinstance(statement, cst.SimpleStatementLine):
            return any(self._starts(small) for small in statement.body)
        if isinstance(statement, (cst.Expr, cst.Assign, cst.AnnAssign)):
            value = statement.value
            return isinstance(value, cst.Call) and self._call_starts(value)
        if isinstance(statement, cst.If):
            if not self._block_starts(statement.body):
                return False
            if statement.orelse is None:
                return self._asks_for_absence(statement.test)
            other = statement.orelse
            return self._starts(other) if isinstance(other, cst.If) else self._block_starts(other.body)
        if isinstance(statement, cst.With):
            return self._block_starts(statement.body)
        if isinstance(statement, cst.Try):
            return self._block_starts(statement.body) and all(
                _always_leaves(handler.body) for handler in statement.handlers
            )
        return False

    def _block_starts(self, block: cst.BaseSuite) -> bool:
        return any(self._starts(statement) for statement in block.body)

    def _call_starts(self, call: cst.Call) -> bool:
        if call in self.starts:
            return True
        function = self.local.get(call)
        if function is None or function in self.entering:
            return False
        self.entering.add(function)
        try:
            starting = next((each for each in function.body.body if self._starts(each)), None)
        finally:
            self.entering.discard(function)
        scope = self.names.scope_made_by(function)
        if starting is None or scope is None:
            return False
        begin = self.positions.span(starting)
        return all(self.positions.span(each) > begin for each in scope.returns)

    def _function_called(self, call: cst.Call) -> cst.FunctionDef | None:
        """The function of this module that a call certainly calls."""
        if not isinstance(call.func, cst.Name):
            return None
        bindings = self.names.bindings_at(call.func)
        if len(bindings) != 1 or bindings[0].kind is not Kind.FUNCTION:
            return None
        function = bindings[0].node
        return function if isinstance(function, cst.FunctionDef) else None

    def _asks_for_absence(self, test: cst.BaseExpression) -> bool:
        return isinstance(test, cst.UnaryOperation) and test.expression in self.tests

    def _ended_before(self, node: cst.CSTNode) -> bool:
        frame = self.names.scope(node).frame
        return any(
            self.names.scope(call).frame is frame and self.positions.span(call) < self.positions.span(node)
            for call in self.ends
        )


_ORDERS: WeakKeyDictionary[Names, _Order] = WeakKeyDictionary()


def _is_main_guard(statement: cst.CSTNode) -> bool:
    if not isinstance(statement, cst.If) or not isinstance(statement.test, cst.Comparison):
        return False
    sides = (statement.test.left, *(each.comparator for each in statement.test.comparisons))
    return any(isinstance(side, cst.Name) and side.value == "__name__" for side in sides)


def _always_leaves(block: cst.BaseSuite) -> bool:
    last = block.body[-1] if block.body else None
    small = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
    return isinstance(small, (cst.Raise, cst.Return, cst.Continue, cst.Break))
