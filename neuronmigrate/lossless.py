"""Gives back the few bytes that LibCST does not keep.

A form feed between lines, or a last line of nothing but blanks, is not in the tree. What the parser
lost is noted as the difference between the file and the tree written out, line by line, and put back
into the result wherever the lines around it still stand.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right

import libcst as cst

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")


class Restorer:
    """What one file has that its tree has not."""

    def __init__(self, raw: bytes, module: cst.Module, written: str) -> None:
        again = written.encode(module.encoding)
        # LibCST takes no lone CR for the end of the last line.
        self.tail = b"\r" if raw.endswith(b"\r") and not again.endswith(b"\r") else b""
        again += self.tail
        self.exact = again == raw
        self.lost: list[tuple[int, int, list[bytes]]] = []
        """Ranges of lines of the written tree, and the lines that stand there in the file."""
        if not self.exact:
            self.written = _lines(again)
            self.lost = _differences(self.written, _lines(raw))
        shifts = [(end, start + len(lines) - end) for start, end, lines in self.lost]
        self._ends = [end for end, _ in shifts]
        self._offsets = [0]
        for _, change in shifts:
            self._offsets.append(self._offsets[-1] + change)

    def original_line(self, line: int) -> int:
        """The line of the file for a line of the written tree; both count from 1."""
        if self.exact:
            return line
        shift = bisect_right(self._ends, line - 1)
        return line + self._offsets[shift]

    def restore(self, tree: cst.Module) -> bytes:
        """The bytes of a changed tree, with what was lost put back. Raises ValueError if that cannot be."""
        written = tree.bytes
        if not written.endswith((b"\r", b"\n")):
            written += self.tail
        if self.exact:
            return written
        result = _lines(written)
        for start, end, lines in reversed(self.lost):
            at = self._same_place(result, start, end)
            result[at : at + end - start] = lines
        return b"".join(result)

    def _same_place(self, result: list[bytes], start: int, end: int) -> int:
        """Where a range of lines of the written tree stands in a result."""
        matcher = difflib.SequenceMatcher(None, self.written, result, autojunk=False)
        for block in matcher.get_matching_blocks():
            if block.a <= start and end <= block.a + block.size:
                return block.b + start - block.a
        raise ValueError("a line that LibCST cannot keep stands inside a rewritten statement")


def _lines(raw: bytes) -> list[bytes]:
    return [line.encode("latin-1") for line in _LINE.findall(raw.decode("latin-1"))]


def _differences(written: list[bytes], file: list[bytes]) -> list[tuple[int, int, list[bytes]]]:
    matcher = difflib.SequenceMatcher(None, written, file, autojunk=False)
    return [
        (start, end, file[begin:stop])
        for tag, start, end, begin, stop in matcher.get_opcodes()
        if tag != "equal"
    ]
