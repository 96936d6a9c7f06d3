"""The load of a model that a legacy trainer trains, where it is a native class already."""

from __future__ import annotations

import libcst as cst

from neuronmigrate import catalogue, edits
from neuronmigrate.names import dotted_name
from neuronmigrate.site import Site
from neuronmigrate.training.parallel import lazy_load_around, split_of
from neuronmigrate.training.precision import drop_dtype, weights_of
from neuronmigrate.training.unit import Unit


def write_load(unit: Unit, load: cst.Call) -> list[str]:
    """Give the load of a model of Transformers its dtype and its share; tells what is to be looked at.

    Refuses the unit where the share is not known at the load.
    """
    site, group = unit.site, unit.group
    name = site.name_of(load.func) or ""
    if catalogue.is_legacy(name) or load in unit.written:
        return []
    if not name.startswith("transformers."):
        line = site.positions.span(load).line
        weights = weights_of(unit, group, load, None)
        dtype = "torch.bfloat16 where `bf16` is on" if weights.todo else "torch.float32"
        return [f"line {line}: give this load `dtype`, {dtype}: left out, it is the checkpoint's"]
    unit.written.add(load)
    split = split_of(unit, load)
    if split.refused:
        group.refuse(split.refused)
        return []
    if name.endswith(".from_config"):
        if split.size is not None:
            shown = edits.short(split.size)
            split.todo = [
                f"`from_config` cannot split a model: save it once, and load it with `from_pretrained(..., "
                f"distributed_config=DistributedConfig(tp_size={shown}))`"
            ]
        return split.todo
    if any(arg.star for arg in load.args):
        return [
            *split.todo,
            "the load of the model gets arguments that cannot be seen from here: give it a dtype",
        ]
    given = next(
        (arg for arg in load.args if arg.keyword and arg.keyword.value in ("torch_dtype", "dtype")), None
    )
    weights = weights_of(unit, group, load, given.value if given is not None else None)
    args: list[cst.Arg] = []
    for arg in load.args:
        if arg is given:
            value = arg.value if weights.dtype is None else weights.dtype
            if weights.dtype is not None and not weights.keeps:
                drop_dtype(unit, arg.value)
            arg = arg.with_changes(keyword=cst.Name("dtype"), value=value)
        args.append(arg)
    if given is None and weights.dtype is not None:
        args.append(edits.keyword("dtype", weights.dtype))
    args += split.argument(site, group, name)
    if [edits.code_of(arg) for arg in args] == [edits.code_of(arg) for arg in load.args]:
        return [*weights.todo, *split.todo]
    site.keywords.append((name, "dtype"))
    new = edits.with_arguments(load, args)
    group.replace(load, new)
    return [*weights.todo, *split.todo]


_NO_MODELS = ("Config", "FeatureExtractor", "Processor", "Tokenizer", "TokenizerFast")


def loads_in(site: Site, block: cst.With) -> list[cst.Call]:
    """The loads of models in a block of `lazy_load_for_parallelism`."""
    return [
        call
        for call in site.nodes(cst.Call)
        if isinstance(call.func, cst.Attribute)
        and call.func.attr.value in ("from_pretrained", "from_config")
        and not dotted_name(call.func.value).endswith(_NO_MODELS)
        and (lazy := lazy_load_around(site, call)) is not None
        and any(item.item is lazy for item in block.items)
    ]
