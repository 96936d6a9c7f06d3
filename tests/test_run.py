"""From files to results and back: pool, refusals, writing, copies."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from neuronmigrate import files, run
from neuronmigrate.config import Settings, UserError
from neuronmigrate.files import Tree, discover
from neuronmigrate.journal import journal_of, undo
from neuronmigrate.plan import Report, Result, State, Trouble
from neuronmigrate.run import Engine
from tests import trees
from tests.trees import STAND_IN, FewFacts, content, git, python, repository, write

OLD, NEW = b"legacy()\n", b"native()\n"


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


def decided(root: Path, settings: Settings | None = None, jobs: int = 1) -> tuple[Report, Tree]:
    settings = settings or Settings()
    tree = discover([root], settings)
    return run.run(tree, settings, STAND_IN, jobs=jobs), tree


def rewritten(root: Path, settings: Settings | None = None) -> Report:
    settings = settings or Settings()
    report, tree = decided(root, settings)
    return run.write(report, tree, settings)[0]


# Deciding


def test_results(tmp_path: Path) -> None:
    root = write(tmp_path / "in", {"b.py": OLD, "a/c.py": b"x\nlegacy\n", "a.py": OLD, "clean.py": b"x\n"})
    report, _ = decided(root)
    assert [(one.path, one.after) for one in report.results] == [
        ("a/c.py", None),
        ("a.py", NEW),
        ("b.py", NEW),
    ]
    assert (report.scanned, report.count(State.FIXED), report.count(State.MARKED)) == (4, 2, 1)
    assert report.notices == ("4 files in the project",)


def test_bad_files_stop_nothing(tmp_path: Path) -> None:
    root = write(tmp_path / "in", {"a.py": OLD, "c.py": OLD})
    os.mkfifo(root / "b.py")
    with open(root / "d.py", "wb") as huge:
        huge.truncate(files.LARGEST + 1)
    report, _ = decided(root)
    assert [(one.path, one.changed) for one in report.results] == [
        ("a.py", True),
        ("b.py", False),
        ("c.py", True),
        ("d.py", False),
    ]
    assert [(one.kind, one.place.path) for one in report.problems] == [
        (Trouble.READ, "b.py"),
        (Trouble.READ, "d.py"),
    ]


def test_a_tree_without_a_hit_collects_nothing(tmp_path: Path) -> None:
    def collect(root: Path, paths: Sequence[Path], settings: Settings) -> FewFacts:
        raise AssertionError("nobody asked")

    root = write(tmp_path / "in", {"a.py": b"x\n"})
    parts = Engine(trees.has_marker, collect, trees.migrate)
    report = run.run(discover([root], Settings()), Settings(), parts)
    assert (report.results, report.scanned) == ((), 1)


def test_a_file_without_a_marker_may_still_be_concerned(tmp_path: Path) -> None:
    seen: list[str] = []

    def collect(root: Path, paths: Sequence[Path], settings: Settings) -> FewFacts:
        seen.extend(path.name for path in paths)
        return FewFacts(joined=frozenset({"sub/a.py"}))

    def migrate(path: str, raw: bytes, facts: FewFacts, settings: Settings) -> Result:
        return trees.migrate(path, raw + b"legacy()", facts, settings)

    root = write(tmp_path / "in", {"pyproject.toml": "", "sub/a.py": b"x\n", "sub/b.py": b"", "base.py": OLD})
    parts = Engine(trees.has_marker, collect, migrate)
    report = run.run(discover([root / "sub"], Settings()), Settings(), parts)
    # The whole project is read, the given folder alone is decided.
    assert sorted(seen) == ["a.py", "b.py", "base.py", "pyproject.toml"]
    assert [one.path for one in report.results] == ["sub/a.py"]


def test_text_from_stdin(tmp_path: Path) -> None:
    assert run.run_bytes(OLD, Settings(), STAND_IN).results[0].after == NEW
    [result] = run.run_bytes(b"x\n", Settings(), STAND_IN).results
    assert (result.path, result.before, result.after) == ("-", b"x\n", None)


# In several processes


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A tree that is worth a pool."""
    ballast = b"#" * 120_000 + b"\n"
    names = {f"{number}.py": ballast + OLD for number in range(8)}
    return write(tmp_path / "in", names)


