"""What the loads of all traced models had in common: their arguments, and what becomes of those."""

from __future__ import annotations

from neuronmigrate import edits
from neuronmigrate.loads.arguments import (
    CAST,
    COMPILER,
    EXPORT,
    FILES,
    FOLDERS,
    HUB,
    PLACES,
    RENAMED,
    SHAPES,
    Given,
    Load,
    Table,
    constant,
    instance_type,
)
from neuronmigrate.site import Site


def one_core(site: Site, load: Load, given: Given) -> None:
    """Drop `tensor_parallel_size=1`, and refuse any other."""
    load.drop(given.seen)
    if edits.code_of(constant(site, given.seen)) not in ("1", "None"):
        load.refuse(
            "these models have no tensor-parallel plan natively, so `tensor_parallel_size` has no counterpart"
        )


def output_attentions(site: Site, load: Load, given: Given) -> None:
    """Keep the flag, and say what attention weights need."""
    load.args.append(given.arg)
    load.todo.append('attention weights need `attn_implementation="eager"` natively')


# What only decoders read: these classes let go of it among their shapes (`**kwargs_shapes`).
_UNREAD = frozenset({"num_cores"})

TABLE = Table(
    kept=HUB | {"output_hidden_states"},
    renamed=RENAMED,
    consumed=EXPORT | CAST,
    dropped=COMPILER | FILES | SHAPES | PLACES | _UNREAD,
    folders=FOLDERS,
    special={
        "instance_type": instance_type,
        "output_attentions": output_attentions,
        "tensor_parallel_size": one_core,
    },
)
"""`NeuronTracedModel.from_pretrained` and `_export` (optimum/neuron/modeling_traced.py, 0.0.5 to 0.4.5)."""


def paths(folder: str, name: str) -> tuple[str, ...]:
    """The names under which releases 0.2.0 to 0.4.5 gave out a class of `models/<folder>`."""
    models = "optimum.neuron.models"
    return (
        f"optimum.neuron.{name}",
        f"{models}.{folder}.{name}",
        f"{models}.{folder}.model.{name}",
        f"{models}.inference.{folder}.{name}",
        f"{models}.inference.{folder}.modeling_{folder}.{name}",
    )
