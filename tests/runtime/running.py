"""Starts `neuronmigrate run` as a person would."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.trees import HOME


def script(folder: Path, text: str, name: str = "program.py") -> Path:
    """Write a script, with its common indentation taken off."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def run(
    *arguments: str | Path,
    cwd: Path = HOME,
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """`neuronmigrate run ARGUMENTS`, by a Python with these flags."""
    return _python(*flags, "-m", "neuronmigrate", "run", *arguments, cwd=cwd, env=env)


def plain(
    *arguments: str | Path, cwd: Path = HOME, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS`."""
    return _python(*arguments, cwd=cwd, env=env)


def _python(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def others(stderr: str) -> str:
    """What stands on stderr and is not from neuronmigrate."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("neuronmigrate:"))
