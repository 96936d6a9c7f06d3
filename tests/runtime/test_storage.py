"""Saving, loading, copying and freeing memory of the device."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, TensorDataset

from tests.runtime.numbers import same

pytestmark = pytest.mark.usefixtures("neuron")


def saved(value: object, **options: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **options)


class TestStorages:
    """`UntypedStorage` on the device."""

    def test_made_of_a_size_or_of_bytes(self) -> None:
        storage = torch.UntypedStorage(4, device="neuron")
        assert (storage.nbytes(), storage.device) == (4, torch.device("neuron", 0))
        assert torch.UntypedStorage([1, 2, 3], device="neuron:0").tolist() == [1, 2, 3]
        assert torch.UntypedStorage(device="neuron").nbytes() == 0

    def test_other_devices_are_left_alone(self) -> None:
        assert torch.UntypedStorage(4).device.type == "cpu"
        assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]
        assert torch.UntypedStorage(4, device="meta").device.type == "meta"
        storage = torch.UntypedStorage(4)
        storage.resize_(8)
        assert (storage.nbytes(), storage.size(), len(storage)) == (8, 8, 8)

    def test_copies(self) -> None:
        storage = torch.tensor([1, 2], dtype=torch.uint8, device="neuron").untyped_storage()
        for twin in (
            storage.clone(),
            storage.cpu(),
            storage.to(device="cpu"),
            storage.cpu().to(device="neuron"),
        ):
            assert twin.tolist() == [1, 2]
            assert twin.data_ptr() != storage.data_ptr()

    def test_freeing_is_a_mark(self) -> None:
        tensor = torch.arange(4.0, device="neuron")
        storage = tensor.untyped_storage()
        storage.resize_(0)
        assert (storage.nbytes(), storage.size(), len(storage)) == (0, 0, 0)
        assert tensor.untyped_storage().size() == 0
        storage.resize_(16)
        assert storage.size() == 16
        tensor.copy_(torch.ones(4))
        same(tensor, torch.ones(4))
        with pytest.raises(RuntimeError, match="cannot grow beyond its first 16 bytes"):
            storage.resize_(17)


class TestFiles:
    """`torch.save`, `torch.load`, pickle, safetensors."""

    def test_location_is_kept_or_mapped(self) -> None:
        tensor = torch.arange(3.0, device="neuron")
        same(saved(tensor), torch.arange(3.0))
        assert saved(tensor, map_location="cpu").device.type == "cpu"
        same(saved(torch.arange(3.0), map_location="neuron"), torch.arange(3.0))
        same(saved(torch.arange(3.0), map_location=torch.device("neuron", 0)), torch.arange(3.0))
        same(
            saved(torch.arange(3.0), map_location=lambda storage, _: storage.to(device="neuron")),
            torch.arange(3.0),
        )

    def test_shared_memory_stays_shared(self) -> None:
        base = torch.arange(6.0, device="neuron")
        loaded = saved({"base": base, "view": base[2:].view(2, 2)})
        loaded["base"].zero_()
        same(loaded["view"], torch.zeros(2, 2))

    def test_mmap(self, tmp_path: Path) -> None:
        torch.save({"x": torch.arange(3.0)}, tmp_path / "x.pt")
        loaded = torch.load(tmp_path / "x.pt", map_location="neuron", mmap=True)
        same(loaded["x"], torch.arange(3.0))

    def test_modules_and_optimizers(self) -> None:
        model = torch.nn.Linear(2, 2).to("neuron")
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 2, device="neuron")).sum().backward()
        optimizer.step()
        state = saved({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, map_location="cpu")
        twin = torch.nn.Linear(2, 2).to("neuron")
        twin.load_state_dict(state["model"])
        other = torch.optim.AdamW(twin.parameters())
        other.load_state_dict(state["optimizer"])
        same(list(twin.state_dict().values()), [value.cpu() for value in model.state_dict().values()])
        moment = other.state_dict()["state"][0]["exp_avg"]
        same(moment, optimizer.state_dict()["state"][0]["exp_avg"].cpu())

    def test_copies_of_python_objects(self) -> None:
        tensor = torch.arange(3.0, device="neuron")
        same(copy.deepcopy([tensor, tensor[1:]]), [torch.arange(3.0), torch.arange(1.0, 3.0)])
        same(copy.copy(tensor), torch.arange(3.0))
        same(pickle.loads(pickle.dumps(tensor)), torch.arange(3.0))

    def test_safetensors(self, tmp_path: Path) -> None:
        save_file({"x": torch.arange(3.0, device="neuron")}, tmp_path / "x.safetensors")
        assert torch.equal(load_file(tmp_path / "x.safetensors")["x"], torch.arange(3.0))


class TestPinnedMemory:
    """All memory is the host's: pinning gives back what it was given."""

    def test_tensors_and_storages(self) -> None:
        tensor = torch.arange(3.0)
        assert tensor.pin_memory() is tensor
        assert not tensor.is_pinned()
        storage = tensor.untyped_storage()
        assert storage.pin_memory() is storage

    @pytest.mark.parametrize("workers", [0, 1])
    def test_data_loader(self, workers: int) -> None:
        data = TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
        loader = DataLoader(data, batch_size=4, num_workers=workers, pin_memory=True)
        found = [(x.to("neuron", non_blocking=True), y.to("neuron", non_blocking=True)) for x, y in loader]
        same(found, [data[:4], data[4:]])
