"""Processes that are forked for a program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuronmigrate.parity.forks import TIMEOUT, Forks

PROGRAM = """\
import os, subprocess, sys, time
from neuronmigrate.parity.forks import serve

act, *rest = serve(())
if act == "say":
    print(os.environ.get("RANK"), os.environ.get("WORLD_SIZE"), os.getcwd(), *rest)
elif act == "fail" and os.environ["RANK"] == "1":
    sys.exit(3)
elif act == "hang":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open("child", "w").write(str(child.pid))
    time.sleep(600)
elif act == "fail":
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    program = tmp_path_factory.mktemp("forks") / "program.py"
    program.write_text(PROGRAM)
    found = Forks([sys.executable, str(program)], {"PYTHONPATH": str(Path(__file__).parents[2])})
    yield found
    found.close()


def test_each_process_has_its_rank(forks: Forks, tmp_path: Path) -> None:
    assert forks.run(["say", "this"], tmp_path, {}, 2, printed=tmp_path) == 0
    lines = sorted((tmp_path / "stdout").read_text().splitlines())
    assert lines == [f"{rank} 2 {tmp_path} this" for rank in (0, 1)]


def test_one_that_fails_ends_the_others(forks: Forks, tmp_path: Path) -> None:
    assert forks.run(["fail"], tmp_path, {}, 2) == 3


def test_one_that_hangs_is_stopped_with_what_it_started(forks: Forks, tmp_path: Path) -> None:
    assert forks.run(["hang"], tmp_path, {}, timeout=0.5) == TIMEOUT
    process = Path("/proc", (tmp_path / "child").read_text(), "stat")
    if Path("/proc/self/stat").exists():
        # Gone, or dead and not yet waited for by init.
        assert not process.exists() or process.read_text().rpartition(")")[2].split()[0] == "Z"
    assert forks.run(["say"], tmp_path, {}, printed=tmp_path) == 0
