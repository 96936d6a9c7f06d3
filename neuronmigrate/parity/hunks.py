"""Cuts the difference of two programs into hunks that can be applied one without the other.

A hunk never ends inside a simple statement. Imports, functions and classes that only one side has change no
number while nobody uses them, so they stand in every mixture of the two sides, and what is left of a hunk can
be chosen alone.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

Lines = tuple[str, ...]


@dataclass(frozen=True)
class Hunk:
    """One piece of the difference. Lines count from 1."""

    path: str
    """File of the old side, relative to its folder."""
    line: int
    """First line in the old side, or the one before which lines are put in."""
    old: Lines
    new_line: int
    new: Lines

    @property
    def last(self) -> int:
        """Last line in the old side."""
        return self.line + max(len(self.old), 1) - 1

    def by_lines(self) -> Iterator[Lines | Hunk]:
        """What both sides share, and a hunk for each line that only one has or that is another."""
        matcher = difflib.SequenceMatcher(None, self.old, self.new, autojunk=False)
        for tag, a0, a1, b0, b1 in matcher.get_opcodes():
            if tag == "equal":
                yield self.old[a0:a1]
            elif tag == "replace" and a1 - a0 != b1 - b0:
                yield Hunk(self.path, self.line + a0, self.old[a0:a1], self.new_line + b0, self.new[b0:b1])
            else:
                for place in range(max(a1 - a0, b1 - b0)):
                    # Of what only one side has, the other side has no line.
                    i, j = min(a0 + place, a1), min(b0 + place, b1)
                    old, new = self.old[i : min(i + 1, a1)], self.new[j : min(j + 1, b1)]
                    yield Hunk(self.path, self.line + i, old, self.new_line + j, new)


@dataclass(frozen=True)
class Difference:
    """Two versions of one file."""

    path: str
    pieces: tuple[Lines | Hunk, ...]
    """What both sides share or every mixture has, and the hunks."""

    @property
    def hunks(self) -> list[Hunk]:
        """The hunks, in their order."""
        return [piece for piece in self.pieces if isinstance(piece, Hunk)]

    def finer(self, chosen: Collection[Hunk]) -> Difference:
        """The same difference, with some of the hunks cut by lines. Not every mixture of those is Python."""
        pieces: list[Lines | Hunk] = []
        for piece in self.pieces:
            pieces += piece.by_lines() if isinstance(piece, Hunk) and piece in chosen else [piece]
        return Difference(self.path, tuple(pieces))

    def mixture(self, applied: Collection[Hunk]) -> str:
        """The old version with some of the hunks applied."""
        lines: list[str] = []
        for piece in self.pieces:
            if isinstance(piece, Hunk):
                lines += piece.new if piece in applied else piece.old
            else:
                lines += piece
        return "".join(lines)


def of_scripts(before: Path, after: Path) -> list[Difference]:
    """The differences of two scripts, and of the modules of one name beside them.

    Raises SyntaxError, and UnicodeDecodeError for files that are not UTF-8.
    """
    pairs = [(before, after)]
    if before.parent.resolve() != after.parent.resolve():
        others = [each for each in sorted(before.parent.glob("*.py")) if each.name != before.name]
        pairs += [(each, after.parent / each.name) for each in others]
    found = []
    for old, new in pairs:
        if new.is_file():
            texts = old.read_text("utf-8"), new.read_text("utf-8")
            if texts[0] != texts[1]:
                found.append(difference(old.name, *texts))
    return found


def difference(path: str, old: str, new: str) -> Difference:
    """The hunks between two versions of a file. Raises SyntaxError where one cannot be parsed."""
    sides = _Side(old), _Side(new)
    sides[0].find_support(sides[1])
    sides[1].find_support(sides[0])
    pieces: list[Lines | Hunk] = []
    done = 0
    for a0, a1, b0, b1 in _blocks(*sides):
        pieces.append(tuple(sides[0].lines[done:a0]))
        done = a1
        pieces += _cut(path, sides[0], sides[1], (a0, a1, b0, b1))
    pieces.append(tuple(sides[0].lines[done:]))
    return Difference(path, tuple(piece for piece in pieces if piece))


class _Side:
    """The lines of one version, counted from 0, and what is known of them."""

    def __init__(self, text: str) -> None:
        self.tree = ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        if self.lines and not self.lines[-1].endswith("\n"):
            self.lines[-1] += "\n"
        self.inside = _inside(self.tree)
        self.binds = dict(pair for node in self.tree.body for pair in _bound(node))
        self.support: list[range] = []

    def find_support(self, other: _Side) -> None:
        """Note the statements that disturb nothing on the other side: no name there means another thing."""
        for node in self.tree.body:
            names = list(_bound(node))
            if names and all(other.binds.get(name, origin) == origin for name, origin in names):
                first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
                self.support.append(range(first - 1, node.end_lineno or node.lineno))

    def split(self, start: int, stop: int) -> tuple[list[int], list[int]]:
        """Of some lines, those of whole supporting statements and blank ones, and the others."""
        ours = [lines for lines in self.support if start <= lines.start and lines.stop <= stop]
        inside = {each for lines in ours for each in lines}
        if inside:
            inside |= {each for each in range(start, stop) if not self.lines[each].strip()} - self.inside
        return sorted(inside), [each for each in range(start, stop) if each not in inside]

    def statements(self, rows: Sequence[int]) -> list[list[int]]:
        """Rows by statement of the outermost level; comments and blank lines belong to what follows them."""
        level = self.level(rows)
        groups: list[list[int]] = []
        above: list[int] = []
        for row in rows:
            begins = row not in self.inside and self._says(row) and self._indent(row) == level
            if begins or (not groups and row == rows[-1]):
                groups.append([*above, row])
                above = []
            elif groups and (row in self.inside or self._says(row)):
                groups[-1] += [*above, row]
                above = []
            else:
                above.append(row)
        if groups:
            groups[-1] += above
        return groups

    def level(self, rows: Sequence[int]) -> int:
        """Indent of the outermost statements that begin in these rows."""
        return min(
            (self._indent(row) for row in rows if row not in self.inside and self._says(row)), default=0
        )

    def _says(self, row: int) -> bool:
        text = self.lines[row].strip()
        return bool(text) and not text.startswith("#")

    def _indent(self, row: int) -> int:
        return len(self.lines[row]) - len(self.lines[row].lstrip())


def _inside(tree: ast.Module) -> set[int]:
    """Lines before which a file cannot be cut: a statement began above and goes on."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = node.end_lineno or node.lineno
            if isinstance(body, list) and body:
                last = max(node.lineno, body[0].lineno - 1)
            found |= set(range(node.lineno, last))
    return found


