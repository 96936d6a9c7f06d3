"""What codemods of trainers do with a use of a class: construct it, derive from it, give it to a parser."""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.loads.arguments import unread
from neuronmigrate.loads.family import is_annotation, is_base, is_isinstance
from neuronmigrate.site import Site, Use
from neuronmigrate.training import hooks, merging, parsed
from neuronmigrate.training.arguments import write_arguments
from neuronmigrate.training.kinds import ARGUMENTS, TRAINERS
from neuronmigrate.training.trainer import has_twin, twin, write_trainer
from neuronmigrate.training.unit import Source, Training, Unit, is_parsed, unit_of


def decide_arguments(site: Site, use: Use) -> None:
    """Training arguments: constructed, filled by a parser, derived from, or named as a type."""
    unit = unit_of(site, use)
    group = unit.group
    native = ARGUMENTS[use.claim].native
    short = native.rpartition(".")[2]
    if use.call is not None and not use.method:
        construct(unit, use, Source(use.claim, call=use.call))
    elif is_annotation(site, use.chain) or is_isinstance(site, use.chain) or use.quoted:
        group.rename(use, native)
        unit.say(use.chain, use.name, f"the class is {short} natively")
    elif is_parsed(site, use.chain):
        source = Source(use.claim, parsed=use.chain)
        group.replace(use.chain, parsed.write_class(unit, source))
        unit.say(
            use.chain,
            use.name,
            f"a dataclass of {short} with the old defaults is filled by the parser",
            parsed.flags_gone(unit, source),
        )
    elif is_base(site, use.chain):
        hooks.derive_arguments(unit, use, native)
    else:
        group.refuse(
            f"the class `{use.name.rpartition('.')[2]}` is handed on, so its fields cannot be followed"
        )
        unit.say(use.whole, use.name, "it is handed on")


def construct(unit: Unit, use: Use, source: Source) -> None:
    """Write a constructor of training arguments in native words."""
    site, group, call = unit.site, unit.group, source.call
    assert call is not None
    load = write_arguments(unit, use, source)
    native = load.native.rpartition(".")[2]
    if load.refused:
        group.refuse(load.refused)
        unit.say(call, use.name, f"it is {native} natively")
        return
    # A class of the script keeps its name, and its base is answered for.
    if not source.derived and not source.plain:
        group.rename(use, load.native)
    args = merging.merged(unit, load) or parsed.without_staying(unit, load)
    new = edits.with_arguments(call, args)
    group.replace(call, new)
    load.todo += unread(site, group, load, [load])
    why = f"{native}, with the old defaults written out"
    unit.say(call, use.name, why, load.todo, numerics=load.numerics)


def decide_trainer(site: Site, use: Use) -> None:
    """A trainer: constructed, derived from, or named as a type."""
    unit = unit_of(site, use)
    group = unit.group
    native = TRAINERS[use.claim].native
    short = native.rpartition(".")[2]
    if use.call is not None and not use.method:
        training = next(each for each in unit.trainings if each.call is use.call)
        if has_twin(unit, training):
            group.replace(use.chain, twin(unit))
        else:
            group.rename(use, native)
        train(unit, use, training)
    elif is_annotation(site, use.chain) or is_isinstance(site, use.chain) or use.quoted or use.method:
        group.rename(use, native)
        unit.say(use.chain, use.name, f"the class is {short} natively")
    elif is_base(site, use.chain):
        hooks.derive_trainer(unit, use, native)
    else:
        partial = next((each for each in unit.trainings if each.partial and _class(each) is use.chain), None)
        if partial is not None:
            group.rename(use, native)
            train(unit, use, partial)
            return
        group.refuse(
            f"the class `{use.name.rpartition('.')[2]}` is handed on, so its calls cannot be followed"
        )
        unit.say(use.whole, use.name, "it is handed on")


def _class(training: Training) -> cst.BaseExpression:
    return training.call.args[0].value


def train(unit: Unit, use: Use, training: Training) -> None:
    """Write a constructor of a trainer in native words."""
    written = write_trainer(unit, use, training)
    library, _, _ = TRAINERS[training.name].native.partition(".")
    short = TRAINERS[training.name].native.rpartition(".")[2]
    if written.refused:
        unit.group.refuse(written.refused)
    if written.args is not None:
        new = edits.with_arguments(training.call, written.args)
        unit.group.replace(training.call, new)
    if written.load is not None:
        written.todo += unread(unit.site, unit.group, written.load, [written.load])
    whose = {"transformers": "Transformers", "trl": "TRL"}[library]
    why = f"{short} of {whose} trains on the device that its arguments find"
    unit.say(training.call, use.name, why, written.todo, numerics=written.numerics)
