"""What git knows about a tree, asked in a way that runs nothing of the tree.

A repository's own configuration can name programs (`core.fsmonitor`, filter drivers) which git starts
while it lists or compares files. They are switched off: a scanned tree never gets to run code.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neuronmigrate.config import UserError

# Set for the hooks of another repository or command, they would answer for the wrong tree.
_FOREIGN = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_INDEX_FILE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_WORK_TREE",
    }
)
_GITLINK = b"160000"


class GitError(UserError):
    """git is missing or refuses the repository."""


@dataclass(frozen=True)
class Listing:
    """The files of a repository below one folder, as paths relative to its root."""

    tracked: tuple[str, ...]
    untracked: tuple[str, ...]
    """Neither tracked nor ignored."""
    nested: tuple[str, ...]
    """Submodules and repositories inside this one."""


@dataclass(frozen=True)
class Repository:
    """A work tree."""

    root: Path

    def run(self, *arguments: str, switches: tuple[str, ...] = ()) -> bytes:
        """The output of a git command. Raises GitError."""
        environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C"}
        command = ["git", "-C", str(self.root), "-c", "core.fsmonitor=false", *switches, *arguments]
        try:
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True)
        except OSError as error:
            raise GitError(f"git cannot be started: {error.strerror}") from error
        if done.returncode:
            reason = done.stderr.decode("utf-8", "replace").strip().partition("\n")[0]
            raise GitError(f"git cannot read the repository {self.root}: {reason}")
        return done.stdout

    def listing(self, below: str = ".") -> Listing:
        """The files below a folder that is given relative to the root. Raises GitError."""
        tracked: dict[str, None] = {}
        nested = []
        for entry in _split(self.run("ls-files", "-z", "--stage", "--", below)):
            head, _, raw = entry.partition(b"\t")
            name = os.fsdecode(raw)
            if head.startswith(_GITLINK):
                nested.append(name)
            else:
                # A file with a merge conflict is listed once for each side.
                tracked[name] = None
        untracked = []
        for raw in _split(self.run("ls-files", "-z", "--others", "--exclude-standard", "--", below)):
            name = os.fsdecode(raw)
            if name.endswith("/"):
                nested.append(name.rstrip("/"))
            else:
                untracked.append(name)
        return Listing(tuple(tracked), tuple(untracked), tuple(nested))

    def unsafe(self) -> Unsafe:
        """What git could not bring back if it were overwritten. Raises GitError."""
        kept, hidden = set(), set()
        for entry in _split(self.run("ls-files", "-z", "-v")):
            name = os.fsdecode(entry[2:])
            kept.add(name)
            # assume-unchanged (lower case) and skip-worktree: git would not notice a modification.
            if entry[:1].islower() or entry[:1] == b"S":
                hidden.add(name)
        status = self.run(
            "status",
            "--porcelain=v1",
            "-z",
            "--untracked-files=no",
            "--ignore-submodules=all",
            "--no-renames",
            switches=_without_filters(self),
        )
        modified = {os.fsdecode(entry[3:]) for entry in _split(status)}
        return Unsafe(frozenset(kept), frozenset(modified | hidden))

    def own_folder(self, name: str) -> Path:
        """A folder of ours beside git's own data, which is never part of the tree. Raises GitError."""
        raw = self.run("rev-parse", "--git-path", name).removesuffix(b"\n")
        return self.root / os.fsdecode(raw)


@dataclass(frozen=True)
class Unsafe:
    """Answers whether git could bring a file back."""

    tracked: frozenset[str]
    modified: frozenset[str]

    def reason(self, name: str) -> str:
        """Why a file, relative to the root, could not be brought back; empty when it could."""
        if name in self.modified:
            return "modified"
        return "" if name in self.tracked else "untracked"


def repository_of(folder: Path) -> Repository | None:
    """The repository that a folder, given as a resolved path, belongs to."""
    for place in (folder, *folder.parents):
        if is_root(place):
            return Repository(place)
    return None


def is_root(folder: Path | str) -> bool:
    """Whether a work tree starts at a folder. In linked work trees and submodules `.git` is a file."""
    marker = os.path.join(folder, ".git")
    return os.path.isfile(marker) or os.path.exists(os.path.join(marker, "HEAD"))


@functools.cache
def _without_filters(repository: Repository) -> tuple[str, ...]:
    """Switches that turn off the filter programs which the repository itself brings."""
    switches: list[str] = []
    entries = list(_split(repository.run("config", "--list", "--null", "--show-scope")))
    for scope, setting in zip(entries[::2], entries[1::2], strict=True):
        key = os.fsdecode(setting.partition(b"\n")[0])
        if scope in (b"local", b"worktree") and key.startswith("filter."):
            section, _, name = key.rpartition(".")
            if name in ("clean", "smudge", "process"):
                switches += ["-c", f"{key}=", "-c", f"{section}.required=false"]
    return tuple(switches)


def _split(raw: bytes) -> Iterator[bytes]:
    return iter(raw.removesuffix(b"\0").split(b"\0") if raw else ())
