"""What a script reads of legacy training arguments that the native ones have not."""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.loads.arguments import constant, means_the_same
from neuronmigrate.names import dotted_name
from neuronmigrate.site import Site
from neuronmigrate.training.fields import OWN_CLASS, Fate, rule
from neuronmigrate.training.kinds import MODELS
from neuronmigrate.training.parallel import CONFIG_FIELDS, is_one, lazy_load_of
from neuronmigrate.training.parsed import STAYING
from neuronmigrate.training.unit import Source, Unit, reads_of

NEEDED = {
    "dp_size": "divide `world_size` by the tensor parallel size",
    "neuron_cc_flags_model_type": "nothing is compiled by neuronx-cc",
    "world_size_as_dp_size": "divide `world_size` by the tensor parallel size",
    "world_size_should_behave_as_dp_size": "divide `world_size` by the tensor parallel size",
}
"""Attributes that are gone, and what to do instead."""


def mentions(site: Site, name: str) -> bool:
    """Whether a file speaks of an option, as a field, a keyword, an attribute or a flag."""
    return name in site.positions.code


def settle(unit: Unit) -> None:
    """Answer for each place where a legacy setting is read."""
    for name in STAYING:
        for node, sources in reads_of(unit.site, unit, name):
            if all(each.call is not None for each in sources):
                _write_value(unit, node, sources)
    for node in unit.site.nodes(cst.Attribute):
        # What made them may be in another module. Trainers and accelerators have such attributes as well.
        holder = dotted_name(node.value).rpartition(".")[2]
        if node.attr.value in CONFIG_FIELDS and holder not in ("", "accelerator", "self", "state"):
            _config(unit, node)
    for name, todo in NEEDED.items():
        for node, _ in reads_of(unit.site, unit, name):
            unit.site.mark(node, f"training_args.{name}", f"`{name}` is gone", todo)
    _arithmetic(unit)


def _write_value(unit: Unit, node: cst.Attribute, sources: tuple[Source, ...]) -> None:
    """Write the value of a setting where it is read of arguments that this file constructs."""
    site, name = unit.site, node.attr.value
    if lazy_load_of(site, node) is not None:
        return
    default = STAYING[name][1]
    if name == "zero_1" and not unit.before(OWN_CLASS):
        default = "True"
    values = {edits.code_of(value): value for each in sources if (value := unit.told(each, name)) is not None}
    value = next(iter(values.values())) if values else cst.parse_expression(default)
    if name == "logging_dir" and not values:
        todo = "TensorBoard writes to `runs` in the output folder, or to TENSORBOARD_LOGGING_DIR"
        site.mark(node, f"training_args.{name}", f"the native arguments have no `{name}`", todo)
        return
    value = constant(site, value)
    known = edits.is_literal(value) or (edits.is_pure(value) and means_the_same(site, value, node))
    if len(values) > 1 or not known:
        todo = f"read it from where `{edits.short(value)}` comes from"
        site.mark(node, f"training_args.{name}", f"the native arguments have no `{name}`", todo)
        return
    unit.group.replace(node, value.deep_clone())
    unit.say(node, f"training_args.{name}", "the native arguments have it no more: its value is written")


def _config(unit: Unit, node: cst.Attribute) -> None:
    """Legacy parallel settings: they go with the loads that took them."""
    site, name = unit.site, node.attr.value
    parent = site.parent(node)
    if _goes_with_a_load(site, parent):
        return
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        target = parent.targets[0].target
        bindings = site.names.bound_by(target) if isinstance(target, cst.Name) else ()
        readers = [each for binding in bindings for each in site.names.references(binding)]
        if bindings and all(_goes_with_a_load(site, site.parent(each)) for each in readers):
            unit.group.replace_statement(parent)
            why = "the load of the model says itself how it is split"
            unit.say(node, f"training_args.{name}", why)
            return
    todo = "read `tensor_parallel_size` where it is given, and give loads `distributed_config`"
    site.mark(node, f"training_args.{name}", f"the native arguments have no `{name}`", todo)


def _goes_with_a_load(site: Site, arg: cst.CSTNode | None) -> bool:
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return False
    owner = (site.name_of(call.func) or "").rpartition(".")[0]
    return owner in MODELS or (site.name_of(call.func) or "") in MODELS


def _arithmetic(unit: Unit) -> None:
    """Numbers that 0.4.x gave per run and that are given per process natively, or the other way round."""
    if unit.before(OWN_CLASS):
        return
    for name, todo in (
        ("world_size", "it was the number of data parallel processes, natively it is that of all processes"),
        ("train_batch_size", "it was the batch of all processes, natively it is that of one"),
    ):
        for node, sources in reads_of(unit.site, unit, name):
            whole = all(
                each.call is not None and is_one(unit.told(each, "tensor_parallel_size")) for each in sources
            )
            if name != "world_size" or not whole:
                unit.say(node, f"training_args.{name}", f"`{name}` is read", [todo])


def renamed_reads(unit: Unit) -> list[str]:
    """Fields that are read under a name that is gone, of all arguments in a file."""
    return [
        name
        for name in {node.attr.value for node in unit.site.nodes(cst.Attribute)}
        if (found := rule(name, unit.release)) is not None and found.fate is Fate.RENAMED
    ]
