"""Accelerate with FSDP2: a sharded checkpoint written, changed weights restored, the whole state collected."""

from __future__ import annotations

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
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
            accelerator.save_state("../../state")
    trained = model.lm_head.weight.full_tensor().clone()
    accelerator.load_state("../../state")
    restored = model.lm_head.weight.full_tensor()
    state = accelerator.get_state_dict(model)
    collected = {name: state[name] for name in sorted(state)[:2]}
    return {"losses": losses, "trained": trained, "restored": restored, **collected}
