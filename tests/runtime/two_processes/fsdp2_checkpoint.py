"""FSDP2 with a sharded checkpoint: written by both processes, restored, and read as a whole."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.runtime.groups import join
from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    here = join(device)
    model = llama().to(here)
    fully_shard(model, mesh=init_device_mesh(device, (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    ids = prompts().to(here)
    losses = []
    for step in range(4):
        if step == 2:
            weights, moments = get_state_dict(model, optimizer)
            save({"model": weights, "optimizer": moments}, checkpoint_id="checkpoint")
        losses.append(model(input_ids=ids, labels=ids).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = model.lm_head.weight.full_tensor()
    weights, moments = get_state_dict(model, optimizer)
    load({"model": weights, "optimizer": moments}, checkpoint_id="checkpoint")
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    again = model(input_ids=ids, labels=ids).loss
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {
        "losses": torch.stack(losses),
        "trained": trained,
        "again": again,
        "restored": model.lm_head.weight.full_tensor(),
        "whole": whole.get("lm_head.weight", torch.zeros(0)),
    }
