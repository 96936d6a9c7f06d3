"""Trainers of Optimum Neuron, their arguments and argument parsers: one unit, swapped whole or not at all.

`NeuronTrainer`, `Seq2SeqNeuronTrainer` and their 2023 names become Transformers' own `Trainer`, the arguments
`TrainingArguments`. What only the legacy stack knew goes; the defaults that the native class has otherwise
are written out for the release of the project, and what the old one did by mistake is said. Arguments that a
parser fills keep their defaults in a dataclass of the script. `tensor_parallel_size` arrives at the load of
the model that is trained. Overrides of hooks get the native signature; an override of a hook that is gone is
marked. Marked are arguments that cannot be seen, pipeline parallelism, and classes that are handed on.
"""

from __future__ import annotations

from neuronmigrate.codemod import Codemod
from neuronmigrate.site import Site, Use
from neuronmigrate.training import deciding, hooks, reads
from neuronmigrate.training.kinds import ARGUMENTS, PARSERS, TRAINERS
from neuronmigrate.training.unit import unit_of

codemod = Codemod(__name__)

OWN_ARGUMENTS = {name: kind for name, kind in ARGUMENTS.items() if kind.native.startswith("transformers.")}
OWN_TRAINERS = {name: kind for name, kind in TRAINERS.items() if kind.native.startswith("transformers.")}


codemod.uses(OWN_ARGUMENTS)(deciding.decide_arguments)
codemod.uses(OWN_TRAINERS)(deciding.decide_trainer)


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
    if not any(use.claim in ARGUMENTS or use.claim in TRAINERS for use in site.uses):
        return
    unit = unit_of(site)
    for training in unit.trainings:
        if training.owner is not None:
            use = next(each for each in site.uses if each.claim == training.name)
            deciding.train(unit, use, training)
    hooks.constructed_arguments(unit, deciding.construct)
    reads.settle(unit)
