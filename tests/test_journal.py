"""The journal: a run is taken back as one unit, whatever happened in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from neuronmigrate import files, journal
from neuronmigrate.config import UserError
from neuronmigrate.journal import Change, State, journal_of, undo
from tests.trees import HOME, content, git, python, repository, write


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


def change(root: Path, changes: dict[str, bytes | None]) -> journal.Unit:
    """What a run does: save the originals, write, and say that it is done."""
    kept = journal_of(root)
    planned = [
        Change(name, (root / name).read_bytes() if (root / name).exists() else None, after or b"")
        for name, after in changes.items()
    ]
    with kept.locked():
        unit = kept.begin(planned)
        for entry, one in zip(unit.entries, planned, strict=True):
            if one.before is None:
                files.create(root / one.name, one.after)
            else:
                files.replace(root / one.name, one.before, one.after, temporary=entry.temporary)
        unit.save(State.DONE)
    return unit


def test_lives_beside_git(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old"})
    assert journal_of(root).folder == root / ".git" / "neuronmigrate"
    git(root, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    assert journal_of(tmp_path / "linked").folder == root / ".git" / "worktrees" / "linked" / "neuronmigrate"
    change(root, {"a.py": b"new"})
    change(tmp_path / "linked", {"a.py": b"newer"})
    assert git(root, "status", "--porcelain") == " M a.py\n"
    undo(tmp_path / "linked")
    assert (tmp_path / "linked" / "a.py").read_bytes() == b"old"
    assert (root / "a.py").read_bytes() == b"new"


def test_lives_in_the_state_folder_without_git(tmp_path: Path, state_folder: Path) -> None:
    root = write(tmp_path / "in", {"a.py": "old", "sub/b.py": "old"})
    assert journal_of(root).folder.parent == state_folder / "neuronmigrate" / "journals"
    change(root, {"a.py": b"new", "sub/b.py": b"new"})
    assert content(root) == {"a.py": b"new", "sub/b.py": b"new"}
    # From any folder of the tree.
    assert undo(root / "sub").root == root
    assert content(root) == {"a.py": b"old", "sub/b.py": b"old"}


def test_two_runs_are_taken_back_one_by_one(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "0", "b.py": "0"})
    change(root, {"a.py": b"1"})
    change(root, {"a.py": b"2", "b.py": b"2"})
    undo(root)
    assert content(root) == {"a.py": b"1", "b.py": b"0"}
    undo(root)
    assert content(root) == {"a.py": b"0", "b.py": b"0"}
    with pytest.raises(UserError, match="no run of neuronmigrate to take back"):
        undo(root)
    change(root, {"b.py": b"3"})
    undo(root)
    assert content(root) == {"a.py": b"0", "b.py": b"0"}


def test_the_newest_run_over_the_folder_is_meant(tmp_path: Path) -> None:
    outer = write(tmp_path / "in", {"x/a.py": "0"})
    inner = repository(outer / "x", {})
    change(inner, {"a.py": b"1"})
    change(outer, {"x/a.py": b"2"})
    undo(inner)
    assert content(outer) == {"x/a.py": b"1"}
    undo(inner)
    assert content(outer) == {"x/a.py": b"0"}


def test_edited_files_keep_the_whole_run(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old", "b.py": "old", "c.py": "old"})
    unit = change(root, {"a.py": b"new", "b.py": b"new", "c.py": b"new"})
    write(root, {"b.py": "edited"})
    (root / "c.py").unlink()
    with pytest.raises(UserError) as caught:
        undo(root)
    assert str(caught.value).splitlines() == [
        "edited since the last run, so nothing was taken back:",
        "  b.py",
        "  c.py",
        f"the contents from before the run are in {unit.folder / 'before'}",
    ]
    assert content(root) == {"a.py": b"new", "b.py": b"edited"}
    write(root, {"b.py": "new", "c.py": "old"})
    undo(root)
    assert content(root) == {"a.py": b"old", "b.py": b"old", "c.py": b"old"}


def test_created_files_go(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old"})
    change(root, {"a.py": b"new", "made.py": b"new"})
    undo(root)
    assert content(root) == {"a.py": b"old"}


def test_odd_names(tmp_path: Path) -> None:
    names = ["a\nb.py", "\u00e4 \u20ac.py", os.fsdecode(b"\xff.py")]
    root = repository(tmp_path / "in", {})
    for name in names:
        (root / name).write_bytes(b"old")
    change(root, dict.fromkeys(names, b"new"))
    assert set(content(root).values()) == {b"new"}
    undo(root)
    assert set(content(root).values()) == {b"old"}


KILLED = """
import os, signal, sys
from pathlib import Path
from neuronmigrate import files
from neuronmigrate.journal import Change, journal_of

root, after = Path(sys.argv[1]), int(sys.argv[2])
kept = journal_of(root)
names = [f"{number}.py" for number in range(4)]
with kept.locked():
    unit = kept.begin([Change(name, b"old", b"new") for name in names])
    for number, (name, entry) in enumerate(zip(names, unit.entries)):
        if number == after:
            # In the middle of writing a file, just before it is put into its place.
            os.replace = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
        files.replace(root / name, b"old", b"new", temporary=entry.temporary)
