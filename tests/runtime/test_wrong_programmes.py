"""Programmes with a mistake are refused, in words that tell their writer what to change."""

from __future__ import annotations

import re

import pytest

from tests.runtime.agreement import Outcomes, run_chosen
from tests.runtime.programmes import Programme, programmes
from tests.runtime.runner import EMULATED

MIXED = r"Expected all tensors to be .*, neuron:0 and cpu.*move the CPU tensor of shape \[.*\] with .to"
LATE = (
    r"init_process_group must come before the first use of the neuron device.*"
    r"has used the device already \(\S+ at \S+{}.py:\d+\): move init_process_group"
)
TOLD = {
    "accelerator_after_device": LATE.format("accelerator_after_device"),
    "batch_on_cpu": MIXED,
    "float16_trainer": r"fp16 mixed precision requires a device in .* \(not 'neuron'\)",
    "group_after_device": LATE.format("group_after_device"),
    "labels_on_cpu": MIXED,
    "mask_on_cpu": MIXED,
    "result_to_numpy": r"can't convert neuron:0 device type tensor to numpy. Use Tensor.cpu\(\)",
    "several_cores": "NEURON_RT_VISIBLE_CORES=0-1 gives this process several cores.*Leave the variable unset",
    "tensor_on_cpu": "No backend type associated with device type cpu",
    "uneven_exchange": r"splits an all_to_all evenly, not into \[.*\]: pad the parts to one size",
    "uneven_list": r"splits an all_to_all evenly, not into \[.*\]: pad the parts to one size",
    "unnamed_source": r"receives from a source that is named: dist.recv\(..., src=RANK\)",
}
WRONG = [*programmes("programmes/wrong"), *programmes("two_processes/wrong")]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run_chosen(request, tmp_path_factory.mktemp("wrong"), devices=[EMULATED])


@pytest.mark.parametrize("programme", WRONG, ids=lambda programme: programme.title)
def test_is_refused(outcomes: Outcomes, programme: Programme) -> None:
    found = outcomes[EMULATED][programme.name]
    assert len(found) == programme.processes
    for outcome in found:
        last = outcome.error.strip().rpartition("\n")[2]
        assert re.search(TOLD[programme.title], last), outcome.error or "it ran"


def test_each_message_has_its_programme() -> None:
    assert sorted(TOLD) == sorted(programme.title for programme in WRONG)
