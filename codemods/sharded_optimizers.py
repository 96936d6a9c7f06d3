"""Optimizers of ZeRO-1: `ZeroRedundancyOptimizer` of torch_xla and `NeuronZero1Optimizer` of NxD.

The old step averaged the gradients, clipped them to a norm of 1.0 unless told otherwise, and updated the
own shard. `torch.distributed.optim.ZeroRedundancyOptimizer` shards the update alone, so a hook that runs
before each of its steps averages and clips, wherever the step is called. Where the groups of NxD limit
the sharding, whose parameters a plan shards already, the plain optimizer takes its place with the same
hook: the numbers stay, the memory that ZeRO-1 saved does not.

The float32 copies of bfloat16 weights that the old one kept have no counterpart: that is a review. Marked
are optimizers that are started later, looked into or saved by shards, and those that are not assigned.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits, targets
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.flow import UseKind
from neuronmigrate.helpers import average_within_helper
from neuronmigrate.meshes import GETTERS, dimension_of, dimension_of_groups, mesh_of, process_group_of
from neuronmigrate.plan import Numerics
from neuronmigrate.processes import Group as ProcessGroup
from neuronmigrate.processes import group_at
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

XLA = "torch_xla.distributed.zero_redundancy_optimizer.ZeroRedundancyOptimizer"
NXD = (
    "neuronx_distributed.optimizer.NeuronZero1Optimizer",
    "neuronx_distributed.optimizer.zero_redundancy_optimizer.NeuronZero1Optimizer",
)
NATIVE = "torch.distributed.optim.ZeroRedundancyOptimizer"
OWN = (
    *("params", "optimizer_class", "optimizer_dtype", "grad_clipping", "max_norm", "pin_layout"),
    *("sharding_groups", "grad_norm_groups", "lazy_init", "bucket_cap_mb_all_gather"),
    *("bucket_cap_mb_reduce_scatter", "use_grad_acc_hook", "save_master_weights", "higher_cc_precision"),
)
"""Parameters of the old class (torch_xla 2.9); all others went to the optimizer inside."""
INSIDE = frozenset(
    {
        *("allgather_weights_and_update_full_parameter", "base_optimizer", "grad_norm", "init_zero"),
        *("load_sharded_state_dict", "save_sharded_state_dict", "sharding_groups"),
    }
)
"""Attributes that only the old class had."""
BY_HAND = (
    "use `torch.distributed.optim.ZeroRedundancyOptimizer`, average the gradients before each step, and clip "
    "them to 1.0, which the old one did by default"
)
MASTERS = (
    "it kept float32 copies of the weights: where the model is in bfloat16, keep it in float32 and use "
    "autocast; checkpoints of the old one hold shards"
)
GATHER = "call its `consolidate_state_dict(to=rank)` on every process before `state_dict()` is asked for"
FOREACH = "give it `foreach=False` where it takes that: sharded parameters and plain ones do not go together"
MEMORY = "each process holds the whole state of its optimizer now: `fully_shard` would shard it"
AVERAGE = '''\
def {name}(optimizer, max_norm):
    """Average the gradients over all processes and clip them by their norm, as each step of ZeRO-1 did."""
    params = [param for each in optimizer.param_groups for param in each["params"] if param.grad is not None]
    for param in params:
        torch.distributed.all_reduce(param.grad)
        param.grad.div_(torch.distributed.get_world_size())
    if max_norm is not None:
        torch.nn.utils.clip_grad_norm_(params, max_norm)
'''


@codemod.uses([XLA, *NXD])
def decide(site: Site, use: Use) -> None:
    """Make the native optimizer, and let a hook do what the old step did besides."""
    call = use.call
    if call is None or use.method:
        site.mark(use.chain, use.name, "the class itself is looked at or passed on", BY_HAND)
        return
    bound = edits.arguments(call, OWN)
    why = _refusal(site, use, call, bound)
    if why:
        site.mark(call, use.name, why, BY_HAND)
        return
    params, inner = bound.value("params"), bound.value("optimizer_class")
    assert params is not None and inner is not None
    group = site.group(use)
    rest = [arg for arg in call.args if arg.keyword and arg.keyword.value not in (*OWN, "capturable")]
    groups = bound.value("sharding_groups")
    within = None if groups is None else process_group_of(site, group, groups)
    if use.claim in NXD and within is None:
        within = edits.expression("{part}.get_group()", part=dimension_of(site, group, "dp"))
    norm = _max_norm(bound)
    todo = [MASTERS]
    first = edits.positional(bound.by_name["params"])
    if within is None:
        new = call.with_changes(func=group.ref(NATIVE))
        args = [first, edits.positional(bound.by_name["optimizer_class"]), *rest]
        hook = group.helper("average_and_clip", AVERAGE)
        holes = {"hook": hook, "norm": norm}
        lambda_ = "lambda optimizer, *_: {hook}(optimizer, {norm})"
    else:
        new = call.with_changes(func=inner)
        args = [first, *rest]
        name = site.name_of(inner) or ""
        if name.startswith("torch.optim.") and targets.accepts(name, "foreach"):
            args.append(edits.keyword("foreach", cst.Name("False")))
        else:
            todo.append(FOREACH)
        hook = average_within_helper(group)
        holes = {"hook": hook, "norm": norm, "within": within}
        lambda_ = "lambda optimizer, *_: {hook}(optimizer, {norm}, {within})"
    group.replace(call, edits.with_arguments(new, args))
    _register(site, group, call, lambda_, holes)
    for key in OWN[2:]:
        value = bound.value(key)
        if value is not None and key not in ("grad_clipping", "max_norm", "sharding_groups"):
            site.settled.update(each for each in site.uses if each.call is value and each.claim in GETTERS)
            forget(site, value)
    _tell(site, group, use, call, todo, within is not None)


def _refusal(site: Site, use: Use, call: cst.Call, bound: edits.Arguments) -> str:
    """Why an optimizer stays as it is."""
    if any(arg.star == "*" for arg in call.args) or not {"params", "optimizer_class"} <= bound.by_name.keys():
        return "its arguments cannot be seen from here"
    if any(arg.star for arg in call.args):
        return "its arguments come from a dictionary, which may hold those of the old class"
    assign = site.parent(call)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1 or len(_line(site, assign).body) != 1:
        return "it is not assigned to a name in a statement of its own"
    lazy = bound.value("lazy_init")
    if lazy is not None and edits.code_of(lazy) != "False":
        return "it is started later, once the model is cut into stages"
    groups = bound.value("sharding_groups")
    if groups is not None and edits.code_of(groups) != "None" and not dimension_of_groups(site, groups):
        return f"it shards within `{edits.short(groups)}`"
    if (use.claim in NXD or groups is not None) and mesh_of(site).refused:
        return f"there is no device mesh in this file: {mesh_of(site).refused}"
    for each in _attributes(site, call):
        if each in INSIDE:
            return f"its attribute `{each}` is used, which the native one has not"
    return ""


def _line(site: Site, assign: cst.Assign) -> cst.SimpleStatementLine:
    line = site.parent(assign)
    return line if isinstance(line, cst.SimpleStatementLine) else cst.SimpleStatementLine([])


def _attributes(site: Site, call: cst.Call) -> set[str]:
    """The attributes of an optimizer that the file reads."""
    found = set()
    for each in site.flow.uses_of(call).uses:
        parent = site.parent(each.node)
        if each.kind is UseKind.ATTRIBUTE and isinstance(parent, cst.Attribute):
            found.add(parent.attr.value)
    return found


def _max_norm(bound: edits.Arguments) -> cst.BaseExpression:
    """The norm that gradients are clipped to; None where they are not."""
    clipping, norm = bound.value("grad_clipping"), bound.value("max_norm")
    if norm is None or edits.code_of(norm) == "None":
        norm = cst.Float("1.0")
    text = "True" if clipping is None else edits.code_of(clipping)
    if text in ("True", "False") or clipping is None:
        return norm if text == "True" else cst.Name("None")
    return edits.expression("{norm} if {clipping} else None", norm=norm, clipping=clipping)


def _register(
    site: Site, group: Group, call: cst.Call, hook: str, holes: dict[str, cst.BaseExpression]
) -> None:
    """Register the hook right after the optimizer is made."""
    assign = site.parent(call)
    assert isinstance(assign, cst.Assign)
    target = assign.targets[0].target.deep_clone()
    template = "{target}.register_step_pre_hook(" + hook + ")\n"
    new = group.statements(
        template, target=target, **{key: value.deep_clone() for key, value in holes.items()}
    )
    group.insert(_line(site, assign), new, before=False)


def _tell(site: Site, group: Group, use: Use, call: cst.Call, todo: list[str], within: bool) -> None:
    if within:
        todo.append(MEMORY)
        why = "a hook averages and clips before each step of the plain optimizer"
        todo += [mesh_of(site).todo] if mesh_of(site).todo else []
    else:
        why = "torch shards the update, and a hook averages and clips before each step"
        if "state_dict" in _attributes(site, call):
            todo.append(GATHER)
        if group_at(site, call) is ProcessGroup.ABSENT:
            todo.append("start the process group before it is made")
    group.review(call, use.name, why, "; ".join(todo), numerics=Numerics.SHARDING)