"""


@pytest.mark.parametrize("after", range(4))
def test_killed_in_the_middle(tmp_path: Path, after: int) -> None:
    names = [f"{number}.py" for number in range(4)]
    old = dict.fromkeys(names, b"old")
    root = repository(tmp_path / "in", dict.fromkeys(names, "old"))
    done = python(KILLED, str(root), str(after))
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = content(root)
    assert [left[name] for name in names] == [b"new"] * after + [b"old"] * (4 - after)
    assert len(left) == 5, "the half-done file lies beside the others"
    unit = journal_of(root).last()
    assert unit is not None and unit.state is State.WRITING
    undo(root)
    assert content(root) == old


def test_the_next_run_sweeps_up_after_a_killed_one(tmp_path: Path) -> None:
    names = [f"{number}.py" for number in range(4)]
    root = repository(tmp_path / "in", dict.fromkeys(names, "old"))
    python(KILLED, str(root), "2")
    change(root, {"2.py": b"new", "3.py": b"new"})
    assert content(root) == dict.fromkeys(names, b"new")
    undo(root)
    undo(root)
    assert content(root) == dict.fromkeys(names, b"old")


def test_undo_killed_in_the_middle_can_be_repeated(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old", "b.py": "old"})
    change(root, {"a.py": b"new", "b.py": b"new"})
    code = """
import os, signal, sys
from pathlib import Path
from neuronmigrate import files, journal
real = files.replace
def once(*arguments, **options):
    real(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
files.replace = once
journal.undo(Path(sys.argv[1]))
"""
    assert python(code, str(root)).returncode == -signal.SIGKILL
    assert content(root) == {"a.py": b"old", "b.py": b"new"}
    undo(root)
    assert content(root) == {"a.py": b"old", "b.py": b"old"}
    with pytest.raises(UserError):
        undo(root)


def test_only_one_run_writes(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old"})
    code = """
import sys
from pathlib import Path
from neuronmigrate.journal import journal_of
with journal_of(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as other:
        assert other.stdin is not None and other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(UserError, match="another run of neuronmigrate is writing there"):
            change(root, {"a.py": b"new"})
        other.stdin.close()
    # The lock goes with its holder.
    change(root, {"a.py": b"new"})


def test_no_journal_no_writing(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old"})
    (root / ".git" / "neuronmigrate").write_bytes(b"in the way")
    with pytest.raises(UserError, match="no journal can be kept there"):
        change(root, {"a.py": b"new"})
    assert content(root) == {"a.py": b"old"}


def test_damaged_journal_is_not_written_back(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old", "b.py": "old"})
    unit = change(root, {"a.py": b"new", "b.py": b"new"})
    (unit.folder / "before" / "1").write_bytes(b"something else")
    with pytest.raises(UserError, match="the journal is damaged"):
        undo(root)
    assert content(root) == {"a.py": b"new", "b.py": b"new"}


def test_incomplete_unit_is_as_if_it_had_never_been(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old"})
    change(root, {"a.py": b"new"})
    write(
        root / ".git" / "neuronmigrate" / "runs" / "000002",
        {"before/0": "x", "unit.json": b'{"schema": 1, "ro'},
    )
    undo(root)
    assert content(root) == {"a.py": b"old"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("path", "../out.py"),
        ("path", "/etc/x"),
        ("saved", "../0"),
        ("temporary", "a.py"),
        ("temporary", "../x"),
    ],
)
def test_a_journal_cannot_reach_beyond_its_tree(tmp_path: Path, key: str, value: str) -> None:
    root = repository(tmp_path / "in", {"a.py": "old"})
    unit = change(root, {"a.py": b"new"})
    stored = json.loads((unit.folder / "unit.json").read_bytes())
    stored["entries"][0][key] = value
    (unit.folder / "unit.json").write_text(json.dumps(stored))
    with pytest.raises(UserError, match="no run of neuronmigrate to take back"):
        undo(root)


def test_moved_repository(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old"})
    change(root, {"a.py": b"new"})
    moved = root.rename(tmp_path / "moved")
    undo(moved)
    assert content(moved) == {"a.py": b"old"}


def test_results_are_known_until_they_are_taken_back(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "0"})
    kept = journal_of(root)
    assert kept.results() == {}
    change(root, {"a.py": b"1"})
    change(root, {"a.py": b"2"})
    assert kept.results() == {"a.py": journal.fingerprint(b"2")}
    undo(root)
    assert kept.results() == {"a.py": journal.fingerprint(b"1")}


def test_old_runs_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "KEPT", 3)
    root = repository(tmp_path / "in", {"a.py": "0"})
    for number in range(1, 6):
        change(root, {"a.py": b"%d" % number})
    runs = journal_of(root).folder / "runs"
    assert sorted(folder.name for folder in runs.iterdir()) == ["000003", "000004", "000005"]
    for _ in range(3):
        undo(root)
    assert content(root) == {"a.py": b"2"}


def test_originals_are_private(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old"})
    unit = change(root, {"a.py": b"new"})
    assert (unit.folder / "before" / "0").stat().st_mode & 0o777 == 0o600


def test_undo_where_writing_is_not_allowed_goes_on_later(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": "old", "d/b.py": "old"})
    change(root, {"a.py": b"new", "d/b.py": b"new"})
    (root / "d").chmod(0o555)
    code = """
import sys
from pathlib import Path
from neuronmigrate import config, journal
try:
    journal.undo(Path(sys.argv[1]))
except config.UserError as error:
    print(error)
"""
    done = python(code, str(root))
    (root / "d").chmod(0o755)
    assert done.stdout.splitlines() == [
        "not taken back, mend it and run undo again:",
        "  d/b.py: cannot be written: Permission denied",
    ]
    assert content(root) == {"a.py": b"old", "d/b.py": b"new"}
    undo(root)
    assert content(root) == {"a.py": b"old", "d/b.py": b"old"}
