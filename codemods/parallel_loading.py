"""Blocks of `lazy_load_for_parallelism`, and what put the shards of a parallel run together again.

Natively a model is split as it is loaded, so the block goes with its comments and layout kept, and
`from_pretrained` gets `distributed_config=DistributedConfig(tp_size=...)`; a size of 1 vanishes. The block is
one unit with the trainer, whose arguments held the size. Native checkpoints are whole, so that
consolidating goes where it stands alone; shards that a legacy run wrote have to be consolidated in the old
environment once, which is said.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.site import Site, Use
from neuronmigrate.training.loads import loads_in, write_load
from neuronmigrate.training.parallel import LAZY_LOADS
from neuronmigrate.training.unit import unit_of

codemod = Codemod(__name__)

_MODEL = (
    "consolidate_model_parallel_checkpoints",
    "consolidate_model_parallel_checkpoints_to_unified_checkpoint",
)
_TENSOR = (
    "consolidate_tensor_parallel_checkpoints",
    "consolidate_tensor_parallel_checkpoints_to_unified_checkpoint",
)
CONSOLIDATE = [
    f"optimum.neuron.{module}.{name}"
    for module, names in (
        ("distributed", (*_MODEL, *_TENSOR)),
        ("distributed.checkpointing", (*_MODEL, *_TENSOR)),
        ("models.training", _MODEL[1:]),
        ("models.training.checkpointing", (*_MODEL, _TENSOR[0])),
    )
    for name in names
]
WHOLE = "a native checkpoint is whole as it is saved"
SHARDS = "shards that an old run wrote have to be consolidated once in the old environment"


@codemod.uses(LAZY_LOADS)
def decide(site: Site, use: Use) -> None:
    """Take the block away; the loads in it say how they are split."""
    call = use.call
    item = site.parent(call) if call is not None else None
    block = site.parent(item) if item is not None else None
    if not isinstance(block, cst.With) or len(block.items) != 1:
        advice = "give `distributed_config=DistributedConfig(tp_size=...)` to `from_pretrained`"
        site.mark(use.whole, use.name, "it is no block of its own", advice)
        return
    unit = unit_of(site, use)
    group = unit.group
    loads = loads_in(site, block)
    todo: list[str] = []
    for load in loads:
        todo += write_load(unit, load)
    if not loads:
        todo.append("no load of a model is seen in the block: give it `distributed_config` where it is")
    group.unindent(block, block.body)
    for arg in call.args if call is not None else ():
        forget(site, arg.value)
    why = "natively `from_pretrained` splits a model itself, so the block goes"
    unit.say(use.whole, use.name, why, todo)


@codemod.uses(CONSOLIDATE)
def decide_consolidation(site: Site, use: Use) -> None:
    """Consolidating goes where its result is not used."""
    call = use.call
    alone = site.alone(call) if call is not None else None
    if call is None or alone is None:
        site.mark(use.whole, use.name, WHOLE, f"take it away; {SHARDS}")
        return
    group = site.group(use)
    group.replace_statement(alone)
    for arg in call.args:
        forget(site, arg.value)
    group.review(call, use.name, WHOLE, f"{SHARDS}; code that looks for folders of shards finds none")
