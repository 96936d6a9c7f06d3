"""Which files are found, how they are read, and how they are replaced."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from neuronmigrate import files
from neuronmigrate.config import Exclude, Settings, UserError
from neuronmigrate.files import Tree, discover
from neuronmigrate.git import repository_of
from neuronmigrate.plan import State
from tests.trees import content, git, python, repository, write


def names(tree: Tree) -> list[str]:
    return [source.name for source in tree.sources]


def found(*paths: str | Path, exclude: tuple[Exclude, ...] = ()) -> list[str]:
    return names(discover(paths, Settings(exclude=exclude)))


# Finding, without git


def test_kinds(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.py": "",
            "b.pyi": "",
            "c.txt": "",
            "d.pyc": "",
            "run": "#!/usr/bin/env python3\n",
            "sh": "#!/bin/sh\npython\n",
            "LICENSE": "python",
            "e.py/f.py": "",
        },
    )
    assert found(tmp_path) == ["a.py", "b.pyi", "e.py/f.py", "run"]


def test_what_is_never_the_users_own(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.py": "",
            ".git_/b.py": "",
            ".hg/c.py": "",
            "node_modules/d.py": "",
            "__pycache__/e.py": "",
            "lib/site-packages/f.py": "",
            ".tox/g.py": "",
            "env/pyvenv.cfg": "",
            "env/lib/h.py": "",
            "build/lib/i.py": "",
            "dist/j.py": "",
        },
    )
    tree = discover([tmp_path], Settings())
    assert names(tree) == [".git_/b.py", "a.py"]
    assert sorted(tree.notices) == [
        "build: taken for build output, left out unless it is named as a path",
        "dist: taken for build output, left out unless it is named as a path",
    ]
    assert found(tmp_path / "build") == ["lib/i.py"]
    assert found(tmp_path / "env") == ["lib/h.py"]
    assert found(tmp_path, tmp_path / "env") == [".git_/b.py", "a.py", "env/lib/h.py"]


def test_ignore_files(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "setup.py": "",
            ".gitignore": "*_gen.py\n/top/\n!keep_gen.py\n",
            "a_gen.py": "",
            "keep_gen.py": "",
            "top/b.py": "",
            "x/top/c.py": "",
            "x/.ignore": "c.py\n!d_gen.py\n",
            "x/d_gen.py": "",
            "x/c.py": "",
        },
    )
    assert found(tmp_path) == ["keep_gen.py", "setup.py", "x/d_gen.py"]
    # The ignore files above the given folder count as well, up to the root of the project.
    assert found(tmp_path / "x") == ["x/d_gen.py"]


def test_one_odd_pattern_spoils_no_other(tmp_path: Path) -> None:
    write(tmp_path, {".gitignore": b"!\n\xff\xfe\n[\nb.py\n", "a.py": "", "b.py": ""})
    assert found(tmp_path) == ["a.py"]


def test_named_files_are_always_taken(tmp_path: Path) -> None:
    write(
        tmp_path, {".gitignore": "a.py\n", "a.py": "", "node_modules/b.py": "", "c.txt": "", "Makefile": ""}
    )
    exclude = (Exclude("*.py", str(tmp_path)),)
    assert found(tmp_path / "a.py", tmp_path / "node_modules" / "b.py", exclude=exclude) == [
        "a.py",
        "node_modules/b.py",
    ]
    tree = discover([tmp_path / "c.txt", tmp_path / "Makefile"], Settings())
    assert names(tree) == []
    assert tree.notices == (
        "c.txt: not a kind of file that is read yet",
        "Makefile: not a kind of file that is read yet",
    )


def test_excludes(tmp_path: Path) -> None:
    write(tmp_path, {"a/x.py": "", "a/b/x.py": "", "a/c/y.py": "", "x.py": ""})
    assert found(tmp_path, exclude=(Exclude("/x.py", str(tmp_path)),)) == ["a/b/x.py", "a/c/y.py", "a/x.py"]
    assert found(tmp_path, exclude=(Exclude("/x.py", str(tmp_path / "a")),)) == [
        "a/b/x.py",
        "a/c/y.py",
        "x.py",
    ]
    assert found(tmp_path, exclude=(Exclude("b/", str(tmp_path)),)) == ["a/c/y.py", "a/x.py", "x.py"]


def test_missing_path() -> None:
    with pytest.raises(UserError, match=r"^no/such: does not exist$"):
        discover(["no/such"], Settings())


def test_same_file_twice(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "d/b.py": ""})
    assert found(tmp_path, tmp_path / "d", tmp_path / "a.py", tmp_path / "d" / ".." / "a.py") == [
        "a.py",
        "d/b.py",
    ]


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    write(tmp_path, {"a.txt": ""})
    assert discover([tmp_path], Settings()).notices == (".: no Python files in it",)


def test_root_is_the_project(tmp_path: Path) -> None:
    write(tmp_path, {"p/pyproject.toml": "", "p/src/a.py": "", "q/b.py": ""})
    assert discover([tmp_path / "p" / "src"], Settings()).root == tmp_path / "p"
    assert discover([tmp_path / "p" / "src" / "a.py", tmp_path / "q"], Settings()).root == tmp_path


def test_odd_names(tmp_path: Path) -> None:
    raw = os.fsencode(tmp_path) + b"/\xff\xfe.py"
    Path(os.fsdecode(raw)).write_bytes(b"")
    write(tmp_path, {"a\nb.py": "", " c .py": "", "\u00e4.py": "", "-n.py": "", ":(top)x.py": "", "*.py": ""})
    everything = sorted([" c .py", "*.py", "-n.py", ":(top)x.py", "a\nb.py", "\u00e4.py", "\udcff\udcfe.py"])
    assert found(tmp_path) == everything
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "a\nb.py")
    assert found(tmp_path) == everything
    assert found(tmp_path / "*.py") == ["*.py"]


# Links


def test_links(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"o.py": "", "d/p.py": ""})
    root = write(
        tmp_path / "in", {"real.py": "", "sub/a.py": "", "script": "", "env/pyvenv.cfg": "", "env/e.py": ""}
    )
    (root / "same.py").symlink_to("real.py")
    (root / "again.py").symlink_to(root / "real.py")
    (root / "out.py").symlink_to(outside / "o.py")
    (root / "dead.py").symlink_to("gone.py")
    (root / "hidden.py").symlink_to("env/e.py")
    (root / "named.py").symlink_to("script")
    (root / "outdir").symlink_to(outside / "d")
    (root / "sub" / "loop").symlink_to(root)
    tree = discover([root], Settings())
    assert names(tree) == ["real.py", "script", "sub/a.py"]
    assert set(tree.notices) == {
        "out.py: a link out of the given path, not followed",
        "dead.py: a link to nothing, not followed",
        "hidden.py: a link to a place that is not searched, not followed",
    }
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    assert found(root) == ["real.py", "script", "sub/a.py"]


def test_a_link_that_is_named_is_followed(tmp_path: Path) -> None:
    write(tmp_path / "real", {"a.py": ""})
    (tmp_path / "l.py").symlink_to("real/a.py")
    (tmp_path / "d").symlink_to("real")
    for path in ("l.py", "d"):
        tree = discover([tmp_path / path], Settings())
        assert [source.path for source in tree.sources] == [tmp_path / "real" / "a.py"]
        assert tree.root == tmp_path / "real"


def test_a_folder_that_became_a_link_is_not_followed(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"a.py": ""})
    root = repository(tmp_path / "in", {"d/a.py": "", "b.py": ""})
    (root / "d" / "a.py").unlink()
    (root / "d").rmdir()
    (root / "d").symlink_to(outside)
    assert found(root) == ["b.py"]


def test_loop_of_links_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(UserError, match="a: cannot be read"):
        discover([tmp_path / "a"], Settings())


# Finding, with git


def test_git_tells_what_belongs_to_the_tree(tmp_path: Path) -> None:
    root = repository(
        tmp_path,
        {".gitignore": "ignored*.py\n", "a.py": "", "gone.py": "", "build/b.py": "", "dist/out.txt": ""},
    )
    (root / "gone.py").unlink()
    write(root, {"ignored.py": "", "ignored_but_tracked.py": "", "new.py": "", "dist/new.py": ""})
    git(root, "add", "--force", "ignored_but_tracked.py")
    tree = discover([root], Settings())
    assert names(tree) == ["a.py", "build/b.py", "ignored_but_tracked.py", "new.py"]
    assert tree.notices == ("dist: taken for build output, left out unless it is named as a path",)


def test_git_environment_that_is_not_ignored(tmp_path: Path) -> None:
    root = repository(tmp_path, {"a.py": ""})
    write(root, {"myenv/pyvenv.cfg": "", "myenv/lib/b.py": "", "lib/site-packages/c.py": ""})
    assert found(root) == ["a.py"]


def test_folder_that_git_ignores_but_the_user_named(tmp_path: Path) -> None:
    root = repository(tmp_path, {".gitignore": "out/\n", "a.py": ""})
    write(root, {"out/b.py": ""})
    assert found(root) == ["a.py"]
    assert found(root / "out") == ["out/b.py"]


def test_part_of_a_repository(tmp_path: Path) -> None:
    root = repository(tmp_path, {"a/b/c.py": "", "a/d.py": "", "e.py": ""})
    tree = discover([root / "a" / "b"], Settings())
    assert (names(tree), tree.root) == (["a/b/c.py"], root)


def test_merge_conflict_lists_a_file_once(tmp_path: Path) -> None:
    root = repository(tmp_path, {"a.py": "a = 0\n"})
    git(root, "checkout", "--quiet", "-b", "other")
    write(root, {"a.py": "a = 1\n"})
    git(root, "commit", "--quiet", "--all", "--message=1")
    git(root, "checkout", "--quiet", "main")
    write(root, {"a.py": "a = 2\n"})
    git(root, "commit", "--quiet", "--all", "--message=2")
    with pytest.raises(AssertionError):
        git(root, "merge", "--quiet", "other")
    assert found(root) == ["a.py"]
    repo = repository_of(root)
    assert repo is not None and repo.unsafe().reason("a.py") == "modified"


def test_nested_repositories_are_left_out_unless_named(tmp_path: Path) -> None:
    root = repository(tmp_path / "outer", {"a.py": ""})
    repository(root / "inner", {"b.py": ""})
    library = repository(tmp_path / "library", {"c.py": ""})
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "sub")
    tree = discover([root], Settings())
    assert names(tree) == ["a.py"]
    assert set(tree.notices) == {
        "inner: another repository, left out unless it is named as a path",
        "sub: another repository, left out unless it is named as a path",
    }
    tree = discover([root / "sub"], Settings())
    assert (names(tree), tree.root) == (["c.py"], root / "sub")
    tree = discover([root, root / "inner"], Settings())
    assert (names(tree), tree.root) == (["a.py", "inner/b.py"], root)


def test_folder_full_of_repositories(tmp_path: Path) -> None:
    repository(tmp_path / "one", {"a.py": "", ".gitignore": "x.py\n"})
    write(tmp_path / "one", {"x.py": ""})
    repository(tmp_path / "two", {"b.py": ""})
    write(tmp_path, {"c.py": ""})
    tree = discover([tmp_path], Settings())
    assert (names(tree), tree.root) == (["c.py", "one/a.py", "two/b.py"], tmp_path)


def test_linked_work_tree(tmp_path: Path) -> None:
    root = repository(tmp_path / "main", {"a.py": ""})
    git(root, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    tree = discover([tmp_path / "linked"], Settings())
    assert (names(tree), tree.root) == (["a.py"], tmp_path / "linked")


def test_environment_of_a_hook_does_not_confuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "one", {"a.py": ""})
    other = repository(tmp_path / "two", {"b.py": ""})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert found(root) == ["a.py"]


def test_without_git_the_ignore_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository(tmp_path / "in", {"a.py": "", ".gitignore": "b.py\n"})
    write(root, {"b.py": ""})
    monkeypatch.setenv("PATH", str(tmp_path))
    tree = discover([root], Settings())
    assert names(tree) == ["a.py"]
    assert tree.notices[0].startswith("git cannot be started")


def test_repository_that_git_refuses(tmp_path: Path) -> None:
    root = repository(tmp_path, {"a.py": ""})
    (root / ".git" / "config").write_text("[core\n")
    tree = discover([root], Settings())
    assert names(tree) == ["a.py"]
    assert "git cannot read the repository" in tree.notices[0]


def test_programs_named_by_the_repository_are_not_started(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "", ".gitattributes": "*.py filter=evil\n"})
    sign = tmp_path / "sign"
    git(root, "config", "filter.evil.clean", f"touch {sign}; cat")
    git(root, "config", "filter.evil.required", "true")
    git(root, "config", "core.fsmonitor", f"touch {sign};")
    os.utime(root / "a.py", (1, 1))
    repo = repository_of(root)
    assert repo is not None
    assert found(root) == ["a.py"]
    assert repo.unsafe().reason("a.py") == ""
    assert not sign.exists()
    git(root, "status")
    assert sign.exists(), "the bait works"


# Copies of the legacy packages


@pytest.mark.parametrize("tracked", [True, False])
def test_vendored_packages_are_notes(tmp_path: Path, tracked: bool) -> None:
    root = write(
        tmp_path / "in",
        {
            "third/torch_xla/__init__.py": "",
            "third/torch_xla/core/__init__.py": "",
            "third/torch_xla/core/xla_model.py": "",
            "src/optimum/__init__.py": "",
            "src/optimum/neuron/__init__.py": "",
            "src/optimum/neuron/version.py": "",
            "torch_neuronx/train.py": "",
            "torch_xla/__init__.py": "",
            "torch_xla/train.py": "",
        },
    )
    if tracked:
        git(root, "init", "--quiet")
        git(root, "add", "--all")
    tree = discover([root], Settings())
    # A folder of the user's that only bears the name is searched.
    assert names(tree) == [
        "src/optimum/__init__.py",
        "torch_neuronx/train.py",
        "torch_xla/__init__.py",
        "torch_xla/train.py",
    ]
    assert [(str(one.place), one.found, one.state) for one in tree.findings] == [
        ("src/optimum/neuron/__init__.py:1:1", "optimum.neuron", State.NOTE),
        ("third/torch_xla/__init__.py:1:1", "torch_xla", State.NOTE),
    ]
    for inside in ("third/torch_xla", "third/torch_xla/core"):
        tree = discover([root / inside], Settings())
        assert names(tree) == [] and [one.found for one in tree.findings] == ["torch_xla"]


# Everything, for a copy


def test_everything(tmp_path: Path) -> None:
    root = repository(
        tmp_path / "in",
        {
            "a.py": "",
            "data/x.bin": "",
            ".gitignore": "*.log\n",
            "torch_xla/__init__.py": "",
            "torch_xla/version.py": "",
        },
    )
    write(root, {"new.txt": "", "x.log": "", "env/pyvenv.cfg": "", "env/x": "", "__pycache__/x.pyc": ""})
    (root / "link").symlink_to("a.py")
    listed = [name for name, _ in files.everything([root], root)]
    assert sorted(listed) == [
        ".gitignore",
        "a.py",
        "data/x.bin",
        "link",
        "new.txt",
        "torch_xla/__init__.py",
        "torch_xla/version.py",
    ]
    assert [name for name, _ in files.everything([root / "data"], root)] == ["data/x.bin"]


def test_everything_without_git(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "a.txt": "",
            ".gitignore": "*.log\n",
            "x.log": "",
            "build/b.py": "",
            "node_modules/c.js": "",
            "torch_xla/__init__.py": "",
            "torch_xla/version.py": "",
        },
    )
    listed = sorted(name for name, _ in files.everything([root], root))
    assert listed == [".gitignore", "a.txt", "build/b.py", "torch_xla/__init__.py", "torch_xla/version.py"]


# Reading


def test_what_cannot_be_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    with pytest.raises(files.Unreadable, match=r"^is not a regular file$"):
        files.read(tmp_path / "pipe.py")
    with pytest.raises(files.Unreadable, match=r"^is a folder$"):
        files.read(tmp_path)
    with pytest.raises(files.Unreadable, match=r"^cannot be read: No such file or directory$"):
        files.read(tmp_path / "gone.py")
    with pytest.raises(files.Unreadable, match=r"^is not a regular file$"):
        files.read(os.devnull)
    with open(tmp_path / "huge.py", "wb") as huge:
        huge.truncate(files.LARGEST + 1)
    with pytest.raises(files.Unreadable, match=r"^is too large \(20,000,001 bytes\)$"):
        files.read(tmp_path / "huge.py")


def test_pipes_and_sockets_are_taken_to_be_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    # Relative: the whole path may be longer than a socket's address can be.
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.py")
        assert found(tmp_path) == ["pipe.py", "socket.py"]
        assert found(tmp_path / "pipe.py") == ["pipe.py"]


def test_bytes_come_in_as_they_are(tmp_path: Path) -> None:
    raw = b"\xef\xbb\xbfa\r\nb\rc\x0c\n\x00\xff" * 50_000
    (tmp_path / "a.py").write_bytes(raw)
    assert files.read(tmp_path / "a.py") == raw
    (tmp_path / "b.py").write_bytes(b"")
    assert files.read(tmp_path / "b.py") == b""


def test_unreadable_folder_is_a_problem(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "", "shut/b.py": ""})
    (tmp_path / "shut").chmod(0)
    code = """
