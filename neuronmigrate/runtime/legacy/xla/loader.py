"""`torch_xla.distributed.parallel_loader`: batches on the device, and a step before each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized

from neuronmigrate.runtime.legacy.xla import model

__all__ = ["MpDeviceLoader", "ParallelLoader", "PerDeviceLoader"]


class PerDeviceLoader:
    """Iterator over batches; every `batches_per_execution` of them, and at the end, a step is ended."""

    def __init__(self, loader: ParallelLoader, device: object) -> None:
        self._loader = loader
        self._batches = iter(loader.cpu_loader)
        self._yielded = 0

    def __iter__(self) -> Iterator[object]:
        return self

    def __len__(self) -> int:
        return self._loader.per_device_samples()

    def __next__(self) -> object:
        if self._loader.batches_per_execution - 1 <= self._yielded:
            self._yielded = 0
            model._end_step("loader")
        else:
            self._yielded += 1
        try:
            batch = next(self._batches)
        except StopIteration:
            model._end_step("loader")
            raise
        return model.copied(batch)

    next = __next__


class ParallelLoader:
    """Wraps a loader; the queues and threads of the real one have no counterpart.

    Tuples of the loader come out as lists, as they did.
    """

    def __init__(
        self,
        cpu_loader: Iterable[object],
        devices: Sequence[object],
        batchdim: int = 0,
        batches_per_execution: int = 1,
        loader_prefetch_size: int = 16,
        device_prefetch_size: int = 8,
        host_to_device_transfer_threads: int = 1,
        input_sharding: object = None,
        **options: object,
    ) -> None:
        self.cpu_loader = cpu_loader
        self._devices = list(devices)
        self.batches_per_execution = batches_per_execution

    def per_device_loader(self, device: object) -> PerDeviceLoader:
        """The iterator of one device."""
        return PerDeviceLoader(self, device)

    def per_device_samples(self) -> int:
        """Batches of one device."""
        assert isinstance(self.cpu_loader, Sized)
        return len(self.cpu_loader) // len(self._devices)

    def close(self) -> None:
        """Nothing is left running."""


class MpDeviceLoader:
    """Wraps a DataLoader; each iteration starts it anew."""

    def __init__(self, loader: Iterable[object], device: object, **kwargs: object) -> None:
        self._loader = loader
        self._device = device
        self._options = kwargs

    def __iter__(self) -> Iterator[object]:
        wrapped: ParallelLoader = ParallelLoader(self._loader, [self._device], **self._options)  # type: ignore[arg-type]  # as given
        return wrapped.per_device_loader(self._device)

    def __len__(self) -> int:
        assert isinstance(self._loader, Sized)
        return len(self._loader)
