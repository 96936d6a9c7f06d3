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
from neuronmigrate.training.trainer import trainer_table
from neuronmigrate.training.unit import speaks_of_training, table_of, unit_of

codemod = Codemod(__name__)

OWN_ARGUMENTS = {name: kind for name, kind in ARGUMENTS.items() if kind.native.startswith("transformers.")}
OWN_TRAINERS = {name: kind for name, kind in TRAINERS.items() if kind.native.startswith("transformers.")}

codemod.tables += [
    table_of(ARGUMENTS["optimum.neuron.NeuronTrainingArguments"], release) for release in ("0.3.0", "0.4.5")
]
codemod.tables += [trainer_table(release) for release in ("0.3.0", "0.4.5")]


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
    if not speaks_of_training(site):
        return
    unit = unit_of(site)
    for training in unit.trainings:
        if training.derived:
            use = unit.use_of(training.name, training.call, partial=training.partial)
            deciding.train(unit, use, training)
    hooks.derived_further(unit)
    hooks.callbacks(unit)
    hooks.constructed_arguments(unit, deciding.construct)
    reads.settle(unit)
