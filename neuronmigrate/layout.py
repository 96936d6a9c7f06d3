"""Breaks lines that an edit made too long, one argument or name a line.

Only statements that hold an edit are touched, and only for their layout: what they say is the same tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property

import libcst as cst

from neuronmigrate.edits import code_of

NARROW, WIDE = 88, 120
"""A line that fits the first is never broken, one that does not fit the second always."""

_SHORT = 20
"""A single argument shorter than this gains nothing by a line of its own."""

# A comment that speaks to a tool about its own line would lose that line.
_PRAGMA = re.compile(r"#\s*(noqa|type:|pyright:|pylint:|pragma|fmt:|nosec)")


def fit(tree: cst.Module, before: cst.Module, known: Callable[[cst.CSTNode], bool]) -> cst.Module:
    """The tree with the lines broken that edits made too long.

    A line is too long when it is longer than every line of the module `before` the edits, but for the limits
    above. `known` says whether a node was there before: such nodes stay.
    """
    return tree.visit(_Fitter(before, known))


class _Fitter(cst.CSTTransformer):
    def __init__(self, before: cst.Module, known: Callable[[cst.CSTNode], bool]) -> None:
        super().__init__()
        self.before = before
        self.known = known
        self.indent = before.default_indent
        self.depth = 0

    @cached_property
    def width(self) -> int:
        """How long lines may be, in characters."""
        longest = max(map(len, self.before.code.splitlines()), default=0)
        return min(WIDE, max(NARROW, longest))

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.IndentedBlock):
            self.depth += 1
        return not (self.known(node) or isinstance(node, (cst.BaseExpression, cst.BaseSmallStatement)))

    # LibCST's own signature ties the result to the type of the node.
    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode:
        if isinstance(original_node, cst.IndentedBlock):
            self.depth -= 1
        if isinstance(updated_node, cst.SimpleStatementLine) and not self.known(original_node):
            return self._fitted(updated_node, self.depth)
        return updated_node

    def _fitted(self, line: cst.SimpleStatementLine, depth: int) -> cst.SimpleStatementLine:
        """The line with the arguments of its longest call one a line, where it is too long.

        `depth` says in how many blocks it stands. A line of several statements, one whose comment speaks to
        a tool, and one without a call to break stay as they are.
        """
        if len(line.body) != 1 or self.known(line.body[0]) or not self._overflows(line, NARROW, depth):
            return line
        room = self.width
        if not self._overflows(line, room, depth):
            return line
        beside = line.trailing_whitespace.comment
        if beside is not None and _PRAGMA.match(beside.value):
            return line
        small = line.body[0]
        if isinstance(small, cst.ImportFrom):
            return line.with_changes(body=[self._one_a_line(small)])
        broken = self._broken(small, 1, room - depth * len(self.indent))
        return line if broken is small else line.with_changes(body=[broken])

    def _overflows(self, line: cst.SimpleStatementLine, room: int, depth: int) -> bool:
        bare = line.with_changes(leading_lines=(), trailing_whitespace=cst.TrailingWhitespace())
        return _longest(bare) + depth * len(self.indent) > room

    def _broken(self, node: cst.CSTNode, level: int, room: int) -> cst.CSTNode:
        """The node with one call's arguments one a line, and the same inside of those still too long."""
        if _longest(node) <= room:
            return node
        calls = [call for call in _outermost(node) if call.args]
        call = max(calls, key=lambda call: sum(len(code_of(arg)) for arg in call.args), default=None)
        if call is None or (len(call.args) == 1 and len(code_of(call.args[0])) < _SHORT):
            return node
        if any(_is_newline(arg.comma) for arg in call.args[:-1]):
            # It has a layout of its own; only what stands in one of its lines may be too long.
            if not isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
                return node
            args = [self._inside(arg, level, room) for arg in call.args]
            return _with_call(node, call, call.with_changes(args=args))
        inner, outer = self._newline(level), self._newline(level - 1)
        args = []
        for index, arg in enumerate(call.args):
            last = index + 1 == len(call.args)
            arg = self._inside(arg, level, room).with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
            if isinstance(arg.value, cst.GeneratorExp) and not arg.value.lpar:
                # A comma behind it would be a syntax error.
                arg = arg.with_changes(whitespace_after_arg=outer)
            elif not (last and _is_newline(arg.comma)):
                arg = arg.with_changes(comma=cst.Comma(whitespace_after=outer if last else inner))
            args.append(arg)
        before = call.whitespace_before_args
        if not isinstance(before, cst.ParenthesizedWhitespace):
            before = inner
        return _with_call(node, call, call.with_changes(args=args, whitespace_before_args=before))

    def _inside(self, arg: cst.Arg, level: int, room: int) -> cst.Arg:
        bare = arg.with_changes(
            comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=cst.SimpleWhitespace("")
        )
        before = len(code_of(bare)) - len(code_of(arg.value))
        value = self._broken(arg.value, level + 1, room - level * len(self.indent) - before - 1)
        return arg if value is arg.value else arg.with_changes(value=value)

    def _newline(self, level: int) -> cst.ParenthesizedWhitespace:
        return cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(self.indent * level))

    def _one_a_line(self, small: cst.ImportFrom) -> cst.ImportFrom:
        if small.lpar is not None or isinstance(small.names, cst.ImportStar) or len(small.names) < 2:
            return small
        if "\n" in code_of(small):
            return small
        inner, closing = self._newline(1), cst.Comma(whitespace_after=self._newline(0))
        commas = [*[cst.Comma(whitespace_after=inner)] * (len(small.names) - 1), closing]
        names = [alias.with_changes(comma=comma) for alias, comma in zip(small.names, commas, strict=True)]
        return small.with_changes(
            lpar=cst.LeftParen(whitespace_after=inner), names=names, rpar=cst.RightParen()
        )


def _longest(node: cst.CSTNode) -> int:
    return max(map(len, code_of(node).split("\n")))


def _is_newline(comma: object) -> bool:
    return isinstance(comma, cst.Comma) and isinstance(comma.whitespace_after, cst.ParenthesizedWhitespace)


def _outermost(node: cst.CSTNode) -> Iterator[cst.Call]:
    """The calls that are no other call's argument; a chain of calls is several.

    What stands in an f-string is left out: there no line may be broken before Python 3.12.
    """
    if isinstance(node, cst.FormattedString):
        return
    if isinstance(node, cst.Call):
        yield node
        yield from _outermost(node.func)
        return
    for child in node.children:
        yield from _outermost(child)


def _with_call(node: cst.CSTNode, old: cst.Call, new: cst.Call) -> cst.CSTNode:
    if node is old:
        return new
    changed = node.deep_replace(old, new)
    assert isinstance(changed, cst.CSTNode)
    return changed
