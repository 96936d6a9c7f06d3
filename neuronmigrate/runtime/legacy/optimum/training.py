"""`optimum.neuron.models.training`: models to train, which load in float32 and with eager attention.

Llama, Qwen3 and Granite had classes of their own there, which ignored the attention mask and counted
positions from 0 (models/training/llama/modeling_llama.py: 645 at 0.4.5); Llama's and Qwen3's gave the sum
of the token losses when the trainer asked for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from neuronmigrate.runtime.legacy.optimum.base import Config, dtype_keyword, of_transformers
from neuronmigrate.runtime.legacy.session import current

_OWN = ("llama", "qwen3", "granite")

SUMS_ITS_LOSS = "_neuronmigrate_sums_its_loss"
"""Set on models of the package's own classes: whether they honoured `reduction="sum"`."""


@dataclass
class TrainingNeuronConfig:
    """How the model was to be split; kept, and without effect."""

    tensor_parallel_size: int = 1
    parallelize_embeddings: bool = True
    sequence_parallel_enabled: bool = False
    kv_size_multiplier: int | None = None
    pipeline_parallel_size: int = 1
    pipeline_parallel_num_microbatches: int = 1
    pipeline_parallel_use_zero1_optimizer: bool = False
    gradient_checkpointing: bool = False
    checkpoint_dir: Path | None = None
    num_local_ranks_per_step: int = 8
    use_xser: bool = True
    async_save: bool = False
    fuse_qkv: bool = False
    recompute_causal_mask: bool = True


class _TrainingModel:
    auto_model_class = "AutoModelForCausalLM"

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | Path,
        trn_config: TrainingNeuronConfig | None = None,
        torch_dtype: torch.dtype | str | None = None,
        dtype: torch.dtype | str | None = None,
        attn_implementation: str = "eager",
        use_flash_attention_2: bool = False,
        **arguments: object,
    ) -> torch.nn.Module:
        """The model of transformers, float32 whatever the checkpoint holds unless a dtype is given.

        Raises ValueError for "sdpa", which the original did not have.
        """
        if attn_implementation == "sdpa":
            raise ValueError("sdpa attention is not supported by the training models")
        if attn_implementation == "flash_attention_2" or use_flash_attention_2:
            current().note("flash_attention_2: computed as eager attention")
        loader: Callable[..., torch.nn.Module] = getattr(  # noqa: B009 - of a class
            of_transformers(cls.auto_model_class), "from_pretrained"
        )
        model = loader(
            str(pretrained_model_name_or_path),
            attn_implementation="eager",
            **arguments,
            **dtype_keyword(dtype or torch_dtype or torch.float32),
        )
        config: Config = model.config
        kind = str(config.model_type)
        if kind in _OWN:
            model.register_forward_pre_hook(_without_mask, with_kwargs=True)
            setattr(model, SUMS_ITS_LOSS, kind != "granite")
        return model.eval()


def is_custom(model: torch.nn.Module) -> bool:
    """Whether a model came from one of the package's own classes."""
    return hasattr(model, SUMS_ITS_LOSS)


def _without_mask(
    module: torch.nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    return args, {name: value for name, value in kwargs.items() if name != "attention_mask"}


class NeuronModelForCausalLM(_TrainingModel):
    """A decoder to train."""


class LlamaForCausalLM(_TrainingModel):
    """Llama to train."""


class Qwen3ForCausalLM(_TrainingModel):
    """Qwen3 to train."""


class GraniteForCausalLM(_TrainingModel):
    """Granite to train."""
