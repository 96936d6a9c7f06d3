"""Trainers of Optimum Neuron, their arguments and argument parsers: one unit, swapped whole or not at all.

`NeuronTrainer`, `Seq2SeqNeuronTrainer` and their 2023 names become Transformers' own `Trainer`, the arguments
`TrainingArguments`. What only the legacy stack knew goes; the defaults that the native class has otherwise
are written out for the release of the project, and what the old one did by mistake is said. Arguments that a
parser fills keep their defaults in a dataclass of the script. `tensor_parallel_size` arrives at the load of
the model that is trained. Overrides of hooks get the native signature; an override of a hook that is gone is
marked. Marked are arguments that cannot be seen, pipeline parallelism, and classes that are handed on.
"""

from __future__ import annotations

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.loads.arguments import unread
from neuronmigrate.loads.family import is_annotation, is_base, is_isinstance
from neuronmigrate.site import Site, Use
from neuronmigrate.training import hooks, parsed, reads
from neuronmigrate.training.arguments import write_arguments
from neuronmigrate.training.kinds import ARGUMENTS, PARSERS, TRAINERS
from neuronmigrate.training.trainer import has_twin, trainer_table, twin, write_trainer
from neuronmigrate.training.unit import (
    Source,
    Training,
    Unit,
    is_parsed,
    speaks_of_training,
    table_of,
    unit_of,
)

codemod = Codemod(__name__)

OWN_ARGUMENTS = {name: kind for name, kind in ARGUMENTS.items() if kind.native.startswith("transformers.")}
OWN_TRAINERS = {name: kind for name, kind in TRAINERS.items() if kind.native.startswith("transformers.")}

codemod.tables += [
    table_of(ARGUMENTS["optimum.neuron.NeuronTrainingArguments"], release) for release in ("0.3.0", "0.4.5")
]
codemod.tables += [trainer_table(release) for release in ("0.3.0", "0.4.5")]


@codemod.uses(OWN_ARGUMENTS)
def decide_arguments(site: Site, use: Use) -> None:
    """Training arguments: constructed, filled by a parser, derived from, or named as a type."""
    unit = unit_of(site, use)
    group = unit.group
    native = OWN_ARGUMENTS[use.claim].native
    short = native.rpartition(".")[2]
    if use.call is not None and not use.method:
        _construct(unit, use, Source(use.claim, call=use.call))
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


def _construct(unit: Unit, use: Use, source: Source) -> None:
    site, group, call = unit.site, unit.group, source.call
    assert call is not None
    load = write_arguments(unit, use, source)
    native = load.native.rpartition(".")[2]
    if load.refused:
        group.refuse(load.refused)
        unit.say(call, use.name, f"it is {native} natively")
        return
    # A class of the script keeps its name, and its base is answered for.
    if not source.derived:
        group.rename(use, load.native)
    group.replace(call, edits.with_arguments(call, load.args))
    load.todo += unread(site, group, load, [load])
    why = f"{native}, with the old defaults written out"
    unit.say(call, use.name, why, load.todo, numerics=load.numerics)


@codemod.uses(OWN_TRAINERS)
def decide_trainer(site: Site, use: Use) -> None:
    """A trainer: constructed, derived from, or named as a type."""
    unit = unit_of(site, use)
    group = unit.group
    native = OWN_TRAINERS[use.claim].native
    short = native.rpartition(".")[2]
    if use.call is not None and not use.method:
        training = next(each for each in unit.trainings if each.call is use.call)
        if has_twin(unit, training):
            group.replace(use.chain, twin(unit))
        else:
            group.rename(use, native)
        _train(unit, use, training)
    elif is_annotation(site, use.chain) or is_isinstance(site, use.chain) or use.quoted:
        group.rename(use, native)
        unit.say(use.chain, use.name, f"the class is {short} natively")
    elif is_base(site, use.chain):
        hooks.derive_trainer(unit, use, native)
    elif use.method:
        group.rename(use, native)
        unit.say(use.chain, use.name, f"the class is {short} natively")
    else:
        group.refuse(
            f"the class `{use.name.rpartition('.')[2]}` is handed on, so its calls cannot be followed"
        )
        unit.say(use.whole, use.name, "it is handed on")


def _train(unit: Unit, use: Use, training: Training) -> None:
    written = write_trainer(unit, use, training)
    short = TRAINERS[training.name].native.rpartition(".")[2]
    if written.refused:
        unit.group.refuse(written.refused)
    if written.args is not None:
        unit.group.replace(training.call, edits.with_arguments(training.call, written.args))
    if written.load is not None:
        written.todo += unread(unit.site, unit.group, written.load, [written.load])
    why = f"{short} of Transformers trains on the device that its arguments find"
    unit.say(training.call, use.name, why, written.todo, numerics=written.numerics)


@codemod.uses(PARSERS)
def decide_parser(site: Site, use: Use) -> None:
    """The parser of Optimum Neuron only checked two arguments more."""
    unit = unit_of(site, use)
    group = unit.group
    group.rename(use, "transformers.HfArgumentParser")
    checked = [name for name in ("pad_to_max_length", "max_seq_length") if reads.mentions(site, name)]
    todo = []
    if checked and use.call is not None:
        shown = " and ".join(f"`{name}`" for name in checked)
        todo = [f"it refused to run unless {shown} made all batches of one shape: give them so"]
    unit.say(use.whole, use.name, "the parser is Transformers' own", todo)


@codemod.once
def decide_rest(site: Site) -> None:
    """Constructors of classes of this file, and what is read of arguments."""
    if not speaks_of_training(site):
        return
    unit = unit_of(site)
    for training in unit.trainings:
        if training.derived and training.name in OWN_TRAINERS:
            _train(unit, unit.use_of(training.name, training.call), training)
    hooks.derived_further(unit)
    hooks.constructed_arguments(unit, _construct)
    reads.settle(unit)