def test_pool_gives_the_same_results_in_the_same_order(large: Path) -> None:
    told: list[tuple[int, int]] = []
    tree = discover([large], Settings())
    here = os.getcwd()
    many = run.run(
        tree, Settings(), STAND_IN, jobs=2, progress=lambda done, total: told.append((done, total))
    )
    assert many == run.run(tree, Settings(), STAND_IN, jobs=1)
    assert told[-1] == (8, 8)
    assert os.getcwd() == here


def test_a_worker_that_dies_costs_one_file(large: Path) -> None:
    write(large, {"3.py": b"#" * 300_000 + b"\nlegacy die\n", "5.py": b"#" * 10 + b"\nlegacy die\n"})
    report, _ = decided(large, jobs=2)
    assert [one.path for one in report.results] == [f"{number}.py" for number in range(8)]
    assert [one.path for one in report.results if not one.changed] == ["3.py", "5.py"]
    assert [(one.kind, one.place.path, one.message) for one in report.problems] == [
        (Trouble.INTERNAL, "3.py", "internal error: the process that worked on this file died"),
        (Trouble.INTERNAL, "5.py", "internal error: the process that worked on this file died"),
    ]


# As `python FILE`, but without the folder of the file or the current one on the path.
RUN_PATH = """
import runpy, sys
sys.path.remove("")
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""

POOL = """
from neuronmigrate import run
from neuronmigrate.config import Settings
from neuronmigrate.files import discover
from tests.trees import STAND_IN

if __name__ == "__main__":
    report = run.run(discover(["."], Settings()), Settings(), STAND_IN, jobs=2)
    print(sum(one.changed for one in report.results))
"""


def test_workers_import_nothing_of_the_scanned_project(large: Path, tmp_path: Path) -> None:
    trap = f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).touch()\nraise SystemExit\n"
    for name in ("multiprocessing", "pickle", "signal", "random"):
        write(large, {f"{name}.py": trap})
    script = write(tmp_path / "elsewhere", {"pool.py": POOL})
    done = python(RUN_PATH, str(script / "pool.py"), cwd=large)
    assert done.stdout == "8\n", done.stderr
    assert not (tmp_path / "sprung").exists()


def test_where_no_process_can_be_started_one_has_to_do(large: Path, tmp_path: Path) -> None:
    # A worker imports the main module again, and this one does not let it.
    script = write(tmp_path / "elsewhere", {"pool.py": "assert __name__ == '__main__'\n" + POOL})
    done = python(RUN_PATH, str(script / "pool.py"), cwd=large)
    assert done.stdout == "8\n", done.stderr


INTERRUPTED = """
import os, signal, sys, threading
from neuronmigrate import run
from neuronmigrate.config import Settings
from neuronmigrate.files import discover
from neuronmigrate.run import Engine
from tests import trees

def nearly_endless(path, raw, facts, settings):
    if path != "0.py":
        threading.Event().wait()
    return trees.migrate(path, raw, facts, settings)

def tell(done, total):
    os.kill(os.getpid(), signal.SIGINT)

if __name__ == "__main__":
    tree = discover([sys.argv[1]], Settings())
    parts = Engine(trees.has_marker, trees.collect, nearly_endless)
    try:
        run.run(tree, Settings(), parts, jobs=2, progress=tell)
    except KeyboardInterrupt:
        print("interrupted")
