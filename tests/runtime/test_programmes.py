"""The programme list: each programme computes on the emulated device what it computes on the CPU.

What the programmes are, and how one is added, stands in tests/runtime/programmes/__init__.py.
"""

from __future__ import annotations

import pytest

from tests.runtime.agreement import Outcomes, check, parameters, run_chosen
from tests.runtime.programmes import Programme


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return run_chosen(request, tmp_path_factory.mktemp("programmes"))


@pytest.mark.parametrize("programme", parameters("programmes"))
def test_equals_the_cpu(outcomes: Outcomes, programme: Programme) -> None:
    check(outcomes, programme)