import sys
from neuronmigrate.config import Settings
from neuronmigrate.files import discover
tree = discover([sys.argv[1]], Settings())
print([source.name for source in tree.sources])
print([(problem.kind.value, problem.place.path, problem.message) for problem in tree.problems])
"""
    done = python(code, str(tmp_path))
    (tmp_path / "shut").chmod(0o700)
    assert done.stdout.splitlines() == ["['a.py']", "[('read', 'shut', 'cannot be read: Permission denied')]"]


# Replacing


def test_replace_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"old")
    for mode in (0o755, 0o600, 0o664):
        path.chmod(mode)
        files.replace(path, b"old", b"new")
        assert path.read_bytes() == b"new"
        assert stat.S_IMODE(path.stat().st_mode) == mode
        files.replace(path, b"new", b"old")
    assert content(tmp_path) == {"a.py": b"old"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_replace_keeps_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"old")
    os.chown(path, 1234, 2345)
    path.chmod(0o4755)
    files.replace(path, b"old", b"new")
    status = path.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (1234, 2345, 0o4755)


def test_replace_refuses_what_somebody_else_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"newer")
    with pytest.raises(files.Unwritable, match="changed by somebody else"):
        files.replace(path, b"old", b"new")
    path.unlink()
    with pytest.raises(files.Unwritable, match="No such file"):
        files.replace(path, b"old", b"new")
    assert content(tmp_path) == {}


def test_replace_does_not_write_through_a_link(tmp_path: Path) -> None:
    write(tmp_path, {"real.py": "old"})
    (tmp_path / "a.py").symlink_to("real.py")
    with pytest.raises(files.Unwritable, match="not a regular file any more"):
        files.replace(tmp_path / "a.py", b"old", b"new")
    assert (tmp_path / "real.py").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("shut", "message"), [("d", "cannot be written: Permission denied"), ("d/a.py", "is read-only")]
)
def test_replace_where_writing_is_not_allowed(tmp_path: Path, shut: str, message: str) -> None:
    write(tmp_path, {"d/a.py": "old"})
    (tmp_path / shut).chmod(0o555)
    code = """
