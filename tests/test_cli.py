"""The commands as they are typed: what they print where, what they write, and how they exit."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from neuronmigrate import __version__, cli
from tests.trees import HOME, as_common_user, content, git, repository, write

STEP = b"import os\nimport torch_xla.core.xla_model as xm\n\nprint(os.name)\nxm.mark_step()\n"
"""Can be rewritten whole."""
STEPPED = b"import os\n\nprint(os.name)\n"
ODD = b"import torch_xla.core.xla_model as xm\n\nstep = [xm.mark_step]\n"
"""Can only be marked."""
CLEAN = b"import torch\n"
BROKEN = b"import torch_xla\nprint 'python 2'\n"
BROKEN_STRANGER = b"print 'python 2'\n"
NOTE = {
    "third/torch_xla/__init__.py": b"",
    "third/torch_xla/core/xla_model.py": b"def mark_step(): ...\n",
}


@dataclass
class Typed:
    """What came of a command line."""

    code: int
    out: bytes
    err: bytes


class Shell:
    """Types command lines in a folder."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, captured: pytest.CaptureFixture[bytes]
    ) -> None:
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.captured = captured

    def __call__(self, *arguments: str | Path, stdin: bytes = b"") -> Typed:
        with self.monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["neuronmigrate", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patch.chdir(self.folder)
            code = cli.main()
        done = self.captured.readouterr()
        return Typed(code, done.out, done.err)


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Shell:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "in"
    folder.mkdir()
    return Shell(folder, monkeypatch, capfdbinary)


def started(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    """Start the program itself, for which permissions count."""
    command = [sys.executable, "-m", "neuronmigrate", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        preexec_fn=as_common_user,
        timeout=100,
    )


# check


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"a.py": CLEAN}, 0),
        ({}, 0),
        ({"a.py": STEP}, 1),
        ({"a.py": ODD}, 1),
        ({"a.py": CLEAN} | NOTE, 0),
        ({"a.py": BROKEN_STRANGER}, 0),
        ({"a.py": BROKEN}, 2),
        ({"a.py": BROKEN, "b.py": STEP}, 2),
        ({"a.py": BROKEN_STRANGER, "b.py": STEP}, 1),
        ({"a.py": STEP + b"\xff\n"}, 2),
        ({"a.py": STEP + b"\0\n"}, 2),
    ],
)
def test_check_exit_codes(shell: Shell, files: dict[str, bytes], code: int) -> None:
    write(shell.folder, files)
    assert shell("check", ".").code == code
    assert content(shell.folder) == files


