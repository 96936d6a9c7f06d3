"""The pages of the codemods and the patch in the README are what the tool really says and does.

`UPDATE_FIXTURES=1` writes them anew.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest

from neuronmigrate import files, registry, run
from neuronmigrate.codemod import Codemod
from neuronmigrate.config import Settings
from neuronmigrate.report.diff import patch
from tests.fixtures_lib import FOLDER

ROOT = Path(__file__).parent.parent
UPDATE = bool(os.environ.get("UPDATE_FIXTURES"))
CODEMODS = registry.load()
EXAMPLE = "fixtures/scripts/classify"


def _page(codemod: Codemod) -> str:
    folder = FOLDER / codemod.name.replace("-", "_")
    before, after = (folder / name for name in ("before.py", "after.py"))
    lines = difflib.unified_diff(
        before.read_text("utf-8").splitlines(), after.read_text("utf-8").splitlines(), lineterm="", n=3
    )
    shown = "\n".join(list(lines)[2:])
    return f"# {codemod.name}\n\n{codemod.doc}\n\n```diff\n{shown}\n```\n"


@pytest.mark.parametrize("codemod", CODEMODS, ids=lambda codemod: codemod.name)
def test_page_is_fresh(codemod: Codemod) -> None:
    path = ROOT / "docs" / "codemods" / f"{codemod.name}.md"
    if UPDATE:
        path.parent.mkdir(exist_ok=True)
        path.write_text(_page(codemod), "utf-8")
    assert path.read_text("utf-8") == _page(codemod)


def test_no_page_is_left_over() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "codemods").glob("*.md")}
    assert pages == {codemod.name for codemod in CODEMODS}


def test_readme_shows_what_its_command_prints() -> None:
    readme = ROOT / "README.md"
    text = readme.read_text("utf-8")
    assert f"neuronmigrate rewrite --diff {EXAMPLE}\n" in text
    folder = ROOT / EXAMPLE
    tree = files.discover([folder], Settings(), root=ROOT)
    report = run.run(tree, Settings(), run.engine())
    shown = b"".join(patch(report.results)).decode()
    block = re.compile(r"(<!-- diff of .*? -->\n```diff\n)(.*?)(```\n<!-- end -->)", re.DOTALL)
    if UPDATE:
        text = block.sub(lambda match: match[1] + shown + match[3], text)
        readme.write_text(text, "utf-8")
    match = block.search(text)
    assert match is not None
    assert match[2] == shown
