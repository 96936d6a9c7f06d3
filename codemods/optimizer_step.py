"""Optimizer steps of torch_xla, such as `xm.optimizer_step(optimizer)` and `xm.reduce_gradients()`.

The old step averaged the gradients over all processes, stepped, and cut the lazy graph. Natively nobody
averages unasked. Where DistributedDataParallel, FSDP or Accelerate does, and in a program of one process,
`optimizer.step()` is left. Elsewhere a helper `average_gradients(optimizer)`, written once per file, sums
the gradients and divides by the number of processes where the old step did it, so that clipping keeps
its place; without a process group it returns at once. `optimizer_args` become arguments of the step.

Within `groups` the old step divided by the whole world all the same, and so does the helper for those
that NxD listed, which are a group of the device mesh.

Marked are other lists of ranks, and functions that are passed on instead of called.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.clocks import synchronize_clocks
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.meshes import dimension_of_groups, process_group_of
from neuronmigrate.plan import Numerics
from neuronmigrate.processes import runs_alone
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

STEP = "torch_xla.core.xla_model.optimizer_step"
REDUCE = "torch_xla.core.xla_model.reduce_gradients"
PARAMETERS = {
    STEP: ("optimizer", "barrier", "optimizer_args", "groups", "pin_layout"),
    REDUCE: ("optimizer", "groups", "pin_layout"),
}

AVERAGES = {
    "torch.distributed._composable.fsdp.fully_shard": "FSDP",
    "torch.distributed.fsdp.FullyShardedDataParallel": "FSDP",
    "torch.distributed.fsdp.fully_shard": "FSDP",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "FSDP",
    "torch.nn.parallel.DistributedDataParallel": "DistributedDataParallel",
    "torch.nn.parallel.distributed.DistributedDataParallel": "DistributedDataParallel",
    "torch_neuronx.distributed.fsdp_mics.XlaFullyShardedDataParallelMiCS": "FSDP",
    "torch_xla.distributed.fsdp.XlaFullyShardedDataParallel": "FSDP",
}
"""What averages gradients in the backward pass, and the name people know it by."""
ACCELERATORS = frozenset({"accelerate.Accelerator", "accelerate.accelerator.Accelerator"})
ZERO = (
    "neuronx_distributed.optimizer.",
    "torch_xla.distributed.zero_redundancy_optimizer.",
)
HELPER = '''\
def {name}(optimizer):
    """Average the gradients over all processes; without a process group there is nothing to do."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return
    for param_group in optimizer.param_groups:
        for param in param_group["params"]:
            if param.grad is not None:
                torch.distributed.all_reduce(param.grad)
                param.grad.div_(torch.distributed.get_world_size())
'''
WITHIN_HELPER = '''\
def {name}(optimizer, group):
    """Sum the gradients over a group, and divide by the number of all processes, as torch_xla did."""
    for param_group in optimizer.param_groups:
        for param in param_group["params"]:
            if param.grad is not None:
                gradient = param.grad.to_local() if hasattr(param.grad, "to_local") else param.grad
                torch.distributed.all_reduce(gradient, group=group)
                gradient.div_(torch.distributed.get_world_size())
'''
STEP_HELPER = '''\
def {name}(optimizer, **arguments):
    """Average the gradients over all processes, then step."""
    {reduce}(optimizer)
    return optimizer.step(**arguments)
