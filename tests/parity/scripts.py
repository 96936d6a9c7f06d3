"""Small scripts to record."""

from __future__ import annotations

TRAIN = """\
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = torch.randn(24, 8)
target = (data.sum(1) > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
loader = DataLoader(TensorDataset(data, target), batch_size=8, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
torch.save({"model": model.state_dict()}, "model.pt")
"""

REDUCE = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    model(torch.full((2, 4), rank + 1.0)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad.div_(world)
    optimizer.step()
if rank == 0:
    torch.save(model.state_dict(), "model.pt")
dist.destroy_process_group()
"""
