"""The worked pairs of legacy idioms are all fixtures, and what they compute is what torch_xla computed.

Each is a case `pair_NN` in the folder of the codemod that it is about; the launch script is a project. Those
whose legacy side runs under torch_xla on a CPU were recorded there (tests/oracle); the others are executed on
two processes, or only marked, and their reports say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from neuronmigrate import files, run
from neuronmigrate.config import Settings
from neuronmigrate.plan import State
from tests.fixtures_lib import FOLDER, cases, result_of, run_of
from tests.oracle import cases as oracle
from tests.oracle.record import digest
from tests.test_oracle import _alike, _values

PAIRS = {
    "01": "xla_device",
    "02": "lazy_step",
    "03": "lazy_step",
    "04": "rank_queries",
    "05": "rank_queries",
    "06": "process_group",
    "07": "rendezvous",
    "08": "rendezvous",
    "09": "device_loaders",
    "10": "optimizer_step",
    "10b": "optimizer_step",
    "11": "checkpoints",
    "12": "spawned_processes",
    "13": "collectives",
    "14": "step_closures",
    "15": "mixed_precision",
    "16": "bf16_switches",
    "17": "neuron_traces",
    "18": "neuron_traces",
    "19": "parallel_layers",
    "20": "gradient_checkpointing",
    "21": "random_state",
    "22": "profiling",
    "23": "neuron_traces",
    "24": "legacy_name",
    "26": "legacy_name",
}
"""Where each pair stands."""
LAUNCH = FOLDER / "scripts" / "pair_25"
"""The launch script, with the script that it starts. Nothing writes shell yet: its lines are told."""
LEFT_TO_A_PERSON = frozenset({"18", "24", "26"})
"""Pairs in which something is marked: a file of a trace that nobody writes, classes of archived libraries."""
FOUND = {
    case.source.name.split(".")[0].removeprefix("pair_"): case
    for case in (*cases("before"), *cases("keep"))
    if case.source.name.startswith("pair_")
}
"""Pair 23, for Inf1, is left alone."""


@pytest.mark.parametrize("number", PAIRS)
def test_each_pair_is_a_fixture(number: str) -> None:
    assert number in FOUND, f"fixtures/{PAIRS[number]}/pair_{number} is missing"
    assert FOUND[number].source.parent.name == PAIRS[number]


def test_no_pair_is_left_over() -> None:
    assert FOUND.keys() == PAIRS.keys()
    assert len(PAIRS) + len([LAUNCH]) == 27


def test_the_launch_script_is_told_line_by_line() -> None:
    """What has to be written by hand: the script that it starts is rewritten, and ends in `after`."""
    tree = files.discover([LAUNCH / "before"], Settings(), root=LAUNCH / "before")
    report = run.run(tree, Settings(), run.engine())
    assert [each.path for each in report.results if each.after is not None] == ["train.py"]
    held, *lines = report.notices
    assert held == "1 file holds legacy names, of kinds that are not read yet: run.sh"
    assert [line.partition(" in ")[0].partition(" does ")[0] for line in lines] == [
        "run.sh:2: `XLA_DOWNCAST_BF16`",
        "run.sh:6: `--cache_dir`",
        "run.sh:7: `neuron_parallel_compile` is gone: "
        "write `torchrun --nproc_per_node=32 train.py --steps 2`",
    ]
    assert "use TORCH_NEURONX_NEFF_CACHE_DIR" in lines[1]
    assert "`--retry_failed_compilation` in NEURON_CC_FLAGS: remove it" in lines[1]
    assert (LAUNCH / "after" / "run.sh").read_bytes() == (LAUNCH / "before" / "run.sh").read_bytes()


def test_what_the_launch_script_starts_computes_what_one_process_would() -> None:
    """Two processes with a row each average the gradients that one process has of both rows."""
    ran = run_of(LAUNCH / "after" / "train.py", 2, ("--steps", "3"))
    # By hand: the loss is the mean of (w1 + 2 w2 + b)^2 and of (2 w1 + 4 w2 + b)^2.
    first, second, bias = 0.5, 0.5, 0.0
    for _ in range(3):
        one = first + 2 * second + bias
        two = 2 * first + 4 * second + bias
        first, second, bias = (
            first - 0.1 * (one + 2 * two),
            second - 0.1 * (2 * one + 4 * two),
            bias - 0.1 * (one + two),
        )
    assert float(ran.stdout.split()[-1]) == pytest.approx(first + second, rel=1e-5)


@pytest.mark.parametrize("number", sorted(FOUND))
def test_only_these_pairs_have_a_mark(number: str) -> None:
    marked = any(each.state is State.MARKED for each in result_of(FOUND[number]).findings)
    assert marked == (number in LEFT_TO_A_PERSON)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """What the after sides of the recorded pairs computed, by the name of the recording."""
    import torch

    folder = tmp_path_factory.mktemp("pairs")
    scripts = [str(FOLDER / case.after) for case in oracle.PAIRS]
    command = [sys.executable, "-m", "tests.several", str(folder), *scripts]
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {
        case.name: torch.load(folder / f"{number}.pt", weights_only=True)
        for number, case in enumerate(oracle.PAIRS)
    }


@pytest.mark.parametrize("case", oracle.PAIRS, ids=lambda case: case.name)
def test_the_after_side_computes_what_torch_xla_did(
    case: oracle.Case, ran: dict[str, dict[str, object]]
) -> None:
    recorded = json.loads(case.recording.read_text("utf-8"))
    assert recorded["sha256"] == digest(FOLDER / case.before), "record this script anew"
    values, expected = ran[case.name], _values(case, recorded)
    both = (values.keys() & expected.keys()) - {"device", "elapsed", "folder", "start"}
    assert both, "nothing to compare"
    for name in sorted(both):
        assert _alike(values[name], expected[name], case), (name, values[name], expected[name])
