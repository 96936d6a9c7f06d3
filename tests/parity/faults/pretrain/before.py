"""Trains a small language model with tied weights, measures its perplexity, and writes on with a cache."""

import math

import torch
import torch.nn.functional as F
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
from torch.utils.data import DataLoader

torch.manual_seed(5)
device = xm.xla_device()
PAD, WORDS, LENGTH = 0, 24, 8


class Writer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, 16)
        self.places = torch.nn.Embedding(2 * LENGTH, 16)
        self.mix = torch.nn.Linear(16, 48)
        self.drop = torch.nn.Dropout(0.1)
        self.norm = torch.nn.LayerNorm(16)
        self.head = torch.nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids, mask, start=0, cache=None):
        places = torch.arange(start, start + ids.shape[1], device=ids.device)
        hidden = self.words(ids) + self.places(places)
        query, key, value = self.mix(hidden).chunk(3, dim=-1)
        if cache is not None:
            key, value = torch.cat([cache[0], key], dim=1), torch.cat([cache[1], value], dim=1)
        causal = places[:, None] >= torch.arange(key.shape[1], device=ids.device)
        allowed = causal & mask[:, None, :]
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return self.head(self.norm(hidden + self.drop(attended))), (key, value)


draw = torch.Generator().manual_seed(0)
texts = (torch.randint(1, 6, (30, 1), generator=draw) * torch.arange(1, LENGTH + 1)) % (WORDS - 1) + 1
texts[::4, 6:] = PAD
train, held = texts[:22], texts[22:]

model = Writer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))
running = torch.zeros((), device=device)
steps = 0
model.train()
for epoch in range(2):
    for ids in pl.MpDeviceLoader(DataLoader(train, batch_size=6, shuffle=True), device):
        logits, _ = model(ids, ids != PAD)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        xm.optimizer_step(optimizer)
        scheduler.step()
        running += loss.detach()
        steps += 1
        xm.mark_step()
average = running.item() / steps

model.eval()
total, count = 0.0, 0
with torch.no_grad():
    for ids in DataLoader(held, batch_size=3):
        ids = ids.to(device)
        logits, _ = model(ids, ids != PAD)
        total += F.cross_entropy(
            logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD, reduction="sum"
        ).item()
        count += (ids[:, 1:] != PAD).sum().item()
    perplexity = math.exp(total / count)

    ids = held[:2, :3].to(device)
    written, cache = ids, None
    for _ in range(5):
        start = written.shape[1] - ids.shape[1]
        logits, cache = model(ids, written != PAD, start, cache)
        ids = logits[:, -1:].argmax(-1)
        written = torch.cat([written, ids], dim=1)
        xm.mark_step()
written = written.cpu()
xm.save(model.state_dict(), "writer.pt")
print(average, perplexity, written.tolist())
