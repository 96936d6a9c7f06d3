"""Layers with kernels of their own: recurrent, convolution, normalization, attention, embedding bags."""

from __future__ import annotations

import torch
from torch import nn


def run(device: str) -> dict[str, object]:
    steps = torch.linspace(-1, 1, 2 * 6 * 8, device=device).reshape(2, 6, 8).requires_grad_()
    image = torch.linspace(-1, 1, 2 * 4 * 9 * 9, device=device).reshape(2, 4, 9, 9).requires_grad_()
    bags = torch.tensor([[1, 2, 4], [4, 3, 9]], device=device)
    cases: list[tuple[str, nn.Module, torch.Tensor]] = [
        ("lstm", nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True), steps),
        ("gru", nn.GRU(8, 16, 2, batch_first=True), steps),
        ("rnn", nn.RNN(8, 16, batch_first=True), steps),
        ("transformer", nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0), steps),
        ("conv1d", nn.Conv1d(6, 4, 3), steps),
        ("conv2d", nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), image),
        ("transposed", nn.ConvTranspose2d(4, 6, 3, stride=2), image),
        ("batch_norm", nn.BatchNorm2d(4), image),
        ("group_norm", nn.GroupNorm(2, 4), image),
        ("rms_norm", nn.RMSNorm(8), steps),
        ("max_pool", nn.MaxPool2d(3), image),
        ("adaptive_pool", nn.AdaptiveAvgPool2d(4), image),
        ("upsample", nn.Upsample(scale_factor=2, mode="bilinear"), image),
        ("embedding_bag", nn.EmbeddingBag(10, 3, mode="mean"), bags),
    ]
    outcome: dict[str, object] = {}
    for name, layer, given in cases:
        answer = layer.to(device)(given)
        answer = answer[0] if isinstance(answer, tuple) else answer
        answer.square().sum().backward()
        outcome[name] = answer
        outcome |= {f"{name}_{key}": each.grad for key, each in layer.named_parameters()}
        outcome |= {f"{name}_{key}": each for key, each in layer.named_buffers()}
    return {**outcome, "steps_gradient": steps.grad, "image_gradient": image.grad}
