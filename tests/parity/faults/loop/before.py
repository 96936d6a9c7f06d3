"""Trains a small encoder on one NeuronCore in bfloat16, two batches for a step, then evaluates it."""

import torch
import torch.nn.functional as F
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
device = xm.xla_device()


class Tagger(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(20, 16, padding_idx=0)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.drop = torch.nn.Dropout(0.1)
        self.norm = torch.nn.LayerNorm(16, eps=1e-6)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, ids):
        hidden = self.layer(self.words(ids), src_key_padding_mask=ids == 0)
        return self.head(self.norm(self.drop(hidden)))


draw = torch.Generator().manual_seed(0)
ids = torch.randint(1, 20, (22, 6), generator=draw)
ids[::3, 4:] = 0
tags = torch.where(ids > 0, ids % 3, -100)
loader = DataLoader(TensorDataset(ids, tags), batch_size=4, shuffle=True)

model = Tagger().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.05)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

model.train()
for epoch in range(2):
    for index, (words, targets) in enumerate(pl.MpDeviceLoader(loader, device)):
        with torch.autocast("xla", dtype=torch.bfloat16):
            logits = model(words)
        loss = F.cross_entropy(
            logits.float().flatten(0, 1), targets.flatten(), ignore_index=-100, label_smoothing=0.1
        )
        (loss / 2).backward()
        if index % 2 == 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            xm.optimizer_step(optimizer)
            scheduler.step()
            optimizer.zero_grad()
        xm.mark_step()

model.eval()
with torch.no_grad():
    scores = model(ids.to(device)).float().softmax(-1).cpu()
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2}
xm.save(state, "tagger.pt")
