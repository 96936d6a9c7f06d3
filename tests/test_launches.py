"""The lines that start scripts are found in whatever writes them, with the flags they give."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronmigrate import files, run
from neuronmigrate.config import Settings
from neuronmigrate.launches import Launch, from_text, reads
from tests.fixtures_lib import FOLDER

SHELL = b"""#!/bin/bash
# torchrun old.py --zero_1
torchrun --nproc_per_node 2 scripts/train.py \\
  --zero_1 --bf16=True \\
  --output_dir "$OUT" # all of it
python prepare.py --size 3 && python train.py --do_train; echo --done
"""


def test_lines_and_flags() -> None:
    assert from_text("run.sh", SHELL) == (
        Launch("train.py", ("zero_1", "bf16", "output_dir"), "run.sh:3"),
        Launch("prepare.py", ("size",), "run.sh:6"),
    )


def test_a_job_description_counts() -> None:
    job = b'args:\n  - run: "torchrun train.py --zero_1 False"\n'
    assert [launch.script for launch in from_text("jobs/train.yaml", job)] == []
    assert from_text("jobs/train.yaml", job.replace(b'"', b""))[0].flags == ("zero_1",)


@pytest.mark.parametrize("name", ["train.py", "README.md", "notes.txt", "run.ipynb"])
def test_other_files_do_not_count(name: str) -> None:
    assert not reads(name)
    assert from_text(name, SHELL) == ()


def test_the_line_that_has_to_change_is_named(tmp_path: Path) -> None:
    before = FOLDER / "scripts" / "train_language_model" / "before"
    for path in before.iterdir():
        text = path.read_text("utf-8")
        (tmp_path / path.name).write_text(text.replace("--do_train", "--zero_1 --warmup_ratio 0.1"), "utf-8")
    report = run.run(files.discover([tmp_path], Settings(), root=tmp_path), Settings(), run.engine())
    told = [each.todo for each in report.findings if each.todo.startswith("run.sh")]
    assert told == ["run.sh:5: `--zero_1` is gone, `--warmup_ratio` is `--warmup_steps`"]
