"""torch.save and load, safetensors, pickle, deepcopy: views stay views, devices are kept or mapped."""

from __future__ import annotations

import copy
import pickle

import torch
from safetensors.torch import load_file, save_file


def run(device: str) -> dict[str, object]:
    whole = torch.arange(10.0).to(device)[2:]
    parameter = torch.nn.Parameter(whole.clone())
    state = {
        "whole": whole,
        "part": whole[1:3],
        "parameter": parameter,
        "count": torch.tensor(3, device=device),
        "half": whole.bfloat16(),
    }
    torch.save(state, "state.pt")
    kept = torch.load("state.pt")
    assert kept["whole"].untyped_storage().data_ptr() == kept["part"].untyped_storage().data_ptr()
    kept["part"].add_(100)
    on_host = torch.load("state.pt", map_location="cpu")
    mapped_file = torch.load("state.pt", map_location="cpu", mmap=True)
    torch.save({"ones": torch.ones(3)}, "host.pt")
    moved = torch.load("host.pt", map_location=device)
    save_file({"whole": whole.contiguous()}, "state.safetensors")
    safe = load_file("state.safetensors")["whole"].to(device)
    optimizer = torch.optim.AdamW([parameter])
    (parameter * 2).sum().backward()
    optimizer.step()
    torch.save(optimizer.state_dict(), "optimizer.pt")
    optimizer.load_state_dict(torch.load("optimizer.pt"))
    copied = copy.deepcopy(state)
    assert on_host["half"].device.type == mapped_file["half"].device.type == "cpu"
    return {
        "kept": kept["whole"],
        "half": kept["half"],
        "on_host": on_host["whole"],
        "mapped_file": mapped_file["whole"],
        "moved": moved["ones"],
        "safe": safe,
        "pickled": pickle.loads(pickle.dumps(whole)),
        "copied": copied["part"],
        "moment": optimizer.state[parameter]["exp_avg"],
        "parameter": parameter,
    }
