"""What two runs did, compared as sequences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from neuronmigrate.parity import traces
from neuronmigrate.parity.comparison import EventDifference, Status
from neuronmigrate.parity.recording import Rank
from tests.parity.recordings import Written, written

Write = Callable[[Written], object]


def _rank(folder: Path, write: Write) -> Rank:
    return written(folder, write).first


def _compared(
    folder: Path, old: Write, new: Write, *numerics: str, agreeing: frozenset[int] = frozenset()
) -> list[EventDifference]:
    a, b = _rank(folder / "a", old), _rank(folder / "b", new)
    return traces.compare(a, b, frozenset(numerics), agreeing)


def _reduction(made: Written, elements: int, op: str = "sum", divisor: float = 1.0, world: int = 2) -> None:
    made.event("reduction", op=op, divisor=divisor, elements=elements, world=world, of="gradients")


def test_one_mean_is_as_good_as_many_divided_sums(tmp_path: Path) -> None:
    def many(made: Written) -> None:
        for _ in range(3):
            _reduction(made, 10, divisor=2.0)

    assert not _compared(tmp_path, lambda made: _reduction(made, 30, "mean"), many)


@pytest.mark.parametrize(
    "fault",
    [
        lambda made: _reduction(made, 30),
        lambda made: _reduction(made, 20, "mean"),
        lambda made: _reduction(made, 30, "max"),
        lambda made: _reduction(made, 30, divisor=4.0),
        lambda made: None,
    ],
    ids=["a sum", "a part", "a maximum", "another divisor", "none"],
)
def test_other_reductions(tmp_path: Path, fault: Write) -> None:
    def old(made: Written) -> None:
        _reduction(made, 30, "mean")

    (found,) = _compared(tmp_path / "1", old, fault)
    assert found.status is Status.DIVERGED
    (found,) = _compared(tmp_path / "2", old, fault, agreeing=frozenset([0]))
    assert found.status is Status.EXPLAINED


def test_one_process_shows_no_reduction(tmp_path: Path) -> None:
    rank = _rank(tmp_path, lambda made: _reduction(made, 30, "mean", world=1))
    assert traces.events_of(rank) == []
    assert traces.lone_reductions(rank) == 1


def _shard(made: Written, shard: int, shards: int) -> None:
    made.event("data", loader=0, batch=8, shard=shard, shards=shards, shuffle=True, drop_last=True)


def test_data_that_is_cut_twice(tmp_path: Path) -> None:
    (found,) = _compared(tmp_path, lambda made: _shard(made, 1, 2), lambda made: _shard(made, 1, 4))
    assert found.status is Status.DIVERGED
    assert "share 1 of 2" in found.first and "share 1 of 4" in found.second
    (found,) = _compared(
        tmp_path / "b", lambda made: _shard(made, 1, 2), lambda made: _shard(made, 1, 4), "sharding"
    )
    assert found.status is Status.EXPLAINED


def test_the_order_counts(tmp_path: Path) -> None:
    def old(made: Written) -> None:
        made.event("clip", how="norm", limit=1.0)
        _reduction(made, 30, "mean")

    def new(made: Written) -> None:
        _reduction(made, 30, "mean")
        made.event("clip", how="norm", limit=1.0)

    assert _compared(tmp_path, old, new)


def _step(made: Written, backwards: int, **settings: object) -> None:
    made.event("optimizer step", optimizer="SGD", parameters=2, backwards=backwards, settings=settings)


def test_optimizer_steps(tmp_path: Path) -> None:
    def old(made: Written) -> None:
        for _ in range(3):
            _step(made, 2, momentum=0.9, foreach=True)

    def accumulated(made: Written) -> None:
        for _ in range(3):
            _step(made, 1, momentum=0.9, foreach=True)

    def newer_torch(made: Written) -> None:
        for _ in range(3):
            _step(made, 2, momentum=0.9, fused=True, decoupled=True)

    (found,) = _compared(tmp_path / "1", old, accumulated)
    assert found.times == 3
    assert not _compared(tmp_path / "2", old, newer_torch)


def test_a_model_that_stays_on_the_cpu(tmp_path: Path) -> None:
    def on(device: str) -> Write:
        return lambda made: made.event("model", model="Net#0", elements=3, device=device)

    (found,) = _compared(tmp_path / "1", on("accelerator"), on("cpu"))
    assert found.status is Status.DIVERGED
    assert not _compared(tmp_path / "2", on("cpu"), on("accelerator"))


def test_seeding_twice_is_seeding_once(tmp_path: Path) -> None:
    def seeds(*values: int) -> Write:
        return lambda made: [made.event("seed", value=value) for value in values]

    assert not _compared(tmp_path / "1", seeds(3, 3), seeds(3))
    assert _compared(tmp_path / "2", seeds(3), seeds(4))


def test_an_epoch_may_end_a_batch_ahead(tmp_path: Path) -> None:
    def epoch(made: Written) -> None:
        made.event("epoch", loader=0, epoch=0, batches=2)

    def old(made: Written) -> None:
        _shard(made, 0, 1)
        _step(made, 1)
        _step(made, 1)
        epoch(made)

    def ahead(made: Written) -> None:
        _shard(made, 0, 1)
        _step(made, 1)
        epoch(made)
        _step(made, 1)

    def not_exhausted(made: Written) -> None:
        _shard(made, 0, 1)
        _step(made, 1)
        _step(made, 1)

    def stopped(made: Written) -> None:
        _shard(made, 0, 1)
        _step(made, 1)

    assert not _compared(tmp_path / "1", old, ahead)
    (found,) = _compared(tmp_path / "2", old, not_exhausted)
    assert found.status is Status.EXPLAINED
    assert {each.status for each in _compared(tmp_path / "3", old, stopped)} == {Status.DIVERGED}


def test_settings_that_are_saved_are_no_event(tmp_path: Path) -> None:
    def arguments(made: Written) -> None:
        made.event("save", file="training_args.bin", tensors=0, elements=0, keys=[])

    def counts(made: Written) -> None:
        made.event("save", file="counts.pt", tensors=0, elements=0, keys=["epoch"])

    assert not _compared(tmp_path / "1", arguments, lambda made: None)
    assert _compared(tmp_path / "2", counts, lambda made: None)
