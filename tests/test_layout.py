"""Lines that edits made too long: one argument or name a line, and the same program."""

from __future__ import annotations

import ast
from pathlib import Path

import libcst as cst
import pytest

from neuronmigrate.layout import fit

FIXTURES = Path(__file__).parents[1] / "fixtures"

LONG, LONGER = "a" * 50, "b" * 40

CASES = {
    "in a list": (
        f"MODELS = [\n    load({LONG}, {LONGER}, c),\n    1,\n]\n",
        f"MODELS = [\n    load(\n        {LONG},\n        {LONGER},\n        c,\n    ),\n    1,\n]\n",
    ),
    "arguments that share the second line": (
        f"x = load(\n    {LONG}, {LONGER}, c\n)\n",
        f"x = load(\n    {LONG},\n    {LONGER},\n    c\n)\n",
    ),
    "inside of one with a layout of its own": (
        f"x = load(a,\n         b=load({LONG}, {LONGER}),\n         c=1)\n",
        f"x = load(a,\n         b=load(\n             {LONG},\n             {LONGER},\n         ),\n"
        "         c=1)\n",
    ),
    "a generator has no comma behind it": (
        f"if c:\n    x = sum({LONG} for x in {LONGER})\n",
        f"if c:\n    x = sum(\n        {LONG} for x in {LONGER}\n    )\n",
    ),
    "the longest of a chain": (
        f"return_value = model.run({LONG[:40]}).to({LONG}, c).x\n",
        f"return_value = model.run({LONG[:40]}).to(\n    {LONG},\n    c,\n).x\n",
    ),
    "an import": (
        f"def f():\n    from m import {LONG}, {LONGER}\n",
        f"def f():\n    from m import (\n        {LONG},\n        {LONGER},\n    )\n",
    ),
    "a comment for people goes behind": (
        f"x = load({LONG}, {LONGER})  # why\n",
        f"x = load(\n    {LONG},\n    {LONGER},\n)  # why\n",
    ),
}
KEPT = {
    "it fits": f"x = load({LONG}, c)\n",
    "a comment for a tool": f"x = load({LONG}, {LONGER})  # noqa: E501\n",
    "several statements": f"x = load({LONG}, {LONGER}); y = 1\n",
    "an f-string": f'x = f"{{load({LONG}, {LONGER})}}"\n',
    "nothing to break": f"x = {LONG} + {LONGER}\n",
    "a head": f"if load({LONG}, {LONGER}): pass\n",
}


def fitted(source: str) -> str:
    return fit(cst.parse_module(source), cst.Module([]), lambda node: False).code


@pytest.mark.parametrize(("before", "after"), CASES.values(), ids=CASES)
def test_a_long_line_is_broken(before: str, after: str) -> None:
    assert fitted(before) == after


@pytest.mark.parametrize("source", KEPT.values(), ids=KEPT)
def test_a_line_stays(source: str) -> None:
    assert fitted(source) == source


def test_the_longest_line_of_the_file_is_a_width() -> None:
    source = f"x = load({LONG}, {LONGER})\n"
    before = cst.parse_module("# " + "-" * 110)
    assert fit(cst.parse_module(source), before, lambda node: False).code == source


@pytest.mark.parametrize("folder", ["scripts", "audio_models"])
def test_it_is_the_same_program_and_rests(folder: str) -> None:
    changed = 0
    for path in sorted((FIXTURES / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        once = fitted(source)
        assert ast.dump(ast.parse(once)) == ast.dump(ast.parse(source)), path
        assert fitted(once) == once, path
        changed += once != source
    assert changed
