"""Expressions whose value is certain natively, and the branches that they decide.

A legacy script asks whether it runs only to compile, or which runtime or chip it was given. Where the answer
is known, the branch that stays takes the place of the question, comments and layout kept, and whatever else
the answer was put together with is worked out as far as it goes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Call, Symbol
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.environment import ANSWERED
from neuronmigrate.names import Binding
from neuronmigrate.site import Constant, Group, Site

_CASTS = frozenset({"builtins.bool", "builtins.int", "builtins.str"})
_LEAVES = (cst.Break, cst.Continue, cst.Raise, cst.Return)


@dataclass(frozen=True)
class Value:
    """A constant that an expression is known to have."""

    constant: Constant

    @property
    def expression(self) -> cst.BaseExpression:
        """The constant as it is written."""
        if isinstance(self.constant, str):
            return edits.string(self.constant)
        return cst.parse_expression(repr(self.constant))


def know_rows(site: Site, rows: Mapping[str, Symbol]) -> None:
    """Take in the calls for which a row of the deciding codemod writes a constant."""
    for use in site.uses:
        row = rows.get(use.claim)
        if row is None or not isinstance(row.action, Call) or use.call is None:
            continue
        template = edits.expression(row.action.template)
        value = _literal(template) if edits.is_literal(template) else None
        if value is None or use.call.args or use.method or use.stored or use.ambiguous:
            continue
        site.know(use.call, value.constant, use.name, row.because, use)


def fold(site: Site) -> Group | None:
    """Put the branches that stay in the place of the questions with a known answer.

    Answers with the group of it all, or None where nothing is known.
    """
    if not site.known:
        return None
    uses = [each.use for each in site.known.values() if each.use is not None]
    site.codemod = next(iter(site.known.values())).codemod
    group = site.group(uses[0] if uses else None)
    group.uncertain = not all(use.certain for use in uses)
    folding = Folding(site, group)
    folding.fold()
    for node, known in site.known.items():
        site.codemod = known.codemod
        if known.use is not None:
            site.settled.add(known.use)
        site.notes.setdefault(ANSWERED, set()).update(_strings(node))
        why = f"{known.why}; {folding.went[node]}" if node in folding.went else known.why
        if node in folding.todo:
            group.review(node, known.found, why, folding.todo[node])
        else:
            group.fixed(node, known.found, why)
    return group


class Folding:
    """Puts the branches that stay in the place of the questions of one file with a known answer.

    Values that names were given of them are followed within the file.
    """

    def __init__(self, site: Site, group: Group) -> None:
        self.site = site
        self.group = group
        self.known = {node: Value(known.constant) for node, known in site.known.items()}
        self.todo: dict[cst.CSTNode, str] = {}
        """What a person has to look at, by the first question that it follows from."""
        self.went: dict[cst.CSTNode, str] = {}
        """Which other work went, by the first question that it follows from."""
        self.asked_for: dict[cst.BaseExpression, cst.BaseExpression] = {}
        """The question that a name was given the answer of."""

    def fold(self) -> None:
        """Tell the group its edits."""
        self._follow_names()
        settled: set[cst.CSTNode] = set()
        for node in list(self.known):
            top = self._top(node)
            if top in settled or any(around in self.site.gone for around in self.site.ancestors(top)):
                continue
            settled.add(top)
            value = self.value(top)
            assert value is not None
            self._place(top, value)

    # What is known

    def value(self, node: cst.BaseExpression) -> Value | None:
        """The constant value of an expression, if that is certain."""
        if node in self.known:
            return self.known[node]
        if edits.is_literal(node) and not isinstance(node, (cst.Ellipsis, cst.UnaryOperation)):
            return _literal(node)
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
            inner = self.value(node.expression)
            return None if inner is None else Value(not inner.constant)
        if isinstance(node, cst.BooleanOperation):
            return self._of_boolean(node)
        if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
            return self._of_comparison(self.value(node.left), node.comparisons[0])
        if isinstance(node, cst.Call) and len(node.args) == 1 and self.site.name_of(node.func) in _CASTS:
            inner = self.value(node.args[0].value)
            return None if inner is None else _cast(self.site.name_of(node.func) or "", inner.constant)
        return None

    def _of_comparison(self, left: Value | None, target: cst.ComparisonTarget) -> Value | None:
        right = self.value(target.comparator)
        if left is not None and right is not None:
            return _compared(left.constant, target.operator, right.constant)
        if isinstance(target.comparator, (cst.List, cst.Set, cst.Tuple)) and left is not None:
            members = [self.value(each.value) for each in target.comparator.elements]
            if isinstance(target.operator, (cst.In, cst.NotIn)) and None not in members:
                among = left.constant in [each.constant for each in members if each is not None]
                return Value(among is isinstance(target.operator, cst.In))
        return None

    def _of_boolean(self, node: cst.BooleanOperation) -> Value | None:
        """`a and False` is known without `a`, where working `a` out does nothing."""
        left, right = self.value(node.left), self.value(node.right)
        decides = isinstance(node.operator, cst.Or)
        if left is not None:
            return left if bool(left.constant) is decides else right
        if right is not None and bool(right.constant) is decides and self._is_asked(node):
            return Value(decides) if is_harmless(node.left, self.site.name_of) else None
        return None

    def _top(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """The widest expression around a constant one that is constant as well."""
        while (parent := self._constant_around(node)) is not None:
            node = parent
        return node

    def _constant_around(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """The expression around a constant one, when it is constant as well."""
        parent = self.site.parent(node)
        if isinstance(parent, (cst.Arg, cst.ComparisonTarget)):
            parent = self.site.parent(parent)
        if isinstance(parent, cst.BaseExpression) and self.value(parent) is not None:
            return parent
        return None

    def _is_asked(self, node: cst.BaseExpression) -> bool:
        """Whether only the truth of an expression counts where it stands."""
        parent = self.site.parent(node)
        if isinstance(parent, cst.BooleanOperation):
            return self._is_asked(parent)
        if isinstance(parent, cst.UnaryOperation):
            return isinstance(parent.operator, cst.Not)
        return isinstance(parent, (cst.Assert, cst.CompIf, cst.If, cst.IfExp, cst.While)) and (
            getattr(parent, "test", None) is node
        )

    def _follow_names(self) -> None:
        """Take in what asks for a name that was only ever given a known value, and let the assignment go."""
        for node in list(self.known):
            top = self._top(node)
            assign = self.site.parent(top)
            binding = self._only_name(assign) if isinstance(assign, cst.Assign) else None
            if binding is None or assign is None:
                continue
            value = self.value(top)
            assert value is not None and isinstance(assign, cst.Assign)
            readers = self.site.names.references(binding)
            before = dict(self.known)
            self.known.update(dict.fromkeys(readers, value))
            if not all(self._is_asked(self._top(each)) for each in readers):
                # What is shown or handed on reads better by its name.
                self.known = before
                continue
            self.asked_for.update(dict.fromkeys(readers, node))
            self.group.replace_statement(assign)
            forget(self.site, assign.value)

    def _only_name(self, assign: cst.Assign) -> Binding | None:
        """The name that an assignment binds, when nothing else binds it and nobody outside reads it."""
        target = assign.targets[0].target
        if len(assign.targets) != 1 or not isinstance(target, cst.Name):
            return None
        bindings = self.site.names.bound_by(target)
        if len(bindings) != 1 or len(bindings[0].scope.bindings.get(target.value, ())) != 1:
            return None
        binding = bindings[0]
        at_top = binding.scope is self.site.names.module_scope
        if target.value in self.site.exported:
            return None
        if at_top and self.site.project.imported_elsewhere(self.site.path, binding.name):
            return None
        readers = self.site.names.references(binding)
        if not readers or any(len(self.site.names.bindings_at(each)) != 1 for each in _names(readers)):
            return None
        return binding

    # What is written

    def _place(self, top: cst.BaseExpression, value: Value) -> None:
        parent = self.site.parent(top)
        holds = bool(value.constant)
        if isinstance(parent, cst.If) and parent.test is top:
            self._fold_if(parent, holds)
            return
        forget(self.site, top)
        if isinstance(parent, cst.IfExp) and parent.test is top:
            stays, goes = (parent.body, parent.orelse) if holds else (parent.orelse, parent.body)
            self.group.replace(parent, stays)
            self._leave(goes, top)
        elif isinstance(parent, cst.BooleanOperation) and self._adds_nothing(parent, top, holds):
            self.group.replace(parent, parent.left if parent.right is top else parent.right)
        elif isinstance(parent, cst.Assert) and parent.test is top and holds:
            self.group.replace_statement(parent)
            self._leave(parent.msg, top)
        elif isinstance(parent, cst.While) and parent.test is top and not holds and parent.orelse is None:
            self.site.rebuilt.add(parent)
            self.site.decided.add(parent)
            self._leave(parent.body, top)
            self.group.replace_statement(parent)
        elif isinstance(parent, cst.FormattedStringExpression) and self._is_text(parent, value):
            self.group.replace(parent, cst.FormattedStringText(str(value.constant)))
        elif isinstance(parent, cst.Arg):
            self.group.replace(parent, parent.with_changes(value=value.expression))
        else:
            if isinstance(parent, cst.Assert) and parent.test is top:
                self.todo[self._question(top)] = (
                    "this never holds natively: drop what it guards, or the assertion"
                )
            self.group.replace(top, value.expression)

    def _question(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """The first question of the legacy code whose answer is in an expression."""
        inside = [each for each in self.known if each is node or node in self.site.ancestors(each)]
        return next((self.asked_for.get(each, each) for each in inside), node)

    def _adds_nothing(self, around: cst.BooleanOperation, side: cst.BaseExpression, holds: bool) -> bool:
        """Whether the other side alone is as good: that of `a and True`, or of `a or False`."""
        if holds is isinstance(around.operator, cst.Or):
            return False
        return around.left is side or self._is_asked(around) or _is_truth(around.left)

    def _is_text(self, field: cst.FormattedStringExpression, value: Value) -> bool:
        """Whether a field of an f-string can be written as the text that it gives."""
        plain = field.conversion is None and field.format_spec is None and field.equal is None
        return plain and str(value.constant).isalnum()

    def _fold_if(self, node: cst.If, holds: bool) -> None:
        forget(self.site, node.test)
        self.site.rebuilt.add(node)
        self.site.decided.add(node)
        stays = node.body if holds else node.orelse
        self._leave(node.orelse if holds else node.body, node.test)
        if isinstance(stays, cst.Else):
            stays = stays.body
        if isinstance(stays, cst.If):
            self.group.replace_statement(node, [stays])
        elif stays is None or _is_empty(stays):
            self.group.replace_statement(node)
        else:
            self.group.unindent(node, stays)
            self._look_behind(node, stays)

    def _leave(self, node: cst.CSTNode | None, question: cst.BaseExpression) -> None:
        """Take note of code that goes: its uses need no answer, its imports lose a reader."""
        if node is None:
            return
        self.site.gone.add(node)
        lines = [self.site.positions.span(each) for each in self._other_work(node)]
        if lines:
            first, last = min(each.line for each in lines), max(each.end_line for each in lines)
            where = f"line {first}" if first == last else f"lines {first} to {last}"
            self.went[self._question(question)] = f"the code for the other answer goes, {where}"
        for use in self.site.uses:
            if node in self.site.ancestors(use.node):
                self.site.settled.add(use)
        self.site.notes.setdefault(ANSWERED, set()).update(_strings(node))
        for binding in self.site.names.imports:
            if isinstance(binding.node, cst.ImportAlias) and node in self.site.ancestors(binding.node):
                self.site.released.add(binding.node)
        forget(self.site, node)

    def _other_work(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The statements in code that goes that do more than call the legacy stack."""
        todo: list[cst.CSTNode] = [node]
        while todo:
            part = todo.pop()
            if isinstance(part, cst.BaseSmallStatement):
                legacy = isinstance(part, cst.Expr) and any(use.call is part.value for use in self.site.uses)
                if not legacy and not isinstance(part, (cst.Import, cst.ImportFrom, cst.Pass)):
                    yield part
            else:
                todo.extend(part.children)

    def _look_behind(self, node: cst.If, body: cst.BaseSuite) -> None:
        """What stands behind a branch that always leaves is never reached now."""
        if not isinstance(body, (cst.IndentedBlock, cst.SimpleStatementSuite)):
            return
        block = self.site.parent(node)
        last: cst.CSTNode = body.body[-1]
        last = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
        siblings = list(block.body) if isinstance(block, (cst.IndentedBlock, cst.Module)) else []
        if isinstance(last, _LEAVES) and node in siblings and siblings[-1] is not node:
            line = self.site.positions.span(siblings[siblings.index(node) + 1]).line
            self.todo[self._question(node.test)] = f"line {line}: what follows is never reached now: drop it"


