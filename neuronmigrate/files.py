"""Which files a run looks at, bytes in, and atomic bytes out."""

from __future__ import annotations

import contextlib
import enum
import errno
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from neuronmigrate.config import Exclude, Settings, UserError, common_folder
from neuronmigrate.git import GitError, is_root, repository_of
from neuronmigrate.plan import Finding, Place, Problem, State, Trouble

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

LARGEST = 20_000_000
"""Bytes. No person wrote a larger source file, and parsing one would take minutes."""


class Kind(enum.Enum):
    """What a file is, and so who reads it."""

    PYTHON = "python"


# Notebooks, shell, Docker and requirement files join here, each with its Kind.
ENDINGS = {".py": Kind.PYTHON, ".pyi": Kind.PYTHON}

# Never anybody's own source.
FOREIGN = frozenset(
    {
        ".bzr",
        ".eggs",
        ".git",
        ".hg",
        ".hypothesis",
        ".ipynb_checkpoints",
        ".jj",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        "__pycache__",
        "__pypackages__",
        "node_modules",
        "site-packages",
    }
)
# Build products, unless git tracks what is in them.
PRODUCTS = frozenset({"build", "dist"})

# The legacy packages themselves, when a copy stands in a tree: name -> what only the package has in it.
VENDORED = {
    "libneuronxla": ("libneuronpjrt_path.py", "neuron_cc_wrapper.py", "proto"),
    "neuronx_distributed": ("parallel_layers", "trainer", "kernels"),
    "neuronx_distributed_inference": ("models", "modules"),
    "neuronx_distributed_training": ("lightning_modules", "models"),
    "optimum/neuron": ("modeling.py", "modeling_base.py", "modeling_traced.py", "trainers.py", "version.py"),
    "torch_neuron": ("convert.py", "decorators.py", "graph.py"),
    "torch_neuronx": ("dynamic_batching.py", "pyhlo", "version.py", "xla_impl"),
    "torch_xla": ("_internal", "core/xla_model.py", "version.py"),
    "transformers_neuronx": ("base.py", "compiler.py", "hlo.py"),
}
_VENDORED_NAMES = frozenset(name.rpartition("/")[2] for name in VENDORED)


_NOT_READ_YET = re.compile(
    r".*\.(?:sh|bash|sbatch|slurm|ipynb|ya?ml|toml|cfg|service)|.*(?:requirements|constraints).*\.(?:txt|in)"
    r"|.*Dockerfile.*|Makefile"
)
"""Kinds of files that can hold legacy names, and that nothing rewrites yet."""
_DOCUMENTATION = re.compile(r".*\.(?:md|rst)")


class Unreadable(ValueError):
    """A file that cannot be read."""


class Unwritable(ValueError):
    """A file that was not replaced; the old content is untouched."""


@dataclass(frozen=True)
class Source:
    """A file to look at."""

    location: str
    """Absolute path, without symbolic links."""
    name: str
    """Posix path relative to the root of the tree."""

    @property
    def path(self) -> Path:
        return Path(self.location)


@dataclass(frozen=True)
class Tree:
    """What the given paths hold."""

    root: Path
    """Root of the repository or project; every name is relative to it."""
    sources: tuple[Source, ...] = ()
    findings: tuple[Finding, ...] = ()
    """Notes on copies of legacy packages, which are left alone."""
    notices: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    whole: bool = False
    """Whether everything below the root was looked for."""
    unread: tuple[Path, ...] = ()
    """Scripts, notebooks and requirement files: of kinds that are not read yet."""
    documentation: tuple[Path, ...] = ()

    @property
    def telling(self) -> list[Path]:
        """Every file that may say something about the project."""
        return [*(source.path for source in self.sources), *self.unread, *self.documentation]


def discover(paths: Sequence[str | Path], settings: Settings, *, root: Path | None = None) -> Tree:
    """Find the files to look at. A file that is named itself is taken whatever is ignored or excluded.

    Raises UserError when a path does not exist.
    """
    real = resolved(paths)
    search = _Search(root or root_of(real), settings)
    for path in real:
        if path.is_dir():
            search.folder(path)
        else:
            search.named(path)
    return search.result(whole=search.root in real)


def root_of(paths: Sequence[Path]) -> Path:
    """The root of resolved paths: the repository they share, else the project, else the folder."""
    common = common_folder(paths)
    repository = repository_of(common)
    if repository:
        return repository.root
    for place in (common, *common.parents):
        if any((place / name).is_file() for name in ("pyproject.toml", "setup.py", "setup.cfg")):
            return place
    return common