"""


def test_interrupt_does_not_wait_for_the_workers(large: Path, tmp_path: Path) -> None:
    script = write(tmp_path / "elsewhere", {"interrupted.py": INTERRUPTED})
    done = python(RUN_PATH, str(script / "interrupted.py"), str(large))
    assert done.stdout == "interrupted\n", done.stderr


# Writing


def test_write(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": OLD, "b.py": b"legacy\n", "c.py": b"x\n"})
    stamp = {name: (root / name).stat() for name in ("b.py", "c.py")}
    report = rewritten(root)
    assert content(root) == {"a.py": NEW, "b.py": b"legacy\n", "c.py": b"x\n"}
    assert not report.problems
    # What has no rewrite was not even opened for writing.
    assert {name: (root / name).stat() for name in ("b.py", "c.py")} == stamp
    undo(root)
    assert content(root)["a.py"] == OLD


def test_nothing_to_write_leaves_no_unit(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": b"legacy\n"})
    rewritten(root)
    assert journal_of(root).units() == []


@pytest.mark.parametrize("kind", ["modified", "staged", "added", "untracked", "ignored", "hidden", "skipped"])
def test_what_git_could_not_bring_back_refuses_the_run(tmp_path: Path, kind: str) -> None:
    root = repository(tmp_path / "in", {"a.py": OLD, "b.py": OLD, ".gitignore": "ignored.py\n"})
    name = {"added": "new.py", "untracked": "new.py", "ignored": "ignored.py"}.get(kind, "a.py")
    if kind == "hidden":
        git(root, "update-index", "--assume-unchanged", "a.py")
    if kind == "skipped":
        git(root, "update-index", "--skip-worktree", "a.py")
    write(root, {name: OLD + b"mine\n"})
    if kind in ("staged", "added"):
        git(root, "add", name)
    before = content(root)
    settings = Settings()
    tree = discover([root, root / name], settings)
    report = run.run(tree, settings, STAND_IN)
    with pytest.raises(UserError) as caught:
        run.write(report, tree, settings)
    word = "untracked" if kind in ("untracked", "ignored") else "modified"
    assert str(caught.value).splitlines() == [
        "nothing was written: git could not bring these files back",
        f"  {word:<9}  {name}",
        "commit them first, or give --allow-dirty (`neuronmigrate undo` works in either case)",
    ]
    assert content(root) == before
    assert journal_of(root).units() == []
    assert run.write(report, tree, Settings(allow_dirty=True))[0].problems == []
    assert content(root)[name] == NEW + b"mine\n"
    undo(root)
    assert content(root) == before


def test_dirty_files_that_are_not_changed_do_not_matter(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": OLD, "b.py": b"x\n"})
    write(root, {"b.py": b"legacy\n", "c.py": b"x\n"})
    assert not rewritten(root).problems
    assert content(root)["a.py"] == NEW


def go_on(path: str, raw: bytes, facts: FewFacts, settings: Settings) -> Result:
    return Result(path, raw, raw.replace(b"native()", b"final()"))


def test_our_own_last_result_counts_as_clean(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": OLD})
    rewritten(root)
    newer = Engine(lambda raw: b"native" in raw, trees.collect, go_on)
    tree = discover([root], Settings())
    run.write(run.run(tree, Settings(), newer), tree, Settings())
    assert content(root) == {"a.py": b"final()\n"}
    # Edited by a person, it is theirs.
    write(root, {"a.py": NEW + b"mine\n"})
    with pytest.raises(UserError, match=r"modified   a\.py"):
        run.write(run.run(tree, Settings(), newer), tree, Settings())


def test_first_commit_is_still_to_come(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {})
    write(root, {"a.py": OLD})
    git(root, "add", "a.py")
    with pytest.raises(UserError, match=r"modified   a\.py"):
        rewritten(root)


def test_many_refused_files_are_counted(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {})
    write(root, {f"{number:02}.py": OLD for number in range(25)})
    with pytest.raises(UserError) as caught:
        rewritten(root)
    lines = str(caught.value).splitlines()
    assert len(lines) == 23 and lines[-2] == "  and 5 more"


def test_each_repository_answers_for_its_own_files(tmp_path: Path) -> None:
    one = repository(tmp_path / "in" / "one", {"a.py": OLD})
    two = repository(tmp_path / "in" / "two", {"b.py": OLD})
    write(two, {"b.py": OLD + b"mine\n"})
    with pytest.raises(UserError, match=r"modified   two/b\.py"):
        rewritten(tmp_path / "in")
    git(two, "commit", "--quiet", "--all", "--message=mine")
    rewritten(tmp_path / "in")
    assert (content(one)["a.py"], content(two)["b.py"]) == (NEW, NEW + b"mine\n")
    undo(tmp_path / "in")
    assert (content(one)["a.py"], content(two)["b.py"]) == (OLD, OLD + b"mine\n")


def test_without_a_repository_the_journal_has_to_do(tmp_path: Path) -> None:
    root = write(tmp_path / "in", {"a.py": OLD})
    rewritten(root)
    assert content(root) == {"a.py": NEW}
    undo(root)
    assert content(root) == {"a.py": OLD}


def test_repository_that_git_refuses(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": OLD})
    (root / ".git" / "config").write_text("[core\n")
    with pytest.raises(UserError, match="nothing was written: git cannot read the repository"):
        rewritten(root)
    assert content(root) == {"a.py": OLD}
    assert not rewritten(root, Settings(allow_dirty=True)).problems
    assert content(root) == {"a.py": NEW}


def test_a_file_that_cannot_be_written_stops_no_other(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": OLD, "b.py": OLD, "c.py": OLD})
    report, tree = decided(root)
    write(root, {"b.py": b"changed meanwhile\n"})
    report, unit = run.write(report, tree, Settings(allow_dirty=True))
    assert content(root) == {"a.py": NEW, "b.py": b"changed meanwhile\n", "c.py": NEW}
    assert [(one.kind, one.place.path) for one in report.problems] == [(Trouble.WRITE, "b.py")]
    assert [one.path for one in report.results if one.changed] == ["a.py", "c.py"]
    assert unit is not None


# Copies


def copied(root: Path, target: Path, *paths: str) -> Report:
    settings = Settings()
    given = [str(root / path) for path in paths] or [str(root)]
    tree = discover(given, settings)
    return run.copy(run.run(tree, settings, STAND_IN), tree, given, target)


def test_copy(tmp_path: Path) -> None:
    root = repository(
        tmp_path / "in",
        {
            "a.py": OLD,
            "d/b.py": b"x\n",
            "d/data.bin": b"\0legacy()",
            ".gitignore": "*.log\n",
            "x.log": "",
            "s": "#!",
        },
    )
    write(root, {"env/pyvenv.cfg": "", "untracked.py": OLD})
    (root / "s").chmod(0o755)
    (root / "d" / "link.py").symlink_to("../a.py")
    (root / "absolute").symlink_to(root / "a.py")
    before = content(root)
    report = copied(root, tmp_path / "out")
    assert not report.problems
    assert content(root) == before
    assert content(tmp_path / "out") == {
        ".gitignore": b"*.log\n",
        "a.py": NEW,
        "absolute": NEW,
        "d/b.py": b"x\n",
        "d/data.bin": b"\0legacy()",
        "d/link.py": NEW,
        "s": b"#!",
        "untracked.py": NEW,
    }
    assert os.readlink(tmp_path / "out" / "d" / "link.py") == "../a.py"
    assert os.readlink(tmp_path / "out" / "absolute") == "a.py"
    assert stat.S_IMODE((tmp_path / "out" / "s").stat().st_mode) == 0o755


def test_copy_of_parts(tmp_path: Path) -> None:
    root = write(tmp_path / "in", {"a/b.py": OLD, "a/c.py": OLD, "d/e.txt": "", "f.py": OLD})
    copied(root, tmp_path / "one", "a/b.py")
    assert content(tmp_path / "one") == {"b.py": NEW}
    copied(root, tmp_path / "two", "a", "d/e.txt")
    assert content(tmp_path / "two") == {"a/b.py": NEW, "a/c.py": NEW, "d/e.txt": b""}


def test_copy_into_the_tree_itself(tmp_path: Path) -> None:
    root = write(tmp_path / "in", {"a.py": OLD})
    copied(root, root / "out")
    assert content(root) == {"a.py": OLD, "out/a.py": NEW}


def test_copy_overwrites_nothing(tmp_path: Path) -> None:
    root = write(tmp_path / "in", {"a.py": OLD})
    write(tmp_path, {"full/x": "", "file": ""})
    for name in ("full", "file"):
        with pytest.raises(UserError, match="is not empty; --output writes into a new folder"):
            copied(root, tmp_path / name)
    (tmp_path / "empty").mkdir()
    copied(root, tmp_path / "empty")
    assert content(tmp_path / "empty") == {"a.py": NEW}
