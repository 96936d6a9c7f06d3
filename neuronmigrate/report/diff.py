"""The patch of a run, in bytes: what `git apply` and `patch -p1` take.

Lines end at a line feed only, as git counts them: a carriage return or a form feed is part of its line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from neuronmigrate.plan import Result

CONTEXT = 3
EDITS = 2000
"""Edits up to which the shortest patch is looked for."""

_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_COLOURS = {b"d": b"1", b"-": b"31", b"+": b"32", b"@": b"36"}


class Change(NamedTuple):
    """Lines of a that give way to lines of b, as half-open ranges."""

    a: int
    a_end: int
    b: int
    b_end: int


def patch(results: Iterable[Result]) -> Iterator[bytes]:
    """The lines of a patch for all changed files, each with its line feed."""
    for result in results:
        if result.after is not None and result.changed:
            name = "stdin" if result.path == "-" else result.path
            yield from unified(name, result.before, result.after)


def coloured(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a patch as a terminal shows them."""
    header = False
    for line in lines:
        header = line.startswith(b"diff ") or (header and not line.startswith(b"@@"))
        colour = b"1" if header else _COLOURS.get(line[:1])
        body = line.rstrip(b"\r\n")
        yield b"\x1b[" + colour + b"m" + body + b"\x1b[0m" + line[len(body) :] if colour else line


def unified(name: str, before: bytes, after: bytes) -> Iterator[bytes]:
    """The lines of one file's patch."""
    old, new = quoted(f"a/{name}"), quoted(f"b/{name}")
    # The tab tells `patch` where a name with blanks ends.
    tab = b"\t" if b" " in old else b""
    yield b"diff --git " + old + b" " + new + b"\n"
    yield b"--- " + old + tab + b"\n"
    yield b"+++ " + new + tab + b"\n"
    a, b = _lines(before), _lines(after)
    for hunk in _hunks(_changes(a, b)):
        lead = max(0, hunk[0].a - CONTEXT)
        stop = min(len(a), hunk[-1].a_end + CONTEXT)
        shift = hunk[0].b - hunk[0].a
        end_shift = hunk[-1].b_end - hunk[-1].a_end
        yield b"@@ -%s +%s @@\n" % (_span(lead, stop), _span(lead + shift, stop + end_shift))
        at = lead
        for change in hunk:
            yield from _marked(b" ", a[at : change.a])
            yield from _marked(b"-", a[change.a : change.a_end])
            yield from _marked(b"+", b[change.b : change.b_end])
            at = change.a_end
        yield from _marked(b" ", a[at:stop])


def quoted(name: str) -> bytes:
    """A path as git writes it: in C's notation when a byte of it asks for that."""
    raw = os.fsencode(name)
    if all(32 <= byte < 127 and byte not in (34, 92) for byte in raw):
        return raw
    written = []
    for byte in raw:
        if byte in _ESCAPES:
            written.append("\\" + _ESCAPES[byte])
        else:
            written.append(chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}")
    return ('"' + "".join(written) + '"').encode("ascii")


def _lines(raw: bytes) -> list[bytes]:
    lines = raw.split(b"\n")
    whole = [line + b"\n" for line in lines[:-1]]
    return [*whole, lines[-1]] if lines[-1] else whole


def _hunks(changes: list[Change]) -> Iterator[list[Change]]:
    """Changes whose context touches stand in one hunk."""
    hunk: list[Change] = []
    for change in changes:
        if hunk and change.a - hunk[-1].a_end > 2 * CONTEXT:
            yield hunk
            hunk = []
        hunk.append(change)
    if hunk:
        yield hunk


def _changes(a: list[bytes], b: list[bytes]) -> list[Change]:
    """The fewest lines to take away and to add."""
    shorter = min(len(a), len(b))
    head = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    tail = next((i for i in range(shorter - head) if a[-1 - i] != b[-1 - i]), shorter - head)
    inner_a, inner_b = a[head : len(a) - tail], b[head : len(b) - tail]
    changes: list[Change] = []
    at = Change(head, head, head, head)
    for same_a, same_b, length in [*_matches(inner_a, inner_b), (len(inner_a), len(inner_b), 0)]:
        change = Change(at.a_end, head + same_a, at.b_end, head + same_b)
        if change.a != change.a_end or change.b != change.b_end:
            changes.append(change)
        at = Change(0, change.a_end + length, 0, change.b_end + length)
    return changes


def _matches(a: list[bytes], b: list[bytes]) -> list[tuple[int, int, int]]:
    """Runs of lines that stay: start in a, start in b, length.

    Myers' greedy search. Its time grows with the number of edits and hardly with the length of the
    file, and it does not lose its way among lines that repeat; difflib does one or the other. With more
    edits than EDITS nothing is said to stay: a longer patch, and as right.
    """
    furthest = {1: 0}
    steps: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), EDITS) + 1):
        steps.append(furthest.copy())
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]
            )
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x += 1
                y += 1
            furthest[diagonal] = x
            if x >= len(a) and y >= len(b):
                return _trail(steps, len(a), len(b))
    return []


def _trail(steps: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int, int]]:
    """Walk back from the end, and note where the way went along lines that stay."""
    runs = []
    for edits in range(len(steps) - 1, -1, -1):
        furthest = steps[edits]
        diagonal = x - y
        down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
        previous = diagonal + 1 if down else diagonal - 1
        from_x = furthest[previous]
        start = from_x if down else from_x + 1
        if x > start:
            runs.append((start, start - diagonal, x - start))
        x, y = from_x, from_x - previous
    return runs[::-1]


def _span(start: int, stop: int) -> bytes:
    count = stop - start
    # An empty range is named by the line before it.
    first = start + 1 if count else start
    return b"%d" % first if count == 1 else b"%d,%d" % (first, count)


def _marked(sign: bytes, lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        if line.endswith(b"\n"):
            yield sign + line
        else:
            yield sign + line + b"\n"
            yield b"\\ No newline at end of file\n"
