"""Accelerate with FSDP2: training, a sharded checkpoint, the state restored and collected.

On the CPU Accelerate shards nothing and takes DDP instead, which must come to the same weights.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

from tests.runtime.models import Rows, llama


def run(device: str) -> dict[str, object]:
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        state_dict_type="SHARDED_STATE_DICT",
    )
    accelerator = Accelerator(fsdp_plugin=plugin, cpu=device == "cpu")
    assert accelerator.device.type == device
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Rows(), batch_size=4))
    losses = []
    for step, batch in enumerate(loader):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step == 1:
            accelerator.save_state("state")
    trained = _head(accelerator, model)
    accelerator.load_state("state")
    return {"losses": losses, "trained": trained, "restored": _head(accelerator, model)}


def _head(accelerator: Accelerator, model: torch.nn.Module) -> torch.Tensor:
    weight = accelerator.unwrap_model(model).lm_head.weight.detach()
    whole: torch.Tensor = weight.full_tensor() if isinstance(weight, DTensor) else weight
    return whole.clone()
