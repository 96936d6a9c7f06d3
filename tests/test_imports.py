"""What becomes of imports, in every shape they have: the table in `imports.txt`.

Each case is a title, a module, and the module that comes of it; rows of `codemods/sample_rows.py` stand
in for the real ones. `UPDATE_FIXTURES=1 pytest tests/test_imports.py` writes the table anew.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.plan import Result
from neuronmigrate.project import Project

TABLE = Path(__file__).with_name("imports.txt")
SETTINGS = Settings(codemods=Path(__file__).with_name("codemods"))
ARROW = "# becomes\n"


def cases() -> list[tuple[str, str, str]]:
    """Title, before and after of each case."""
    found = []
    for part in re.split(r"^#### ", TABLE.read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        before, _, after = text.partition(ARROW)
        found.append((title, before.rstrip("\n") + "\n", after.rstrip("\n") + "\n"))
    return found


def run(before: str) -> Result:
    return migrate("module.py", before.encode(), Project.empty(), SETTINGS)


def text_of(result: Result, before: str) -> str:
    return before if result.after is None else result.after.decode()


if os.environ.get("UPDATE_FIXTURES"):
    TABLE.write_text(
        "\n".join(
            f"#### {title}\n{before}{ARROW}{text_of(run(before), before)}" for title, before, _ in cases()
        )
    )


@pytest.mark.parametrize(("title", "before", "after"), cases(), ids=[case[0] for case in cases()])
def test_imports_are_settled(title: str, before: str, after: str) -> None:
    result = run(before)
    assert not result.problems
    assert text_of(result, before) == after
    if result.after is not None:
        again = run(result.after.decode())
        assert again.after is None and not again.problems


def test_no_case_is_missing_from_the_table() -> None:
    assert len(cases()) == TABLE.read_text().count("\n" + ARROW)
