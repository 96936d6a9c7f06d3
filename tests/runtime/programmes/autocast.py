"""Mixed precision by torch.autocast: three training steps, the dtypes of the results."""

from __future__ import annotations

import torch

from tests.runtime.models import llama, prompts


def run(device: str) -> dict[str, object]:
    model = llama().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    ids = prompts().to(device)
    losses, dtypes = [], []
    for _ in range(3):
        with torch.autocast(device, dtype=torch.bfloat16):
            answer = model(input_ids=ids, labels=ids)
            product = ids.float() @ ids.float().T
        answer.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(answer.loss.item())
        dtypes += [str(answer.logits.dtype), str(product.dtype)]
    return {"losses": losses, "dtypes": dtypes, "weight": model.lm_head.weight, "product": product}
