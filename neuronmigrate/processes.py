"""Whether the process group stands where a piece of code runs.

The legacy functions that ask for ranks, or wait for the other processes, answered at any time. Those of
`torch.distributed` raise before `init_process_group`, so what replaces them depends on the order.
"""

from __future__ import annotations

import enum
from weakref import WeakKeyDictionary

import libcst as cst

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
        called = [(call, site.name_of(call.func)) for call in site.names.calls]
        self.starts = {call for call, name in called if name in _STARTS}
        self.may_start = {call for call, name in called if name and name.partition(".")[0] in _MAY_START}
        self.ends = [call for call, name in called if name == _ENDS]
        self.tests = {call for call, name in called if name == _TEST}
        self.is_script = any(_is_main_guard(statement) for statement in site.module.body)
        # Functions that are being looked at: recursion has to end.
        self.asking: set[cst.CSTNode] = set()
        self.entering: set[cst.CSTNode] = set()

    def at(self, node: cst.CSTNode) -> Group:
        """What is certain at a node."""
        current = node
        looping = False
        for around in self.names.ancestors(node):
            if isinstance(around, cst.Lambda) and current is around.body:
                return Group.UNKNOWN
            if isinstance(around, cst.FunctionDef) and current is around.body:
                return self._at_calls(around)
            if isinstance(around, (cst.For, cst.While)):
                looping = True
            if isinstance(around, (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)):
                found = self._in_block(around, current, looping)
                if found is not None:
                    return Group.UNKNOWN if self._ended_before(node) else found
            current = around
        return Group.UNKNOWN if self._may_have_run(node) else Group.ABSENT

    def _in_block(self, block: _Block, current: cst.CSTNode, looping: bool) -> Group | None:
        """What the statements around one of a block say."""
        passed = False
        earlier = False
        for statement in block.body:
            here = statement is current
            passed = passed or here
            if self._starts(statement):
                if not passed:
                    return Group.STANDS
                # Code that asks whether the group stands may find it there.
                return None if looping or earlier or self.tests else Group.ABSENT
            # A start that happens only sometimes leaves what follows it open.
            earlier = earlier or (not passed and self._holds_start(statement))
        return None

    def _at_calls(self, function: cst.FunctionDef) -> Group:
        """What is certain in the body of a function: what holds at its definition and at each call."""
        if function in self.asking:
            return Group.STANDS
        self.asking.add(function)
        try:
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
        finally:
            self.asking.discard(function)

    def _starts(self, statement: cst.CSTNode) -> bool:
        """Whether the group stands once a statement has run to its end."""
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
        function = self._local(call)
        if function is None or function in self.entering:
            return False
        self.entering.add(function)
        try:
            for statement in function.body.body:
                if self._starts(statement):
                    return True
                if _holds(statement, cst.Return):
                    return False
            return False
        finally:
            self.entering.discard(function)

    def _local(self, call: cst.Call) -> cst.FunctionDef | None:
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

    def _holds_start(self, statement: cst.CSTNode) -> bool:
        """Whether a statement may start the group, itself or through a function of this module."""
        return any(self._call_may_start(call) for call in _calls(statement))

    def _call_may_start(self, call: cst.Call) -> bool:
        if call in self.starts or call in self.may_start:
            return True
        function = self._local(call)
        if function is None or function in self.entering:
            return False
        self.entering.add(function)
        try:
            return any(self._holds_start(statement) for statement in function.body.body)
        finally:
            self.entering.discard(function)

    def _may_have_run(self, node: cst.CSTNode) -> bool:
        """Whether code before a node of the module's own body may have started the group."""
        current = node
        for around in self.names.ancestors(node):
            if isinstance(around, (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)):
                for statement in around.body:
                    if statement is current:
                        break
                    if self._holds_start(statement):
                        return True
            current = around
        return False

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


def _holds(node: cst.CSTNode, kind: type[cst.CSTNode]) -> bool:
    if isinstance(node, kind):
        return True
    if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
        return False
    return any(_holds(child, kind) for child in node.children)


def _calls(node: cst.CSTNode) -> list[cst.Call]:
    if isinstance(node, (cst.FunctionDef, cst.ClassDef, cst.Lambda)):
        return []
    found = [node] if isinstance(node, cst.Call) else []
    for child in node.children:
        found += _calls(child)
    return found
