"""The lines of a project that start its scripts, and the flags they give.

A flag that the native argument parser does not know stops the script, so whoever rewrites its arguments says
which line has to change. All is read as text.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

_SUFFIXES = frozenset({".bash", ".sbatch", ".sh", ".slurm", ".yaml", ".yml"})
_NAMES = frozenset({"Dockerfile", "Makefile"})
_SCRIPT = re.compile(rb"\.py\b")
_CONTINUED = re.compile(r"\\[ \t]*\n")


@dataclass(frozen=True)
class Launch:
    """A line that starts a script."""

    script: str
    """The name of the script's file."""
    flags: tuple[str, ...]
    """The flags behind it, without dashes."""
    place: str
    """`path:line` of its first line."""


def reads(name: str) -> bool:
    """Whether a file of this name may hold such lines."""
    return PurePosixPath(name).suffix in _SUFFIXES or PurePosixPath(name).name in _NAMES


def from_text(path: str, raw: bytes) -> tuple[Launch, ...]:
    """The lines of a shell script, a job description or the like that start Python scripts."""
    if not reads(path) or not _SCRIPT.search(raw):
        return ()
    return tuple(_launches(path, raw.decode("utf-8", "replace").replace("\r\n", "\n")))


def _launches(path: str, text: str) -> Iterator[Launch]:
    at = 0
    # A line that goes on counts as one, at its first line.
    for line in _CONTINUED.sub(lambda match: " \x00", text).split("\n"):
        first = at + 1
        at += 1 + line.count("\x00")
        words = _words(line.replace("\x00", ""))
        for index, word in enumerate(words):
            if word.endswith(".py"):
                flags = [each[2:].partition("=")[0] for each in words[index + 1 :] if each.startswith("--")]
                yield Launch(PurePosixPath(word).name, tuple(flags), f"{path}:{first}")
                break


def _words(line: str) -> list[str]:
    """The words of a line up to the end of its first command; none for a comment."""
    if line.lstrip().startswith("#"):
        return []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    try:
        for word in lexer:
            if set(word) <= set(";&|") and any(each.endswith(".py") for each in words):
                break
            words.append(word)
    except ValueError:
        return line.split()
    return words
