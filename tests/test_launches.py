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
python plain.py
"""


def test_lines_and_flags() -> None:
    assert from_text("run.sh", SHELL) == (
        Launch("train.py", ("zero_1", "bf16", "output_dir"), "run.sh:3", ("", "True", "$OUT")),
        Launch("prepare.py", ("size",), "run.sh:6", ("3",)),
        Launch("plain.py", (), "run.sh:7"),
    )


def test_a_job_description_counts() -> None:
    job = b'args:\n  - run: "torchrun train.py --zero_1 False"\n'
    expected = (Launch("train.py", ("zero_1",), "jobs/train.yaml:2", ("False",)),)
    assert from_text("jobs/train.yaml", job) == expected
    assert from_text("jobs/train.yaml", job.replace(b'"', b"")) == expected
    listed = b'args:\n  command: ["torchrun", "train.py", "--zero_1", "False"]\n'
    assert from_text("jobs/train.yaml", listed) == expected
    assert from_text("jobs/train.yaml", listed.replace(b", ", b",")) == expected


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


FLAGS = {
    "--optim adamw_hf --log_level_replica silent": [
        "`--optim adamw_hf` is `--optim adamw_torch`",
        "`--log_level_replica silent` is gone: leave it out",
    ],
    "--warmup_ratio 0.1 --warmup_steps 5": [
        "`--warmup_ratio` is gone: beside `--warmup_steps` it did nothing",
    ],
    "--per_gpu_train_batch_size=4 --evaluation_strategy epoch --group_by_length": [
        "`--per_gpu_train_batch_size` is `--per_device_train_batch_size`",
        "`--evaluation_strategy` is `--eval_strategy`",
        "`--group_by_length` is `--train_sampling_strategy group_by_length`",
    ],
    "--save_strategy steps --optim adamw_torch --log_level_replica warning": [],
}


@pytest.mark.parametrize("flags", FLAGS)
def test_flags_and_values_that_changed_are_named(flags: str, tmp_path: Path) -> None:
    assert _told_of(tmp_path, flags, "0.3.0") == FLAGS[flags]


def test_what_never_happened_before_is_named(tmp_path: Path) -> None:
    (saved, logged) = _told_of(tmp_path, "--save_strategy epoch --logging_strategy epoch", "0.4.5")
    assert saved == "`--save_strategy epoch` acts now: 0.4.x never saved anything"
    assert logged == "`--logging_strategy epoch` acts now: 0.4.x never logged anything"
    assert _told_of(tmp_path, "--save_strategy epoch", "0.3.0") == []


def _told_of(folder: Path, flags: str, release: str) -> list[str]:
    """What is said of the line that starts a script with these flags."""
    (folder / "requirements.txt").write_text(f"optimum-neuron=={release}\n", "utf-8")
    (folder / "run.sh").write_text(f"torchrun train.py {flags}\n", "utf-8")
    (folder / "train.py").write_text(
        "from optimum.neuron import NeuronHfArgumentParser, NeuronTrainingArguments\n"
        "(args,) = NeuronHfArgumentParser(NeuronTrainingArguments).parse_args_into_dataclasses()\n",
        "utf-8",
    )
    report = run.run(files.discover([folder], Settings(), root=folder), Settings(), run.engine())
    told = [part for each in report.findings for part in each.todo.split("; ") if "run.sh:1: " in part]
    return told[0].removeprefix("run.sh:1: ").split(", ") if told else []


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
