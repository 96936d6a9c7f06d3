"""The printers: text, JSON, GitHub's commands, and patches that git and patch take."""

from __future__ import annotations

import io
import json
import os
import pty
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from neuronmigrate.config import Settings
from neuronmigrate.plan import (
    Finding,
    GroupRecord,
    Numerics,
    Place,
    Problem,
    Report,
    Result,
    State,
    Trouble,
)
from neuronmigrate.report import FORMATS, View, diff, terminal, text
from tests.trees import git, repository, write

SOURCE = b"import torch_xla\n\n\tx[bold] = torch_xla.device()  # \xc3\xa4\n"


def found(line: int = 3, column: int = 12, end: int = 28, **changes: Any) -> Finding:
    values: dict[str, Any] = {
        "codemod": "lazy-device",
        "state": State.FIXED,
        "place": Place("src/a.py", line, column, line, end),
        "found": "torch_xla.device",
        "why": "the device has a name",
        "numerics": (Numerics.DTYPE,),
    }
    return Finding(**values | changes)


def report(*findings: Finding, problems: tuple[Problem, ...] = (), after: bytes | None = None) -> Report:
    return Report((Result("src/a.py", SOURCE, after, findings, (), problems),), 4, ("assumed 0.4.5",))


def printed(name: str, what: Report, **view: Any) -> str:
    root = Path("/project")
    options: dict[str, Any] = {"root": root, "here": root}
    lines = FORMATS[name](what, View(**options | view))
    return "".join("".join(piece for piece, _ in line) + "\n" for line in lines)


# For people


def test_text() -> None:
    marked = found(
        1, 1, 17, state=State.MARKED, todo="do it by hand", codemod="legacy-import", found="torch_xla"
    )
    problem = Problem(Trouble.PROOF, Place("src/a.py", 2), "a name is unbound")
    assert printed("text", report(found(), marked, problems=(problem,), after=b"x")) == (
        "src/a.py:1:1 marked [legacy-import] torch_xla: the device has a name; do it by hand\n"
        "  1 | import torch_xla\n"
        "    | ^^^^^^^^^^^^^^^^\n"
        "src/a.py:2:1 error proof: a name is unbound\n"
        "src/a.py:3:12 fixed [lazy-device] torch_xla.device: the device has a name\n"
        "  3 | \tx[bold] = torch_xla.device()  # \u00e4\n"
        "    | \t          ^^^^^^^^^^^^^^^^\n"
        "1 fixed, 1 marked in 4 files, 1 would change; 1 error\n"
    )


def test_concise() -> None:
    assert printed("concise", report(found())) == (
        "src/a.py:3:12 fixed [lazy-device] torch_xla.device: the device has a name\n"
        "1 fixed in 4 files, 0 would change\n"
    )


def test_nothing_found() -> None:
    assert printed("text", Report(scanned=1)) == "nothing found in 1 file, 0 would change\n"


def test_what_a_rewrite_leaves() -> None:
    what = report(found(), found(state=State.REVIEW, todo="look"), found(state=State.NOTE), after=b"x")
    lines = [
        "".join(piece for piece, _ in line) for line in text.open_ends(what, View(Path("/p"), "rewrite"))
    ]
    assert [line.split()[1] for line in lines[:-1]] == ["review", "note"]
    assert lines[-1] == "1 fixed, 1 review, 1 note in 4 files, 1 changed"


def test_paths_are_as_the_reader_would_type_them() -> None:
    assert printed("concise", report(found()), here=Path("/project/src")).startswith("a.py:3:12 ")
    assert printed("concise", report(found()), here=Path("/project/tests")).startswith("../src/a.py:3:12 ")


