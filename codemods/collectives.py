"""Collectives of torch_xla: `xm.all_reduce`, `xm.all_gather`, `xm.mesh_reduce` and broadcasts.

Given a list, `xm.all_reduce` reduced in place, and `dist.all_reduce` for each tensor does the same. Given
a tensor it left that alone and returned a new one, which a helper does, written once per file: without a
process group it returns the copy at once, as the old function did in a single process. `xm.all_gather`
joined the parts along a dimension, `xm.reduce_scatter` kept one part of a sum, `xm.all_to_all` exchanged
parts, `xm.collective_permute` sent along pairs, and `xm.mesh_reduce` reduced Python data of all processes
on the host: helpers as well. Objects on the device's group are compiled anew for each size, which is said.

`groups` named the ranks of all groups at once. Where NxD listed them it is the group of the device mesh
that the parallel state became, else a helper makes the groups, once for each list.

Marked are lists of tensors and given outputs, a tensor whose reduction nobody uses, and broadcasts within
groups.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.helpers import to_cpu_helper
from neuronmigrate.meshes import process_group_of
from neuronmigrate.plan import Numerics
from neuronmigrate.processes import Group as ProcessGroup
from neuronmigrate.processes import group_at, is_on_first_alone
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

XM = "torch_xla.core.xla_model"
REDUCE = f"{XM}.all_reduce"
GATHER = f"{XM}.all_gather"
MESH = f"{XM}.mesh_reduce"
BROADCAST = f"{XM}.collective_broadcast"
EXCHANGE = f"{XM}.all_to_all"
MASTER = f"{XM}.broadcast_master_param"
PERMUTE = f"{XM}.collective_permute"
SCATTER = f"{XM}.reduce_scatter"
PARAMETERS = {
    GATHER: ("value", "dim", "groups", "output", "pin_layout"),
    BROADCAST: ("tensors", "root_ordinal", "groups", "pin_layout"),
    MASTER: ("model",),
    MESH: ("tag", "data", "reduce_fn"),
    REDUCE: ("reduce_type", "inputs", "scale", "groups", "cctx", "pin_layout"),
    EXCHANGE: ("value", "split_dimension", "concat_dimension", "split_count", "groups", "pin_layout"),
    PERMUTE: ("value", "pairs"),
    SCATTER: (
        *("reduce_type", "input", "scale", "scatter_dim", "shard_count", "groups", "output", "pin_layout"),
        *("channel_id", "use_global_device_ids"),
    ),
}
"""In the order of torch_xla/core/xla_model.py, 2.9."""
OPERATIONS = {
    "REDUCE_AND": "BAND",
    "REDUCE_MAX": "MAX",
    "REDUCE_MIN": "MIN",
    "REDUCE_MUL": "PRODUCT",
    "REDUCE_OR": "BOR",
    "REDUCE_SUM": "SUM",
}
CONSTANTS = [f"{XM}.{name}" for name in OPERATIONS]
GROUPS_TODO = "let every process create all groups with `dist.new_group(ranks)` and use its own one"
OBJECTS_TODO = (
    "the data travel as objects: on the device each size of them is compiled anew, so give them a group of "
    'their own, `dist.new_group(backend="gloo")`'
)

COUNT_TODO = "it makes as many parts as there are processes in the group: check that `{}` is that number"
WORLD_SIZES = frozenset(
    {
        f"{XM}.xrt_world_size",
        "torch.distributed.get_world_size",
        "torch_xla.runtime.world_size",
    }
)
ALONE_TODO = (
    "only the first process comes here, and a collective waits for all of them: move it out of the test"
)

ALL_REDUCE = '''\
def {name}(tensor, op=torch.distributed.ReduceOp.SUM, scale=1.0):
    """The reduction of a tensor over all processes, scaled, as a new tensor; one process has its own."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return tensor.clone()
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(result, op)
    return result if scale == 1 else result.mul_(scale)
'''
ALL_GATHER = '''\
def {name}(tensor, dim=0):
    """The tensors of all processes, joined along a dimension."""
    if not torch.distributed.is_initialized():
        return tensor
    tensor = tensor.detach().contiguous()
    parts = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, tensor)
    return torch.cat(parts, dim=dim)
'''
SUBGROUP = '''\
def {name}(groups, made={{}}):
    """The process group of this process among lists of ranks, which all processes make together, once."""
    if not torch.distributed.is_initialized():
        return None
    key = str(groups)
    if key not in made:
        made[key] = torch.distributed.new_subgroups_by_enumeration(groups)[0]
    return made[key]
