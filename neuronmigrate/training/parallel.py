"""Tensor parallelism: what the legacy arguments said, and where the native libraries want to hear it.

Natively a model is split when it is loaded: `from_pretrained(..., distributed_config=DistributedConfig(
tp_size=N))` (transformers/distributed/configuration_utils.py). The number of processes has to be the product
of the sizes there; a size of 1 splits nothing and needs no process group.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import edits, effects
from neuronmigrate.loads.arguments import constant, means_the_same
from neuronmigrate.names import dotted_name
from neuronmigrate.site import Group, Site
from neuronmigrate.training.unit import Unit

LAZY_LOADS = frozenset(
    f"optimum.neuron.distributed.{name}"
    for name in ("lazy_load_for_parallelism", "utils.lazy_load_for_parallelism")
)
CONFIGS = frozenset(
    {
        "optimum.neuron.accelerate.utils.ModelParallelismPlugin",
        "optimum.neuron.accelerate.utils.dataclasses.ModelParallelismPlugin",
        "optimum.neuron.accelerate.utils.dataclasses.TensorParallelismPlugin",
        "optimum.neuron.models.training.TrainingNeuronConfig",
        "optimum.neuron.models.training.config.TrainingNeuronConfig",
    }
)
"""Classes of legacy parallel settings; their first parameter is `tensor_parallel_size`."""
CONFIG_FIELDS = ("trn_config", "mp_plugin", "tp_plugin")
"""Attributes of legacy arguments that hold such settings."""

PIPELINES = (
    "pipeline parallelism has no native schedule for training: `DistributedConfig(pp_size=)` is for "
    "inference; shard with `DistributedConfig(tp_size=, fsdp_size=)`"
)
SEVERAL = (
    "above 1 the number of processes has to be `tp_size`, or `tp_size * fsdp_size` with `fsdp_size` ranks "
    "of data parallelism, which shard the state of the optimizer as well"
)


@dataclass(eq=False)
class Parallel:
    """How a model is to be split at its load."""

    size: cst.BaseExpression | None = None
    """The tensor parallel size; None for none."""
    todo: list[str] = field(default_factory=list)
    refused: str = ""

    def argument(self, site: Site, group: Group, load: str) -> list[cst.Arg]:
        """The argument of a load that says so, if there is anything to say. `load` names the callable."""
        if self.size is None:
            return []
        site.keywords.append((load, "distributed_config"))
        site.keywords.append(("transformers.distributed.DistributedConfig", "tp_size"))
        config = group.expression(
            "transformers.distributed.DistributedConfig(tp_size={size})", size=self.size.deep_clone()
        )
        return [edits.keyword("distributed_config", config)]


def is_one(value: cst.BaseExpression | None) -> bool:
    """Whether a size is left out, None or 1."""
    return value is None or edits.code_of(value) in ("1", "None")


def split_by(
    unit: Unit,
    size: cst.BaseExpression | None,
    pipeline: cst.BaseExpression | None,
    at: cst.CSTNode,
    *,
    here: bool = False,
) -> Parallel:
    """How a model is split that is loaded at a place, by sizes that are said elsewhere.

    `here` says that they are said right at the load, so that their names mean there what they mean here.
    """
    site = unit.site
    found = Parallel()
    pipeline = None if pipeline is None else constant(site, pipeline)
    if not is_one(pipeline) and not _is_default(unit, pipeline, "pipeline_parallel_size"):
        if isinstance(pipeline, cst.Integer):
            found.refused = PIPELINES
            return found
        assert pipeline is not None
        found.todo.append(f"`{edits.short(pipeline)}` is not read any more: {PIPELINES}")
    if size is None:
        return found
    settled = _settled(unit, size)
    here = here and settled is size
    looked = constant(site, settled)
    if is_one(looked):
        return found
    size = settled if here or means_the_same(site, settled, at) else looked
    known = here or means_the_same(site, size, at)
    moves = edits.is_pure(size) or (here and effects.is_harmless(size, site.name_of))
    if not edits.is_literal(size) and not (moves and known):
        found.refused = (
            f"the tensor parallel size `{edits.short(size)}` is not known where the model is loaded: give it "
            "there as `distributed_config=DistributedConfig(tp_size=...)`"
        )
        return found
    found.size = size
    found.todo.append(SEVERAL)
    return found


def _is_default(unit: Unit, value: cst.BaseExpression | None, name: str) -> bool:
    """Whether a setting that is read of arguments is not given there, so that it is the default, 1."""
    if not isinstance(value, cst.Attribute) or value.attr.value != name:
        return False
    sources = unit.sources(value.value)
    return bool(sources) and all(
        source.call is not None and is_one(unit.told(source, name)) for source in sources
    )


def _settled(unit: Unit, size: cst.BaseExpression) -> cst.BaseExpression:
    """A size without its way through legacy arguments that are constructed here."""
    if isinstance(size, cst.Attribute) and size.attr.value == "tensor_parallel_size":
        for source in unit.sources(size.value):
            if source.call is not None:
                return unit.told(source, "tensor_parallel_size") or cst.Integer("1")
    return size


def split_by_config(unit: Unit, config: cst.BaseExpression, at: cst.CSTNode) -> Parallel:
    """How a model is split by legacy parallel settings: `training_args.trn_config`, or an object of them."""
    for made in unit.site.flow.origin_of(config).producers:
        node = made.node
        if isinstance(node, cst.Attribute) and node.attr.value in CONFIG_FIELDS:
            return split_by_arguments(unit, node.value, at, here=node is config)
        if isinstance(node, cst.Call) and made.name in CONFIGS:
            given = edits.arguments(node, ("tensor_parallel_size",))
            if not given.spread:
                return split_by(
                    unit, given.value("tensor_parallel_size"), given.value("pipeline_parallel_size"), at
                )
    if isinstance(config, cst.Attribute) and config.attr.value in CONFIG_FIELDS:
        return split_by_arguments(unit, config.value, at, here=True)
    if edits.code_of(config) == "None":
        return Parallel()
    return Parallel(
        todo=[
            f"what `{edits.short(config)}` says of parallelism cannot be seen from here: for a tensor "
            "parallel size above 1 give `distributed_config=DistributedConfig(tp_size=...)`"
        ]
    )


def split_by_arguments(
    unit: Unit, holder: cst.BaseExpression, at: cst.CSTNode, *, here: bool = False
) -> Parallel:
    """How a model is split by the training arguments that an expression holds."""
    sources = unit.sources(holder)
    for source in sources:
        if source.call is not None:
            return split_by(
                unit,
                unit.told(source, "tensor_parallel_size"),
                unit.told(source, "pipeline_parallel_size"),
                at,
            )
    size = cst.Attribute(holder.deep_clone(), cst.Name("tensor_parallel_size"))
    if sources and dotted_name(holder) and (here or means_the_same(unit.site, holder, at)):
        return Parallel(size, [SEVERAL])
    return Parallel(
        todo=[
            f"for a tensor parallel size above 1 in `{edits.short(holder)}` give "
            "`distributed_config=DistributedConfig(tp_size=...)`"
        ]
    )


def lazy_load_around(site: Site, load: cst.Call) -> cst.Call | None:
    """The `lazy_load_for_parallelism(...)` in whose block a model is loaded."""
    for around in site.ancestors(load):
        if isinstance(around, cst.With):
            for item in around.items:
                if isinstance(item.item, cst.Call) and site.name_of(item.item.func) in LAZY_LOADS:
                    return item.item
    return None


def split_of(unit: Unit, load: cst.Call) -> Parallel:
    """How the model of a load is split, by the block around it or by the trainer that trains it."""
    site = unit.site
    lazy = lazy_load_around(site, load)
    if lazy is not None:
        given = edits.arguments(lazy, ("tensor_parallel_size", "pipeline_parallel_size"))
        if given.spread:
            return Parallel(refused="the arguments of `lazy_load_for_parallelism` cannot be seen from here")
        return split_by(
            unit,
            given.value("tensor_parallel_size"),
            given.value("pipeline_parallel_size"),
            load,
            here=True,
        )
    training = unit.training_of(load)
    for source in training.sources if training is not None else ():
        if source.call is not None:
            return split_by(
                unit,
                unit.told(source, "tensor_parallel_size"),
                unit.told(source, "pipeline_parallel_size"),
                load,
            )
    return Parallel()


def lazy_load_of(site: Site, node: cst.CSTNode) -> cst.Call | None:
    """The `lazy_load_for_parallelism(...)` in whose arguments a node stands."""
    for around in site.ancestors(node):
        if isinstance(around, cst.Call) and site.name_of(around.func) in LAZY_LOADS:
            return around
        if isinstance(around, cst.BaseSmallStatement):
            return None
    return None
