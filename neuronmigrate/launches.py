"""The lines of a project that start its scripts, the flags they give, and what does not act natively in them.

A flag that the native argument parser does not know stops the script, so whoever rewrites its arguments says
which line has to change. What such files hold of the legacy stack is said with the line to write: wrappers
that are not there any more, switches that changed the numbers, options that would reach the native compiler.
All is read as text, and nothing is written.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import PurePosixPath

from neuronmigrate import catalogue

_SUFFIXES = frozenset({".bash", ".sbatch", ".sh", ".slurm", ".yaml", ".yml"})
_NAMES = frozenset({"Dockerfile", "Makefile"})
_SCRIPT = re.compile(rb"\.py\b")
_CONTINUED = re.compile(r"\\[ \t]*\n")

_COMPILE = "neuron_parallel_compile"
_SPAWN = "xla_spawn.py"
_WRAPPERS = re.compile(rf"(?<![\w.-])({_COMPILE}|{re.escape(_SPAWN)})(?![\w.-])")
# With its own options, in front of the command that it ran.
_COMPILED = re.compile(
    rf"(?<![^\s;&|(\"'`])(?:[\w./~-]*/)?{_COMPILE}"
    r"(?:[ \t]+--(?:command|dump-to|num_parallel)(?:=|[ \t]+)\S+|[ \t]+--ignore-errors)*[ \t]+"
    r"(?=\w+=|[./~$]|(?:accelerate|bash|mpirun|pytest|python[\d.]*|sh|srun|torchrun)\s)"
)
_SPAWNED = re.compile(
    rf"(?:(?<!\S)\S*python[\d.]*[ \t]+)?(?<![^\s;&|(\"'`])(?:[\w./~-]*/)?{re.escape(_SPAWN)}"
    r"[ \t]+--num_cores(?:=|[ \t]+)(?P<number>[\w${}]+)"
)
# `export A=1`, `A: 1`, `- name: A`.
_SWITCH = "XLA_(?:DOWNCAST|USE)_BF16"
_SWITCHES = re.compile(
    rf"(?<![\w$-])({_SWITCH})(?:=(?![\"']?0)|[\"']?:\s+(?![\"']?0))|name:\s*[\"']?({_SWITCH})\b"
)
_OPTIONS = re.compile(r"--(?:cache_dir|no_cache|retry_failed_compilation)\b")
"""Of `NEURON_CC_FLAGS`: what the cache in front of the compiler read; natively the compiler gets it."""


@dataclass(frozen=True)
class Launch:
    """A line that starts a script."""

    script: str
    """The name of the script's file."""
    flags: tuple[str, ...]
    """The flags behind it, without dashes."""
    place: str
    """`path:line` of its first line."""
    values: tuple[str, ...] = ()
    """What each of the flags is given; empty for nothing."""


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
        words = list(_apart(_words(line.replace("\x00", ""))))
        for index, word in enumerate(words):
            if word.endswith(".py"):
                given = list(_flags(words[index + 1 :]))
                flags, values = (tuple(each[at] for each in given) for at in (0, 1))
                yield Launch(PurePosixPath(word).name, flags, f"{path}:{first}", values)
                break


def _apart(words: list[str]) -> Iterator[str]:
    """The words of a command, also where it stands in quotes or as a list."""
    for word in words:
        if word.startswith("[") or word.endswith((",", "]")):
            yield from (each for each in re.split(r"[\[\],]", word) if each)
        elif re.search(r"\.py\s", word):
            yield from word.split()
        else:
            yield word


def _flags(words: list[str]) -> Iterator[tuple[str, str]]:
    for word, following in zip_longest(words, words[1:], fillvalue="--"):
        if word.startswith("--"):
            name, equal, value = word[2:].partition("=")
            yield name, value if equal or following.startswith("--") else following


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


def legacy_lines(path: str, raw: bytes) -> Iterator[str]:
    """What does not act natively in a shell script or the like, as `path:line: what to write there`."""
    if not reads(path):
        return
    for number, line in enumerate(raw.decode("utf-8", "replace").splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        told = list(_told(line))
        if told:
            yield f"{path}:{number}: {'; '.join(told)}"


def _told(line: str) -> Iterator[str]:
    for name in dict.fromkeys(_WRAPPERS.findall(line)):
        native = _COMPILED.sub("", line) if name == _COMPILE else _SPAWNED.sub(_torchrun, line)
        entry = catalogue.command(name)
        assert entry is not None, "both are in the catalogue"
        todo = f"write `{native.strip()}`" if native != line else entry.advice
        yield f"`{name}` is gone: {todo}"
    for name in dict.fromkeys(one or other for one, other in _SWITCHES.findall(line)):
        variable = catalogue.env(name)
        assert variable is not None, "both are in the catalogue"
        yield f"`{name}` does nothing natively, float32 stays float32: {variable.advice}"
    if "NEURON_CC_FLAGS" in line:
        for name in dict.fromkeys(_OPTIONS.findall(line)):
            option = catalogue.flag(name)
            assert option is not None, "all three are in the catalogue"
            yield f"`{name}` in NEURON_CC_FLAGS: {option.advice}"


def _torchrun(match: re.Match[str]) -> str:
    return f"torchrun --nproc-per-node={match['number']}"
