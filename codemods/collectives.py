"""Collectives of torch_xla: `xm.all_reduce`, `xm.all_gather`, `xm.mesh_reduce` and broadcasts.

Given a list, `xm.all_reduce` reduced in place, and `dist.all_reduce` for each tensor does the same. Given
a tensor it left that alone and returned a new one, which a helper does, written once per file: without a
process group it returns the copy at once, as the old function did in a single process. `xm.all_gather`
joined the parts along a dimension, and `xm.mesh_reduce` reduced Python data of all processes on the
host: helpers as well. Objects on the device's group are compiled anew for each size, which is said.

Marked are reductions within `groups`, a tensor whose reduction nobody uses, and the other collectives.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.helpers import to_cpu_helper
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
MASTER = f"{XM}.broadcast_master_param"
PARAMETERS = {
    GATHER: ("value", "dim", "groups", "output", "pin_layout"),
    BROADCAST: ("tensors", "root_ordinal", "groups", "pin_layout"),
    MASTER: ("model",),
    MESH: ("tag", "data", "reduce_fn"),
    REDUCE: ("reduce_type", "inputs", "scale", "groups", "cctx", "pin_layout"),
}
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
    if groups is not None and edits.code_of(groups) not in ("None", "[]"):
        site.mark(call, use.name, f"it works within `{edits.short(groups)}`", GROUPS_TODO)
        return
    if use.claim == REDUCE:
        _all_reduce(site, use, call, bound)
    elif use.claim == GATHER:
        _all_gather(site, use, call, bound)
    elif use.claim == MESH:
        _mesh_reduce(site, use, call, bound)
    elif use.claim == BROADCAST:
        _broadcast(site, use, call, bound)
    else:
        _broadcast_model(site, use, call)


def _all_reduce(site: Site, use: Use, call: cst.Call, bound: edits.Arguments) -> None:
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
    if alone is not None:
        group.replace_statement(alone, _in_place(site, group, call, inputs, operation, scale))
        why = "each tensor is reduced in place"
    else:
        args = [cst.Arg(inputs)]
        if operation != "SUM":
            args.append(cst.Arg(group.expression(f"torch.distributed.ReduceOp.{operation}")))
        helper = group.helper("all_reduce", ALL_REDUCE)
        if scale is not None:
            args.append(edits.keyword("scale", scale))
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
) -> list[edits.Statement]:
    """The statements that reduce the tensors of a list."""
    op = "" if operation == "SUM" else f", torch.distributed.ReduceOp.{operation}"
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


def _all_gather(site: Site, use: Use, call: cst.Call, bound: edits.Arguments) -> None:
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
    helper = group.helper("all_gather", ALL_GATHER, shim="all_gather")
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
    _told(site, group, use, call, why, OBJECTS_TODO)


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
