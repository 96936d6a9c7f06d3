"""The search for a hunk, and the hunks themselves."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neuronmigrate.parity.hunks import Difference, Hunk, difference
from neuronmigrate.parity.isolate import Answer, isolate
from tests.parity.faults import BASES, FAULTS


@settings(deadline=None)
@given(st.integers(1, 30), st.data())
def test_one_bad_item_is_found_whatever_the_others_need(number: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, number - 1))
    # Some selections cannot be run: an item may need its neighbours.
    needs = data.draw(st.dictionaries(st.integers(0, number - 1), st.integers(0, number - 1), max_size=4))
    asked = 0

    def ask(chosen: Sequence[int]) -> Answer:
        nonlocal asked
        asked += 1
        if any(each in chosen and needs[each] not in chosen for each in needs):
            return Answer.UNKNOWN
        return Answer.DIFFERS if bad in chosen else Answer.SAME

    found = isolate(range(number), ask)
    assert bad in found
    if not needs:
        assert found == [bad]
        assert asked <= 2 * number.bit_length() + 2
    assert asked <= 2 * number * number + 10


@settings(deadline=None)
@given(st.integers(2, 12), st.data())
def test_what_only_differs_together_is_found(number: int, data: st.DataObject) -> None:
    both = data.draw(st.sets(st.integers(0, number - 1), min_size=2, max_size=2))

    def ask(chosen: Sequence[int]) -> Answer:
        return Answer.DIFFERS if both <= set(chosen) else Answer.SAME

    # One of the two, in the presence of the other, is a smallest step from same to different.
    found = isolate(range(number), ask)
    assert len(found) == 1
    assert found[0] in both


def test_nothing_is_found_where_nothing_can_be_run() -> None:
    assert isolate([1, 2, 3], lambda chosen: Answer.UNKNOWN) == [1, 2, 3]


@pytest.mark.parametrize("name", BASES)
def test_the_ends_are_the_sides(name: str) -> None:
    base = BASES[name]
    old, new = base.before.read_text("utf-8"), base.after()
    found = difference("before.py", old, new)
    assert found.hunks
    statements = [ast.dump(each) for each in ast.parse(found.mixture([])).body]
    for each in ast.parse(old).body:
        assert ast.dump(each) in statements
    statements = [ast.dump(each) for each in ast.parse(found.mixture(found.hunks)).body]
    for each in ast.parse(new).body:
        assert ast.dump(each) in statements


@pytest.mark.parametrize("change", [pytest.param(each, id=f"{each.base}-{each.name}") for each in FAULTS])
def test_every_single_hunk_leaves_a_program(change: object) -> None:
    from tests.parity.faults import Change

    assert isinstance(change, Change)
    base = BASES[change.base]
    found = difference("before.py", base.before.read_text("utf-8"), change.apply(base.after()))
    for hunk in found.hunks:
        ast.parse(found.mixture([hunk]))


def test_a_name_that_means_another_thing_is_no_support() -> None:
    old = "from old import pipeline\nx = pipeline()\n"
    new = "from new import pipeline\nx = pipeline()\n"
    found = difference("a.py", old, new)
    assert [hunk.new for hunk in found.hunks] == [("from new import pipeline\n",)]
    assert found.mixture([]) == old
    assert found.mixture(found.hunks) == new


def test_imports_of_both_sides_stand_in_every_mixture() -> None:
    old = "import old\n\nx = old.f(1)\ny = 2\nz = old.g(y)\n"
    new = "import new\n\nx = new.f(1)\ny = 2\nz = new.g(y)\n"
    found = difference("a.py", old, new)
    assert [(hunk.line, hunk.new) for hunk in found.hunks] == [
        (3, ("x = new.f(1)\n",)),
        (5, ("z = new.g(y)\n",)),
    ]
    mixed = found.mixture(found.hunks[1:])
    assert mixed.splitlines()[:2] == ["import old", "import new"]
    assert "x = old.f(1)" in mixed
    assert "z = new.g(y)" in mixed


def test_a_statement_is_never_cut() -> None:
    old = "x = f(\n    1,\n    2,\n    3,\n)\n"
    new = "x = f(\n    0,\n    2,\n    4,\n)\n"
    found = difference("a.py", old, new)
    assert [hunk.old for hunk in found.hunks] == [tuple(old.splitlines(keepends=True))]


def test_a_hunk_is_cut_by_lines() -> None:
    old = "x = f(\n    1,\n    2,\n    3,\n    4,\n)\n"
    new = "x = f(\n    1,\n    20,\n    3,\n    5,\n    6,\n)\n"
    found = difference("a.py", old, new)
    finer = found.finer(found.hunks)
    assert [(hunk.line, hunk.old, hunk.new_line, hunk.new) for hunk in finer.hunks] == [
        (3, ("    2,\n",), 3, ("    20,\n",)),
        (5, ("    4,\n",), 5, ("    5,\n", "    6,\n")),
    ]
    assert finer.mixture([]) == old
    assert finer.mixture(finer.hunks) == new
    assert finer.mixture(finer.hunks[:1]) == old.replace("2,", "20,")


@settings(deadline=None)
@given(st.lists(st.sampled_from("abcd"), max_size=8), st.lists(st.sampled_from("abcd"), max_size=8))
def test_lines_of_a_hunk_make_both_of_its_sides(old: list[str], new: list[str]) -> None:
    hunk = Hunk("a.py", 1, tuple(old), 1, tuple(new))
    pieces = Difference("a.py", tuple(hunk.by_lines()))
    assert pieces.mixture([]) == "".join(old)
    assert pieces.mixture(pieces.hunks) == "".join(new)
    for piece in pieces.hunks:
        assert tuple(old[piece.line - 1 : piece.line - 1 + len(piece.old)]) == piece.old
        assert tuple(new[piece.new_line - 1 : piece.new_line - 1 + len(piece.new)]) == piece.new
