"""Every argument that a codemod's table answers for is shown by one of its fixtures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from neuronmigrate import registry
from neuronmigrate.codemod import Codemod
from neuronmigrate.training.fields import FIELDS
from neuronmigrate.training.trl_fields import ORPO_FIELDS, SFT_FIELDS
from tests.fixtures_lib import FOLDER

WITHOUT_FIXTURE: dict[str, dict[str, str]] = {}
"""By codemod: arguments without a fixture of their own, and why."""

CODEMODS = [codemod for codemod in registry.load() if codemod.tables]


def _sources(codemod: Codemod) -> str:
    folder: Path = FOLDER / codemod.name.replace("-", "_")
    return "\n".join(path.read_text() for path in sorted(folder.glob("*before.py")))


def _is_shown(name: str, text: str) -> bool:
    return bool(re.search(rf"\b{name}=(?!=)|[\"']{name}[\"']\s*:|[\"']{name}[\"']\] = ", text))


@pytest.mark.parametrize("codemod", CODEMODS, ids=lambda codemod: codemod.name)
def test_each_argument_is_shown(codemod: Codemod) -> None:
    text = _sources(codemod)
    excused = WITHOUT_FIXTURE.get(codemod.name, {})
    names = frozenset[str]().union(*(table.names for table in codemod.tables))
    assert set(excused) <= names, "an excuse for an argument that no table has"
    missing = sorted(name for name in names - set(excused) if not _is_shown(name, text))
    assert not missing, f"no case in fixtures/{codemod.name.replace('-', '_')} gives these"
    needless = sorted(name for name in excused if _is_shown(name, text))
    assert not needless, "an excuse for an argument that a fixture gives"


TRL = {
    "trl.SFTConfig": SFT_FIELDS.keys() - FIELDS.keys(),
    "trl.experimental.orpo.ORPOConfig": ORPO_FIELDS.keys() - FIELDS.keys(),
}


@pytest.mark.parametrize("native", TRL)
def test_each_field_of_trl_is_shown(native: str) -> None:
    """The fields that TRL's configurations have besides those of all training arguments."""
    folder = FOLDER / "trl_trainers"
    cases = [path for path in sorted(folder.glob("*before.py")) if native in _after(path)]
    text = "\n".join(path.read_text() for path in cases)
    missing = sorted(name for name in TRL[native] if not _is_shown(name, text))
    assert not missing, "no case in fixtures/trl_trainers gives these"


def _after(before: Path) -> str:
    """The qualified names of TRL that the after side of a case imports, as one text."""
    text = before.with_name(before.name.replace("before.py", "after.py")).read_text()
    found = re.findall(r"^from (trl[.\w]*) import (.*)$", text, re.MULTILINE)
    return " ".join(f"{module}.{name}" for module, names in found for name in names.split(", "))