def everything(paths: Sequence[str | Path], root: Path) -> Iterator[tuple[str, Path]]:
    """Each file below the given paths with its path relative to `root`, whatever its kind.

    Left out are ignored files, environments, caches and other repositories.
    """
    search = _Search(root, Settings(), own_only=False)
    seen: set[str] = set()
    for path in resolved(paths):
        for name, tracked in search.entries(path) if path.is_dir() else [(str(path), True)]:
            if name in seen or search.barred(os.path.dirname(name), str(path), tracked):
                continue
            seen.add(name)
            if os.path.lexists(name) and not os.path.isdir(name) and os.path.basename(name) != ".git":
                yield search.relative(name), Path(name)


def resolved(paths: Sequence[str | Path]) -> list[Path]:
    """The paths without symbolic links. Raises UserError when one does not exist."""
    found = []
    for path in paths:
        try:
            found.append(Path(path).resolve(strict=True))
        except OSError as error:
            reason = "does not exist" if error.errno == errno.ENOENT else f"cannot be read: {error.strerror}"
            raise UserError(f"{path}: {reason}") from error
        except (RuntimeError, ValueError) as error:
            # A loop of symbolic links before Python 3.13; a NUL in the name.
            raise UserError(f"{path}: cannot be read: {error}") from error
    return found


