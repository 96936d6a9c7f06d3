"""What every codemod owes: words that explain it, fixtures that show each name, and look-alikes."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from neuronmigrate import registry
from neuronmigrate.codemod import Codemod
from neuronmigrate.plan import State
from neuronmigrate.report.explain import explained
from tests.fixtures_lib import FOLDER, Case, cases, folders, result_of

CODEMODS = registry.load()


def _id(codemod: Codemod) -> str:
    return codemod.name


def _folder(codemod: Codemod) -> Path:
    return FOLDER / codemod.name.replace("-", "_")


def _cases(codemod: Codemod, kind: str) -> list[Case]:
    return [case for case in cases(kind) if case.source.parent == _folder(codemod)]


@pytest.mark.parametrize("codemod", CODEMODS, ids=_id)
def test_docstring(codemod: Codemod) -> None:
    first, _, rest = codemod.doc.partition("\n")
    assert re.fullmatch(r"[A-Z`].*\.", first), "the first line is a sentence"
    assert not rest or rest.startswith("\n"), "a blank line follows it"
    assert codemod.doc.isascii()


@pytest.mark.parametrize("codemod", CODEMODS, ids=_id)
def test_fixtures(codemod: Codemod) -> None:
    assert _cases(codemod, "before"), "there is something it rewrites or marks"
    assert _cases(codemod, "keep"), "there are look-alikes that it leaves alone"


@pytest.mark.parametrize("codemod", CODEMODS, ids=_id)
def test_rows_are_sorted(codemod: Codemod) -> None:
    assert list(codemod.symbols) == sorted(codemod.symbols)


@pytest.mark.parametrize("codemod", CODEMODS, ids=_id)
def test_each_name_is_exercised(codemod: Codemod) -> None:
    shown = {
        finding.found
        for case in _cases(codemod, "before")
        for finding in result_of(case).findings
        if finding.codemod == codemod.name
    }
    missing = [
        name
        for name in sorted(codemod.claimed)
        if not any(found == name or found.startswith(f"{name}.") for found in shown)
    ]
    assert not missing, f"no case in {_folder(codemod).name} uses these"


@pytest.mark.parametrize("codemod", CODEMODS, ids=_id)
def test_findings_are_plain_sentences(codemod: Codemod) -> None:
    for case in _cases(codemod, "before"):
        for finding in result_of(case).findings:
            assert finding.message.isascii() or not finding.found.isascii()
            assert "\n" not in finding.message
            assert not finding.why.endswith((".", ";", " "))
            assert not finding.todo.endswith((".", ";", " "))
            assert finding.state is State.FIXED or finding.state is State.NOTE or finding.todo


@pytest.mark.parametrize("codemod", CODEMODS, ids=_id)
def test_can_be_explained(codemod: Codemod) -> None:
    shown = "\n".join("".join(text for text, _ in line) for line in explained(codemod.name, CODEMODS))
    assert codemod.doc in shown
    for name in codemod.claimed:
        answer = "".join(text for line in explained(name, CODEMODS) for text, _ in line)
        assert codemod.name in answer, f"`explain {name}` does not say who rewrites it"


def test_names_are_unique() -> None:
    assert max(Counter(codemod.name for codemod in CODEMODS).values()) == 1
    assert max(Counter(name for codemod in CODEMODS for name in codemod.claimed).values()) == 1


def test_each_fixture_folder_has_its_codemod() -> None:
    assert {folder.name for folder in folders()} <= {codemod.name.replace("-", "_") for codemod in CODEMODS}
