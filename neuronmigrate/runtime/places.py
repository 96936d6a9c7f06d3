"""Which line of a program is at work, below everything that is installed."""

from __future__ import annotations

import enum
import linecache
import os
import sys
import sysconfig
import threading
import types
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """A line of the program."""

    path: str
    """As Python has it, absolute or relative; empty when no line of the program was at work."""
    line: int

    @property
    def source(self) -> str:
        """The text of the line."""
        return linecache.getline(self.path, self.line).strip() if self.path else ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


NOWHERE = Place("", 0)

_LIBRARIES = tuple(
    os.path.join(os.path.abspath(path), "")
    for path in (
        *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")},
        str(Path(__file__).parents[1]),
    )
)
_INSTALLED = frozenset({"dist-packages", "site-packages"})
_PRINTING = os.path.join("torch", "_tensor_str.py")
_FOREIGN, _OWN, _PRINTS, _RUNS_GRAPHS = range(4)


class Inside(enum.Enum):
    """What a line is doing just now that makes its operations special."""

    NOTHING = enum.auto()
    PRINT = enum.auto()
    """A tensor is being printed."""
    GRAPH = enum.auto()
    """A compiled graph is running."""


class Places:
    """Finds lines of the program: of all files but those of Python, of installed packages and of this one."""

    def __init__(self, runs_graphs: types.CodeType | None = None) -> None:
        self._runs_graphs = runs_graphs
        """The function below which compiled graphs run."""
        self._kinds: dict[str, int] = {}
        if runs_graphs is not None:
            self._kinds[runs_graphs.co_filename] = _RUNS_GRAPHS
        self._main = threading.main_thread().ident

    def now(self, frame: types.FrameType | None) -> tuple[Place, Inside]:
        """The line at or around a frame, and what it is doing."""
        place, inside = self._among(frame)
        if place is NOWHERE and threading.get_ident() != self._main:
            # A library's thread: the line that asked for it waits in the main one, as a rule.
            place, _ = self._among(sys._current_frames().get(self._main or 0))
        return place, inside

    def _among(self, frame: types.FrameType | None) -> tuple[Place, Inside]:
        inside = Inside.NOTHING
        kinds = self._kinds
        while frame is not None:
            path = frame.f_code.co_filename
            kind = kinds.get(path)
            if kind is None:
                kind = kinds[path] = _kind(path)
            if kind == _OWN:
                return Place(path, frame.f_lineno), inside
            if kind == _PRINTS:
                inside = Inside.PRINT
            elif kind == _RUNS_GRAPHS and frame.f_code is self._runs_graphs:
                inside = Inside.GRAPH
            frame = frame.f_back
        return NOWHERE, inside


def _kind(path: str) -> int:
    """Whether a file belongs to the program, to what is installed, or prints tensors."""
    # A program may be installed, too: `run -m package.module`.
    if path == getattr(sys.modules.get("__main__"), "__file__", None):
        return _OWN
    if path.endswith(_PRINTING):
        return _PRINTS
    if path.startswith("<") or os.path.abspath(path).startswith(_LIBRARIES):
        return _FOREIGN
    # Packages are also installed for a user, by the system, or in folders that a .pth file names.
    if not _INSTALLED.isdisjoint(path.split(os.sep)):
        return _FOREIGN
    return _OWN
