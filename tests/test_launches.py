"""The lines that start scripts are found in whatever writes them, with the flags they give."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronmigrate import files, run
from neuronmigrate.config import Settings
from neuronmigrate.launches import Launch, from_text, legacy_lines, reads
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


@pytest.mark.parametrize(
    ("line", "native"),
    [
        ("neuron_parallel_compile torchrun train.py --steps 2", "torchrun train.py --steps 2"),
        ("neuron_parallel_compile --num_parallel 4 A=1 python3 train.py", "A=1 python3 train.py"),
        ("  srun /opt/bin/neuron_parallel_compile --dump-to=d ./run.sh BF16", "srun ./run.sh BF16"),
        ('RUN="neuron_parallel_compile torchrun train.py"', 'RUN="torchrun train.py"'),
        ("python tools/xla_spawn.py --num_cores $N \\", "torchrun --nproc-per-node=$N \\"),
        ("python3 xla_spawn.py --num_cores=8 train.py", "torchrun --nproc-per-node=8 train.py"),
    ],
)
def test_a_wrapper_that_is_gone_is_told_with_the_command(line: str, native: str) -> None:
    (told,) = legacy_lines("run.sh", f"#!/bin/bash\n{line}\n".encode())
    assert told.startswith("run.sh:2: ")
    assert told.endswith(f" is gone: write `{native}`")


@pytest.mark.parametrize(
    "line",
    [
        'MAYBE="neuron_parallel_compile"',
        "neuron_parallel_compile --command clean",
        "xla_spawn.py",
        "name: neuron_parallel_compile of all tests",
    ],
)
def test_a_wrapper_without_a_command_is_told_with_advice(line: str) -> None:
    (told,) = legacy_lines("run.sh", line.encode())
    assert "is gone: " in told
    assert "write" not in told


@pytest.mark.parametrize(
    "line",
    ["export XLA_USE_BF16=1", "XLA_USE_BF16=1 python a.py", "  XLA_USE_BF16: '1'", "- name: XLA_USE_BF16"],
)
def test_a_switch_that_changed_the_numbers_is_told(line: str) -> None:
    (told,) = legacy_lines("jobs/train.yaml", line.encode())
    assert told.startswith("jobs/train.yaml:1: `XLA_USE_BF16` does nothing natively, float32 stays float32")


@pytest.mark.parametrize(
    "line",
    [
        "# neuron_parallel_compile torchrun train.py",
        "export XLA_USE_BF16=0",
        'if [ "$XLA_USE_BF16" = 1 ]; then',
        'export NEURON_CC_FLAGS="-O1"',
        "tail neuron_parallel_compile.log",
        "python train.py --cache_dir /tmp/hub",
        "torchrun train.py",
    ],
)
def test_what_acts_as_before_is_not_told(line: str) -> None:
    assert not list(legacy_lines("run.sh", line.encode()))