@dataclass
class _Search:
    """One discovery, with what it has seen so far."""

    root: Path
    settings: Settings
    own_only: bool = True
    """Whether build output and copies of legacy packages are left out."""
    sources: dict[str, Source] = field(default_factory=dict)
    links: list[tuple[str, Path]] = field(default_factory=list)
    findings: dict[str, Finding] = field(default_factory=dict)
    notices: dict[str, None] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    documentation: list[str] = field(default_factory=list)
    bars: dict[tuple[str, str, bool], str] = field(default_factory=dict)
    excludes: list[tuple[str, GitIgnoreSpec]] | None = None

    def __post_init__(self) -> None:
        self.prefix = str(self.root).rstrip(os.sep) + os.sep

    def relative(self, path: str) -> str:
        # Asked for each file: a slice is ten times as fast as os.path.relpath.
        below = path.startswith(self.prefix)
        return (path[len(self.prefix) :] if below else os.path.relpath(path, self.root)).replace(os.sep, "/")

    def result(self, *, whole: bool) -> Tree:
        for link, base in self.links:
            self.follow(link, base)
        sources = sorted(self.sources.values(), key=lambda source: source.name.split("/"))
        return Tree(
            self.root,
            tuple(sources),
            tuple(self.findings[name] for name in sorted(self.findings)),
            tuple(self.notices),
            tuple(self.problems),
            whole,
            tuple(map(Path, sorted(set(self.unread)))),
            tuple(map(Path, sorted(set(self.documentation)))),
        )

    def add(self, path: str) -> None:
        self.sources.setdefault(path, Source(path, self.relative(path)))

    def named(self, path: Path) -> None:
        """Take a file that the user named; a pipe or device is taken to be refused with a reason."""
        if kind_of(path.name) or not path.is_file() or _has_python_shebang(str(path)):
            self.add(str(path))
        else:
            self.notices[f"{self.relative(str(path))}: not a kind of file that is read yet"] = None

    def folder(self, base: Path) -> None:
        """Take the sources below a folder."""
        if package := self.vendored(str(base)):
            self.note_vendored(*package)
            return
        before = len(self.sources) + len(self.links)
        for path, tracked in self.entries(base):
            name = os.path.basename(path)
            suffixless = "." not in name
            unread = _NOT_READ_YET.fullmatch(name) is not None
            documentation = _DOCUMENTATION.fullmatch(name) is not None
            if not suffixless and kind_of(name) is None and not unread and not documentation:
                continue
            if self.barred(os.path.dirname(path), str(base), tracked) or self.excluded(path):
                continue
            if unread or documentation:
                (self.unread if unread else self.documentation).append(path)
                continue
            try:
                mode = os.lstat(path).st_mode
            except FileNotFoundError:
                continue  # tracked, and deleted in the work tree
            except OSError as error:
                self.trouble(path, error)
                continue
            if stat.S_ISLNK(mode):
                if not suffixless:
                    self.links.append((path, base))
            elif not stat.S_ISDIR(mode) and (not suffixless or _has_python_shebang(path)):
                self.add(path)
        if len(self.sources) + len(self.links) == before and not self.problems and not self.findings:
            self.notices[f"{self.relative(str(base))}: no Python files in it"] = None

    def follow(self, link: str, base: Path) -> None:
        """Take the file behind a link once, and only if the search would have found it by itself."""
        target = os.path.realpath(link)
        if target in self.sources:
            return
        if not os.path.exists(target):
            where = "to nothing"
        elif os.path.commonpath([target, base]) != str(base):
            where = "out of the given path"
        elif os.path.isfile(target) and "." not in os.path.basename(target):
            self.add(target)
            return
        else:
            where = "to a place that is not searched"
        self.notices[f"{self.relative(link)}: a link {where}, not followed"] = None

    def trouble(self, path: str, error: OSError) -> None:
        place = Place(self.relative(path), 1)
        self.problems.append(Problem(Trouble.READ, place, f"cannot be read: {error.strerror}"))

    # Where files come from.

    def entries(self, base: Path) -> Iterator[tuple[str, bool]]:
        """Each file below a folder that is not ignored, and whether git tracks it."""
        repository = repository_of(base)
        if repository is None:
            yield from self.walk(str(base), self.inherited(base))
            return
        try:
            found = repository.listing(os.path.relpath(base, repository.root))
        except GitError as error:
            self.notices[f"{error}; its ignore files are used instead"] = None
            yield from self.walk(str(base), self.inherited(base))
            return
        if not (found.tracked or found.untracked or found.nested):
            # A folder that git ignores, but the user named it.
            yield from self.walk(str(base), [])
            return
        prefix = str(repository.root) + os.sep
        for names, tracked in ((found.tracked, True), (found.untracked, False)):
            for name in names:
                yield prefix + name, tracked
        for name in found.nested:
            if os.path.isdir(prefix + name) and not self.barred(prefix + name, str(base), tracked=False):
                shown = self.relative(prefix + name)
                self.notices[f"{shown}: another repository, left out unless it is named as a path"] = None

    def walk(self, base: str, rules: list[tuple[str, GitIgnoreSpec]]) -> Iterator[tuple[str, bool]]:
        """The files below a folder that no ignore file excludes. Links to folders are not followed."""
        stack = [(base, rules)]
        while stack:
            folder, rules = stack.pop()
            try:
                with os.scandir(folder) as scan:
                    inside = sorted(scan, key=lambda entry: entry.name)
            except OSError as error:
                self.trouble(folder, error)
                continue
            own = [entry.name for entry in inside if entry.name in (".gitignore", ".ignore")]
            rules = rules + [_ignore_file(folder, name) for name in sorted(own)]
            for entry in reversed(inside):
                if not entry.is_dir(follow_symlinks=False):
                    if not _ignored(entry.path, rules):
                        yield entry.path, False
                elif _ignored(entry.path + "/", rules) or self.barred(entry.path, base, tracked=False):
                    continue
                elif is_root(entry.path):
                    yield from self.entries(Path(entry.path))
                else:
                    stack.append((entry.path, rules))

    def inherited(self, base: Path) -> list[tuple[str, GitIgnoreSpec]]:
        """The ignore files above a folder, up to the root."""
        rules = []
        for place in reversed(base.parents):
            if place == self.root or self.root in place.parents:
                for name in (".gitignore", ".ignore"):
                    if (place / name).is_file():
                        rules.append(_ignore_file(str(place), name))
        return rules

    # What is left out.

    def barred(self, folder: str, base: str, tracked: bool) -> bool:
        """Whether files in a folder are not the user's own. Folders above `base` do not count."""
        if len(folder) <= len(base):
            return False
        key = (base, folder, tracked)
        if key not in self.bars:
            above = self.barred(os.path.dirname(folder), base, tracked)
            self.bars[key] = "above" if above else self.bar(folder, tracked)
        return bool(self.bars[key])

    def bar(self, folder: str, tracked: bool) -> str:
        """Why the files in a folder are left out, in a word; empty when they are not."""
        name = os.path.basename(folder)
        if name in FOREIGN or os.path.islink(folder):
            return "foreign"
        if os.path.exists(os.path.join(folder, "pyvenv.cfg")):
            return "environment"
        if not self.own_only:
            return ""
        if name in PRODUCTS and not tracked:
            shown = self.relative(folder)
            self.notices[f"{shown}: taken for build output, left out unless it is named as a path"] = None
            return "product"
        if name in _VENDORED_NAMES and (package := self.vendored(folder, above=False)):
            self.note_vendored(*package)
            return "vendored"
        return ""

    def vendored(self, folder: str, *, above: bool = True) -> tuple[str, str] | None:
        """The folder and name of the legacy package that a folder is, or is part of."""
        place = Path(folder)
        for candidate in (place, *place.parents) if above else (place,):
            for name in (candidate.name, f"{candidate.parent.name}/{candidate.name}"):
                signs = VENDORED.get(name, ())
                if not signs or not (candidate / "__init__.py").is_file():
                    continue
                if any((candidate / sign).exists() for sign in signs):
                    return str(candidate), name
        return None

    def note_vendored(self, folder: str, package: str) -> None:
        name = f"{self.relative(folder)}/__init__.py"
        self.findings[name] = Finding(
            codemod="vendored",
            state=State.NOTE,
            place=Place(name, 1),
            found=package.replace("/", "."),
            why="a copy of the legacy package itself, left alone; it goes when nothing imports it any more",
        )

    def excluded(self, path: str) -> bool:
        if self.excludes is None:
            self.excludes = _exclude_rules(self.settings.exclude)
        return bool(self.excludes) and _ignored(path, self.excludes)


