"""What each of two processes of test_helpers.py does: use every helper, and write down what came out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from neuronmigrate.runtime import helpers


def collected(folder: Path) -> dict[str, object]:
    """What the helpers give on this rank; tensors as they are."""
    rank = dist.get_rank()
    found: dict[str, object] = {
        "rank": helpers.rank(),
        "world_size": helpers.world_size(),
        "local_rank": helpers.local_rank(),
        "is_master": (helpers.is_master(), helpers.is_master(local=False)),
    }
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    unused = torch.nn.Parameter(torch.ones(1))
    optimizer.add_param_group({"params": [unused]})
    torch.autograd.backward(model(torch.full((4, 3), rank + 1.0)).square().sum())
    found["own_gradient"] = model.weight.grad.clone() if model.weight.grad is not None else None
    helpers.reduce_gradients(optimizer)
    found["gradient"] = model.weight.grad
    found["bias_gradient"] = model.bias.grad
    found["unused_gradient"] = unused.grad

    # `groups=` of the legacy function still divided by the whole job.
    alone = [dist.new_group([each]) for each in range(2)][rank]
    weight = torch.nn.Parameter(torch.ones(2))
    torch.autograd.backward((weight * (rank + 2)).sum())
    helpers.reduce_gradients(torch.optim.SGD([weight], lr=1.0), group=alone)
    found["gradient_in_group_of_one"] = weight.grad

    value = torch.tensor([1.0, 2.0]) + rank
    listed = [torch.tensor([rank + 1])]
    found["sum"] = helpers.all_reduce("sum", value, scale=0.5)
    found["value_after"] = value
    found["mul_in_place"] = helpers.all_reduce("mul", listed)[0] is listed[0]
    found["mul"] = listed[0]
    found["max"] = helpers.all_reduce("max", value)
    found["and"] = helpers.all_reduce("and", torch.tensor([True, rank == 0]))

    found["gathered"] = helpers.all_gather(torch.full((2, 1), rank))
    found["gathered_columns"] = helpers.all_gather(torch.full((2, 1), rank).expand(2, 3), dim=1)
    found["gathered_scalar"] = helpers.all_gather(torch.tensor(rank + 0.5))

    # The second payload is longer than the smallest message.
    payload = {"name": f"rank {rank}", "tensor": torch.full((3,), rank), "long": b"x" * (rank << 21)}
    objects = helpers.gather_object(payload)
    found["objects"] = [(each["name"], each["tensor"], len(each["long"])) for each in objects]
    found["mean"] = helpers.mesh_reduce(rank + 1.0, lambda values: sum(values) / len(values))

    helpers.save({"rank": rank}, folder / "first.pt")
    helpers.save({"rank": rank}, folder / f"each{rank}.pt", master_only=False)
    helpers.barrier()
    found["read"] = torch.load(folder / "first.pt")
    helpers.master_print("said once", rank)
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo")
    where = Path(sys.argv[1])
    torch.save(collected(where), where / f"rank{os.environ['RANK']}.pt")
    dist.destroy_process_group()