@pytest.mark.parametrize(
    ("raw", "place", "expected"),
    [
        ("x = \u65e5\u672c(y)\n", Place("a", 1, 5, 1, 10), ["x = \u65e5\u672c(y)", "    ^^^^^^^"]),
        ("x = e\u0301(y)\n", Place("a", 1, 8, 1, 9), ["x = e\u0301(y)", "      ^"]),
        (
            "# \x1b[31m\u202e\x07 f()\n",
            Place("a", 1, 11, 1, 14),
            [r"# \x1b[31m\u202e\x07 f()", " " * 21 + "^^^"],
        ),
        ("a = f(\n    b)\n", Place("a", 1, 5, 2, 7), ["a = f(", "    ^^"]),
        ("a\x0cb\rc = d\n", Place("a", 2, 5, 2, 6), ["c = d", "    ^"]),
        ("a = 1\n", Place("a", 1, 5), ["a = 1", "    ^"]),
        ("a = 1\n", Place("a", 1, 99), ["a = 1", "     ^"]),
        ("a = 1\n", Place("a", 7), []),
        ("\n", Place("a", 1), []),
        ("a = 1\n", Place("a", 1, cell=0), []),
        (
            "y" * 500 + "z" + "y" * 500,
            Place("a", 1, 501, 1, 502),
            ["..." + "y" * 80 + "z" + "y" * 79 + "...", " " * 83 + "^"],
        ),
    ],
)
def test_snippets(raw: str, place: Place, expected: list[str]) -> None:
    what = Report((Result("a", raw.encode(), None, (found(place=place),)),), 1)
    lines = printed("text", what).split("\n")[1:-2]
    assert [line.partition(" | ")[2] for line in lines] == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"# -*- coding: latin-1 -*-\nx = '\xe4' + f()\n",
        b"\xef\xbb\xbf# hello\nx = '\xc3\xa4' + f()\n",
        b"# hello\r\nx = '\xc3\xa4' + f()\r\n",
        b"# hello\rx = '\xc3\xa4' + f()\r",
    ],
)
def test_snippets_know_the_encoding(raw: bytes) -> None:
    what = Report((Result("a", raw, None, (found(place=Place("a", 2, 11, 2, 14)),)),), 1)
    assert printed("text", what).split("\n")[1:3] == ["  2 | x = '\u00e4' + f()", "    |           ^^^"]


@pytest.mark.parametrize("raw", [b"# coding: nonsense\nx = '\xff'\n", b"\xff\xfex", b"x\x00\xff\n"])
def test_snippets_of_what_cannot_be_decoded(raw: bytes) -> None:
    what = Report((Result("a", raw, None, (found(place=Place("a", 1, 1, 1, 2)),)),), 1)
    assert printed("text", what)


def test_messages_stay_on_their_line() -> None:
    place = Place("a\nb\udcff.py", 1)
    what = Report((Result("a", b"", None, (found(place=place, found="f(\n  x)", why="so\x1b[2J"),)),), 1)
    assert printed("concise", what).splitlines()[0] == (
        r"a\nb\udcff.py:1:1 fixed [lazy-device] f(   x): so\x1b[2J"
    )


# Terminals


def on_terminal(lines: list[tuple[tuple[str, str], ...]]) -> bytes:
    leader, follower = pty.openpty()
    with open(follower, "w", encoding="utf-8") as stream:
        terminal.emit(lines, stream)
        shown = os.read(leader, 100_000)
    os.close(leader)
    return shown


LINES: list[tuple[tuple[str, str], ...]] = [
    (("x: Optional[str] = d['a'] :smile: [/red]", "red"), (" w" * 200, ""))
]


def test_colour_and_no_markup_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    shown = on_terminal(LINES)
    assert shown.startswith(b"\x1b[31mx: Optional[str] = d['a'] :smile: [/red]\x1b[0m w w")
    assert shown.count(b"\n") == 1, "long lines are left to the terminal"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert b"\x1b" not in on_terminal(LINES)


def test_plain_when_not_a_terminal() -> None:
    stream = io.StringIO()
    terminal.emit(LINES, stream)
    assert stream.getvalue() == LINES[0][0][0] + " w" * 200 + "\n"


def test_an_encoding_that_lacks_characters() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    terminal.emit([(("\u00e4 \udcff", ""),)], stream)
    assert raw.getvalue() == b"\\xe4 \\udcff\n"


# For machines


def full_report() -> Report:
    findings = (found(), found(1, 1, 17, state=State.MARKED, todo="by hand", group="g1"))
    groups = (
        GroupRecord("g1", ("lazy-device",), True, numerics=(Numerics.RANDOM, Numerics.SAME), lines=(3,)),
    )
    problem = Problem(Trouble.READ, Place("b\udcff.py", 1), "cannot be read", legacy=False)
    return Report(
        (
            Result("src/a.py", SOURCE, b"new", findings, groups),
            Result("b\udcff.py", problems=(problem,)),
        ),
        9,
        ("assumed 0.4.5",),
    )