import sys
from pathlib import Path
from neuronmigrate import files
try:
    files.replace(Path(sys.argv[1]), b"old", b"new")
except files.Unwritable as error:
    print(error)
"""
    done = python(code, str(tmp_path / "d" / "a.py"))
    (tmp_path / shut).chmod(0o755)
    assert done.stdout == message + "\n", done.stderr
    assert content(tmp_path) == {"d/a.py": b"old"}


def test_replace_when_the_disk_is_full(tmp_path: Path) -> None:
    # A limit on file size fails a write in the middle, as a full disk does.
    write(tmp_path, {"a.py": b"o" * 100_000})
    code = """
import resource, signal, sys
from pathlib import Path
from neuronmigrate import files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    files.replace(Path(sys.argv[1]), b"o" * 100_000, b"n" * 100_000)
except files.Unwritable as error:
    print(error)
"""
    done = python(code, str(tmp_path / "a.py"))
    assert done.stdout == "cannot be written: File too large\n", done.stderr
    assert content(tmp_path) == {"a.py": b"o" * 100_000}


def test_create(tmp_path: Path) -> None:
    files.create(tmp_path / "a", b"1", 0o640)
    files.create(tmp_path / "a", b"2", 0o640)
    assert content(tmp_path) == {"a": b"2"}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    with pytest.raises(OSError):
        files.create(tmp_path / "no" / "a", b"1")
