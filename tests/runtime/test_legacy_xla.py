"""Stand-ins of torch_xla and torch_neuronx: steps, collectives and traced modules."""

from __future__ import annotations

import json
from pathlib import Path

from tests.runtime.legacy_scripts import run_legacy

ONE_PROCESS = """\
import json
import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.debug.metrics as met
import torch_xla.utils.serialization as xser

out = {}
device = xm.xla_device()
out["device"] = [str(device), str(torch_xla.device()), device.type]

# A copy onto the device does not share memory; a second move is none.
host = torch.zeros(2)
moved = host.to(device)
moved += 1
out["copy"] = [host.tolist(), moved.tolist(), moved.to("xla") is moved]

# Closures wait for the end of the step, with what their arguments hold by then.
said = []
value = torch.zeros(1, device="xla")
xm.add_step_closure(lambda tensor: said.append(tensor.item()), args=(value,))
value += 5
before = list(said)
xm.mark_step()
out["closures"] = [before, said]

# Tuples come back as lists, and each batch ends a step.
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(4.0)), batch_size=2)
steps = met.counter_value("MarkStep")
batches = [batch for batch in pl.MpDeviceLoader(loader, device)]
out["loader"] = [[type(batch).__name__, batch[0].tolist()] for batch in batches]
out["loader_steps"] = met.counter_value("MarkStep") - steps

# One process: nothing is reduced, the scale is not applied either.
out["reduced"] = [xm.all_reduce("sum", torch.ones(1), scale=0.5).item(), xm.mesh_reduce("t", 3, sum)]
model = torch.nn.Linear(2, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
weight = model.weight.detach().clone()
model(torch.ones(1, 2, device=device)).sum().backward()
xm.optimizer_step(optimizer, barrier=True)
out["step"] = (weight - model.weight).detach().round(decimals=4).tolist()

xm.save({"weight": model.weight}, "plain.pt")
xser.save({"weight": model.weight}, "apart.pt")
out["saved"] = [
    torch.equal(torch.load("plain.pt")["weight"], model.weight),
    torch.equal(xser.load("apart.pt")["weight"], model.weight),
]
with torch.autocast("xla"):
    out["autocast"] = str(model(torch.ones(1, 2)).dtype)
try:
    import torch_xla.experimental.nothing
except ImportError as error:
    out["missing"] = error.name
print(json.dumps(out))
"""

TWO_PROCESSES = """\
import json
import torch
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

rank = xm.get_ordinal()
device = xm.xla_device()
mine = torch.full((1, 2), rank + 1.0, device=device)
kept = mine.clone()
out = {"world": [xm.xrt_world_size(), xr.world_size(), xr.local_ordinal()]}
out["new"] = [xm.all_reduce(xm.REDUCE_SUM, mine, scale=0.5).tolist(), torch.equal(mine, kept)]
in_place = [mine.clone()]
xm.all_reduce("max", in_place)
out["in_place"] = in_place[0].tolist()
out["gather"] = xm.all_gather(mine, dim=1).tolist()
out["scatter"] = xm.reduce_scatter("sum", torch.arange(4.0), 1.0, 0, 2).tolist()
out["permute"] = xm.collective_permute(mine, [[0, 1], [1, 0]]).tolist()
out["alone"] = xm.all_reduce("sum", mine, groups=[[0], [1]]).tolist()
out["payloads"] = [each.decode() for each in xm.rendezvous("names", f"rank {rank}".encode())]
out["mesh"] = xm.mesh_reduce("total", {"count": rank + 1}, lambda found: sum(each["count"] for each in found))

# Gradients are summed and divided by the world, with groups as well.
parameter = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([parameter], lr=1.0)
(parameter * (rank + 1)).sum().backward()
xm.optimizer_step(optimizer)
out["stepped"] = parameter.tolist()
(parameter * 2).sum().backward()
parameter.grad.fill_(float(rank + 1))
xm.reduce_gradients(optimizer, groups=[[0], [1]])
out["grouped"] = parameter.grad.tolist()
leaf = torch.ones(1, requires_grad=True)
xf.all_gather(leaf * (rank + 1)).sum().backward()
out["through"] = leaf.grad.tolist()
results = xm.rendezvous("results", json.dumps(out).encode())
if rank == 0:
    print(json.dumps([json.loads(each) for each in results]))
"""

SPAWN = """\
import torch
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp


def worker(index, scale):
    total = xm.all_reduce("sum", torch.tensor([float(index + 1)])) * scale
    xm.master_print(xm.xrt_world_size(), total.item(), flush=True)


if __name__ == "__main__":
    xmp.spawn(worker, args=(10,), nprocs=2)
"""

TRACED = """\
import functools
import json
import torch
import torch_neuronx

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()).eval()
example = torch.randn(2, 4)
traced = torch_neuronx.trace(model, example, compiler_args="--auto-cast none")
torch.jit.save(traced, "model.pt")
again = torch.jit.load("model.pt")
out = {"same": torch.equal(again(example), model(example)), "gradient": again(example).requires_grad}


def refused(module, value):
    try:
        module(value)
    except RuntimeError as error:
        return "takes nothing else" in str(error)
    return False


out["refused"] = [refused(again, torch.randn(3, 4)), refused(again, example.double())]
more = torch.randn(5, 4)
torch_neuronx.dynamic_batch(again)
out["dynamic"] = torch.allclose(again(more), model(more))
traced.save("itself.pt")
out["itself"] = torch.equal(torch.jit.load("itself.pt")(example), model(example))
doubled = torch_neuronx.trace(functools.partial(torch.mul, other=2.0), example)
out["partial"] = torch.equal(doubled(example), example * 2)
parallel = torch_neuronx.DataParallel(traced, device_ids=[0, 1])
out["parallel"] = torch.allclose(parallel(more), model(more))
print(json.dumps(out))
"""