def test_json() -> None:
    document = json.loads(
        printed("json", full_report(), settings=Settings(tpu=True, sources=(("tpu", "--tpu"),)))
    )
    assert document["schema"] == 1
    assert document["tool"].keys() == {"name", "version", "codemods"}
    assert document["root"] == "/project" and document["command"] == "check"
    assert document["settings"]["tpu"] == {"value": True, "source": "--tpu"}
    assert document["settings"]["shim"] == {"value": False, "source": "default"}
    assert document["summary"] == {
        "scanned": 9,
        "changed": 1,
        "note": 0,
        "fixed": 1,
        "review": 0,
        "marked": 1,
        "problems": 1,
    }
    assert document["notices"] == ["assumed 0.4.5"]
    assert document["files"] == [
        {"path": "src/a.py", "changed": True, "numerics": ["same", "dtype", "random"]}
    ]
    assert document["findings"][0] == {
        "codemod": "lazy-device",
        "state": "marked",
        "path": "src/a.py",
        "cell": None,
        "line": 1,
        "column": 1,
        "end_line": 1,
        "end_column": 17,
        "found": "torch_xla.device",
        "why": "the device has a name",
        "todo": "by hand",
        "group": "g1",
        "numerics": ["dtype"],
    }
    assert [one["line"] for one in document["findings"]] == [1, 3]
    assert document["groups"] == [
        {
            "path": "src/a.py",
            "name": "g1",
            "codemods": ["lazy-device"],
            "applied": True,
            "refused": "",
            "numerics": ["random", "same"],
            "lines": [3],
        }
    ]
    assert document["problems"] == [
        {
            "kind": "read",
            "path": "b\udcff.py",
            "cell": None,
            "line": 1,
            "column": 1,
            "message": "cannot be read",
            "legacy": False,
        }
    ]


def test_json_is_ascii() -> None:
    assert printed("json", report(found(why="\u00e4\u20ac"))).isascii()


def test_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    assert printed("github", full_report()).splitlines() == [
        "::error file=src/a.py,line=1,col=1,endLine=1,endColumn=16,"
        "title=neuronmigrate%3A marked [lazy-device]::torch_xla.device: the device has a name; by hand",
        "::warning file=src/a.py,line=3,col=12,endLine=3,endColumn=27,"
        "title=neuronmigrate%3A fixed [lazy-device]::torch_xla.device: the device has a name",
        "::error file=b\udcff.py,line=1,col=1,title=neuronmigrate%3A read::cannot be read",
    ]


def test_github_escapes() -> None:
    place = Place("a,b:c%d.py", 1)
    what = Report((Result("a", b"", None, (found(place=place, found="", why="100%\r\nsure::x"),)),), 1)
    [line] = printed("github", what).splitlines()
    assert line == (
        "::warning file=a%2Cb%3Ac%25d.py,line=1,col=1,title=neuronmigrate%3A fixed [lazy-device]"
        "::100%25%0D%0Asure::x"
    )


def test_github_paths_are_relative_to_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = write(tmp_path, {"part/src/a.py": ""}) / "part"
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    assert printed("github", report(found()), root=root).startswith("::warning file=part/src/a.py,line=3")


def test_github_levels() -> None:
    what = report(*(found(state=state) for state in State))
    assert [line.split()[0] for line in printed("github", what).splitlines()] == [
        "::notice",
        "::warning",
        "::warning",
        "::error",
    ]


def test_notebook_cells_are_named() -> None:
    what = report(found(place=Place("n.ipynb", 2, 3, cell=4)))
    assert printed("concise", what).startswith("n.ipynb:cell 4:2:3 ")
    assert printed("github", what).startswith("::warning file=n.ipynb,title=")
    assert "::cell 4, line 2: torch_xla" not in printed("github", what)


# Patches

