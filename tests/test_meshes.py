"""A device mesh that one file makes and another needs: the whole project is rewritten, and then runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.on_cpu import run_on_cpu
from tests.trees import HOME, repository

MODEL = """\
import torch
from neuronx_distributed.parallel_layers.layers import ColumnParallelLinear, RowParallelLinear
from neuronx_distributed.parallel_layers.parallel_state import get_tensor_model_parallel_size


class MLP(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up = ColumnParallelLinear(4, 8, gather_output=False)
        self.down = RowParallelLinear(8, 4, input_is_parallel=True)
        self.size = 8 // get_tensor_model_parallel_size()

    def forward(self, x):
        h = self.up(x)
        assert h.shape[-1] == self.size
        return self.down(torch.tanh(h))
"""
TRAIN = """\
import torch
import torch.distributed as dist
import torch_xla.distributed.xla_backend
from neuronx_distributed.parallel_layers import parallel_state
from parts.model import MLP


def main():
    dist.init_process_group("xla")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    torch.manual_seed(0)
    model = MLP()
    return model(torch.ones(2, 4).to("xla")).cpu()


y = main()
dist.destroy_process_group()
"""


def test_the_file_that_makes_the_mesh_hands_it_over(tmp_path: Path) -> None:
    import torch

    root = repository(
        tmp_path / "project", {"train.py": TRAIN, "parts/model.py": MODEL, "parts/__init__.py": ""}
    )
    command = [sys.executable, "-m", "neuronmigrate", "rewrite", "--strict", "--quiet", str(root)]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "neuronx_distributed" not in (root / "parts/model.py").read_text("utf-8")
    ran = run_on_cpu(root / "train.py", processes=2)
    torch.manual_seed(0)
    up, down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)
    expected = down(torch.tanh(up(torch.ones(2, 4)))).detach()
    torch.testing.assert_close(ran.tensor("y"), expected)
