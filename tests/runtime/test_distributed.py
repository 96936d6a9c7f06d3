"""Programmes of two processes, the process group's limits, and torchrun itself."""

from __future__ import annotations

import pytest

from tests.runtime.agreement import Outcomes, check, parameters, run_chosen
from tests.runtime.programmes import Programme


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run_chosen(request, tmp_path_factory.mktemp("two_processes"))


@pytest.mark.parametrize("programme", parameters("two_processes"))
def test_equals_the_cpu(outcomes: Outcomes, programme: Programme) -> None:
    check(outcomes, programme)