'''
ALL_REDUCE_WITHIN = '''\
def {name}(tensor, op=torch.distributed.ReduceOp.SUM, scale=1.0, group=None):
    """The reduction of a tensor over the processes of a group, scaled, as a new tensor."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return tensor.clone()
    result = tensor.detach().clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(result, op, group=group)
    return result if scale == 1 else result.mul_(scale)
'''
ALL_GATHER_WITHIN = '''\
def {name}(tensor, dim=0, group=None):
    """The tensors of all processes of a group, joined along a dimension."""
    if not torch.distributed.is_initialized():
        return tensor
    tensor = tensor.detach().contiguous()
    parts = [torch.empty_like(tensor) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(parts, tensor, group=group)
    return torch.cat(parts, dim=dim)
'''
REDUCE_SCATTER = '''\
def {name}(tensor, op, scale, dim, group=None):
    """The part of this process, along a dimension, of the reduction of a tensor over all processes."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size(group) == 1:
        return tensor.detach() * scale
    parts = tensor.detach().movedim(dim, 0).contiguous()
    size = parts.shape[0] // torch.distributed.get_world_size(group)
    result = parts.new_empty(size, *parts.shape[1:])
    torch.distributed.reduce_scatter_single(result, parts, op, group=group)
    return result.mul_(scale).movedim(0, dim)
'''
ALL_TO_ALL = '''\
def {name}(tensor, split_dim, concat_dim, group=None):
    """Send each process its part of a tensor along one dimension; what comes is joined along another."""
    if not torch.distributed.is_initialized():
        return tensor
    parts = torch.stack(tensor.detach().chunk(torch.distributed.get_world_size(group), dim=split_dim))
    result = torch.empty_like(parts)
    torch.distributed.all_to_all_single(result, parts, group=group)
    return torch.cat(result.unbind(), dim=concat_dim)