def _bound(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Names that an import or a definition binds, each with what tells its meaning."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name, alias.name
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}"
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name, ast.dump(node)


def _blocks(a: _Side, b: _Side) -> Iterator[tuple[int, int, int, int]]:
    """Stretches that differ, made longer until no statement is cut at their ends."""
    matcher = difflib.SequenceMatcher(None, a.lines, b.lines, autojunk=False)
    shared = [
        (block.a + i, block.b + i) for block in matcher.get_matching_blocks() for i in range(block.size)
    ]
    # Both sides can be cut before these lines, and what stands between two of them may be chosen.
    cuts = [(i, j) for i, j in shared if i not in a.inside and j not in b.inside]
    same = set(shared)
    previous = 0, 0
    block: tuple[int, int, int, int] | None = None
    for i, j in [*cuts, (len(a.lines), len(b.lines))]:
        old, new = range(previous[0], i), range(previous[1], j)
        differs = len(old) != len(new) or any(pair not in same for pair in zip(old, new, strict=True))
        if differs and len(old) and len(new) and (old[0], new[0]) in same and old[0] + 1 <= i:
            # The statement that both begin with, if it is whole there, is no part of the hunk.
            end = 1
            while old[0] + end < i and (old[0] + end in a.inside or new[0] + end in b.inside):
                end += 1
            if all((old[0] + k, new[0] + k) in same for k in range(end)):
                previous = old[0] + end, new[0] + end
        if differs:
            block = previous[0], i, previous[1], j
            yield block
        previous = i, j


def _cut(path: str, a: _Side, b: _Side, block: tuple[int, int, int, int]) -> Iterator[Lines | Hunk]:
    """The pieces of one stretch that differs."""
    a0, a1, b0, b1 = block
    (kept_a, rest_a), (kept_b, rest_b) = a.split(a0, a1), b.split(b0, b1)
    yield tuple(a.lines[i] for i in kept_a) + tuple(b.lines[i] for i in kept_b)
    groups_a, groups_b = a.statements(rest_a), b.statements(rest_b)
    if len(groups_a) != len(groups_b) or a.level(rest_a) != b.level(rest_b):
        groups_a, groups_b = ([rest_a], [rest_b]) if rest_a or rest_b else ([], [])
    for old, new in zip(groups_a, groups_b, strict=True):
        first_a, first_b = old[0] if old else a0, new[0] if new else b0
        hunk = Hunk(
            path,
            first_a + 1,
            tuple(a.lines[i] for i in old),
            first_b + 1,
            tuple(b.lines[i] for i in new),
        )
        if hunk.old != hunk.new:
            yield hunk
        else:
            yield hunk.old
