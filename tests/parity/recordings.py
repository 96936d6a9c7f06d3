"""Recordings for tests, made without a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from neuronmigrate.parity import recorder
from neuronmigrate.parity.recording import Recording, read


class Written(recorder.Recorder):
    """A recorder that is told what to record, and hooks nothing."""

    def tensor(self, quantity: str, name: str, value: torch.Tensor, call: str = "0", part: str = "") -> None:
        """Record a tensor."""
        self.put(quantity, name, call, part, value)

    def close(self) -> None:
        """End as a script that ended well."""
        self.store.line(kind="counts", step=self.step, counts={})
        self.store.line(kind="end", error=None)
        self.store.flush()
        self.store.file.close()


def written(
    folder: Path, write: Callable[[Written], object], head: Mapping[str, object] | None = None, **options: int
) -> Recording:
    """What `write` records, read back."""
    made = Written(recorder.Options(str(folder), **options), dict(head or {}))  # type: ignore[arg-type]
    write(made)
    made.close()
    return read(folder)


def of_tensors(folder: Path, tensors: Mapping[str, torch.Tensor], quantity: str = "output") -> Recording:
    """A recording of tensors by their names."""

    def write(made: Written) -> None:
        for name, value in tensors.items():
            made.tensor(quantity, name, value)

    return written(folder, write)
