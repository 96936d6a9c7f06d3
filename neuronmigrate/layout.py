"""Breaks lines that an edit made too long, one argument or name a line.

Only statements that hold an edit are touched, and only for their layout: what they say is the same tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

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

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        self.depth -= 1
        return updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        return updated_node if self.known(original_node) else self._fitted(updated_node, self.depth)

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
        if isinstance(line.body[0], cst.ImportFrom):
            return line.with_changes(body=[self._one_a_line(line.body[0])])
        while True:
            more = self._broken(line, room - depth * len(self.indent))
            if more is line:
                return line
            line = more

    def _overflows(self, line: cst.SimpleStatementLine, room: int, depth: int) -> bool:
        longest = max(map(len, _bare(line).code.split("\n")))
        return longest + depth * len(self.indent) > room

    def _broken(self, line: cst.SimpleStatementLine, room: int) -> cst.SimpleStatementLine:
        """The line with the arguments of one more call one a line, or itself."""
        # Positions are those of a copy.
        wrapper = MetadataWrapper(_bare(line))
        places = wrapper.resolve(PositionProvider)
        lines = wrapper.module.code.split("\n")

        def row(call: cst.Call) -> str:
            """The line on which the arguments of a call start."""
            return lines[places[call.args[0]].start.line - 1]

        calls = list(_outermost(wrapper.module, lambda call: _breaks(call) and len(row(call)) > room))
        if not calls:
            return line
        call = max(calls, key=lambda call: sum(len(code_of(arg)) for arg in call.args))
        base = row(call)[: len(row(call)) - len(row(call).lstrip())]
        hangs = isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace)
        inner = call.whitespace_before_args if hangs else _newline(base + self.indent)
        args = list(call.args)
        for index, arg in enumerate(args[:-1]):
            between = _newline(base if hangs else base + self.indent)
            args[index] = arg.with_changes(
                comma=cst.Comma(whitespace_after=between), whitespace_after_arg=cst.SimpleWhitespace("")
            )
        if not hangs:
            closing = _newline(base)
            if isinstance(args[-1].value, cst.GeneratorExp) and not args[-1].value.lpar:
                # A comma behind it would be a syntax error.
                args[-1] = args[-1].with_changes(whitespace_after_arg=closing)
            else:
                args[-1] = args[-1].with_changes(
                    comma=cst.Comma(whitespace_after=closing), whitespace_after_arg=cst.SimpleWhitespace("")
                )
        new = wrapper.module.deep_replace(call, call.with_changes(args=args, whitespace_before_args=inner))
        assert isinstance(new, cst.Module)
        broken = new.body[0]
        assert isinstance(broken, cst.SimpleStatementLine)
        return line.with_changes(body=broken.body)

    def _one_a_line(self, small: cst.ImportFrom) -> cst.ImportFrom:
        if small.lpar is not None or isinstance(small.names, cst.ImportStar) or len(small.names) < 2:
            return small
        if "\n" in code_of(small):
            return small
        inner, closing = _newline(self.indent), cst.Comma(whitespace_after=_newline(""))
        commas = [*[cst.Comma(whitespace_after=inner)] * (len(small.names) - 1), closing]
        names = [alias.with_changes(comma=comma) for alias, comma in zip(small.names, commas, strict=True)]
        return small.with_changes(
            lpar=cst.LeftParen(whitespace_after=inner), names=names, rpar=cst.RightParen()
        )


def _bare(line: cst.SimpleStatementLine) -> cst.Module:
    """The statement alone, without what stands above and behind it."""
    return cst.Module([line.with_changes(leading_lines=(), trailing_whitespace=cst.TrailingWhitespace())])


def _newline(indent: str) -> cst.ParenthesizedWhitespace:
    return cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace(indent))


def _breaks(call: cst.Call) -> bool:
    """Whether the arguments of a call share a line, and are worth one each."""
    if not call.args or any(
        isinstance(arg.comma, cst.Comma)
        and isinstance(arg.comma.whitespace_after, cst.ParenthesizedWhitespace)
        for arg in call.args[:-1]
    ):
        return False
    if len(call.args) > 1:
        return True
    hangs = isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace)
    return not hangs and len(code_of(call.args[0])) >= _SHORT


def _outermost(node: cst.CSTNode, wanted: Callable[[cst.Call], bool]) -> Iterator[cst.Call]:
    """The wanted calls that are no argument of another wanted one; a chain of calls is several.

    What stands in an f-string is left out: there no line may be broken before Python 3.12.
    """
    if isinstance(node, cst.FormattedString):
        return
    if isinstance(node, cst.Call) and wanted(node):
        yield node
        yield from _outermost(node.func, wanted)
        return
    for child in node.children:
        yield from _outermost(child, wanted)
