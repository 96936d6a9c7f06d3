"""Small helpers of Optimum Neuron around a training: patches, questions about processes, callbacks.

What patched Transformers or Accelerate for the legacy device goes. Questions about the process are asked of
Accelerate, and the other helpers have a namesake in Transformers or Accelerate that does the same.
`NeuronCacheCallback`, which copied compiled graphs to and from the Hub, goes out of the list of callbacks.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Action, Call, Codemod, Drop, Rename
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

_TRAINING = ("utils.training_utils", "models.training.training_utils")
_PATCHING = ("accelerate.utils", "accelerate.utils.misc")
_MAIN = (Call("accelerate.PartialState().is_main_process"), "Accelerate knows the processes")
_PATCH = (Drop(), "nothing has to be patched for the native device")
_COMPILER = (Drop(), "the legacy compiler that it configured is gone")
_MIXIN = (Drop(), "a native model generates with Transformers' own mixin")
_CHECKPOINTING = (
    Call("{model}.gradient_checkpointing_enable()", args=("model",)),
    "the model does it itself",
)

# By the modules below optimum.neuron in which a release has a name.
ROWS: dict[str, tuple[Sequence[str], tuple[Action, str]]] = {
    "apply_activation_checkpointing": (("accelerate.utils.misc", "distributed.utils"), _CHECKPOINTING),
    "get_model_param_count": (
        _TRAINING,
        (
            Rename("transformers.trainer_pt_utils.get_model_param_count"),
            "Transformers counts them the same way",
        ),
    ),
    "is_logging_process": (_TRAINING[1:], _MAIN),
    "is_main_worker": (("utils", "utils.misc"), _MAIN),
    # The last stage under pipeline parallelism, else the main process.
    "is_main_worker_for_metrics": (_TRAINING[:1], _MAIN),
    "patch_accelerate_is_torch_xla_available": (_PATCHING, _PATCH),
    "patch_accelerate_is_tpu_available": (_PATCHING, _PATCH),
    "patch_generation_mixin_to_general_neuron_generation_mixin": (_TRAINING, _MIXIN),
    "patch_generation_mixin_to_neuron_generation_mixin": (_TRAINING, _MIXIN),
    "patch_transformers_for_neuron_sdk": ((*_TRAINING, "models.training", "utils"), _PATCH),
    "prepare_environment_for_neuron": (_TRAINING[:1], _COMPILER),
    "set_neuron_cc_flags_for_model": (_TRAINING[:1], _COMPILER),
    "set_neuron_cc_optlevel_for_model": (_TRAINING[:1], _COMPILER),
    "set_verbosity": (
        _TRAINING,
        (Rename("transformers.utils.logging.set_verbosity"), "Optimum has no log of its own natively"),
    ),
    "skip_first_batches": (
        _TRAINING,
        (
            Rename("accelerate.skip_first_batches"),
            "it was Accelerate's function, and the loaders are its own",
        ),
    ),
    "tie_parameters": (
        (*_PATCHING, "utils.model_utils"),
        (Drop(), "moving a native model to the device keeps its parameters tied"),
    ),
}
_ALL = {f"optimum.neuron.{module}.{name}": row for name, (modules, row) in ROWS.items() for module in modules}
for _old, (_action, _why) in sorted(_ALL.items(), key=lambda row: row[0]):
    codemod.symbol(_old, _action, because=_why)

CALLBACKS = (
    "optimum.neuron.trainer_callback.NeuronCacheCallaback",  # the name is misspelt in 0.0.2 to 0.0.7
    "optimum.neuron.trainer_callback.NeuronCacheCallback",
)
_CACHE = "compiled graphs are not kept on the Hub natively"


@codemod.uses(CALLBACKS)
def decide_callback(site: Site, use: Use) -> None:
    """Take the callback out of what it is given to."""
    call = use.call
    element = site.parent(call) if call is not None else None
    holder = site.parent(element) if element is not None else None
    if call is None or use.method or not all(is_harmless(arg.value, site.name_of) for arg in call.args):
        site.mark(use.whole, use.name, _CACHE, "take it out of the callbacks of the trainer")
        return
    group = site.group(use)
    if isinstance(element, cst.Element) and isinstance(holder, (cst.List, cst.Tuple)):
        left = [each for each in holder.elements if each is not element]
        arg = site.parent(holder)
        trainer = site.parent(arg) if isinstance(arg, cst.Arg) and arg.keyword is not None else None
        if left or not isinstance(trainer, cst.Call) or not isinstance(arg, cst.Arg):
            last = left[-1].with_changes(comma=holder.elements[-1].comma) if left else None
            elements = [*left[:-1], last] if last is not None else []
            group.replace(holder, holder.with_changes(elements=elements))
        else:
            group.replace(trainer, edits.without_arguments(trainer, [arg]))
    elif (
        isinstance(element, cst.Arg)
        and isinstance(holder, cst.Call)
        and isinstance(holder.func, cst.Attribute)
        and holder.func.attr.value == "add_callback"
        and (alone := site.alone(holder)) is not None
    ):
        group.replace_statement(alone)
    else:
        group.refuse("it goes where it cannot be followed")
        group.fixed(call, use.name, _CACHE)
        return
    forget(site, call)
    group.fixed(call, use.name, _CACHE)