PAIRS = {
    "plain": (b"a\nb\nc\nd\ne\nf\ng\nh\ni\n", b"a\nb\nc\nd\nE\nf\ng\nh\ni\n"),
    "crlf": (b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nc\r\n"),
    "mixed": (b"a\r\nb\nc\rd\n", b"a\r\nB\nc\rd\n"),
    "cr": (b"a\rb\rc\r", b"a\rB\rc\r"),
    "no newline": (b"a\nb", b"a\nB"),
    "newline gained": (b"a\nb", b"a\nb\n"),
    "newline lost": (b"a\nb\n", b"a\nb"),
    "no newline far away": (b"A\nb\nc\nd\ne\nf\ng\nh", b"a\nb\nc\nd\ne\nf\ng\nh"),
    "no newline in context": (b"A\nb\nc", b"a\nb\nc"),
    "line added at the end": (b"a\nb", b"a\nb\nc"),
    "form feed": (b"a\x0cb\n\x0c\nc\n", b"a\x0cB\n\x0c\nc\n"),
    "odd line ends": (b"a\x0b\x1c\x85b\n\xe2\x80\xa8c\n", b"a\x0b\x1c\x85B\n\xe2\x80\xa8c\n"),
    "latin-1": (b"# coding: latin-1\nx = '\xe4'\n", b"# coding: latin-1\ny = '\xe4'\n"),
    "byte order mark": (b"\xef\xbb\xbfa\nb\n", b"\xef\xbb\xbfA\nb\n"),
    "blanks at line ends": (b"a  \n\t\nb\n", b"a  \n\t\nB \n"),
    "first and last": (b"A\nb\nc\nd\ne\nf\ng\nh\nI\n", b"a\nb\nc\nd\ne\nf\ng\nh\ni\n"),
    "two far apart": (b"A\n" + b"x\n" * 50 + b"B\n", b"a\n" + b"x\n" * 50 + b"b\n"),
    "emptied": (b"a\nb\n", b""),
    "filled": (b"", b"a\n"),
    "all inserted in front": (b"c\nc\nc\nc\nc\n", b"a\nb\nc\nc\nc\nc\nc\n"),
    "looks like a patch": (
        b"--- a\n+++ b\n@@ -1 +1 @@\n\\ No newline\n",
        b"--- A\n+++ b\n@@ -1 +1 @@\n\\ No newline\n",
    ),
    "removed line starts with dashes": (b"-- x\ny\n", b"y\n"),
    "huge line": (b"x" * 100_000 + b"\na\n", b"x" * 100_000 + b"y\na\n"),
}
NAMES = [
    "a.py",
    "with blank.py",
    " leading and trailing .py",
    'quote".py',
    "apostrophe's.py",
    "back\\slash.py",
    "tab\there.py",
    "d\u00e4.py",
    "\u65e5\u672c/x y.py",
    os.fsdecode(b"\xff\xfe.py"),
    "a/b/c.py",
    "-dash.py",
    "$(x) & ;.py",
    "new\nline.py",
    "ctrl\x01\x07\x7f.py",
]


def patch_of(name: str, before: bytes, after: bytes) -> bytes:
    return b"".join(diff.patch([Result(name, before, after)]))


def apply_with(command: list[str], root: Path, patch: bytes) -> None:
    done = subprocess.run(command, cwd=root, input=patch, capture_output=True)
    assert done.returncode == 0, (done.stdout, done.stderr, patch)


@pytest.mark.parametrize("case", PAIRS)
def test_git_apply_takes_the_patch(tmp_path: Path, case: str) -> None:
    before, after = PAIRS[case]
    root = repository(tmp_path, {"a.py": before})
    patch = patch_of("a.py", before, after)
    apply_with(["git", "apply", "--check"], root, patch)
    apply_with(["git", "apply"], root, patch)
    assert (root / "a.py").read_bytes() == after
    apply_with(["git", "apply", "--reverse"], root, patch)
    assert (root / "a.py").read_bytes() == before


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
@pytest.mark.parametrize("case", PAIRS)
def test_patch_takes_the_patch(tmp_path: Path, case: str) -> None:
    before, after = PAIRS[case]
    root = write(tmp_path, {"a.py": before})
    apply_with(
        ["patch", "-p1", "--fuzz=0", "--posix" if not after else "--batch"],
        root,
        patch_of("a.py", before, after),
    )
    assert (root / "a.py").read_bytes() == after


@pytest.mark.parametrize("name", NAMES)
def test_names_are_written_as_git_writes_them(tmp_path: Path, name: str) -> None:
    root = repository(tmp_path, {name: "a\n"})
    write(root, {name: "b\n"})
    theirs = git(root, "diff").encode("utf-8", "surrogateescape").split(b"\n")
    ours = patch_of(name, b"a\n", b"b\n").split(b"\n")
    assert ours == [line for line in theirs if not line.startswith(b"index ")]


@pytest.mark.parametrize("name", NAMES)
def test_git_apply_takes_the_names(tmp_path: Path, name: str) -> None:
    root = repository(tmp_path, {name: "a\n"})
    apply_with(["git", "apply"], root, patch_of(name, b"a\n", b"b\n"))
    assert (root / name).read_bytes() == b"b\n"


@pytest.mark.skipif(shutil.which("patch") is None, reason="patch is not installed")
@pytest.mark.parametrize("name", [name for name in NAMES if "\n" not in name])
def test_patch_takes_the_names(tmp_path: Path, name: str) -> None:
    root = write(tmp_path, {name: "a\n"})
    apply_with(["patch", "-p1", "--fuzz=0", "--batch"], root, patch_of(name, b"a\n", b"b\n"))
    assert (root / name).read_bytes() == b"b\n"


def test_crlf_file_in_a_repository_that_converts_line_ends(tmp_path: Path) -> None:
    root = repository(tmp_path, {"a.py": b"a\r\nb\r\nc\r\n", ".gitattributes": "*.py text\n"})
    git(root, "config", "core.autocrlf", "true")
    apply_with(["git", "apply"], root, patch_of("a.py", b"a\r\nb\r\nc\r\n", b"a\r\nB\r\nc\r\n"))
    assert (root / "a.py").read_bytes() == b"a\r\nB\r\nc\r\n"


def test_several_files_and_unchanged_ones(tmp_path: Path) -> None:
    root = repository(tmp_path, {"a.py": "a\n", "b.py": "b\n", "c.py": "c\n"})
    results = [Result("a.py", b"a\n", b"A\n"), Result("b.py", b"b\n"), Result("c.py", b"c\n", b"C\n")]
    apply_with(["git", "apply"], root, b"".join(diff.patch(results)))
    assert git(root, "diff", "--name-only") == "a.py\nc.py\n"


def test_random_edits_apply(tmp_path: Path) -> None:
    # Lines that repeat are what matching gets wrong; the lines that are cut off at both ends as well.
    chance = random.Random(7)
    root = repository(tmp_path, {})
    for round_ in range(60):
        lines = [chance.choice([b"a\n", b"b\n", b"\n", b"    pass\n"]) for _ in range(chance.randrange(60))]
        after = list(lines)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(after) + 1)
            after[at : at + chance.randrange(4)] = [b"new\n"] * chance.randrange(3)
        before_raw = b"".join(lines) + chance.choice([b"", b"end"])
        after_raw = b"".join(after) + chance.choice([b"", b"end"])
        write(root, {f"{round_}.py": before_raw})
        if before_raw != after_raw:
            apply_with(["git", "apply"], root, patch_of(f"{round_}.py", before_raw, after_raw))
        assert (root / f"{round_}.py").read_bytes() == after_raw


