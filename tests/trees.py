"""Trees of files for tests, and small parts that decide in place of the engine."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from neuronmigrate.config import Settings
from neuronmigrate.plan import Finding, Place, Result, State
from neuronmigrate.run import Engine

HOME = Path(__file__).parent.parent
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH, _PR_CAPBSET_DROP = 1, 2, 24


def write(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files below a folder and return the folder."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def git(root: Path, *arguments: str) -> str:
    """Run git in a folder, untouched by the settings of whoever runs the tests."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="surrogateescape")
    assert done.returncode == 0, done.stderr
    return done.stdout


def repository(root: Path, files: Mapping[str, str | bytes]) -> Path:
    """Make a repository in which the files are committed, and return its folder."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "--quiet", "--initial-branch=main")
    write(root, files)
    if files:
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "--message=start")
    return root


def content(root: Path) -> dict[str, bytes]:
    """All files below a folder, git's own aside."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".git" not in path.relative_to(root).parts
    }


def as_common_user() -> None:
    """Let permissions count for root as well; to be run in a child before it starts its program."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None)
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            assert libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0


def python(code: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a piece of Python, for which permissions count, with this project and its tests on the path."""
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=as_common_user,
        timeout=100,
    )


@dataclass(frozen=True)
class FewFacts:
    """The facts of a project that has next to none."""

    told: tuple[str, ...] = ()
    joined: frozenset[str] = frozenset()

    def notices(self, paths: Iterable[str]) -> tuple[str, ...]:
        return self.told

    def concerns(self, path: str) -> bool:
        return path in self.joined


def has_marker(raw: bytes) -> bool:
    return b"legacy" in raw


def collect(root: Path, paths: Sequence[Path], settings: Settings) -> FewFacts:
    return FewFacts((f"{len(paths)} files in the project",))


def migrate(path: str, raw: bytes, facts: FewFacts, settings: Settings) -> Result:
    """`legacy()` becomes `native()`, other words with `legacy` in them are marked, `die` is the end."""
    if b"die" in raw:
        os.kill(os.getpid(), signal.SIGKILL)
    findings = []
    for number, line in enumerate(raw.split(b"\n"), 1):
        if b"legacy" in line:
            state = State.FIXED if b"legacy()" in line else State.MARKED
            place = Place(path, number, line.index(b"legacy") + 1)
            findings.append(Finding("stand-in", state, place, "legacy", "it is old"))
    after = raw.replace(b"legacy()", b"native()")
    return Result(path, raw, after if after != raw else None, tuple(findings))


STAND_IN = Engine(has_marker, collect, migrate)
