"""Programmes of two processes, the process group's limits, and torchrun itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime.agreement import Outcomes, check, parameters, run_chosen
from tests.runtime.programmes import Programme
from tests.runtime.runner import run_programmes
from tests.runtime.running import run, script
from tests.trees import HOME


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run_chosen(request, tmp_path_factory.mktemp("two_processes"))


@pytest.mark.parametrize("programme", parameters("two_processes"))
def test_equals_the_cpu(outcomes: Outcomes, programme: Programme) -> None:
    check(outcomes, programme)


def test_torchrun_gives_what_the_cpu_gives(tmp_path: Path) -> None:
    programme = Programme("tests.runtime.two_processes.ddp")
    program = script(
        tmp_path,
        """\
        import json
        import torch.distributed as dist
        from tests.runtime.two_processes import ddp

        losses = ddp.run("neuron")["losses"]
        if dist.get_rank() == 0:
            print(json.dumps(losses))
        dist.destroy_process_group()
        """,
    )
    done = run("--devices", "2", program, env={"PYTHONPATH": str(HOME)})
    assert done.returncode == 0, done.stderr
    on_cpu = run_programmes([programme], tmp_path, devices=["cpu"])["cpu"][programme.name]
    assert json.loads(done.stdout) == on_cpu[0].values["losses"]


@pytest.mark.nightly
def test_strict_reports_what_may_be_missing(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """\
        import torch
        import torch.distributed as dist

        dist.init_process_group("neuron")
        row = torch.ones(1, device="neuron")
        dist.send(row, dst=1) if dist.get_rank() == 0 else dist.recv(row, src=0)
        alone = dist.new_group([0])
        if dist.get_rank() == 0:
            dist.barrier(group=alone)
        dist.destroy_process_group()
        """,
    )
    done = run("--devices", "2", "--strict", program)
    assert done.returncode == 0, done.stderr
    assert "program.py:6: StrictWarning: send and receive on the neuron device" in done.stderr
    assert "program.py:9: StrictWarning: a barrier of some of the processes" in done.stderr
