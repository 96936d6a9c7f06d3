"""The helpers that generated code may import: alone, and on two processes that talk over gloo."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from neuronmigrate.runtime import helpers
from tests.trees import HOME

Found: TypeAlias = "dict[str, object]"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run on two processes, and what it printed."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, "-m", "tests.runtime.helpers_worker", str(folder)],
        cwd=HOME,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture(scope="module")
def both(ran: tuple[Path, str]) -> list[Found]:
    """What each rank found."""
    return [torch.load(ran[0] / f"rank{each}.pt", weights_only=False) for each in range(2)]


def tensor(found: Found, name: str) -> torch.Tensor:
    value = found[name]
    assert isinstance(value, torch.Tensor), name
    return value


def test_ranks(both: list[Found]) -> None:
    assert [found["rank"] for found in both] == [0, 1]
    assert [found["local_rank"] for found in both] == [0, 1]
    assert [found["world_size"] for found in both] == [2, 2]
    assert [found["is_master"] for found in both] == [(True, True), (False, False)]


def test_ranks_of_the_launcher_before_there_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert (helpers.rank(), helpers.world_size(), helpers.local_rank()) == (5, 8, 1)
    assert not helpers.is_master() and not helpers.is_master(local=False)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert helpers.is_master() and not helpers.is_master(local=False)


def test_gradients_are_averaged(both: list[Found]) -> None:
    expected = (tensor(both[0], "own_gradient") + tensor(both[1], "own_gradient")) * 0.5
    assert not torch.equal(tensor(both[0], "own_gradient"), tensor(both[1], "own_gradient"))
    for found in both:
        assert torch.equal(tensor(found, "gradient"), expected)
        assert found["unused_gradient"] is None
    assert torch.equal(tensor(both[0], "bias_gradient"), tensor(both[1], "bias_gradient"))


def test_gradients_in_a_group_are_divided_by_the_whole_job(both: list[Found]) -> None:
    assert [tensor(found, "gradient_in_group_of_one").tolist() for found in both] == [[1.0, 1.0], [1.5, 1.5]]


def test_all_reduce(both: list[Found]) -> None:
    for rank, found in enumerate(both):
        assert tensor(found, "sum").tolist() == [1.5, 2.5]
        assert tensor(found, "value_after").tolist() == [1.0 + rank, 2.0 + rank]
        assert found["mul_in_place"] is True
        assert tensor(found, "mul").tolist() == [2]
        assert tensor(found, "max").tolist() == [2.0, 3.0]
        assert tensor(found, "and").tolist() == [True, False]


def test_all_gather(both: list[Found]) -> None:
    for found in both:
        assert tensor(found, "gathered").tolist() == [[0], [0], [1], [1]]
        assert tensor(found, "gathered_columns").tolist() == [[0, 0, 0, 1, 1, 1]] * 2
        assert tensor(found, "gathered_scalar").tolist() == [0.5, 1.5]


def test_objects_are_gathered(both: list[Found]) -> None:
    for found in both:
        objects = found["objects"]
        assert isinstance(objects, list)
        assert [name for name, _, _ in objects] == ["rank 0", "rank 1"]
        assert [each.tolist() for _, each, _ in objects] == [[0, 0, 0], [1, 1, 1]]
        assert [length for _, _, length in objects] == [0, 1 << 21]
        assert found["mean"] == 1.5


def test_one_process_writes(ran: tuple[Path, str], both: list[Found]) -> None:
    folder, said = ran
    assert [found["read"] for found in both] == [{"rank": 0}] * 2
    assert [torch.load(folder / f"each{rank}.pt") for rank in range(2)] == [{"rank": 0}, {"rank": 1}]
    assert said == "said once 0\n"


def test_alone_there_is_nothing_to_exchange() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    torch.autograd.backward((weight * 3).sum())
    helpers.reduce_gradients(torch.optim.SGD([weight], lr=1.0))
    helpers.barrier()
    assert weight.grad is not None and weight.grad.tolist() == [3.0, 3.0]
    value = torch.tensor([[1.0], [2.0]])
    reduced = helpers.all_reduce("sum", value, scale=0.5)
    assert torch.equal(reduced, value) and reduced is not value
    assert torch.equal(helpers.all_gather(value, 1), value)
    assert helpers.gather_object("one") == ["one"]
    assert helpers.mesh_reduce(4, sum) == 4
    with pytest.raises(ValueError, match="'average' is none of sum, mul"):
        helpers.all_reduce("average", value)


Pair = namedtuple("Pair", ["left", "right"])


def test_a_loader_moves_what_is_in_a_batch() -> None:
    # `meta` is the other device that every machine has.
    batches = [{"ids": torch.ones(2, 3), "names": ["a", "b"], "pair": Pair(torch.ones(1), [torch.ones(2)])}]
    (batch,) = helpers.DeviceLoader(batches, "meta")
    ids, pair = batch["ids"], batch["pair"]
    assert isinstance(ids, torch.Tensor) and isinstance(pair, Pair)
    assert ids.device.type == "meta" and ids.shape == (2, 3)
    assert pair.left.device.type == pair.right[0].device.type == "meta"
    assert batch["names"] == ["a", "b"]


def test_a_loader_has_the_length_of_what_it_wraps() -> None:
    loader = DataLoader(TensorDataset(torch.arange(5.0)), batch_size=2)
    wrapped = helpers.DeviceLoader(loader, "cpu")
    assert len(wrapped) == 3
    assert [row.tolist() for (row,) in wrapped] == [[0.0, 1.0], [2.0, 3.0], [4.0]]
    assert [row.tolist() for (row,) in wrapped] == [[0.0, 1.0], [2.0, 3.0], [4.0]]

    def endless() -> Iterator[torch.Tensor]:
        yield torch.ones(1)

    with pytest.raises(TypeError, match="generator has no length"):
        len(helpers.DeviceLoader(endless(), "cpu"))


def test_a_batch_is_padded() -> None:
    batch = {
        "input_ids": torch.tensor([[5, 6]]),
        "attention_mask": torch.tensor([[1, 1]], dtype=torch.int32),
        "labels": torch.tensor([[7, 8]]),
        "pixel_values": torch.ones(1, 3, 2, 2),
        "scores": torch.tensor([0.5]),
    }
    padded = helpers.pad_batch(batch, rows=2, length=4, pad_token_id=9)
    assert padded["input_ids"].tolist() == [[5, 6, 9, 9]] * 2
    assert padded["attention_mask"].tolist() == [[1, 1, 0, 0]] * 2
    assert padded["attention_mask"].dtype == torch.int32
    assert padded["labels"].tolist() == [[7, 8, -100, -100]] * 2
    assert padded["pixel_values"].shape == (2, 3, 2, 2)
    assert padded["scores"].tolist() == [0.5, 0.5]
    left = helpers.pad_batch({"input_ids": batch["input_ids"]}, length=3, left=True)
    assert left["input_ids"].tolist() == [[0, 5, 6]]
    same = helpers.pad_batch(batch)
    assert all(torch.equal(same[name], batch[name]) for name in batch)


def test_a_batch_that_cannot_be_padded_is_refused() -> None:
    ids = torch.ones(2, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="input_ids: rows 2 is more than 1"):
        helpers.pad_batch({"input_ids": ids}, rows=1)
    with pytest.raises(ValueError, match="input_ids: length 3 is more than 2"):
        helpers.pad_batch({"input_ids": ids}, length=2)
    with pytest.raises(ValueError, match="input_ids: a batch without rows"):
        helpers.pad_batch({"input_ids": ids[:0]}, rows=1)
    with pytest.raises(ValueError, match=r"different numbers of rows: \[1, 2\]"):
        helpers.pad_batch({"input_ids": ids, "labels": ids[:1]}, rows=4)


def test_saved_tensors_lose_their_gradients_and_stay_tied(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    first, (second, *rest) = helpers.to_cpu([weight, (weight, "text", 3)])
    assert isinstance(first, torch.Tensor) and not first.requires_grad
    assert first is second and rest == ["text", 3]
    helpers.save({"weight": weight}, tmp_path / "kept.pt", global_master=True)
    assert torch.load(tmp_path / "kept.pt")["weight"].tolist() == [1.0, 1.0]
