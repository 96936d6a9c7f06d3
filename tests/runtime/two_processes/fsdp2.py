"""FSDP2: fully_shard by layer with clipping, and in bfloat16 by its mixed-precision policy."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.runtime.groups import join
from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    here = join(device)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    outcome: dict[str, object] = {}
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, policy in (("float32", MixedPrecisionPolicy()), ("bfloat16", half)):
        model = llama().to(here)
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        losses = []
        for step in range(3):
            ids = (prompts() + dist.get_rank() + step).to(here) % 128
            loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        outcome |= {f"{name}_losses": losses, f"{name}_weight": model.lm_head.weight.full_tensor()}
    return outcome