'''
CLIPS = frozenset({"torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_"})
CUT = "the native device runs each operation when it is called, so only the step itself is left"
GROUPS_TODO = (
    "let every process create all groups with `dist.new_group(ranks)`, all-reduce each `param.grad` over its "
    "own one, and divide by `dist.get_world_size()`: by the size of the group the gradients would be larger"
)


@codemod.uses(PARAMETERS)
def decide(site: Site, use: Use) -> None:
    """Write the step, with whatever averages the gradients."""
    call = use.call
    if call is None or use.method:
        todo = (
            "pass a function that averages the gradients with `dist.all_reduce` and calls `optimizer.step()`"
        )
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(call, PARAMETERS[use.claim])
    optimizer = bound.value("optimizer")
    if optimizer is None or bound.spread or bound.extra:
        site.mark(call, use.name, "its arguments cannot be seen from here", "write `optimizer.step()`")
        return
    groups = bound.value("groups")
    if groups is not None and edits.code_of(groups) not in ("None", "[]"):
        _step_within(site, use, call, bound, groups)
        return
    alone = site.alone(call)
    if use.claim == REDUCE and alone is None:
        site.mark(
            call,
            use.name,
            "its result is used, which was never anything",
            "call it in a statement of its own",
        )
        return
    zero = _reduces_itself(site, optimizer)
    who, todo = (f"a {zero} averages by itself", "") if zero else _who_averages(site, optimizer)
    group = site.group(use)
    _write(site, group, use, call, optimizer, who, bound.value("optimizer_args"))
    for name in ("barrier", "pin_layout"):
        value = bound.value(name)
        if value is not None:
            forget(site, value)
    why = f"{who}: {CUT}" if who else f"a helper averages the gradients over all processes as before; {CUT}"
    if use.claim == REDUCE:
        why = who or "a helper averages the gradients over all processes as before"
    clocks = synchronize_clocks(site, group, call)
    clip = _clip_before(site, call) if who else ""
    if clip and "Accelerate" in who:
        todo = f"{clip} saw the gradients of one process, and sees their averages now: they are smaller"
    elif clip and "averages" in who:
        why += f"; {clip} sees the averages, as it did"
    left = "; ".join(each for each in (todo, clocks) if each)
    numerics = Numerics.SAME if who.startswith("one process") else Numerics.REORDERED
    if left:
        group.review(call, use.name, why, left, numerics=numerics)
    else:
        group.fixed(call, use.name, why, numerics=numerics)


def _step_within(
    site: Site, use: Use, call: cst.Call, bound: edits.Arguments, groups: cst.BaseExpression
) -> None:
    """Average within the groups that the parallel state of NxD listed."""
    optimizer = bound.value("optimizer")
    alone = site.alone(call)
    line = _own_line(site, call)
    known = dimension_of_groups(site, groups) and alone is not None and line is not None
    if not known or optimizer is None or not edits.is_pure(optimizer) or _reduces_itself(site, optimizer):
        site.mark(call, use.name, f"it reduces within `{edits.short(groups)}`", GROUPS_TODO)
        return
    group = site.group(use)
    within = process_group_of(site, group, groups)
    assert alone is not None and within is not None
    reduce = group.helper("average_gradients_within", WITHIN_HELPER)
    holes = {"average": reduce, "optimizer": optimizer.deep_clone(), "within": within}
    new = edits.statements("{average}({optimizer}, {within})\n", site.module, **holes)
    if use.claim == STEP:
        step = edits.expression("{optimizer}.step()", optimizer=optimizer)
        assert isinstance(step, cst.Call)
        step = edits.with_arguments(step, _step_arguments(bound.value("optimizer_args")))
        new.append(cst.SimpleStatementLine([cst.Expr(step)]))
    group.replace_statement(alone, new)
    why = "a helper sums the gradients over the group of the mesh"
    todo = (
        "it divides by the number of all processes, as torch_xla did, not by that of the group: the "
        "gradients are smaller than their average where tensor parallelism is used"
    )
    group.review(call, use.name, why, todo, numerics=Numerics.REORDERED)


def _write(
    site: Site,
    group: Group,
    use: Use,
    call: cst.Call,
    optimizer: cst.BaseExpression,
    who: str,
    given: cst.BaseExpression | None,
) -> None:
    alone = site.alone(call)
    if use.claim == REDUCE:
        assert alone is not None
        if who:
            group.replace_statement(alone)
        else:
            group.replace(call, edits.expression("{reduce}({optimizer})", **_parts(group, optimizer)))
        return
    step = edits.expression("{optimizer}.step()", optimizer=optimizer)
    assert isinstance(step, cst.Call)
    step = edits.with_arguments(step, _step_arguments(given))
    line = _own_line(site, call)
    if who:
        group.replace(call, step)
    elif line is not None and edits.is_pure(optimizer):
        parts = _parts(group, optimizer.deep_clone())
        group.replace(call, step)
        group.insert(line, edits.statements("{reduce}({optimizer})\n", site.module, **parts))
    else:
        # Where no statement can be put before it, or the optimizer is worked out, one function does both.
        both = group.helper("average_and_step", STEP_HELPER, reduce=_parts(group, optimizer)["reduce"])
        args = [cst.Arg(optimizer), *_step_arguments(given)]
        group.replace(call, edits.with_arguments(call.with_changes(func=both), args))


def _parts(group: Group, optimizer: cst.BaseExpression) -> dict[str, cst.BaseExpression]:
    return {
        "reduce": group.helper("average_gradients", HELPER, shim="reduce_gradients"),
        "optimizer": optimizer,
    }


def _step_arguments(given: cst.BaseExpression | None) -> list[cst.Arg]:
    """`optimizer_args={"closure": c}` as arguments of `step()`."""
    if given is None or edits.code_of(given) in ("None", "{}", "dict()"):
        return []
    if isinstance(given, cst.Dict):
        pairs = [each for each in given.elements if isinstance(each, cst.DictElement)]
        keys = [each.key.evaluated_value for each in pairs if isinstance(each.key, cst.SimpleString)]
        if len(keys) == len(given.elements) and all(
            isinstance(key, str) and key.isidentifier() for key in keys
        ):
            return [edits.keyword(str(key), each.value) for key, each in zip(keys, pairs, strict=True)]
    return [cst.Arg(given, star="**")]


def _own_line(site: Site, call: cst.Call) -> cst.SimpleStatementLine | None:
    """The line before which a statement can be put, so that it runs just before the call."""
    line: cst.SimpleStatementLine | None = None
    for around in site.ancestors(call):
        if isinstance(around, (cst.Lambda, cst.IfExp, cst.BooleanOperation, cst.BaseComp)):
            return None
        if isinstance(around, cst.SimpleStatementLine):
            line = around
            break
        if isinstance(around, (cst.SimpleStatementSuite, cst.BaseCompoundStatement)):
            return None
    # What stands before it on the line, after a semicolon, would come too late.
    return line if line is not None and len(line.body) == 1 else None


def _reduces_itself(site: Site, optimizer: cst.BaseExpression) -> str:
    for producer in site.flow.origin_of(optimizer).producers:
        if producer.name.startswith(ZERO):
            return producer.name.partition("(")[0].rpartition(".")[2]
    return ""


def _who_averages(site: Site, optimizer: cst.BaseExpression) -> tuple[str, str]:
    """What averages the gradients, in words; empty when the helper has to. And what to look at."""
    wrappers = {call: AVERAGES[name] for name, call in _named_calls(site) if name in AVERAGES}
    about = _wrappers_of(site, optimizer, list(wrappers))
    if about:
        always = [wrappers[call] for call in about if not _is_conditional(site, call)]
        # Under `no_sync` the wrapper leaves the average to the old step.
        if always and (always[0] == "FSDP" or not any(name == ".no_sync" for name, _ in _methods(site))):
            return f"{always[0]} averages the gradients in the backward pass", ""
        if any(wrappers[call] == "FSDP" for call in about):
            return "", (
                f"where FSDP shards the model, call `{edits.short(optimizer)}.step()` alone: the processes "
                "hold different shards, and the average of those is none"
            )
        what = wrappers[about[0]]
        return "", f"where {what} is used the gradients are averaged already: the second time changes nothing"
    if any(name in ACCELERATORS for name, _ in _named_calls(site)):
        if any(
            name and name.endswith(".backward") and _is_accelerators(site, call)
            for name, call in _methods(site)
        ):
            return "Accelerate averages the gradients in `accelerator.backward()`", ""
        return "", "with `accelerator.backward(loss)` Accelerate averages, and this helper is not needed"
    if runs_alone(site):
        return "one process has nothing to average", ""
    return "", ""


def _clip_before(site: Site, call: cst.Call) -> str:
    """The call that clips gradients in the function of a step, above it."""
    function, line = site.names.function_of(call), site.positions.span(call).line
    for name, each in _named_calls(site):
        if name in CLIPS and site.names.function_of(each) is function:
            where = site.positions.span(each).line
            if where <= line:
                return f"`{name.rpartition('.')[2]}` in line {where}"
    return ""


def _named_calls(site: Site) -> list[tuple[str, cst.Call]]:
    return [(site.name_of(call.func) or "", call) for call in site.names.calls]


def _wrappers_of(site: Site, optimizer: cst.BaseExpression, wrappers: list[cst.Call]) -> list[cst.Call]:
    """The wrappers that may be about the model of an optimizer.

    What wraps the first network of a GAN does not average the gradients of the second.
    """
    models = [_model_of(each.node) for each in site.flow.origin_of(optimizer).producers]
    about: list[cst.Call] = []
    certain = bool(models)
    for model in models:
        if model is None:
            return wrappers
        made = site.flow.origin_of(model)
        code, makers = edits.code_of(model), {each.node for each in made.producers}
        found = [
            each
            for each in wrappers
            if each in makers or (each.args and edits.code_of(each.args[0].value) == code)
        ]
        certain = certain and (bool(found) or any(each.called for each in made.producers))
        about += found
    return about if certain else wrappers


def _model_of(maker: cst.CSTNode | None) -> cst.BaseExpression | None:
    """`model` in `torch.optim.SGD(model.parameters(), ...)`."""
    if not isinstance(maker, cst.Call) or not maker.args:
        return None
    params = maker.args[0].value
    func = params.func if isinstance(params, cst.Call) else None
    if isinstance(func, cst.Attribute) and func.attr.value == "parameters":
        return func.value
    return None


def _methods(site: Site) -> list[tuple[str, cst.Call]]:
    return [
        (f".{call.func.attr.value}", call)
        for call in site.names.calls
        if isinstance(call.func, cst.Attribute)
    ]


def _is_accelerators(site: Site, call: cst.Call) -> bool:
    assert isinstance(call.func, cst.Attribute)
    made = site.flow.origin_of(call.func.value).producers
    return any(each.called and each.name in ACCELERATORS for each in made)


def _is_conditional(site: Site, call: cst.Call) -> bool:
    """Whether a wrapper may be passed by."""
    return any(isinstance(each, (cst.If, cst.IfExp)) for each in site.ancestors(call))
