"""Models and optimizers that NxD made: `nxd.neuronx_distributed_config(...)` and what took it.

The configuration started the parallel state, which becomes a device mesh, and held what the others did by
themselves. `initialize_parallel_model` built a model, moved it and repeated activations: the model is built
by its own function, moved, and given to `apply_activation_checkpointing`. `initialize_parallel_optimizer`
averaged gradients and clipped them to 1.0 in each step unless told otherwise: the plain optimizer gets a
hook that does. ZeRO-1 saved memory alone, so that the plain optimizer computes the same. Without pipelines
`model.run_train(...)` was the forward and the backward pass, which are written out.

All of it is rewritten together, or marked: with pipelines, experts, context parallelism, LoRA or padding,
and where the configuration goes somewhere else.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits, targets
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.flow import UseKind
from neuronmigrate.helpers import average_within_helper
from neuronmigrate.meshes import (
    CONFIG_PARAMETERS,
    CONFIGS,
    MAKERS,
    dictionary,
    dimension_of,
    made_mesh,
    mesh_of,
)
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

MODELS = tuple(name for name in MAKERS if name.endswith("model"))
OPTIMIZERS = tuple(name for name in MAKERS if name.endswith("optimizer"))
CHECKPOINTING = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.apply_activation_checkpointing"
BY_HAND = "make a device mesh, shard the model by a plan, and average and clip the gradients before each step"
OF_MODELS = frozenset({"local_module", "original_module"})
"""Methods of the old model that gave the model itself."""
PIPELINED = frozenset({"local_named_parameters", "local_parameters", "run_eval"})
"""Methods of the old model that pipelines need."""
TRAINS = "run_train"
"""The forward and the backward pass in one (`NxDModel.run_train` in neuronx_distributed/trainer/model.py)."""


@codemod.uses(CONFIGS)
def decide_config(site: Site, use: Use) -> None:
    """Rewrite a configuration with the models and optimizers that are made by it."""
    makers = [each for each in site.uses if each.claim in MAKERS]
    mesh = mesh_of(site)
    why = mesh.refused or next((found for each in makers if (found := _refusal(site, each))), "")
    site.settled.update(makers)
    if why or use.call is None:
        for each in (use, *makers):
            site.mark(each.whole, each.name, why, BY_HAND)
        return
    bound = edits.arguments(use.call, CONFIG_PARAMETERS)
    assign = site.parent(use.call)
    assert isinstance(assign, cst.Assign)
    group = site.group(use)
    tensor = bound.value("tensor_parallel_size") or cst.Integer("1")
    before: list[edits.Statement] = []
    if not edits.is_pure(tensor):
        name = group.fresh("tp_size")
        before = group.statements("{name} = {value}\n", name=name, value=tensor)
        tensor = cst.Name(name.value)
    sizes = {"tp": tensor, "pp": cst.Integer("1")}
    group.replace_statement(assign, [*before, *made_mesh(site, group, sizes, mesh.dimensions)])
    for key in ("model_init_config", "optimizer_config", "mixed_precision_config", "sequence_parallel"):
        gone = bound.value(key)
        if gone is not None:
            forget(site, gone)
    group.fixed(use.call, use.name, "a device mesh takes the place of the parallel state")
    for each in makers:
        if each.claim in MODELS:
            _model(site, group, each, bound)
        else:
            _optimizer(site, group, each, bound)


@codemod.uses(MAKERS)
def decide_maker(site: Site, use: Use) -> None:
    """Mark what is made by a configuration of another file."""
    why = "its configuration is not made in this file"
    site.mark(use.whole, use.name, why, BY_HAND)


def _refusal(site: Site, use: Use) -> str:
    """Why a model or an optimizer cannot be made without NxD."""
    call = use.call
    if call is None or use.ambiguous or not use.certain:
        return "a function that takes the configuration is passed on"
    if any(arg.star == "*" for arg in call.args) or len(call.args) < (2 if use.claim in MODELS else 3):
        return "what is given with the configuration cannot be seen from here"
    needed = call.args[: 2 if use.claim in MODELS else 3]
    if any(arg.keyword is not None or arg.star for arg in needed):
        return "what is given with the configuration cannot be seen from here"
    if _line(site, call) is None:
        return "what is made by the configuration is not assigned in a statement of its own"
    for name, attributes in _attributes(site, call).items():
        if name in PIPELINED:
            return f"`{name}` is a method of the old model, for pipelines"
        if name == TRAINS and not all(_passes(site, each) for each in attributes):
            return f"`{name}`, which runs the backward pass as well, is not called in a statement of its own"
    return ""


def _passes(site: Site, attribute: cst.Attribute) -> tuple[cst.Call, cst.Name | None] | None:
    """A call of `run_train` that is a statement of its own, and the name that its loss gets."""
    call = site.parent(attribute)
    if not isinstance(call, cst.Call) or call.func is not attribute:
        return None
    if site.alone(call) is not None:
        return call, None
    if _line(site, call) is None or not isinstance(target := _target(site, call), cst.Name):
        return None
    return call, target


def _line(site: Site, call: cst.Call) -> cst.SimpleStatementLine | None:
    assign = site.parent(call)
    line = site.parent(assign) if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    return line if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None


def _target(site: Site, call: cst.Call) -> cst.BaseExpression:
    assign = site.parent(call)
    assert isinstance(assign, cst.Assign)
    return assign.targets[0].target


def _attributes(site: Site, call: cst.Call) -> dict[str, list[cst.Attribute]]:
    """The attributes that are read of what a call makes."""
    found: dict[str, list[cst.Attribute]] = {}
    for each in site.flow.uses_of(call).uses:
        parent = site.parent(each.node)
        if each.kind is UseKind.ATTRIBUTE and isinstance(parent, cst.Attribute):
            found.setdefault(parent.attr.value, []).append(parent)
    return found


def _model(site: Site, group: Group, use: Use, config: edits.Arguments) -> None:
    """Build and move the model, and let it repeat activations as before."""
    call = use.call
    assert call is not None
    build = edits.with_arguments(call.with_changes(func=call.args[1].value), call.args[2:])
    group.replace(call, edits.expression('{model}.to("neuron")', model=build))
    for name, attributes in _attributes(site, call).items():
        for attribute in attributes if name in OF_MODELS else ():
            called = site.parent(attribute)
            if isinstance(called, cst.Call) and called.func is attribute and not called.args:
                group.replace(called, attribute.value)
    for attribute in _attributes(site, call).get(TRAINS, ()):
        _train(site, group, attribute)
    chosen = config.value("activation_checkpoint_config")
    line = _line(site, call)
    assert line is not None
    model = _target(site, call)
    if chosen is not None and edits.code_of(chosen) != "None":
        predicate, holes = _predicate(chosen, 0)
        new = group.statements(
            f"{CHECKPOINTING}({{model}}, check_fn=lambda module: {predicate})\n",
            model=model.deep_clone(),
            model_0=model.deep_clone(),
            **{key: value.deep_clone() for key, value in holes.items()},
        )
        group.insert(line, new, before=False)
    todo = []
    started = config.value("model_init_config")
    if started is not None and edits.code_of(started) != "None":
        todo.append(
            'it is built on the CPU in one piece: build it under `torch.device("meta")` where it was before'
        )
    parallel = config.value("sequence_parallel")
    if parallel is not None and edits.code_of(parallel) != "False":
        todo.append(
            "norms that see a part of the sequence need `SequenceParallel()` in a plan: the gradients of "
            "their weights were summed over the tensor parallel processes"
        )
    why = "the model is built by its own function, and its layers shard themselves"
    if todo:
        group.review(call, use.name, why, "; ".join(todo))
    else:
        group.fixed(call, use.name, why)


def _train(site: Site, group: Group, attribute: cst.Attribute) -> None:
    """Run the two passes one after the other."""
    passes = _passes(site, attribute)
    assert passes is not None
    call, loss = passes
    forward = call.with_changes(func=attribute.value)
    if loss is None:
        group.replace(call, edits.expression("{forward}.backward()", forward=forward))
        return
    line = _line(site, call)
    assert line is not None
    group.replace(call, forward)
    group.insert(line, group.statements("{loss}.backward()\n", loss=cst.Name(loss.value)), before=False)


def _predicate(chosen: cst.BaseExpression, number: int) -> tuple[str, dict[str, cst.BaseExpression]]:
    """The test, as a template, whether a module repeats its activations."""
    if isinstance(chosen, cst.IfExp):
        one, holes = _predicate(chosen.body, 2 * number + 1)
        other, more = _predicate(chosen.orelse, 2 * number + 2)
        key = f"test_{number}"
        return f"({one} if {{{key}}} else {other})", {**holes, **more, key: chosen.test}
    if edits.code_of(chosen).strip("\"'") == "full":
        return "type(module).__name__ in {model_0}._no_split_modules", {}
    if edits.code_of(chosen) == "None":
        return "False", {}
    key = f"classes_{number}"
    classes = f"tuple({{{key}}})" if isinstance(chosen, cst.List) else f"{{{key}}}"
    return f"isinstance(module, {classes})", {key: chosen}


def _optimizer(site: Site, group: Group, use: Use, config: edits.Arguments) -> None:
    """Make the plain optimizer, and let a hook average and clip before each step."""
    call = use.call
    assert call is not None
    inner, params, *rest = call.args[1:]
    name = site.name_of(inner.value) or ""
    args = [params, *rest]
    todo = []
    if name.startswith("torch.optim.") and targets.accepts(name, "foreach"):
        args.append(edits.keyword("foreach", cst.Name("False")))
    else:
        todo.append(
            "give it `foreach=False` where it takes that: sharded parameters and plain ones do not go "
            "together"
        )
    group.replace(call, edits.with_arguments(call.with_changes(func=inner.value), args))
    options = config.value("optimizer_config")
    entries = {} if options is None else dictionary(site, options) or {}
    clipping, norm = entries.get("grad_clipping"), entries.get("max_grad_norm", cst.Float("1.0"))
    text = "True" if clipping is None else edits.code_of(clipping)
    if text == "False":
        norm = cst.Name("None")
    elif text != "True" and clipping is not None:
        norm = edits.expression(
            "{norm} if {clipping} else None", norm=norm.deep_clone(), clipping=clipping.deep_clone()
        )
    line = _line(site, call)
    assert line is not None
    new = group.statements(
        "{target}.register_step_pre_hook("
        "lambda optimizer, *_: {hook}(optimizer, {norm}, {part}.get_group()))\n",
        target=_target(site, call).deep_clone(),
        hook=average_within_helper(group),
        norm=norm.deep_clone(),
        part=dimension_of(site, group, "dp"),
    )
    group.insert(line, new, before=False)
    zero = entries.get("zero_one_enabled")
    if zero is not None and edits.code_of(zero) != "False":
        todo.append(
            "ZeRO-1 kept float32 copies of bfloat16 weights and shards of its state: keep the weights in "
            "float32 under autocast, and shard with `fully_shard` where memory is short"
        )
    why = "a hook averages the gradients and clips them before each step, as the old step did"
    if todo:
        group.review(call, use.name, why, "; ".join(todo), numerics=Numerics.REORDERED)
    else:
        group.fixed(call, use.name, why, numerics=Numerics.REORDERED)
