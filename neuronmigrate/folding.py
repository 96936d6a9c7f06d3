"""Expressions whose value is certain natively, and the branches that they decide.

A legacy script asks whether it runs only to compile, or whether a package of the old stack is there. Where
the answer is known, the branch that stays takes the place of the question, comments and layout kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.environment import ANSWERED
from neuronmigrate.names import Binding
from neuronmigrate.site import Group, Site

Constant = bool | int | str | None

_CASTS = frozenset({"builtins.bool", "builtins.int", "builtins.str"})
_LEAVES = (cst.Break, cst.Continue, cst.Raise, cst.Return)


@dataclass(frozen=True)
class Value:
    """A constant that an expression is known to have."""

    constant: Constant

    @property
    def expression(self) -> cst.BaseExpression:
        """The constant as it is written."""
        return cst.parse_expression(repr(self.constant))


@dataclass
class Folded:
    """What became of the questions of one file."""

    todo: dict[cst.CSTNode, str] = field(default_factory=dict)
    """What a person has to look at, by the question that it follows from."""
    gone: list[cst.CSTNode] = field(default_factory=list)
    """Code that went."""


class Folding:
    """Puts the branches that stay in the place of questions with a known answer.

    `known` holds the expressions of one file whose value is certain; values that names were given of them
    are followed within the file.
    """

    def __init__(self, site: Site, group: Group, known: Mapping[cst.BaseExpression, Value]) -> None:
        self.site = site
        self.group = group
        self.known = dict(known)
        self.folded = Folded()

    def fold(self) -> Folded:
        """Tell the group its edits, and say what is left to look at."""
        self._follow_names()
        settled: set[cst.CSTNode] = set()
        for node in list(self.known):
            top = node
            while (parent := self._constant_around(top)) is not None:
                top = parent
            if top in settled or any(around in self.folded.gone for around in self.site.ancestors(top)):
                continue
            settled.add(top)
            value = self.value(top)
            assert value is not None
            self._place(top, value)
        return self.folded

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
            left, right = self.value(node.left), self.value(node.comparisons[0].comparator)
            if left is not None and right is not None:
                return _compared(left.constant, node.comparisons[0].operator, right.constant)
        if isinstance(node, cst.Call) and len(node.args) == 1 and self.site.name_of(node.func) in _CASTS:
            inner = self.value(node.args[0].value)
            return None if inner is None else _cast(self.site.name_of(node.func) or "", inner.constant)
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
        """Take in what reads a name that was only ever given a known value, and let the assignment go."""
        for node in list(self.known):
            top = node
            while (parent := self._constant_around(top)) is not None:
                top = parent
            assign = self.site.parent(top)
            binding = self._only_name(assign) if isinstance(assign, cst.Assign) else None
            if binding is None or assign is None or assign in self.folded.gone:
                continue
            value = self.value(top)
            assert value is not None and isinstance(assign, cst.Assign)
            for reader in self.site.names.references(binding):
                self.known[reader] = value
            self.folded.gone.append(assign)
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
        if isinstance(parent, cst.If) and parent.test is top:
            self._fold_if(parent, bool(value.constant))
            return
        forget(self.site, top)
        if isinstance(parent, cst.IfExp) and parent.test is top:
            stays, goes = parent.body, parent.orelse
            if not value.constant:
                stays, goes = goes, stays
            self.group.replace(parent, stays)
            self._leave(goes)
        elif isinstance(parent, cst.BooleanOperation) and self._is_asked(parent):
            # What is left of `a and True`, `a or False`: the other side.
            self.group.replace(parent, parent.left if parent.right is top else parent.right)
        elif isinstance(parent, cst.Arg):
            self.group.replace(parent, parent.with_changes(value=value.expression))
        else:
            self.group.replace(top, value.expression)

    def _fold_if(self, node: cst.If, holds: bool) -> None:
        forget(self.site, node.test)
        self.site.rebuilt.add(node)
        if holds:
            self._leave(node.orelse)
            self.group.unindent(node, node.body)
            self._look_behind(node, node.body)
            return
        self._leave(node.body)
        if isinstance(node.orelse, cst.Else):
            self.group.unindent(node, node.orelse.body)
            self._look_behind(node, node.orelse.body)
        elif isinstance(node.orelse, cst.If):
            self.group.replace_statement(node, [node.orelse])
        else:
            self.group.replace_statement(node)

    def _leave(self, node: cst.CSTNode | None) -> None:
        """Take note of code that goes: its uses need no answer, its imports lose a reader."""
        if node is None:
            return
        self.folded.gone.append(node)
        for use in self.site.uses:
            if node in self.site.ancestors(use.node):
                self.site.settled.add(use)
        self.site.notes.setdefault(ANSWERED, set()).update(
            text for text in self.site.nodes(cst.SimpleString) if node in self.site.ancestors(text)
        )
        for binding in self.site.names.imports:
            if isinstance(binding.node, cst.ImportAlias) and node in self.site.ancestors(binding.node):
                self.site.released.add(binding.node)
        forget(self.site, node)

    def _look_behind(self, node: cst.If, body: cst.BaseSuite) -> None:
        """What stands behind a branch that always leaves is never reached now."""
        if not isinstance(body, (cst.IndentedBlock, cst.SimpleStatementSuite)):
            return
        block = self.site.parent(node)
        last: cst.CSTNode = body.body[-1]
        last = last.body[-1] if isinstance(last, cst.SimpleStatementLine) else last
        siblings = list(getattr(block, "body", ()))
        if isinstance(last, _LEAVES) and node in siblings and siblings[-1] is not node:
            line = self.site.positions.span(siblings[siblings.index(node) + 1]).line
            self.folded.todo[node.test] = f"line {line}: what follows is never reached now: drop it"


def _names(nodes: Iterable[cst.BaseExpression]) -> list[cst.Name]:
    return [node for node in nodes if isinstance(node, cst.Name)]


def _literal(node: cst.BaseExpression) -> Value | None:
    if isinstance(node, cst.Name):
        return Value({"True": True, "False": False, "None": None}[node.value])
    if isinstance(node, cst.SimpleString) and isinstance(node.evaluated_value, str):
        return Value(node.evaluated_value)
    if isinstance(node, cst.Integer):
        return Value(int(node.evaluated_value))
    return None


def _compared(left: Constant, operator: cst.BaseCompOp, right: Constant) -> Value | None:
    if isinstance(operator, (cst.Equal, cst.Is)):
        return Value(left == right and (isinstance(operator, cst.Equal) or type(left) is type(right)))
    if isinstance(operator, (cst.NotEqual, cst.IsNot)):
        return Value(left != right or (isinstance(operator, cst.IsNot) and type(left) is not type(right)))
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