TRAINED = """\
import json
import torch
from optimum.neuron import NeuronTrainer, NeuronTrainingArguments

torch.manual_seed(0)


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, labels):
        return {"loss": ((self.weight * x - labels) ** 2).mean()}


rows = [{"x": float(number), "labels": 2.0 * number} for number in range(1, 9)]
args = NeuronTrainingArguments(
    "out", max_steps=3, per_device_train_batch_size=2, zero_1=False, optim="sgd", learning_rate=0.01,
    max_grad_norm=0, save_strategy="no", logging_steps=1, lr_scheduler_type="constant",
)
model = Line()
trainer = NeuronTrainer(model, args, train_dataset=rows)
trainer.train()
if args.process_index == 0:
    losses = [entry["loss"] for entry in trainer.state.log_history]
    print(json.dumps([args.world_size, args.train_batch_size, losses, model.weight.item()]))
"""


def test_one_process(tmp_path: Path) -> None:
    done = run_legacy(tmp_path / "one.py", ONE_PROCESS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "device": ["xla:0", "xla:0", "xla"],
        "copy": [[0.0, 0.0], [1.0, 1.0], True],
        "closures": [[], [5.0]],
        "loader": [["list", [0.0, 1.0]], ["list", [2.0, 3.0]]],
        # Before each batch, before the end is met, and at the end.
        "loader_steps": 4,
        "reduced": [1.0, 3],
        "step": [[1.0, 1.0]],
        "saved": [True, True],
        "autocast": "torch.bfloat16",
        "missing": "torch_xla.experimental",
    }
    assert "the result is a stub reference" in done.stderr
    assert "  torch_xla.distributed.parallel_loader: MpDeviceLoader" in done.stderr
    line = ONE_PROCESS.splitlines().index("xm.mark_step()") + 1
    assert f"one.py:{line} mark_step x1" in done.stderr


def test_two_processes_meet_over_gloo(tmp_path: Path) -> None:
    done = run_legacy(tmp_path / "two.py", TWO_PROCESSES, processes=2)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout)
    assert [first["world"], second["world"]] == [[2, 2, 0], [2, 2, 1]]
    both = {
        "new": [[[1.5, 1.5]], True],
        "in_place": [[2.0, 2.0]],
        "gather": [[1.0, 1.0, 2.0, 2.0]],
        "payloads": ["rank 0", "rank 1"],
        "mesh": 3,
        "stepped": [-1.5],
    }
    for name, expected in both.items():
        assert first[name] == second[name] == expected, name
    assert [first["scatter"], second["scatter"]] == [[0.0, 2.0], [4.0, 6.0]]
    assert [first["permute"], second["permute"]] == [[[2.0, 2.0]], [[1.0, 1.0]]]
    assert [first["alone"], second["alone"]] == [[[1.0, 1.0]], [[2.0, 2.0]]]
    assert [first["grouped"], second["grouped"]] == [[0.5], [1.0]]
    assert [first["through"], second["through"]] == [[1.0], [2.0]]


def test_spawned_processes_inherit_the_stand_ins(tmp_path: Path) -> None:
    done = run_legacy(tmp_path / "spawn.py", SPAWN)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 30.0\n"
    assert "xmp.spawn: 2 processes, forked" in done.stderr


def test_traced_modules_keep_their_shapes_in_a_file(tmp_path: Path) -> None:
    done = run_legacy(tmp_path / "traced.py", TRACED)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "same": True,
        "gradient": False,
        "refused": [True, True],
        "dynamic": True,
        "itself": True,
        "partial": True,
        "parallel": True,
    }
    assert "torch_neuronx.trace: without effect here: compiler_args" in done.stderr


def test_a_trainer_on_two_processes_shares_rows_and_gradients(tmp_path: Path) -> None:
    import torch
    from torch.utils.data import DistributedSampler

    done = run_legacy(tmp_path / "trained.py", TRAINED, processes=2)
    assert done.returncode == 0, done.stderr
    size, batch, losses, weight = json.loads(done.stdout)
    assert (size, batch) == (2, 4)
    # By hand: a sampler of seed 0 whatever the script's seed, told the epoch; the mean of both ranks.
    orders: list[list[list[int]]] = [[], []]
    for rank in range(2):
        sampler: DistributedSampler[int] = DistributedSampler(range(8), 2, rank, shuffle=True)  # type: ignore[arg-type]
        for epoch in range(2):
            sampler.set_epoch(epoch)
            numbers = list(sampler)
            orders[rank] += [numbers[:2], numbers[2:]]
    by_hand, expected = 0.0, []
    for step in range(3):
        xs = torch.tensor([[float(number + 1) for number in orders[rank][step]] for rank in range(2)])
        expected.append(round(float(((by_hand * xs - 2 * xs) ** 2).mean()), 4))
        by_hand -= 0.01 * float((2 * (by_hand * xs - 2 * xs) * xs).mean())
    assert losses == expected
    assert abs(weight - by_hand) < 1e-5
