"""What may be left out of a program."""

from __future__ import annotations

import libcst as cst
import pytest

from neuronmigrate.effects import is_harmless, is_probe
from neuronmigrate.names import Names

IMPORTS = """
import os, time
import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
import transformers
from transformers.utils import is_torch_xla_available as has_xla
"""

HARMLESS = [
    "step",
    "args.device",
    "loss.item()",
    "f'{loss.item():.4f} at {time.time()}'",
    "'epoch {}'.format(epoch) + str(step)",
    "'%d of %d' % (step, len(batches))",
    "[round(each.mean().item(), 3) for each in losses]",
    "{name: value.shape for name, value in batch.items()}",
    "step % 10 == 0 and not args.quiet",
    "os.environ.get('RANK', '0') == '0'",
    "os.path.join(folder, name)",
    "has_xla()",
    "transformers.is_torch_available()",
    "xm.get_ordinal() == 0",
    "dist.get_rank()",
    "torch.sqrt(x) if x else -1.5",
    "lambda: launch()",
    "...",
]
ACTING = [
    "evaluate(model)",
    "f'{evaluate(model)}'",
    "next(batches)",
    "print(step)",
    "queue.pop()",
    "meter.update(3)",
    "(x := 3)",
    "dist.all_reduce(x)",
    "torch.rand(2)",
    "xm.mesh_reduce('a', x, sum)",
    "[f(x) for x in y]",
    "str(save())",
    "model(batch).item()",
    "open(path)",
    "is_mine_available()",
]


def _judged(code: str) -> bool:
    module = cst.parse_module(f"{IMPORTS}{code}\n")
    line = module.body[-1]
    assert isinstance(line, cst.SimpleStatementLine) and isinstance(line.body[0], cst.Expr)
    return is_harmless(line.body[0].value, Names(module).name_of)


@pytest.mark.parametrize("code", HARMLESS)
def test_harmless(code: str) -> None:
    assert _judged(code)


@pytest.mark.parametrize("code", ACTING)
def test_acting(code: str) -> None:
    assert not _judged(code)


def test_a_shadowed_builtin_may_act() -> None:
    assert _judged("len(x)")
    assert not _judged("def len(x): ...\nlen(x)")


def test_probes() -> None:
    assert is_probe("accelerate.utils.is_torch_xla_available")
    assert not is_probe("mine.is_torch_xla_available")
    assert not is_probe("torch.cuda.is_initialized")
