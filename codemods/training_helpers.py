"""Small helpers of Optimum Neuron around a training: patches, questions about processes, callbacks.

What patched Transformers or Accelerate for the legacy device goes. Questions about the process are asked of
Accelerate, and the other helpers have a namesake in Transformers or Accelerate that does the same.
`NeuronCacheCallback`, which copied compiled graphs to and from the Hub, goes out of the list of callbacks.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Call, Codemod, Drop, Rename
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

_MAIN = "Accelerate knows the processes"
_TRAINING = ("optimum.neuron.utils.training_utils", "optimum.neuron.models.training.training_utils")

for _path in ("optimum.neuron.utils", "optimum.neuron.utils.misc"):
    codemod.symbol(
        f"{_path}.is_main_worker", Call("accelerate.PartialState().is_main_process"), because=_MAIN
    )
for _path in _TRAINING:
    # The last process of a data-parallel group under pipeline parallelism, else the main one.
    for _name in ("is_main_worker_for_metrics", "is_logging_process"):
        codemod.symbol(f"{_path}.{_name}", Call("accelerate.PartialState().is_main_process"), because=_MAIN)
    codemod.symbol(
        f"{_path}.get_model_param_count",
        Rename("transformers.trainer_pt_utils.get_model_param_count"),
        because="Transformers counts them the same way",
    )
    codemod.symbol(
        f"{_path}.skip_first_batches",
        Rename("accelerate.skip_first_batches"),
        because="it was Accelerate's function, and the loaders are its own",
    )
    codemod.symbol(
        f"{_path}.set_verbosity",
        Rename("transformers.utils.logging.set_verbosity"),
        because="Optimum has no log of its own natively",
    )

_PATCH = "nothing has to be patched for the native device"
for _path in (*_TRAINING, "optimum.neuron.models.training", "optimum.neuron.utils"):
    codemod.symbol(f"{_path}.patch_transformers_for_neuron_sdk", Drop(), because=_PATCH)
for _path in _TRAINING:
    for _name in (
        "patch_generation_mixin_to_general_neuron_generation_mixin",
        "patch_generation_mixin_to_neuron_generation_mixin",
    ):
        codemod.symbol(
            f"{_path}.{_name}", Drop(), because="a native model generates with Transformers' own mixin"
        )
for _name in (
    "prepare_environment_for_neuron",
    "set_neuron_cc_flags_for_model",
    "set_neuron_cc_optlevel_for_model",
):
    codemod.symbol(
        f"optimum.neuron.utils.training_utils.{_name}",
        Drop(),
        because="the legacy compiler that it configured is gone",
    )
for _path in ("optimum.neuron.accelerate.utils", "optimum.neuron.accelerate.utils.misc"):
    for _name in ("patch_accelerate_is_torch_xla_available", "patch_accelerate_is_tpu_available"):
        codemod.symbol(f"{_path}.{_name}", Drop(), because=_PATCH)
for _path in (
    "optimum.neuron.accelerate.utils",
    "optimum.neuron.accelerate.utils.misc",
    "optimum.neuron.utils.model_utils",
):
    codemod.symbol(
        f"{_path}.tie_parameters",
        Drop(),
        because="moving a native model to the device keeps its parameters tied",
    )
for _path in ("optimum.neuron.accelerate.utils.misc", "optimum.neuron.distributed.utils"):
    codemod.symbol(
        f"{_path}.apply_activation_checkpointing",
        Call("{model}.gradient_checkpointing_enable()", args=("model",)),
        because="the model does it itself",
    )

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
