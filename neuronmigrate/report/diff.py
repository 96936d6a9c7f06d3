"""The patch of a run, in bytes: what `git apply` and `patch -p1` take.

Lines end at a line feed only, as git counts them: a carriage return or a form feed is part of its line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from neuronmigrate.plan import Result

CONTEXT = 3
_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_COLOURS = {b"d": b"1", b"-": b"31", b"+": b"32", b"@": b"36"}


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
    for hunk in _hunks(a, b):
        first, last = hunk[0], hunk[-1]
        spans = _span(first[1], last[2]), _span(first[3], last[4])
        yield b"@@ -%s +%s @@\n" % spans
        for tag, from_a, to_a, from_b, to_b in hunk:
            if tag == "equal":
                yield from _marked(b" ", a[from_a:to_a])
            else:
                yield from _marked(b"-", a[from_a:to_a])
                yield from _marked(b"+", b[from_b:to_b])


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


Opcode = tuple[str, int, int, int, int]


def _hunks(a: list[bytes], b: list[bytes]) -> Iterator[list[Opcode]]:
    """Changes with their context. What is the same at both ends is not handed to difflib: it is slow."""
    from difflib import SequenceMatcher

    shorter = min(len(a), len(b))
    head = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    tail = next((i for i in range(shorter - head) if a[-1 - i] != b[-1 - i]), shorter - head)
    # One side's inner part may be empty; keep the context that the hunks will show.
    start = max(0, head - CONTEXT)
    rest = max(0, tail - CONTEXT)
    matcher = SequenceMatcher(None, a[start : len(a) - rest], b[start : len(b) - rest])
    for group in matcher.get_grouped_opcodes(CONTEXT):
        yield [(tag, i + start, j + start, k + start, m + start) for tag, i, j, k, m in group]


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
