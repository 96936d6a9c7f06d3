"""FSDP of torch_xla: `XlaFullyShardedDataParallel` and `checkpoint_module`.

The old class wrapped a model. `fully_shard` shards it in place and gives it back, so its class, its names
and its methods stay; layers that an `auto_wrap_policy` chose are sharded first, by a helper. The dtypes
become a `MixedPrecisionPolicy`, `reshard_after_forward` keeps its name, and what only concerned the lazy
graph goes. `model.clip_grad_norm_(...)` becomes torch's function, `model.module` the model itself, and
`isinstance(model, FSDP)` asks for `FSDPModule`. Gradients are averaged as before.

Marked are groups of their own, policies by size, wrappers and initializers that nobody knows, arguments
from a dictionary, and the hierarchical MiCS; what is left of the old methods is told.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.flow import UseKind
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

FSDP = "torch_xla.distributed.fsdp"
CLASSES = (
    f"{FSDP}.XlaFullyShardedDataParallel",
    f"{FSDP}.xla_fully_sharded_data_parallel.XlaFullyShardedDataParallel",
)
CHECKPOINT = (f"{FSDP}.checkpoint_module", f"{FSDP}.utils.checkpoint_module")
NATIVE = "torch.distributed.fsdp.fully_shard"
PARAMETERS = (
    *("module", "reshard_after_forward", "flatten_parameters", "execute_sharding_on_init"),
    *("optimization_barrier_in_forward", "optimization_barrier_in_backward", "sync_on_finalization"),
    *("disable_reshard_on_root", "compute_dtype", "buffer_dtype", "fp32_reduce_scatter", "sharding_groups"),
    *("sharding_rank", "sharding_world_size", "shard_param_on_dim_0", "pin_layout_in_collective_ops"),
    *("reduce_scatter_bucket_size_mb", "coalesce_all_gather_ops", "auto_wrap_policy"),
    *("auto_wrapper_callable", "param_init_fn"),
)
"""In the order of torch_xla 2.9."""
OLD_PARAMETERS = frozenset({"mark_step_on_finalization"})
"""What earlier releases took besides."""
REFUSED = ("sharding_groups", "sharding_rank", "sharding_world_size", "param_init_fn")
TRANSFORMER = f"{FSDP}.wrap.transformer_auto_wrap_policy"
BY_LAMBDA = f"{FSDP}.wrap.lambda_auto_wrap_policy"
BY_HAND = "call `fully_shard` on each block of layers, then on the model"
WHY = "the model is sharded in place, and its gradients are averaged in the backward pass as before"
STATE = (
    "its state dict holds DTensors: save it with `torch.distributed.checkpoint`, or whole with "
    "`get_model_state_dict`; checkpoints of the old class are shards of one process each"
)
LEFT = {
    "all_reduce_op": "`all_reduce_op` is not there: norms of DTensors are over all shards already",
    "get_shard_metadata": "`get_shard_metadata` is not there: a sharded checkpoint tells what belongs where",
    "no_sync": "`no_sync()` is not there: `set_requires_gradient_sync(False)` skips the average",
    "params_with_grad": "`params_with_grad` is not there: look at `parameters()`",
    "set_gradient_divide_factors": "`set_gradient_divide_factors` is `set_gradient_divide_factor` now",
}
SHARD = '''\
def {name}(model, is_unit, **options):
    """Shard each module that is a unit of its own, the inner ones first, then the model around them."""
    for module in reversed(list(model.modules())):
        if module is not model and is_unit(module):
            torch.distributed.fsdp.fully_shard(module, **options)
    return torch.distributed.fsdp.fully_shard(model, **options)
'''
SHARD_CHECKPOINTED = '''\
def {name}(model, is_unit, **options):
    """Shard each module that is a unit of its own, whose forward pass is repeated in the backward pass."""
    for module in reversed(list(model.modules())):
        if module is not model and is_unit(module):
            torch.distributed.fsdp.fully_shard({checkpoint}(module), **options)
    return torch.distributed.fsdp.fully_shard(model, **options)
'''
CHECKPOINT_MODULE = '''\
def {name}(module):
    """Let a module drop what its forward pass keeps, and repeat that pass in the backward pass."""
    forward = module.forward

    def checkpointed(*args, **kwargs):
        return torch.utils.checkpoint.checkpoint(forward, *args, use_reentrant=False, **kwargs)

    module.forward = checkpointed
    return module
'''


@codemod.uses(CHECKPOINT)
def decide_checkpoint(site: Site, use: Use) -> None:
    """Repeat the forward pass of a module in its backward pass, by a helper."""
    if use.method:
        site.mark(use.chain, use.name, "more than the function is meant", "use `torch.utils.checkpoint`")
        return
    group = site.group(use)
    group.replace(use.chain, group.helper("with_checkpointing", CHECKPOINT_MODULE))
    group.fixed(use.whole, use.name, "a helper does the same with `torch.utils.checkpoint`")


@codemod.uses(CLASSES)
def decide(site: Site, use: Use) -> None:
    """Shard the model in place."""
    call = use.call
    if call is None or use.method:
        _class_itself(site, use)
        return
    bound = edits.arguments(call, PARAMETERS)
    why = _refusal(bound)
    units = "" if why else _units(site, bound)
    if why or units is None:
        site.mark(call, use.name, why or "which layers are sharded on their own cannot be seen", BY_HAND)
        return
    group = site.group(use)
    options = _options(site, group, bound)
    module = bound.value("module")
    assert module is not None
    args = [edits.positional(bound.by_name["module"])]
    policy = bound.value("auto_wrap_policy")
    if policy is None or edits.code_of(policy) == "None":
        new = call.with_changes(func=group.ref(NATIVE))
        site.keywords += [(NATIVE, each.keyword.value) for each in options if each.keyword is not None]
    else:
        args.append(cst.Arg(_predicate(site, group, policy)))
        wrapper = bound.value("auto_wrapper_callable")
        if wrapper is not None:
            _settle(site, wrapper)
        new = call.with_changes(func=_sharding_helper(site, group, bound))
    group.replace(call, edits.with_arguments(new, [*args, *options]))
    for name, arg in bound.by_name.items():
        if name not in ("module", "auto_wrap_policy", "compute_dtype", "reshard_after_forward"):
            forget(site, arg.value)
    todo = _uses(site, group, call)
    buffers = bound.value("buffer_dtype")
    if buffers is not None and edits.code_of(buffers) != "None":
        todo.append(f"cast its buffers to `{edits.short(buffers)}` by hand")
    if todo:
        group.review(call, use.name, WHY, "; ".join(todo), numerics=Numerics.SHARDING)
    else:
        group.fixed(call, use.name, WHY, numerics=Numerics.SHARDING)


def _class_itself(site: Site, use: Use) -> None:
    """`isinstance(model, FSDP)` asks for the class that sharded models get."""
    arg = site.parent(use.chain)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or site.name_of(call.func) != "builtins.isinstance" or use.method:
        site.mark(use.chain, use.name, "the class itself is looked at or passed on", BY_HAND)
        return
    group = site.group(use)
    group.replace(use.chain, group.ref("torch.distributed.fsdp.FSDPModule"))
    group.fixed(use.chain, use.name, "a model that `fully_shard` sharded is one of these")


def _refusal(bound: edits.Arguments) -> str:
    """Why a model stays as it is."""
    extra = [
        arg
        for arg in bound.extra
        if arg.keyword is None
        or not (arg.keyword.value.startswith("_") or arg.keyword.value in OLD_PARAMETERS)
    ]
    if bound.spread or extra or "module" not in bound.by_name:
        return "its arguments cannot be seen from here"
    for name in REFUSED:
        value = bound.value(name)
        if value is not None and edits.code_of(value) != "None":
            return f"`{name}` has no counterpart"
    return ""


def _units(site: Site, bound: edits.Arguments) -> str | None:
    """Whether what is sharded on its own is known; None where it is not."""
    policy, wrapper = bound.value("auto_wrap_policy"), bound.value("auto_wrapper_callable")
    if wrapper is not None and edits.code_of(wrapper) != "None" and not _checkpoints(site, wrapper):
        return None
    if policy is None or edits.code_of(policy) == "None":
        return ""
    return None if _chosen(site, policy) is None else ""


def _partial(site: Site, policy: cst.BaseExpression) -> cst.Call | None:
    """The call of `functools.partial` that makes a policy."""
    if not isinstance(policy, cst.Call):
        made = site.flow.origin_of(policy)
        nodes = [each.node for each in made.producers]
        if not made.certain or len(nodes) != 1 or not isinstance(nodes[0], cst.Call):
            return None
        policy = nodes[0]
    return policy if site.name_of(policy.func) == "functools.partial" and policy.args else None


def _chosen(site: Site, policy: cst.BaseExpression) -> tuple[str, cst.BaseExpression] | None:
    """The kind of a policy, and what it chooses by."""
    made = _partial(site, policy)
    if made is None:
        return None
    kind = site.name_of(made.args[0].value) or ""
    key = {TRANSFORMER: "transformer_layer_cls", BY_LAMBDA: "lambda_fn"}.get(kind)
    given = {arg.keyword.value: arg.value for arg in made.args if arg.keyword is not None}
    if key is None or set(given) != {key} or len(made.args) != 2:
        return None
    return kind, given[key]


def _checkpoints(site: Site, wrapper: cst.BaseExpression) -> bool:
    """Whether a wrapper is `lambda m, *args, **kwargs: FSDP(checkpoint_module(m), *args, **kwargs)`."""
    if not isinstance(wrapper, cst.Lambda) or not isinstance(wrapper.body, cst.Call):
        return False
    body = wrapper.body
    inner = body.args[0].value if body.args else None
    return (
        site.name_of(body.func) in CLASSES
        and isinstance(inner, cst.Call)
        and site.name_of(inner.func) in CHECKPOINT
        and [arg.star for arg in body.args[1:]] == ["*", "**"]
    )


def _predicate(site: Site, group: Group, policy: cst.BaseExpression) -> cst.BaseExpression:
    """A function that tells whether a module is sharded on its own, made where the policy was."""
    made, chosen = _partial(site, policy), _chosen(site, policy)
    assert made is not None and chosen is not None
    kind, by = chosen
    _settle(site, made)
    forget(site, made.func)
    if kind == BY_LAMBDA:
        new = by
    else:
        classes = by
        if isinstance(by, cst.Set):
            names = [cst.Element(each.value) for each in by.elements]
            parentheses = {"lpar": [cst.LeftParen()], "rpar": [cst.RightParen()]}
            classes = names[0].value if len(names) == 1 else cst.Tuple(names).with_changes(**parentheses)
        elif not isinstance(by, cst.Tuple):
            classes = edits.expression("tuple({classes})", classes=by)
        new = group.expression("lambda module: isinstance(module, {classes})", classes=classes)
    if made is policy:
        return new
    replaced = site.notes.setdefault(codemod.name, set())
    if made not in replaced:
        replaced.add(made)
        group.replace(made, new)
    return policy


def _settle(site: Site, region: cst.BaseExpression) -> None:
    """Nobody else answers for the names in code that is written anew."""
    site.settled.update(
        use for use in site.uses if use.claim.startswith(FSDP) and region in site.ancestors(use.node)
    )


def _sharding_helper(site: Site, group: Group, bound: edits.Arguments) -> cst.Name:
    wrapper = bound.value("auto_wrapper_callable")
    if wrapper is None or edits.code_of(wrapper) == "None":
        return group.helper("shard_units", SHARD)
    checkpoint = group.helper("with_checkpointing", CHECKPOINT_MODULE)
    return group.helper("shard_checkpointed_units", SHARD_CHECKPOINTED, checkpoint=checkpoint)


def _options(site: Site, group: Group, bound: edits.Arguments) -> list[cst.Arg]:
    """The arguments of `fully_shard`."""
    options = []
    reshard, on_root = bound.value("reshard_after_forward"), bound.value("disable_reshard_on_root")
    if reshard is not None and edits.code_of(reshard) != "True":
        options.append(edits.keyword("reshard_after_forward", reshard))
    elif on_root is not None and edits.code_of(on_root) == "False":
        options.append(edits.keyword("reshard_after_forward", cst.Name("True")))
    dtype = bound.value("compute_dtype")
    if dtype is not None and edits.code_of(dtype) != "None" and site.name_of(dtype) != "torch.float32":
        full = bound.value("fp32_reduce_scatter")
        template = "torch.distributed.fsdp.MixedPrecisionPolicy(param_dtype={dtype}"
        holes = {"dtype": dtype}
        if full is not None and edits.code_of(full) == "True":
            template += ", reduce_dtype=torch.float32"
        elif full is not None and edits.code_of(full) != "False":
            template += ", reduce_dtype=torch.float32 if {full} else None"
            holes["full"] = full
        options.append(edits.keyword("mp_policy", group.expression(template + ")", **holes)))
    return options


def _uses(site: Site, group: Group, call: cst.Call) -> list[str]:
    """Rewrite what the file does with a sharded model, and tell what is left of the old class."""
    todo: dict[str, None] = {}
    for each in site.flow.uses_of(call).uses:
        around = site.parent(each.node)
        if each.kind is not UseKind.ATTRIBUTE or not isinstance(around, cst.Attribute):
            continue
        name = around.attr.value
        called = site.parent(around)
        if name == "module" and isinstance(each.node, (cst.Name, cst.Attribute)):
            group.replace(around, each.node)
        elif name == "clip_grad_norm_" and isinstance(called, cst.Call) and called.func is around:
            if any(arg.star or (arg.keyword and arg.keyword.value == "groups") for arg in called.args):
                todo["`clip_grad_norm_` is not there: use that of `torch.nn.utils`"] = None
                continue
            parameters = edits.expression("{model}.parameters()", model=each.node)
            clip = called.with_changes(func=group.ref("torch.nn.utils.clip_grad_norm_"))
            new: cst.BaseExpression = edits.with_arguments(clip, [cst.Arg(parameters), *called.args])
            if site.alone(called) is None:
                new = edits.expression("{norm}.full_tensor()", norm=new)
            group.replace(called, new)
        elif name in LEFT:
            todo[LEFT[name]] = None
        elif name == "state_dict":
            todo[STATE] = None
    return list(todo)