@pytest.mark.parametrize(
    "deep", [b"(" * 3000 + b"1" + b")" * 3000, b"-" * 30_000 + b"1", b"1 + " * 30_000 + b"1"]
)
def test_too_deep_a_file_stops_nothing(tmp_path: Path, deep: bytes) -> None:
    # In a process of its own: a parser that runs out of stack takes everything down with it.
    write(tmp_path, {"a.py": b"# torch_xla\nx = " + deep + b"\n", "b.py": STEP})
    done = started("check", "--output-format=concise", ".", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith(b"a.py:") and b" error parse: " in done.stdout.splitlines()[0]
    assert b"\nb.py:5:1 fixed [lazy-step]" in done.stdout


def test_check_text(shell: Shell) -> None:
    write(shell.folder, {"d/a.py": STEP, "b.py": BROKEN} | NOTE)
    typed = shell("check", ".")
    lines = typed.out.decode().splitlines()
    assert lines[0].startswith("b.py:2:") and " error parse: " in lines[0]
    place = lines.index("  5 | xm.mark_step()")
    assert lines[place - 1].startswith("d/a.py:5:1 fixed [lazy-step] torch_xla.core.xla_model.mark_step: ")
    assert lines[place + 1].startswith("    | ^^^^^^^^^^^^")
    assert any(
        line.startswith("third/torch_xla/__init__.py:1:1 note [vendored] torch_xla: ") for line in lines
    )
    assert lines[-1].endswith(" in 2 files, 1 would change; 1 error")


def test_check_from_a_folder_inside(shell: Shell) -> None:
    write(shell.folder, {"pyproject.toml": b"", "src/a.py": STEP, "tests/b.py": CLEAN})
    shell.folder = shell.folder / "tests"
    assert shell("check", "../src").out.startswith(b"../src/a.py:")


def test_check_formats(shell: Shell) -> None:
    write(shell.folder, {"a.py": STEP})
    for name in ("text", "concise", "json", "github"):
        typed = shell("check", "--output-format", name, ".")
        assert typed.code == 1 and b"mark_step" in typed.out
    document = json.loads(shell("check", "--output-format=json", ".").out)
    assert document["summary"]["scanned"] == 1 and document["command"] == "check"
    assert {one["path"] for one in document["findings"]} == {"a.py"}
    assert b"::warning file=a.py,line=5," in shell("check", "--output-format=github", ".").out
    wrong = shell("check", "--output-format=nonsense", ".")
    assert (wrong.code, wrong.out) == (2, b"")
    assert b"nonsense is none of text, concise, json, github" in wrong.err


def test_check_quiet(shell: Shell) -> None:
    write(shell.folder, {"a.py": STEP})
    assert shell("check", "--quiet", ".") == Typed(1, b"", b"")
    write(shell.folder, {"b.py": BROKEN})
    typed = shell("check", "-q", ".")
    assert typed.code == 2 and typed.out.startswith(b"b.py:2:") and typed.out.count(b"\n") == 1


def test_check_one_file(shell: Shell) -> None:
    write(shell.folder, {"a.py": STEP, "b.py": CLEAN})
    assert shell("check", "b.py").code == 0
    assert shell("check", "a.py", "b.py").code == 1


def test_check_stdin(shell: Shell) -> None:
    typed = shell("check", "-", stdin=STEP)
    assert typed.code == 1 and b"-:5:1 fixed [lazy-step]" in typed.out
    assert shell("check", "-", stdin=CLEAN).code == 0


# rewrite


def test_rewrite(shell: Shell) -> None:
    repository(shell.folder, {"a.py": STEP, "b.py": ODD, "c.py": CLEAN})
    typed = shell("rewrite", ".")
    assert typed.code == 0
    after = content(shell.folder)
    assert after["a.py"] == STEPPED and after["c.py"] == CLEAN
    assert b"# TODO(neuronmigrate): [" in after["b.py"]
    out = typed.out.decode()
    assert "b.py:3:" in out and " marked [" in out and "a.py" not in out
    assert out.splitlines()[-1].endswith(" in 3 files, 2 changed")
    assert b"`neuronmigrate undo` takes this back" in typed.err
    report = json.loads((shell.folder / ".git" / "neuronmigrate" / "report.json").read_bytes())
    assert report["command"] == "rewrite" and report["summary"]["changed"] == 2
    # A second run finds nothing to change.
    again = shell("rewrite", ".")
    assert again.code == 0 and again.out.endswith(b" in 3 files, 0 changed\n")
    assert content(shell.folder) == after
    assert shell("undo").code == 0
    assert content(shell.folder) == {"a.py": STEP, "b.py": ODD, "c.py": CLEAN}
    assert shell("undo").code == 2


def test_rewrite_strict(shell: Shell) -> None:
    repository(shell.folder, {"a.py": STEP})
    assert shell("rewrite", "--strict", ".").code == 0
    write(shell.folder, {"b.py": ODD})
    git(shell.folder, "add", "--all")
    git(shell.folder, "commit", "--quiet", "--message=b")
    assert shell("rewrite", "--strict", ".").code == 1
    assert shell("rewrite", ".").code == 0


def test_rewrite_goes_on_after_a_bad_file(shell: Shell) -> None:
    repository(shell.folder, {"a.py": BROKEN, "b.py": STEP, "c.py": BROKEN_STRANGER})
    typed = shell("rewrite", ".")
    assert typed.code == 2
    assert content(shell.folder)["b.py"] == STEPPED
    assert b"a.py:2:" in typed.out and b"c.py" not in typed.out


def test_rewrite_refuses_what_git_could_not_bring_back(shell: Shell) -> None:
    repository(shell.folder, {"a.py": STEP, "b.py": STEP})
    write(shell.folder, {"b.py": STEP + b"# mine\n"})
    typed = shell("rewrite", ".")
    assert (typed.code, typed.out) == (2, b"")
    assert b"modified   b.py" in typed.err and b"--allow-dirty" in typed.err
    assert content(shell.folder) == {"a.py": STEP, "b.py": STEP + b"# mine\n"}
    assert shell("rewrite", "--allow-dirty", ".").code == 0
    assert content(shell.folder) == {"a.py": STEPPED, "b.py": STEPPED + b"# mine\n"}


def test_rewrite_diff(shell: Shell) -> None:
    root = repository(shell.folder, {"d/a b.py": STEP, "b.py": STEP.replace(b"\n", b"\r\n"), "c.py": ODD})
    before = content(root)
    write(root, {"c.py": ODD + b"# a dirty file may be previewed\n"})
    shell.folder = root / "d"
    typed = shell("rewrite", "--diff", "..")
    assert typed.code == 0
    assert typed.out.startswith(b"diff --git a/b.py b/b.py\n") and b"--- a/d/a b.py\t\n" in typed.out
    assert b" marked [" in typed.err and b"3 would change" in typed.err
    git(root, "checkout", "--quiet", "c.py")
    assert content(root) == before
    (root / "patch").write_bytes(shell("rewrite", "--diff", "..").out)
    git(root, "apply", "--check", "patch")
    git(root, "apply", "patch")
    (root / "patch").unlink()
    patched = content(root)
    git(root, "checkout", "--quiet", ".")
    assert shell("rewrite", "..").code == 0
    assert content(root) == patched


def test_rewrite_diff_of_nothing(shell: Shell) -> None:
    write(shell.folder, {"a.py": CLEAN})
    assert shell("rewrite", "--diff", ".").out == b""


def test_rewrite_stdin(shell: Shell) -> None:
    typed = shell("rewrite", "-", stdin=STEP)
    assert (typed.code, typed.out) == (0, STEPPED)
    assert shell("rewrite", "-", stdin=CLEAN).out == CLEAN
    raw = b"\xef\xbb\xbf" + CLEAN.replace(b"\n", b"\r\n") + b"# \xff"
    assert shell("rewrite", "-", stdin=raw).out == raw
    broken = shell("rewrite", "-", stdin=BROKEN)
    assert (broken.code, broken.out) == (2, BROKEN) and b"-:2:" in broken.err
    assert shell("rewrite", "--diff", "-", stdin=STEP).out.startswith(b"diff --git a/stdin b/stdin\n")
    assert content(shell.folder) == {}


def test_rewrite_output(shell: Shell, tmp_path: Path) -> None:
    repository(shell.folder, {"a.py": STEP, "d/data.txt": b"xm.mark_step()\n", "c.py": CLEAN})
    before = content(shell.folder)
    typed = shell("rewrite", "--output", tmp_path / "out", ".")
    assert typed.code == 0
    assert content(shell.folder) == before
    assert content(tmp_path / "out") == before | {"a.py": STEPPED}
    again = shell("rewrite", "--output", tmp_path / "out", ".")
    assert again.code == 2 and b"is not empty" in again.err


def test_rewrite_report_file(shell: Shell, tmp_path: Path) -> None:
    write(shell.folder, {"a.py": STEP})
    assert shell("rewrite", "--diff", "--report", tmp_path / "r.json", ".").code == 0
    assert json.loads((tmp_path / "r.json").read_bytes())["command"] == "preview"
    # What is no file is written to and not replaced.
    (tmp_path / "link").symlink_to(os.devnull)
    assert shell("rewrite", "--diff", "--report", tmp_path / "link", ".").code == 0
    assert (tmp_path / "link").is_symlink() and not Path(os.devnull).is_file()
    wrong = shell("rewrite", "--diff", "--report", tmp_path / "no" / "r.json", ".")
    assert wrong.code == 2 and b"the report cannot be written" in wrong.err


def test_rewrite_quiet(shell: Shell) -> None:
    repository(shell.folder, {"a.py": STEP, "b.py": ODD})
    assert shell("rewrite", "--quiet", ".") == Typed(0, b"", b"")
    assert content(shell.folder)["a.py"] == STEPPED


def test_rewrite_without_git_and_undo_from_elsewhere(shell: Shell) -> None:
    write(shell.folder, {"p/a.py": STEP})
    typed = shell("rewrite", "p")
    assert typed.code == 0 and b"`neuronmigrate undo p` takes this back" in typed.err
    assert shell("undo").code == 2
    assert shell("undo", "p").code == 0
    assert content(shell.folder) == {"p/a.py": STEP}


def test_undo_names_what_was_edited(shell: Shell) -> None:
    repository(shell.folder, {"a.py": STEP})
    shell("rewrite", ".")
    write(shell.folder, {"a.py": b"edited\n"})
    typed = shell("undo")
    assert typed.code == 2 and b"  a.py\n" in typed.err
    assert content(shell.folder) == {"a.py": b"edited\n"}


def test_settings_of_the_project_and_options(shell: Shell) -> None:
    table = b"[tool.neuronmigrate]\nexclude = ['old/']\nstrict = true\n"
    write(shell.folder, {"pyproject.toml": table, "a.py": CLEAN, "old/b.py": STEP, "new/c.py": ODD})
    assert shell("check", ".").code == 1
    assert shell("check", "--exclude", "new/", ".").code == 0
    assert shell("rewrite", "--diff", ".").code == 1
    assert shell("rewrite", "--diff", "--no-strict", ".").code == 0
    write(shell.folder, {"pyproject.toml": b"[tool.neuronmigrate]\nexcluded = []\n"})
    typed = shell("check", ".")
    assert typed.code == 2
    assert b"pyproject.toml:2: [tool.neuronmigrate] has no key excluded, did you mean exclude?" in typed.err
    assert typed.err.count(b"\n") == 1


@pytest.mark.parametrize("command", ["check", "rewrite"])
def test_wrong_command_lines(shell: Shell, command: str) -> None:
    write(shell.folder, {"a.py": CLEAN})
    assert shell(command).code == 2
    missing = shell(command, "a.py", "no/such/file.py")
    assert (missing.code, missing.out) == (2, b"")
    assert missing.err == b"neuronmigrate: error: no/such/file.py: does not exist\n"
    assert b"cannot be mixed" in shell(command, "-", "a.py").err
    assert shell(command, "--nonsense", "a.py").code == 2
    assert shell(command, "--jobs", "-1", "a.py").code == 2
    assert b"has to be a release" in shell(command, "--from-version", "new", "a.py").err
    assert shell(command, "--codemods", "nowhere", "a.py").code == 2


def test_wrong_combinations(shell: Shell) -> None:
    write(shell.folder, {"a.py": CLEAN})
    assert shell("rewrite", "--diff", "--output", "x", "a.py").code == 2
    assert shell("rewrite", "--output", "x", "-", stdin=STEP).code == 2
    assert content(shell.folder) == {"a.py": CLEAN}


# list, explain, help


def test_list(shell: Shell) -> None:
    typed = shell("list")
    lines = typed.out.decode().splitlines()
    assert typed.code == 0
    assert len(lines) == len(list((HOME / "codemods").glob("[a-z]*.py")))
    assert any(line.startswith("lazy-step ") for line in lines)


def test_explain(shell: Shell) -> None:
    codemod = shell("explain", "lazy-step")
    assert codemod.code == 0 and codemod.out.startswith(b"lazy-step\nStatements that cut the lazy graph")
    name = shell("explain", "xm.mark_step")
    assert name.code == 0 and name.out.startswith(b"torch_xla.core.xla_model.mark_step  ")
    assert b"  codemod  lazy-step\n" in name.out
    trainer = shell("explain", "optimum.neuron.NeuronTrainer").out
    assert (
        b"-> transformers.Trainer" in trainer and b"\nArguments of optimum.neuron.NeuronTrainer\n" in trainer
    )
    unknown = shell("explain", "NeuronTrainr")
    assert (unknown.code, unknown.out) == (2, b"")
    assert b"optimum.neuron.NeuronTrainer" in unknown.err


def test_own_codemods(shell: Shell, tmp_path: Path) -> None:
    own = '''"""Says what it is."""
from neuronmigrate.codemod import Codemod
codemod = Codemod(__name__)
'''
    mine = write(tmp_path / "mine", {"house_rule.py": own})
    assert b"house-rule" in shell("list", "--codemods", mine).out
    assert b"house-rule" not in shell("list").out
    assert shell("explain", "--codemods", mine, "house-rule").out == b"house-rule\nSays what it is.\n"
    write(shell.folder, {"a.py": CLEAN})
    broken = write(tmp_path / "broken", {"broken.py": "1 / 0\n"})
    typed = shell("check", "--codemods", broken, ".")
    assert typed.code == 2 and b"cannot be loaded: ZeroDivisionError" in typed.err


def test_version_and_help(shell: Shell) -> None:
    version = shell("--version")
    assert version.code == 0
    assert version.out.startswith(f"neuronmigrate {__version__} (codemods ".encode())
    for command in ("rewrite", "undo", "check", "list", "explain"):
        assert shell(command, "--help").code == 0
        assert command.encode() in shell("--help").out
    assert shell().code == 2


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["check", "--help"], ["check", "clean.py"]])
def test_quick_commands_import_nothing_heavy(tmp_path: Path, arguments: list[str]) -> None:
    write(tmp_path, {"clean.py": CLEAN})
    code = """
import atexit, sys
def tell():
    heavy = {"libcst", "torch", "transformers", "rich", "pathspec", "platformdirs", "multiprocessing"}
    print(sorted(heavy & set(sys.modules)), file=sys.stderr)
atexit.register(tell)
from neuronmigrate.__main__ import main
main()
"""
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == "[]"