def _names(nodes: Iterable[cst.BaseExpression]) -> list[cst.Name]:
    return [node for node in nodes if isinstance(node, cst.Name)]


def _strings(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    todo = [node]
    while todo:
        part = todo.pop()
        todo.extend(part.children)
        if isinstance(part, cst.SimpleString):
            yield part


def _is_empty(body: cst.BaseSuite) -> bool:
    """Whether a block does nothing, and says nothing."""
    if "#" in edits.code_of(body):
        return False
    smalls = [each.body if isinstance(each, cst.SimpleStatementLine) else [each] for each in body.body]
    return all(isinstance(small, cst.Pass) for line in smalls for small in line)


def _is_truth(node: cst.BaseExpression) -> bool:
    """Whether an expression is surely True or False."""
    if isinstance(node, cst.BooleanOperation):
        return _is_truth(node.left) and _is_truth(node.right)
    return isinstance(node, cst.Comparison) or (
        isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not)
    )


def _literal(node: cst.BaseExpression) -> Value | None:
    if isinstance(node, cst.Name):
        return Value({"True": True, "False": False, "None": None}[node.value])
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        return Value(node.evaluated_value)
    if isinstance(node, cst.Integer):
        return Value(int(node.evaluated_value))
    return None


_ORDERS: dict[type[cst.BaseCompOp], Callable[[int, int], bool]] = {
    cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge,
    cst.LessThan: operator.lt,
    cst.LessThanEqual: operator.le,
}


def _compared(left: Constant, sign: cst.BaseCompOp, right: Constant) -> Value | None:
    if isinstance(sign, (cst.Equal, cst.Is)):
        return Value(left == right and (isinstance(sign, cst.Equal) or type(left) is type(right)))
    if isinstance(sign, (cst.NotEqual, cst.IsNot)):
        return Value(left != right or (isinstance(sign, cst.IsNot) and type(left) is not type(right)))
    if type(sign) in _ORDERS and isinstance(left, int) and isinstance(right, int):
        return Value(_ORDERS[type(sign)](left, right))
    return None


def _cast(name: str, constant: Constant) -> Value | None:
    if name == "builtins.bool":
        return Value(bool(constant))
    if name == "builtins.str":
        return Value(str(constant))
    try:
        return Value(int(constant)) if constant is not None else None
    except ValueError:
        return None
