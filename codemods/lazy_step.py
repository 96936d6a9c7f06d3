"""Statements that cut the lazy graph, such as `xm.mark_step()` and `torch_xla.sync()`.

The native device runs each operation when it is called, so nothing is pending: the statement goes, and
with it each `if`, `else`, `try` and counting loop that held nothing else and whose header only reads. A
step that waits (`wait=True`, `xm.wait_device_ops()`), or that stands beside memory statistics, a
profiler or a timer, becomes `torch.neuron.synchronize()`. Operations are still queued: a function that
cuts steps and reads a clock gets a synchronize before each reading.

Marked are a step that is passed on as a function, one whose result is used, one that decides at run time
whether it waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from neuronmigrate import catalogue, edits
from neuronmigrate.clocks import calls_in, synchronize_clocks
from neuronmigrate.codemod import Codemod
from neuronmigrate.edits import Statement
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

STEPS = (
    "neuronx_distributed.utils.mark_step",
    "torch_xla.core.xla_model.mark_step",
    "torch_xla.sync",
)
WAIT = "torch_xla.core.xla_model.wait_device_ops"
PROFILERS = frozenset(
    {
        "torch.autograd.profiler.profile",
        "torch.profiler.profile",
        "torch_xla.debug.profiler.start_trace",
        "torch_xla.debug.profiler.stop_trace",
        "torch_xla.debug.profiler.trace",
        "torch_xla.debug.profiler.trace_detached",
    }
)
MEMORY = re.compile(
    r"torch\.(accelerator|cuda|neuron)\.(\w*memory\w*|mem_get_info)|torch_xla\.core\.xla_model\.get_memory_info"
)
TIMER = re.compile(r"(timer|stopwatch|profiler)s?$", re.IGNORECASE)
TIMER_METHODS = frozenset({"elapsed", "lap", "split", "start", "stop", "tic", "toc"})
CONTEXTS = frozenset({"contextlib.nullcontext", "torch.enable_grad", "torch.inference_mode", "torch.no_grad"})

OPPOSITES: tuple[tuple[type[cst.BaseCompOp], type[cst.BaseCompOp]], ...] = (
    (cst.Equal, cst.NotEqual),
    (cst.NotEqual, cst.Equal),
    (cst.Is, cst.IsNot),
    (cst.IsNot, cst.Is),
    (cst.In, cst.NotIn),
    (cst.NotIn, cst.In),
)

RUNS_AT_ONCE = "the native device runs each operation when it is called, so no graph is pending"
Block = cst.IndentedBlock | cst.SimpleStatementSuite | cst.Module


@codemod.uses([*STEPS, WAIT])
def decide(site: Site, use: Use) -> None:
    """Mark a step that is no statement; otherwise decide on all steps of the file together."""
    statement = _statement(site, use)
    if statement is None:
        what = "its result is used" if use.call is not None else "the step is passed on as a function"
        todo = "the native device needs no step: pass `lambda: None`, or drop what asks for one"
        site.mark(use.whole, use.name, what, todo)
        return
    dropped: dict[cst.Expr, Use] = {}
    for each in site.uses:
        if each.claim in codemod.claimed and not each.ambiguous and each not in site.settled:
            own = _statement(site, each)
            if own is not None:
                site.settled.add(each)
                if _is_dropped(site, each, own):
                    dropped[own] = each
    _Removal(site, dropped).decide()


def _statement(site: Site, use: Use) -> cst.Expr | None:
    return None if use.call is None or use.method else site.alone(use.call)


def _is_dropped(site: Site, use: Use, statement: cst.Expr) -> bool:
    """Whether a step goes without a trace; all others are answered here."""
    call = use.call
    assert call is not None
    if not all(is_harmless(arg.value, site.name_of) for arg in call.args):
        todo = "run that first, then write `torch.neuron.synchronize()` if it has to wait, or drop it"
        site.mark(call, use.name, "what is worked out for its arguments may act", todo)
        return False
    if use.claim == WAIT:
        _synchronize(site, use, "waiting for the device is `torch.neuron.synchronize()`")
        return False
    bound = edits.arguments(call, ("wait", "reset_scope"))
    wait = bound.value("wait")
    unknown = wait is not None and edits.code_of(wait) not in ("True", "False")
    if unknown or bound.spread or bound.extra:
        site.mark(
            call,
            use.name,
            "whether it waits for the device is decided at run time",
            "write `torch.neuron.synchronize()` where it has to wait and drop it elsewhere",
        )
        return False
    if wait is not None and edits.code_of(wait) == "True":
        _synchronize(site, use, "a step that waits for the device is `torch.neuron.synchronize()`")
        return False
    beside = _measured_beside(site, statement)
    if beside:
        _synchronize(site, use, f"{beside}, so the device has to be waited for")
        return False
    return True


def _synchronize(site: Site, use: Use, why: str) -> None:
    assert use.call is not None
    group = site.group(use)
    group.replace(use.call, group.expression("torch.neuron.synchronize()"))
    group.fixed(use.call, use.name, why)


def _measured_beside(site: Site, statement: cst.Expr) -> str:
    """What measures the device right before or after a step."""
    before, after = _neighbours(site, statement)
    for call in calls_in(after):
        if MEMORY.fullmatch(site.name_of(call.func) or ""):
            return "memory is measured right after it"
    for call in [*calls_in(before), *calls_in(after)]:
        if _is_profiler(site, call):
            return "a profiler starts or stops beside it"
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in TIMER_METHODS:
            owner = edits.code_of(call.func.value)
            if TIMER.search(owner):
                return f"`{edits.short(call)}` beside it measures time"
    return ""


def _is_profiler(site: Site, call: cst.Call) -> bool:
    if site.name_of(call.func) in PROFILERS:
        return True
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value not in ("start", "stop"):
        return False
    return isinstance(func.value, cst.Name) and any(
        isinstance(binding.value, cst.Call) and site.name_of(binding.value.func) in PROFILERS
        for binding in site.names.bindings_at(func.value)
    )


def _neighbours(site: Site, statement: cst.Expr) -> tuple[cst.CSTNode | None, cst.CSTNode | None]:
    """What runs right before and right after a statement; at the ends of a `with`, that is the `with`."""
    block = site.suite(statement)
    assert block is not None
    run: list[cst.CSTNode] = []
    for each in block.body:
        run.extend(each.body if isinstance(each, cst.SimpleStatementLine) else [each])
    index = run.index(statement)
    owner = site.parent(block)
    edge = owner if isinstance(owner, cst.With) else None
    before = run[index - 1] if index else edge
    after = run[index + 1] if index + 1 < len(run) else edge
    return before, after


class _Removal:
    """Takes all dropped steps of a file out, and what holds nothing else."""

    def __init__(self, site: Site, dropped: dict[cst.Expr, Use]) -> None:
        self.site = site
        self.dropped = dropped
        self.done: set[cst.Expr] = set()

    def decide(self) -> None:
        for statement, use in self.dropped.items():
            if statement not in self.done:
                self._remove(statement, use)

    def _remove(self, statement: cst.Expr, use: Use) -> None:
        top: cst.CSTNode = statement
        while (owner := self._owner(top)) is not None and self._is_gone(owner):
            top = owner
        block = self.site.suite(top)
        assert block is not None
        group = self.site.group(use)
        todo = ""
        emptied = not isinstance(block, cst.Module) and all(map(self._is_gone, block.body))
        if emptied:
            # Everything in the block goes, so it is one decision.
            todo = self._remove_block(group, block)
            region: cst.CSTNode = block
        else:
            self._take_out(group, top)
            region = top
        self._release_imports(group, region)
        members = [each for each in self.dropped if each is region or region in self.site.ancestors(each)]
        self.done.update(members)
        for each in members:
            member = self.dropped[each]
            assert member.call is not None
            group.uncertain = group.uncertain or not member.certain
            clocks = synchronize_clocks(self.site, group, member.call, self._is_gone)
            if clocks:
                group.review(member.call, member.name, RUNS_AT_ONCE, clocks)
            elif todo:
                group.review(member.call, member.name, RUNS_AT_ONCE, todo)
            else:
                group.fixed(member.call, member.name, RUNS_AT_ONCE)
            todo = ""

    def _owner(self, node: cst.CSTNode) -> Statement | None:
        """The compound statement that a statement stands in; of an `elif`, the `if` it belongs to."""
        for around in self.site.ancestors(node):
            if isinstance(around, cst.BaseCompoundStatement):
                return around
        return None

    def _is_gone(self, node: cst.CSTNode) -> bool:
        """Whether nothing of a statement is left without the steps, so that it can go."""
        if isinstance(node, (cst.SimpleStatementLine, cst.SimpleStatementSuite, cst.IndentedBlock)):
            return all(map(self._is_gone, node.body))
        if isinstance(node, cst.Expr):
            return node in self.dropped or _is_text(node)
        if isinstance(node, cst.Pass):
            return True
        if isinstance(node, (cst.Import, cst.ImportFrom)):
            return self._only_for_steps(node)
        if not self._holds_step(node) or node in self.site.decided:
            return False
        if isinstance(node, cst.Else):
            return self._is_gone(node.body)
        if isinstance(node, cst.If):
            rest = node.orelse is None or self._is_gone(node.orelse)
            return rest and self._is_gone(node.body) and is_harmless(node.test, self.site.name_of)
        if isinstance(node, cst.For):
            return self._is_gone(node.body) and self._only_counts(node)
        if isinstance(node, cst.With):
            return self._is_gone(node.body) and all(map(self._does_nothing, node.items))
        if isinstance(node, cst.Try):
            return self._is_gone(node.body) and self._only_logs(node)
        return False

    def _only_for_steps(self, node: cst.Import | cst.ImportFrom) -> bool:
        """Whether an import brings in legacy names that nothing but the dropped steps uses."""
        if isinstance(node.names, cst.ImportStar):
            return False
        names = self.site.names
        for binding in (each for alias in node.names for each in names.bound_by(alias)):
            calls = {use.call for use in self.dropped.values()}
            if not catalogue.is_legacy(binding.target) or binding.scope is names.module_scope:
                return False
            for reference in names.references(binding):
                if not any(call in names.ancestors(reference) for call in calls if call is not None):
                    return False
        return True

    def _holds_step(self, node: cst.CSTNode) -> bool:
        return any(node in self.site.ancestors(statement) for statement in self.dropped)

    def _only_counts(self, loop: cst.For) -> bool:
        """Whether a loop runs over a range, and nothing reads how far it got."""
        names = self.site.names
        if (
            loop.orelse is not None
            or not isinstance(loop.iter, cst.Call)
            or not isinstance(loop.target, cst.Name)
        ):
            return False
        if names.name_of(loop.iter.func) != "builtins.range" or not is_harmless(loop.iter, names.name_of):
            return False
        readers = [node for each in names.bound_by(loop.target) for node in names.references(each)]
        return all(loop in names.ancestors(node) for node in readers)

    def _does_nothing(self, item: cst.WithItem) -> bool:
        call = item.item
        return item.asname is None and isinstance(call, cst.Call) and self.site.name_of(call.func) in CONTEXTS

    def _only_logs(self, node: cst.Try) -> bool:
        if node.orelse is not None or node.finalbody is not None:
            return False
        for handler in node.handlers:
            for line in handler.body.body:
                smalls = line.body if isinstance(line, cst.SimpleStatementLine) else [line]
                if not all(
                    isinstance(small, (cst.Pass, cst.Raise)) or self._is_logging(small) for small in smalls
                ):
                    return False
        return True

    def _is_logging(self, small: cst.CSTNode) -> bool:
        if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call):
            return False
        if not all(is_harmless(arg.value, self.site.name_of) for arg in small.value.args):
            return False
        func = small.value.func
        if self.site.name_of(func) == "builtins.print":
            return True
        return (
            isinstance(func, cst.Attribute)
            and re.search(r"log(ger|ging)?$", edits.code_of(func.value)) is not None
        )

    # Edits

    def _release_imports(self, group: Group, region: cst.CSTNode) -> None:
        """Answer for the imports in code that goes."""
        for binding in self.site.names.imports:
            if isinstance(binding.node, cst.ImportAlias) and region in self.site.ancestors(binding.node):
                self.site.released.add(binding.node)
                group.fixed(binding.node, binding.target, "only steps of the lazy graph used it")

    def _remove_block(self, group: Group, block: Block) -> str:
        """Empty a block whose owner stays; answers with what is left to look at."""
        owner = self.site.parent(block)
        around = self.site.parent(owner) if isinstance(owner, cst.Else) else owner
        if around in self.site.decided:
            owner = None  # whatever is left of the block takes the place of its test
        if isinstance(owner, cst.Else) and isinstance(around, cst.If):
            # With its steps the whole clause goes.
            self._settle(owner)
            self._rebuild(group, around, around.with_changes(orelse=None))
            return ""
        if isinstance(owner, cst.If) and isinstance(owner.orelse, cst.Else):
            self._settle(block)
            turned = owner.with_changes(
                test=self._opposite(owner.test),
                whitespace_before_test=cst.SimpleWhitespace(" "),
                body=owner.orelse.body,
                orelse=None,
            )
            self._rebuild(group, owner, turned)
            return ""
        for line in block.body:
            for small in line.body if isinstance(line, cst.SimpleStatementLine) else [line]:
                if not isinstance(small, cst.Pass) and not _is_text(small):
                    self._take_out(group, small)
        if isinstance(owner, cst.If) and owner.orelse is None:
            return f"nothing is left in this `if`, but its test `{edits.short(owner.test)}` still runs"
        if isinstance(owner, cst.FunctionDef):
            return self._idle_function(owner)
        return ""

    def _take_out(self, group: Group, node: cst.CSTNode) -> None:
        assert isinstance(node, (cst.BaseSmallStatement, cst.BaseCompoundStatement))
        group.replace_statement(node)
        if isinstance(node, cst.BaseCompoundStatement):
            self.site.rebuilt.add(node)
            self._settle(node)

    def _rebuild(self, group: Group, old: cst.If, new: cst.If) -> None:
        self.site.rebuilt.add(old)
        # The lines above it are put back by the edit.
        group.replace_statement(old, [new.with_changes(leading_lines=[])])

    def _opposite(self, test: cst.BaseExpression) -> cst.BaseExpression:
        """The test that is true when another one is false."""
        # What others may edit has to stay the node it is.
        is_plain = not any(isinstance(node, cst.SimpleString) for node in _walk(test)) and not any(
            test in (use.node, *self.site.ancestors(use.node)) for use in self.site.uses
        )
        if is_plain and isinstance(test, cst.UnaryOperation) and isinstance(test.operator, cst.Not):
            return test.expression
        if is_plain and isinstance(test, cst.Comparison) and len(test.comparisons) == 1:
            only = test.comparisons[0]
            for one, other in OPPOSITES:
                if isinstance(only.operator, one):
                    return test.with_changes(comparisons=[only.with_changes(operator=other())])
        is_one = isinstance(test, (cst.Attribute, cst.Call, cst.Name, cst.Subscript))
        return cst.UnaryOperation(cst.Not(), test if is_one else edits.parenthesized(test))

    def _settle(self, region: cst.CSTNode) -> None:
        """Nobody needs to answer for the names in code that goes, or to read them any more."""
        site = self.site
        for use in site.uses:
            if region in site.ancestors(use.node):
                site.settled.add(use)
        forget(site, region)

    def _idle_function(self, function: cst.FunctionDef) -> str:
        name = function.name.value
        bindings = self.site.names.bound_by(function)
        callers = [node for each in bindings for node in self.site.names.references(each)]
        where = f"its {len(callers)} uses in this file" if len(callers) > 1 else "its callers"
        return f"`{name}` does nothing any more: {where} can go too"


def _is_text(node: cst.CSTNode) -> bool:
    """Whether a statement is a docstring, or text that stands alone."""
    return isinstance(node, cst.Expr) and isinstance(node.value, cst.SimpleString)


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