# The program itself


def test_nothing_of_the_current_folder_is_imported(tmp_path: Path) -> None:
    trap = f"import pathlib\npathlib.Path({str(tmp_path / 'sprung')!r}).touch()\nraise SystemExit(9)\n"
    names = [
        "codemods/__init__",
        "typer",
        "rich/__init__",
        "libcst/__init__",
        "dataclasses",
        "json",
        "pathspec",
    ]
    names += ["torch", "torch_xla", "tomllib", "multiprocessing/__init__", "typing", "enum", "a"]
    root = write(tmp_path / "in", {f"{name}.py": trap for name in names} | {"b.py": STEP.decode()})
    for path in ("", str(root), "."):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(HOME), path]))}
        done = subprocess.run(
            [sys.executable, "-m", "neuronmigrate", "check", "."],
            cwd=root,
            env=environment,
            capture_output=True,
        )
        assert not (tmp_path / "sprung").exists()
        assert b"b.py:5:1 fixed [lazy-step]" in done.stdout, done.stderr


def test_a_package_in_the_current_folder_still_works() -> None:
    done = subprocess.run([sys.executable, "-m", "neuronmigrate", "--version"], cwd=HOME, capture_output=True)
    assert done.stdout.startswith(b"neuronmigrate ")


def test_reader_that_leaves(tmp_path: Path) -> None:
    root = write(tmp_path, {f"{number:03}.py": STEP for number in range(60)})
    command = f"'{sys.executable}' -m neuronmigrate check . | head -n 1"
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    done = subprocess.run(["sh", "-c", command], cwd=root, env=environment, capture_output=True)
    assert done.stdout.count(b"\n") == 1
    assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr


def test_reader_that_was_never_there(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": STEP})
    reading, writing = os.pipe()
    os.close(reading)
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    done = subprocess.run(
        [sys.executable, "-m", "neuronmigrate", "check", "."],
        cwd=tmp_path,
        env=environment,
        stdout=writing,
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr


def test_pipe_in_place_of_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    done = started("check", "pipe.py", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout.startswith(b"pipe.py:1:1 error read: is not a regular file\n")


def test_folder_and_file_that_may_not_be_read(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": CLEAN, "b.py": STEP, "shut/c.py": STEP})
    for name in ("b.py", "shut"):
        (tmp_path / name).chmod(0)
    done = started("check", "--output-format=concise", ".", cwd=tmp_path)
    (tmp_path / "shut").chmod(0o700)
    assert done.returncode == 2
    assert done.stdout.splitlines()[:2] == [
        b"b.py:1:1 error read: cannot be read: Permission denied",
        b"shut:1:1 error read: cannot be read: Permission denied",
    ]


def test_folder_that_may_not_be_written(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": STEP, "d/b.py": STEP})
    (root / "d").chmod(0o555)
    done = started("rewrite", ".", cwd=root)
    (root / "d").chmod(0o755)
    assert done.returncode == 2
    assert b"d/b.py:1:1 error write: cannot be written: Permission denied\n" in done.stdout
    assert content(root) == {"a.py": STEPPED, "d/b.py": STEP}


def test_odd_file_names(tmp_path: Path) -> None:
    names = ["new\nline.py", os.fsdecode(b"\xff.py"), "\u00e4 b.py"]
    root = repository(tmp_path / "in", dict.fromkeys(names, STEP))
    done = started("check", "--output-format=concise", ".", cwd=root)
    assert b"new\\nline.py:5:1 fixed" in done.stdout and b"\\udcff.py:5:1 fixed" in done.stdout
    assert started("rewrite", ".", cwd=root).returncode == 0
    assert content(root) == dict.fromkeys(names, STEPPED)


def test_interrupt(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": STEP, "b.py": STEP})
    code = """
import os, signal, sys
from neuronmigrate import files
real = files.replace
def interrupted(*arguments, **options):
    real(*arguments, **options)
    os.kill(os.getpid(), signal.SIGINT)
files.replace = interrupted
from neuronmigrate.__main__ import main
sys.argv = ["neuronmigrate", "rewrite", "."]
main()
"""
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True)
    assert done.returncode == 130
    assert b"Traceback" not in done.stderr and b"neuronmigrate undo" in done.stderr
    assert content(root) == {"a.py": STEPPED, "b.py": STEP}
    assert started("undo", cwd=root).returncode == 0
    assert content(root) == {"a.py": STEP, "b.py": STEP}


def test_a_bug_of_ours_is_no_finding(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    write(shell.folder, {"a.py": CLEAN})
    monkeypatch.delattr("neuronmigrate.files.discover")
    typed = shell("check", ".")
    assert typed.code == 2
    assert b"Traceback" in typed.err and b"this is a bug of neuronmigrate" in typed.err


def test_killed_between_two_files(tmp_path: Path) -> None:
    root = repository(tmp_path / "in", {"a.py": STEP, "b.py": STEP})
    code = """
import os, signal, sys
from neuronmigrate import files
real = files.replace
def killed(*arguments, **options):
    real(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
files.replace = killed
from neuronmigrate.__main__ import main
sys.argv = ["neuronmigrate", "rewrite", "."]
main()
"""
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    assert content(root) == {"a.py": STEPPED, "b.py": STEP}
    # Going on is possible as well as going back: what is modified is our own result.
    assert started("rewrite", ".", cwd=root).returncode == 0
    assert content(root) == {"a.py": STEPPED, "b.py": STEPPED}
    for expected in ({"a.py": STEPPED, "b.py": STEP}, {"a.py": STEP, "b.py": STEP}):
        assert started("undo", cwd=root).returncode == 0
        assert content(root) == expected


def test_linked_work_tree(tmp_path: Path) -> None:
    root = repository(tmp_path / "main", {"a.py": STEP})
    git(root, "worktree", "add", "--quiet", str(tmp_path / "linked"))
    assert started("rewrite", ".", cwd=tmp_path / "linked").returncode == 0
    assert started("undo", cwd=root).returncode == 2
    assert content(tmp_path / "linked") == {"a.py": STEPPED}
    assert started("undo", cwd=tmp_path / "linked").returncode == 0
    assert content(tmp_path / "linked") == {"a.py": STEP}
