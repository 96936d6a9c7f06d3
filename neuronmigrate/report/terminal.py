"""Where lines and bytes leave the program: in colour on a terminal, plain everywhere else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import TextIO

from neuronmigrate.report.view import Line


def emit(lines: Iterable[Line], stream: TextIO) -> None:
    """Print lines. Text of the user's code is never read as markup."""
    try:
        if in_colour(stream):
            _rich(lines, stream)
        else:
            for line in lines:
                _write(stream, "".join(piece for piece, _ in line) + "\n")
            stream.flush()
    except BrokenPipeError:
        hush(stream)


def emit_bytes(chunks: Iterable[bytes], stream: TextIO) -> None:
    """Print bytes as they are."""
    try:
        stream.flush()
        for chunk in chunks:
            stream.buffer.write(chunk)
        stream.buffer.flush()
    except BrokenPipeError:
        hush(stream)


def in_colour(stream: TextIO) -> bool:
    """Whether a stream leads to a terminal that wants colour."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def hush(stream: TextIO) -> None:
    """Send a stream nowhere: its reader has left, and that is no error of this program."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _write(stream: TextIO, line: str) -> None:
    """Write a line in the stream's encoding, which need not know all its characters."""
    encoding = stream.encoding or "utf-8"
    stream.write(line.encode(encoding, "backslashreplace").decode(encoding))


def _rich(lines: Iterable[Line], stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, soft_wrap=True, markup=False, emoji=False)
    for line in lines:
        whole = Text()
        for piece, style in line:
            whole.append(piece.encode("utf-8", "backslashreplace").decode("utf-8"), style or None)
        console.print(whole)
