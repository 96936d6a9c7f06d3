"""What plain tensor code does: indexing, in place and out of place, shapes that depend on the data."""

from __future__ import annotations

import torch


def run(device: str) -> dict[str, object]:
    x = torch.randn(4, 4, device=device)
    x[0] = 1
    x[:, 1] += 2
    x[x > 1] = 0
    x.clamp_(min=-1)
    y = x.sort(descending=True).values
    rows = torch.tensor([2, 0], device=device)
    complex_numbers = torch.complex(x, y)
    with torch.device(device):
        made = torch.ones(3, 2)
    scattered = x.clone().scatter_add_(0, torch.zeros(1, 4, dtype=torch.long, device=device), y[:1])
    return {
        "x": x,
        "host_index": x[torch.tensor([1, 3])],
        "rows": x[rows],
        "rows_put": x.clone().index_put_((rows,), torch.ones(4, device=device), accumulate=True),
        "joined": torch.cat([x, y]),
        "largest": x.topk(2).values,
        "chosen": torch.where(x > 0, x, y),
        "places": x.nonzero(),
        "unique": torch.unique(x.int()),
        "summed": x.cumsum(0),
        "product": torch.einsum("ij,jk->ik", x, y),
        "transformed": torch.view_as_real(torch.fft.rfft(x)),
        "singular": torch.linalg.svd(x).S,
        "solved": torch.linalg.solve(x + 5 * torch.eye(4, device=device), y),
        "absolute": complex_numbers.abs(),
        "conjugate": torch.view_as_real(complex_numbers.conj().resolve_conj()),
        "scattered": scattered,
        "made": made,
        "scalar_host": x + torch.tensor(2.0),
        "half": x.half() @ y.half(),
        "permuted": x.reshape(2, 2, 4).permute(2, 0, 1).contiguous(),
        "channels_last": torch.randn(1, 3, 4, 4, device=device).contiguous(memory_format=torch.channels_last),
        "listed": x.tolist(),
        "item": x.sum().item(),
        "numpy": x.cpu().numpy().tolist(),
    }