'''
PERMUTED = '''\
def {name}(tensor, pairs):
    """The tensor that another process sends to this one, along pairs of ranks; zeros where none does."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    tensor = tensor.detach().contiguous()
    result = torch.zeros_like(tensor)
    operations = []
    for source, target in pairs:
        if source == target == rank:
            result.copy_(tensor)
        elif source == rank:
            operations.append(torch.distributed.P2POp(torch.distributed.isend, tensor, target))
        elif target == rank:
            operations.append(torch.distributed.P2POp(torch.distributed.irecv, result, source))
    for work in torch.distributed.batch_isend_irecv(operations) if operations else []:
        work.wait()
    return result
'''
MESH_REDUCE = '''\
def {name}(data, reduce):
    """Reduce what all processes have, as Python data or tensors on the CPU."""
    data = {to_cpu}(data)
    if not torch.distributed.is_initialized():
        return reduce([data])
    values = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, data)
    return reduce(values)
'''
BROADCAST_MODEL = '''\
def {name}(model):
    """Give every process the weights and buffers of the first one."""
    if torch.distributed.is_initialized():
        for tensor in [*model.parameters(), *model.buffers()]:
            torch.distributed.broadcast(tensor.data, src=0)
'''


@codemod.uses(CONSTANTS)
def decide_constant(site: Site, use: Use) -> None:
    """Name the operation as torch.distributed does."""
    if use.method or use.stored:
        site.mark(use.chain, use.name, "more than the operation is meant", "use `torch.distributed.ReduceOp`")
        return
    operation = OPERATIONS[use.claim.rpartition(".")[2]]
    group = site.group(use)
    group.replace(use.chain, group.expression(f"torch.distributed.ReduceOp.{operation}"))
    why = "torch.distributed names the operation so"
    if operation in ("BAND", "BOR"):
        todo = "it works on bits: for anything but bool, 0 and 1 compare with 0 first"
        group.review(use.chain, use.name, why, todo)
    else:
        group.fixed(use.chain, use.name, why)


@codemod.uses(PARAMETERS)
def decide(site: Site, use: Use) -> None:
    """Write the collective of torch.distributed, or a helper with what the old one did besides."""
    call = use.call
    if call is None or use.method:
        todo = "pass a function that calls the collective of torch.distributed"
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(call, PARAMETERS[use.claim])
    _settle(site, bound.value("reduce_type"))
    if bound.spread or bound.extra:
        site.mark(
            call,
            use.name,
            "its arguments cannot be seen from here",
            "write the collective of torch.distributed",
        )
        return
    groups = bound.value("groups")
    if groups is not None and edits.code_of(groups) in ("None", "[]"):
        groups = None
    if groups is not None and use.claim == BROADCAST:
        site.mark(call, use.name, f"it works within `{edits.short(groups)}`", GROUPS_TODO)
        return
    if use.claim in (EXCHANGE, PERMUTE, SCATTER):
        _new_tensor(site, use, call, bound, groups)
    elif use.claim == REDUCE:
        _all_reduce(site, use, call, bound, groups)
    elif use.claim == GATHER:
        _all_gather(site, use, call, bound, groups)
    elif use.claim == MESH:
        _mesh_reduce(site, use, call, bound)
    elif use.claim == BROADCAST:
        _broadcast(site, use, call, bound)
    else:
        _broadcast_model(site, use, call)


def _within(site: Site, group: Group, groups: cst.BaseExpression | None) -> cst.BaseExpression | None:
    """The process group that takes the place of lists of ranks."""
    if groups is None:
        return None
    found = process_group_of(site, group, groups)
    if found is not None:
        return found
    helper = group.helper("subgroup", SUBGROUP)
    return edits.expression("{helper}({groups})", helper=helper, groups=groups)


def _has_groups(site: Site) -> bool:
    """Whether some collective of the file works within groups, so that its helpers have to."""
    for use in site.uses:
        if use.claim in PARAMETERS and use.call is not None:
            groups = edits.arguments(use.call, PARAMETERS[use.claim]).value("groups")
            if groups is not None and edits.code_of(groups) not in ("None", "[]"):
                return True
    return False


def _all_reduce(
    site: Site, use: Use, call: cst.Call, bound: edits.Arguments, groups: cst.BaseExpression | None
) -> None:
    inputs, kind, scale = bound.value("inputs"), bound.value("reduce_type"), bound.value("scale")
    operation = None if kind is None else _operation(site, kind)
    if inputs is None or operation is None:
        what = "nothing" if kind is None else f"`{edits.short(kind)}`"
        todo = "write `dist.all_reduce(tensor, op)`; a bare tensor was copied first"
        site.mark(call, use.name, f"the operation {what} is not known before it runs", todo)
        return
    if scale is not None and edits.code_of(scale) in ("1", "1.0"):
        scale = None
    alone = site.alone(call)
    is_list = _is_list(site, inputs)
    why = todo = ""
    if not is_list and alone is not None:
        why = "nobody uses its result: given a tensor it changed nothing, given a list it changed its tensors"
        todo = "drop it, or write `dist.all_reduce(tensor, op)` if it was meant to change the tensor"
    elif is_list and alone is None:
        why = "it reduces a list in place where its result is used"
        todo = "reduce in a statement of its own, then use the list"
    if why:
        site.mark(call, use.name, why, todo)
        return
    group = site.group(use)
    within = _within(site, group, groups)
    if alone is not None:
        group.replace_statement(alone, _in_place(site, group, call, inputs, operation, scale, within))
        why = "each tensor is reduced in place"
    else:
        args = [cst.Arg(inputs)]
        if operation != "SUM":
            args.append(cst.Arg(group.expression(f"torch.distributed.ReduceOp.{operation}")))
        helper = group.helper("all_reduce", ALL_REDUCE_WITHIN if _has_groups(site) else ALL_REDUCE)
        if scale is not None:
            args.append(edits.keyword("scale", scale))
        if within is not None:
            args.append(edits.keyword("group", within))
        group.replace(call, edits.with_arguments(call.with_changes(func=helper), args))
        why = "a helper reduces a copy, so that the tensor itself stays"
    for name in ("pin_layout", "cctx"):
        value = bound.value(name)
        if value is not None:
            forget(site, value)
    _told(site, group, use, call, why, numerics=Numerics.REORDERED)


def _told(
    site: Site,
    group: Group,
    use: Use,
    call: cst.Call,
    why: str,
    todo: str = "",
    numerics: Numerics = Numerics.SAME,
) -> None:
    """Report a collective, and that it hangs where the other processes do not come."""
    alone = ALONE_TODO if is_on_first_alone(site, call, False) else ""
    todo = "; ".join(each for each in (todo, alone) if each)
    if todo:
        group.review(call, use.name, why, todo, numerics=numerics)
    else:
        group.fixed(call, use.name, why, numerics=numerics)


def _in_place(
    site: Site,
    group: Group,
    call: cst.Call,
    inputs: cst.BaseExpression,
    operation: str,
    scale: cst.BaseExpression | None,
    within: cst.BaseExpression | None,
) -> list[edits.Statement]:
    """The statements that reduce the tensors of a list."""
    op = "" if operation == "SUM" else f", torch.distributed.ReduceOp.{operation}"
    op += "" if within is None else ", group={within}"
    holes = {"tensors": inputs}
    only = _only(inputs)
    if only is not None and (scale is None or edits.is_pure(only)):
        holes = {"tensor": only}
        lines = [f"torch.distributed.all_reduce({{tensor}}{op})"]
        lines += ["{tensor}.mul_({scale})"] if scale is not None else []
    else:
        holes["tensor"] = group.fresh("tensor")
        lines = ["for {tensor} in {tensors}:", f"    torch.distributed.all_reduce({{tensor}}{op})"]
        lines += ["    {tensor}.mul_({scale})"] if scale is not None else []
    if scale is not None:
        holes["scale"] = scale
    if within is not None:
        holes["within"] = within
    if group_at(site, call) is not ProcessGroup.STANDS:
        lines = ["if torch.distributed.is_initialized():", *(f"    {line}" for line in lines)]
    return group.statements("\n".join(lines) + "\n", **holes)


def _settle(site: Site, region: cst.BaseExpression | None) -> None:
    """Nobody needs to answer for the operation, which is written anew."""
    for use in site.uses:
        if region is not None and (use.chain is region or region in site.ancestors(use.node)):
            site.settled.add(use)


def _operation(site: Site, kind: cst.BaseExpression) -> str | None:
    """The name of an operation in torch.distributed, where it is certain."""
    if isinstance(kind, cst.SimpleString):
        return OPERATIONS.get(f"REDUCE_{str(kind.evaluated_value).upper()}")
    name = site.name_of(kind) or ""
    return OPERATIONS.get(name.rpartition(".")[2]) if name.startswith(XM) else None


def _only(inputs: cst.BaseExpression) -> cst.BaseExpression | None:
    """The tensor of a list that is written out and holds one."""
    if (
        isinstance(inputs, cst.List)
        and len(inputs.elements) == 1
        and isinstance(inputs.elements[0], cst.Element)
    ):
        return inputs.elements[0].value
    return None


def _is_list(site: Site, inputs: cst.BaseExpression) -> bool:
    """Whether a list of tensors is certainly given."""
    if isinstance(inputs, (cst.List, cst.Tuple, cst.ListComp)):
        return True
    made = site.flow.origin_of(inputs)
    return made.certain and all(
        isinstance(each.node, (cst.List, cst.ListComp, cst.Tuple)) or each.name == f"{XM}._fetch_gradients"
        for each in made.producers
    )


def _new_tensor(
    site: Site, use: Use, call: cst.Call, bound: edits.Arguments, groups: cst.BaseExpression | None
) -> None:
    """A collective that gave a new tensor, by a helper that does."""
    value = bound.value("input" if use.claim == SCATTER else "value")
    output = bound.value("output")
    if value is None or (output is not None and edits.code_of(output) != "None") or _is_list(site, value):
        todo = "work on one tensor after the other with the collective of torch.distributed"
        site.mark(call, use.name, "it works on a list, or fills a tensor that is given", todo)
        return
    group = site.group(use)
    args = [cst.Arg(value)]
    if use.claim == SCATTER:
        kind, scale, dim = (bound.value(name) for name in ("reduce_type", "scale", "scatter_dim"))
        operation = None if kind is None else _operation(site, kind)
        if operation is None or scale is None or dim is None:
            site.groups.remove(group)
            todo = "write `dist.reduce_scatter_single(output, tensor, op)`"
            site.mark(call, use.name, "its operation or its dimension is not known", todo)
            return
        helper = group.helper("reduce_scatter", REDUCE_SCATTER)
        op = group.expression(f"torch.distributed.ReduceOp.{operation}")
        args += [cst.Arg(op), cst.Arg(scale), cst.Arg(dim)]
        why, count = "a helper reduces, and keeps the part of this process", bound.value("shard_count")
    elif use.claim == EXCHANGE:
        split, concat = bound.value("split_dimension"), bound.value("concat_dimension")
        if split is None or concat is None:
            site.groups.remove(group)
            todo = "write `dist.all_to_all_single(output, tensor)`"
            site.mark(call, use.name, "its dimensions cannot be seen from here", todo)
            return
        helper = group.helper("all_to_all", ALL_TO_ALL)
        args += [cst.Arg(split), cst.Arg(concat)]
        why, count = "a helper exchanges the parts and joins what comes", bound.value("split_count")
    else:
        pairs = bound.value("pairs")
        assert pairs is not None
        helper = group.helper("collective_permute", PERMUTED)
        args.append(cst.Arg(pairs))
        why, count = "a helper sends and receives along the pairs", None
    within = _within(site, group, groups)
    if within is not None:
        args.append(edits.keyword("group", within))
    group.replace(call, edits.with_arguments(call.with_changes(func=helper), args))
    for gone in (count, bound.value("pin_layout")):
        if gone is not None:
            forget(site, gone)
    numerics = Numerics.REORDERED if use.claim == SCATTER else Numerics.SAME
    todo = "" if count is None else COUNT_TODO.format(edits.short(count))
    if count is not None and _is_world(site, count):
        todo = ""
    _told(site, group, use, call, why, todo, numerics)


def _is_world(site: Site, count: cst.BaseExpression) -> bool:
    """Whether a number of parts is certainly that of the processes."""
    made = site.flow.origin_of(count)
    return made.certain and all(each.name in WORLD_SIZES for each in made.producers)


def _all_gather(
    site: Site, use: Use, call: cst.Call, bound: edits.Arguments, groups: cst.BaseExpression | None
) -> None:
    value, output = bound.value("value"), bound.value("output")
    if value is None or (output is not None and edits.code_of(output) != "None"):
        todo = "write `dist.all_gather_single(output, tensor)`"
        site.mark(call, use.name, "it fills a tensor that is given", todo)
        return
    if _is_list(site, value):
        todo = "gather one tensor after the other with `dist.all_gather`"
        site.mark(call, use.name, "it gathers a list of tensors", todo)
        return
    group = site.group(use)
    args = [cst.Arg(value)]
    dim = bound.by_name.get("dim")
    if dim is not None and edits.code_of(dim.value) != "0":
        args.append(edits.keyword("dim", dim.value))
    within = _within(site, group, groups)
    if _has_groups(site):
        helper = group.helper("all_gather", ALL_GATHER_WITHIN)
    else:
        helper = group.helper("all_gather", ALL_GATHER, shim="all_gather")
    if within is not None:
        args.append(edits.keyword("group", within))
    group.replace(call, edits.with_arguments(call.with_changes(func=helper), args))
    _told(site, group, use, call, "a helper joins the tensors of all processes along the dimension")


def _mesh_reduce(site: Site, use: Use, call: cst.Call, bound: edits.Arguments) -> None:
    data, function, tag = bound.value("data"), bound.value("reduce_fn"), bound.value("tag")
    if data is None or function is None or tag is None or not is_harmless(tag, site.name_of):
        todo = "collect with `dist.all_gather_object(values, data)`, then reduce the values"
        site.mark(call, use.name, "its arguments cannot be seen from here", todo)
        return
    group = site.group(use)
    to_cpu = to_cpu_helper(group)
    helper = group.helper("mesh_reduce", MESH_REDUCE, shim="mesh_reduce", to_cpu=to_cpu)
    args = [edits.positional(bound.by_name["data"]), edits.positional(bound.by_name["reduce_fn"])]
    group.replace(call, edits.with_arguments(call.with_changes(func=helper), args))
    forget(site, tag)
    why = "a helper collects the data of all processes and reduces them"
    # The helper of the runtime sends few sizes.
    _told(site, group, use, call, why, "" if site.settings.shim else OBJECTS_TODO)


def _broadcast(site: Site, use: Use, call: cst.Call, bound: edits.Arguments) -> None:
    tensors, root = bound.value("tensors"), bound.value("root_ordinal")
    alone = site.alone(call)
    if tensors is None or alone is None:
        todo = "write `dist.broadcast(tensor, src=root)` for each tensor"
        site.mark(call, use.name, "its tensors cannot be seen from here, or its result is used", todo)
        return
    group = site.group(use)
    only = _only(tensors)
    holes = {"root": root if root is not None else cst.Integer("0")}
    if only is not None:
        holes["tensor"] = only
        lines = ["torch.distributed.broadcast({tensor}, src={root})"]
    else:
        holes |= {"tensor": group.fresh("tensor"), "tensors": tensors}
        lines = ["for {tensor} in {tensors}:", "    torch.distributed.broadcast({tensor}, src={root})"]
    if group_at(site, call) is not ProcessGroup.STANDS:
        lines = ["if torch.distributed.is_initialized():", *(f"    {line}" for line in lines)]
    new = group.statements("\n".join(lines) + "\n", **holes)
    group.replace_statement(alone, new)
    _told(site, group, use, call, "each tensor is broadcast in place")


def _broadcast_model(site: Site, use: Use, call: cst.Call) -> None:
    group: Group = site.group(use)
    helper = group.helper("broadcast_model", BROADCAST_MODEL)
    group.replace(
        call, edits.with_arguments(call.with_changes(func=helper), [edits.positional(a) for a in call.args])
    )
    why = "a helper broadcasts each weight and buffer of the first process"
    _told(site, group, use, call, why)
