"""`NeuronAccelerator`: Accelerate's own, with the data order, the reduction and the precision of the release.

From `accelerate/accelerator.py` and `accelerate/optimizer.py` at 0.0.28, 0.3.0 and 0.4.5:

- With several processes a loader's sampler is replaced by a `DistributedSampler` of seed 0; with one the
  loader stays as it is, so that Accelerate never learns that an epoch ended.
- Gradients are averaged as the optimizer steps, or as they are clipped before it.
- ZeRO-1 keeps copies in the dtype of the mixed precision, from 0.4.1 on in float32 with `FULL_BF16`.
- `bf16` up to 0.0.28 made XLA compute everything in bfloat16, or cast automatically with the backend "amp";
  from 0.1.0 on the weights became bfloat16 either way, except those of the package's own model classes.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator

import accelerate
import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from neuronmigrate.runtime.legacy.optimum.optimizer import Optimizer
from neuronmigrate.runtime.legacy.optimum.training import is_custom
from neuronmigrate.runtime.legacy.session import LegacyProblem, current
from neuronmigrate.runtime.legacy.xla import world

__all__ = ["NeuronAccelerator", "lazy_load_for_parallelism"]

_REFUSED = (
    "dynamo_plugin",
    "dynamo_backend",
    "deepspeed_plugin",
    "deepspeed_plugins",
    "fsdp_plugin",
    "torch_tp_plugin",
    "megatron_lm_plugin",
)
"""Arguments of Accelerate that the class did not take (all of them from 0.3.0 on, most of them before)."""


class NeuronAcceleratedOptimizer(AcceleratedOptimizer):
    """Steps when gradients are due, behind ZeRO-1's copies if there are any."""

    def __init__(self, optimizer: torch.optim.Optimizer, zero_1: bool, dtype: torch.dtype) -> None:
        super().__init__(optimizer, device_placement=False)
        self.reducing = Optimizer(optimizer, zero_1, dtype, None)
        self.grad_norm: torch.Tensor | None = None

    def prepare_clip_grad_norm(self, parameters: object, max_norm: float, norm_type: float = 2) -> None:
        """Clip in the next step, by the 2-norm of all parameters."""
        self.reducing.max_norm = max_norm

    def step(self, closure: object = None) -> None:
        """Average, clip if that was asked for, and step; nothing between the steps of an accumulation."""
        if not self.gradient_state.sync_gradients:
            return
        self.reducing.step()
        # The norm was kept for a bare optimizer alone.
        self.grad_norm = None if self.reducing.zero_1 else self.reducing.grad_norm
        self.reducing.max_norm = None

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Drop the gradients when a step was due."""
        if self.gradient_state.sync_gradients:
            self.reducing.zero_grad()


class NeuronAccelerator(accelerate.Accelerator):
    """Raises NotImplementedError for what the class did not take, LegacyProblem for a split model."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        release = current().release
        names = [
            name for name in inspect.signature(accelerate.Accelerator.__init__).parameters if name != "self"
        ]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for plugin in ("trn_config", "mp_plugin", "tp_plugin"):
            refuse_split(given.pop(plugin, None))
        self.zero_1 = bool(given.pop("zero_1", False))
        backend = str(given.pop("autocast_backend", "xla"))
        mode = _mode(given.pop("mixed_precision_config", None))
        if release.since("0.4.0"):
            given["mixed_precision"] = "bf16" if mode == "AUTOCAST_BF16" else "no"
        asked = given.pop("mixed_precision", None) or os.environ.get("ACCELERATE_MIXED_PRECISION") or "no"
        bf16 = str(getattr(asked, "value", asked)) == "bf16"
        for name in _REFUSED:
            if given.pop(name, None) is not None:
                raise NotImplementedError(
                    f"{name} is not supported in `optimum-neuron`. Please set it to None."
                )
        given["cpu"] = True
        super().__init__(mixed_precision="no", **given)
        self.cast_weights = mode == "FULL_BF16" or (bf16 and (backend == "xla" or release.since("0.1.0")))
        if release.since("0.4.0"):
            self.cast_weights = mode == "FULL_BF16"
        self.cast_inputs = self.cast_weights and not release.since("0.1.0")
        """Whether XLA took every float32 tensor for bfloat16."""
        self.casts_automatically = bf16 and (backend == "amp" or release.since("0.4.0"))
        self.optimizer_dtype = torch.bfloat16 if bf16 else torch.float32
        if release.since("0.4.0"):
            self.optimizer_dtype = torch.float32 if mode == "FULL_BF16" else torch.bfloat16
        if self.cast_weights and release.since("0.1.0"):
            current().note("bf16 weights: rounded to nearest here, stochastically on the device")

    def prepare_data_loader(
        self,
        data_loader: DataLoader[object],
        device_placement: bool | None = None,
        slice_fn_for_dispatch: object = None,
        use_mp_device_loader: bool = False,
    ) -> DataLoader[object]:
        """The share of a rank, in the order of a `DistributedSampler`; the loader itself for one process."""
        sampler = data_loader.sampler
        if world.size() == 1 or isinstance(sampler, DistributedSampler):
            return data_loader
        shuffle = getattr(sampler, "shuffle", not isinstance(sampler, SequentialSampler))
        if shuffle and not isinstance(sampler, RandomSampler):
            current().note(f"{type(sampler).__name__}: replaced by a DistributedSampler, as it was")
        make: Callable[..., DataLoader[object]] = DataLoader
        return make(
            data_loader.dataset,
            batch_size=data_loader.batch_size,
            sampler=DistributedSampler(data_loader.dataset, world.size(), world.rank(), shuffle=shuffle),
            num_workers=data_loader.num_workers,
            collate_fn=data_loader.collate_fn,
            drop_last=data_loader.drop_last,
        )

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, device_placement: bool | None = None
    ) -> NeuronAcceleratedOptimizer:
        """The optimizer with the release's step."""
        if isinstance(optimizer, NeuronAcceleratedOptimizer):
            return optimizer
        made = NeuronAcceleratedOptimizer(optimizer, self.zero_1, self.optimizer_dtype)
        made._is_accelerate_prepared = True
        self._optimizers.append(made)
        return made

    def prepare_model(
        self, model: torch.nn.Module, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> torch.nn.Module:
        """The model itself, in the release's precision, without cache and layer dropping."""
        if any(each is model for each in self._models):
            return model
        config = getattr(model, "config", None)
        for name, value in _CONFIG.items():
            if hasattr(config, name):
                setattr(config, name, value)
        if self.cast_weights and not (is_custom(model) and not current().release.since("0.4.0")):
            model.to(torch.bfloat16)
        self._models.append(model)
        return model

    def backward(self, loss: torch.Tensor, **kwargs: object) -> None:
        """Backward of the loss over the accumulated steps."""
        call: Callable[..., None] = (loss / self.gradient_accumulation_steps).backward
        call(**kwargs)

    @contextlib.contextmanager
    def autocast(self, *args: object, **kwargs: object) -> Iterator[None]:
        """Casts of the backend "amp"."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.casts_automatically):
            yield

    def clip_grad_norm_(
        self,
        parameters: Iterable[torch.nn.Parameter],
        max_norm: float,
        norm_type: float = 2,
        postpone_clipping_to_optimizer_step: bool = False,
    ) -> torch.Tensor | None:
        """The norm of the averaged gradients, clipped now; None if it is left to the optimizer's step."""
        release = current().release
        if postpone_clipping_to_optimizer_step or (self.zero_1 and not release.since("0.1.0")):
            for optimizer in self._optimizers:
                optimizer.prepare_clip_grad_norm(parameters, max_norm, norm_type)
            return None
        for optimizer in self._optimizers:
            optimizer.reducing.reduce()
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type=norm_type)


