"""One file from its bytes to its result: what happens when a codemod has a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.plan import Result, State, Trouble
from neuronmigrate.project import Project

SETTINGS = Settings(codemods=Path(__file__).with_name("codemods"))
PREFIX = "neuronx_distributed.sample."


def run(text: str) -> Result:
    return migrate("module.py", text.encode(), Project.empty(), SETTINGS)


@pytest.mark.parametrize(
    ("rewritten", "native"),
    [("count()", "torch.accelerator.device_count()"), ("double(2)", "torch.mul(2, 2)")],
)
def test_a_rewrite_that_fails_the_proof_costs_nothing_else(rewritten: str, native: str) -> None:
    name = rewritten.partition("(")[0]
    before = (
        f"from neuronx_distributed.sample import broken, {name}\n\n\n"
        f"def both():\n    number = {rewritten}\n    return broken(), number\n"
    )
    result = run(before)
    assert result.after is not None
    after = result.after.decode()
    assert "bound_by_nothing" not in after
    assert f"number = {native}\n" in after
    assert "import broken\n" in after and "return broken(), number\n" in after
    assert [(each.kind, each.place.line) for each in result.problems] == [(Trouble.PROOF, 6)]
    marked = {each.found for each in result.findings if each.state is State.MARKED}
    assert marked == {PREFIX + "broken"}
    assert "# TODO(neuronmigrate): [sample-rows] left as it was: " in after
    # Refused again, and no reason to change anything else.
    again = run(after)
    assert again.after is None
    assert {each.kind for each in again.problems} == {Trouble.PROOF}
