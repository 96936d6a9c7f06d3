"""Lines and columns of syntax nodes.

LibCST's position provider costs more than twice the parse. This one writes the tree out once, notes
for each node the index of its first and last token, and works out lines and columns only for the
nodes it is asked about.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import NamedTuple, TypeVar

import libcst as cst
from libcst._nodes.internal import CodegenState  # the only door to codegen; metadata uses it as well

NodeT = TypeVar("NodeT", bound=cst.CSTNode)

_NEWLINE = re.compile(r"\r\n?|\n")


class Span(NamedTuple):
    """A range of text. Lines and columns count from 1, the end column is exclusive."""

    line: int
    column: int
    end_line: int
    end_column: int


class _Recorder(CodegenState):
    """Writes a module out and notes where each node starts and ends, as token indices."""

    def __init__(self, module: cst.Module) -> None:
        super().__init__(default_indent=module.default_indent, default_newline=module.default_newline)
        self.begun: list[int] = []
        self.ranges: dict[cst.CSTNode, tuple[int, int]] = {}

    def before_codegen(self, node: cst.CSTNode) -> None:
        self.begun.append(len(self.tokens))

    def after_codegen(self, node: cst.CSTNode) -> None:
        begin = self.begun.pop()
        if node not in self.ranges:
            self.ranges[node] = (begin, len(self.tokens))

    @contextmanager
    def record_syntactic_position(
        self,
        node: cst.CSTNode,
        *,
        start_node: cst.CSTNode | None = None,
        end_node: cst.CSTNode | None = None,
    ) -> Iterator[None]:
        begin = len(self.tokens)
        yield
        first = self.ranges[start_node][0] if start_node is not None else begin
        last = self.ranges[end_node][1] if end_node is not None else len(self.tokens)
        self.ranges[node] = (first, last)


class Positions:
    """Where the nodes of one module stand."""

    def __init__(self, module: cst.Module) -> None:
        recorder = _Recorder(module)
        module._codegen(recorder)
        self._ranges = recorder.ranges
        self._by_kind: dict[type[cst.CSTNode], list[cst.CSTNode]] = {}
        # Offset of each token's start; one more entry for the end of the text.
        self._offsets = [0, *accumulate(len(token) for token in recorder.tokens)]
        self.code = "".join(recorder.tokens)
        """The module written out, the same as `module.code`."""
        self._lines = [0, *(match.end() for match in _NEWLINE.finditer(self.code))]

    def span(self, node: cst.CSTNode) -> Span:
        """Range of a node without the white space and comments around it. Raises KeyError for a new node."""
        first, last = self._ranges[node]
        line, column = self._point(self._offsets[min(first, len(self._offsets) - 1)])
        end_line, end_column = self._point(self._offsets[min(last, len(self._offsets) - 1)])
        return Span(line, column, end_line, end_column)

    def nodes(self, kind: type[NodeT]) -> list[NodeT]:
        """All nodes of one kind in the order of the text."""
        if not self._by_kind:
            for node in self._ranges:
                self._by_kind.setdefault(type(node), []).append(node)
        found = [
            node
            for each, nodes in self._by_kind.items()
            if issubclass(each, kind)
            for node in nodes
            if isinstance(node, kind)
        ]
        return sorted(found, key=self._ranges.__getitem__)

    def __iter__(self) -> Iterator[cst.CSTNode]:
        return iter(self._ranges)

    def __contains__(self, node: cst.CSTNode) -> bool:
        return node in self._ranges

    def _point(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1