def _exclude_rules(excludes: Sequence[Exclude]) -> list[tuple[str, GitIgnoreSpec]]:
    by_base: dict[str, list[str]] = {}
    for one in excludes:
        by_base.setdefault(os.path.realpath(one.base), []).append(one.pattern)
    return [(base, _spec(patterns)) for base, patterns in by_base.items()]


def _ignore_file(folder: str, name: str) -> tuple[str, GitIgnoreSpec]:
    try:
        lines = Path(folder, name).read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        lines = []
    return folder, _spec(lines)


def _spec(lines: Sequence[str]) -> GitIgnoreSpec:
    # Imported here: most runs need no patterns at all, and it takes longer than a listing.
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError:
        kept = []
        for line in lines:
            with contextlib.suppress(ValueError):
                GitIgnoreSpec.from_lines([line])
                kept.append(line)
        return GitIgnoreSpec.from_lines(kept)


def _ignored(path: str, rules: Sequence[tuple[str, GitIgnoreSpec]]) -> bool:
    """Whether the last rule that speaks of a path ignores it. A folder ends with a slash."""
    for base, spec in reversed(rules):
        if path.startswith(base.rstrip(os.sep) + os.sep):
            verdict = spec.check_file(path[len(base.rstrip(os.sep)) + 1 :].replace(os.sep, "/")).include
            if verdict is not None:
                return verdict
    return False


def kind_of(name: str) -> Kind | None:
    """What a file is by its name."""
    return ENDINGS.get(os.path.splitext(name)[1])


def _has_python_shebang(path: str) -> bool:
    try:
        with _opened(path) as descriptor:
            first = os.read(descriptor, 200).partition(b"\n")[0]
    except (OSError, Unreadable):
        return False
    return first.startswith(b"#!") and b"python" in first


def read(path: str | Path) -> bytes:
    """The content of a file. Raises Unreadable, and never waits for a pipe or a device."""
    try:
        with _opened(path) as descriptor:
            size = os.fstat(descriptor).st_size
            if size > LARGEST:
                raise Unreadable(f"is too large ({size:,} bytes)")
            parts = []
            while part := os.read(descriptor, size + 1):
                parts.append(part)
            return b"".join(parts)
    except MemoryError as error:
        raise Unreadable("does not fit into memory") from error
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from error


@contextlib.contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    # Without O_NONBLOCK the opening of a named pipe waits for a writer that never comes.
    flags = (
        os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_BINARY", 0)
    )
    descriptor = os.open(path, flags)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise Unreadable("is a folder")
        if not stat.S_ISREG(mode):
            raise Unreadable("is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def temporary_name() -> str:
    """A name for the file that will take another one's place."""
    return f".neuronmigrate-{secrets.token_hex(6)}.tmp"


def replace(path: Path, before: bytes, after: bytes, *, temporary: str = "") -> None:
    """Put `after` in the place of a file that still holds `before`, whole or not at all.

    Mode, owner and extended attributes stay. Raises Unwritable, and then the file is as it was.
    """
    scratch = path.parent / (temporary or temporary_name())
    try:
        if read(path) != before:
            raise Unwritable("was changed by somebody else in the meantime; run again")
        if not os.access(path, os.W_OK):
            raise Unwritable("is read-only")
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode):
            raise Unwritable("is not a regular file any more; run again")
        _write_new(scratch, after, found.st_mode & 0o7777, like=path)
        os.replace(scratch, path)
        sync_folder(path.parent)
    except Unreadable as error:
        raise Unwritable(str(error)) from error
    except OSError as error:
        raise Unwritable(f"cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def create(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a file whole: nobody sees half of it. One that is there is replaced. Raises OSError."""
    scratch = path.parent / temporary_name()
    try:
        _write_new(scratch, content, mode)
        os.replace(scratch, path)
        sync_folder(path.parent)
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def _write_new(path: Path, content: bytes, mode: int, like: Path | None = None) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view) :]
        if like is not None:
            _copy_ownership(descriptor, like)
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_ownership(descriptor: int, like: Path) -> None:
    """Owner, group and extended attributes, as far as this user may set them."""
    found = os.stat(like)
    if hasattr(os, "fchown"):
        mine = os.fstat(descriptor)
        if (mine.st_uid, mine.st_gid) != (found.st_uid, found.st_gid):
            with contextlib.suppress(OSError):
                os.fchown(descriptor, found.st_uid, found.st_gid)
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            for attribute in os.listxattr(like):
                with contextlib.suppress(OSError):
                    os.setxattr(descriptor, attribute, os.getxattr(like, attribute))


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder outlast a power cut, where the system can do that."""
    if os.name == "posix":
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
