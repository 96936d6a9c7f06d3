"""Trains on two NeuronCores, with the gradients reduced by hand."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_backend  # noqa: F401
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("xla")
device = xm.xla_device()
torch.manual_seed(1)

draw = torch.Generator().manual_seed(0)
features = torch.randn(73, 12, generator=draw)
labels = features[:, :4].argmax(-1)
data = TensorDataset(features, labels)
sampler = DistributedSampler(
    data, num_replicas=xm.xrt_world_size(), rank=xm.get_ordinal(), shuffle=True, seed=3, drop_last=True
)
loader = DataLoader(data, batch_size=8, sampler=sampler)

model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in pl.MpDeviceLoader(loader, device):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        xm.reduce_gradients(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        xm.mark_step()

with torch.no_grad():
    right = (model(features.to(device)).argmax(-1) == labels.to(device)).float().sum()
right = xm.all_reduce(xm.REDUCE_SUM, right)
accuracy = right.item() / (len(data) * xm.xrt_world_size())
xm.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "trained.pt")
xm.rendezvous("saved")
xm.master_print("accuracy", accuracy)