def test_patch_of_a_large_file_is_small() -> None:
    lines = [b"    x = %d\n" % (number % 7) for number in range(50_000)]
    after = list(lines)
    after[10] = after[-10] = b"new\n"
    patch = patch_of("a.py", b"".join(lines), b"".join(after))
    assert patch.count(b"\n") == 3 + 2 * 9


def test_too_many_edits_make_one_large_hunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diff, "EDITS", 5)
    before = b"".join(b"%d\n" % number for number in range(60))
    after = b"".join(b"%d\n" % (number * 2) for number in range(60))
    root = repository(tmp_path, {"a.py": before})
    apply_with(["git", "apply"], root, patch_of("a.py", before, after))
    assert (root / "a.py").read_bytes() == after


def test_coloured_patch_says_the_same() -> None:
    plain = list(diff.patch([Result("a.py", b"a\nb\r\n", b"A\nb\r\n")]))
    coloured = b"".join(diff.coloured(plain))
    assert b"\x1b[31m-a\x1b[0m\n\x1b[32m+A\x1b[0m\n b\r\n" in coloured
    for code in (b"\x1b[0m", b"\x1b[1m", b"\x1b[31m", b"\x1b[32m", b"\x1b[36m"):
        coloured = coloured.replace(code, b"")
    assert coloured == b"".join(plain)