_CONFIG = {"layerdrop": 0, "use_cache": False, "output_attentions": False, "output_hidden_states": False}
"""Fields of a model's configuration that preparing it sets."""


@contextlib.contextmanager
def lazy_load_for_parallelism(
    tensor_parallel_size: int = 1, pipeline_parallel_size: int = 1, **others: object
) -> Iterator[None]:
    """Where a model to be split was loaded; it is loaded whole. Raises LegacyProblem as `refuse_split`."""
    asked = {"tensor_parallel_size": tensor_parallel_size, "pipeline_parallel_size": pipeline_parallel_size}
    refuse_split(types.SimpleNamespace(**asked))
    yield


def _mode(config: object) -> str:
    """The mode of a `mixed_precision_config` of 0.4.x."""
    mode = getattr(config, "mode", config)
    return str(getattr(mode, "value", mode) or "NO").upper()


def refuse_split(config: object) -> None:
    """Raise LegacyProblem for a configuration that splits a model over processes."""
    split = int(getattr(config, "tensor_parallel_size", 1)) * int(
        getattr(config, "pipeline_parallel_size", 1)
    )
    if split == 1:
        return
    if world.size() > 1:
        raise LegacyProblem(
            "tensor or pipeline parallelism over several processes has no stand-in: start one process"
        )
    current().note("tensor and pipeline parallelism: computed whole, in one process")
