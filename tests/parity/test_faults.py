"""Wrong edits of migrated programs are caught and found, and correct programs pass.

A few run every day, all of them in the nightly tier.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from neuronmigrate.parity.comparison import Comparison
from neuronmigrate.parity.warm import Warm
from neuronmigrate.report import comparison
from tests.parity.faults import BASES, FAULTS, VARIANTS, Change
from tests.parity.table import AS_MIGRATED, Programs

DAILY = {
    ("loop", AS_MIGRATED),
    ("loop", "accumulation without a divisor"),
    ("loop", "evaluated in train mode"),
    ("loop", "scores not normalized"),
    ("loop", "loss multiplied by a half"),
    ("ranks", AS_MIGRATED),
    ("ranks", "gradients summed"),
    ("ranks", "same shard on each process"),
    ("ranks", "saved on each process"),
    ("ranks", "one reduction of all gradients"),
    ("trainer", AS_MIGRATED),
    ("trainer", "learning rate by default"),
}
SEARCHED = {("loop", "accumulation without a divisor"), ("ranks", "gradients summed")}
"""Searched for every day."""
MISSED = {
    ("loop", "another epoch saved"): "of what is saved, the tensors are recorded, and the names of the rest",
    ("translate", "source cut"): "an input of another shape is not judged, and the tokens come out the same",
    ("translate", "one beam for two"): "the tokens come out the same, and events tell of drawing only",
}
CORRECT = (*(Change(name, AS_MIGRATED, "", "") for name in BASES), *VARIANTS)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    with pytest.MonkeyPatch.context() as patch, Warm() as warm:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield Programs(tmp_path_factory.mktemp("programs"), warm)


def _marks(key: tuple[str, str], daily: set[tuple[str, str]]) -> list[pytest.MarkDecorator]:
    marks = [] if key in daily else [pytest.mark.nightly]
    return [*marks, pytest.mark.xfail(strict=True, reason=MISSED[key])] if key in MISSED else marks


def _cases(changes: tuple[Change, ...], daily: set[tuple[str, str]]) -> list[object]:
    return [
        pytest.param(
            each,
            id=f"{each.base}-{each.name.replace(' ', '-')}",
            marks=_marks((each.base, each.name), daily),
        )
        for each in changes
    ]


def _told(found: Comparison) -> str:
    return "\n".join("".join(piece for piece, _ in line) for line in comparison.text([found]))


@pytest.mark.parametrize("change", _cases(FAULTS, DAILY - SEARCHED))
def test_a_fault_is_caught(change: Change, programs: Programs) -> None:
    outcome = programs.outcome(change)
    assert outcome.caught, _told(outcome.comparison)


@pytest.mark.parametrize("change", _cases(FAULTS, SEARCHED))
def test_a_fault_is_found(change: Change, programs: Programs) -> None:
    outcome = programs.outcome(change)
    assert outcome.caught, _told(outcome.comparison)
    outcome = programs.searched(outcome)
    assert outcome.named == "right", outcome.blame


@pytest.mark.parametrize("change", _cases(CORRECT, DAILY))
def test_a_correct_program_passes(change: Change, programs: Programs) -> None:
    outcome = programs.outcome(change)
    assert outcome.comparison.status.fine, _told(outcome.comparison)


def test_there_are_enough_of_them() -> None:
    assert len(FAULTS) >= 40
    assert len(MISSED) <= 0.05 * len(FAULTS)
    assert len(CORRECT) >= 15
    assert len({(each.base, each.name) for each in (*FAULTS, *CORRECT)}) == len(FAULTS) + len(CORRECT)
    assert set(DAILY | SEARCHED) <= {(each.base, each.name) for each in (*FAULTS, *CORRECT)}


@pytest.mark.parametrize(
    "change", [pytest.param(each, id=f"{each.base}-{each.name}") for each in (*FAULTS, *VARIANTS)]
)
def test_an_edit_changes_the_program(change: Change) -> None:
    after = BASES[change.base].after()
    edited = change.apply(after)
    assert edited != after
    compile(edited, change.name, "exec")
