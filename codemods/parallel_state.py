"""The parallel state of NxD: `initialize_model_parallel`, `get_tensor_model_parallel_size()` and so on.

The groups become a device mesh, whose dimensions `pp`, `dp` and `tp` count the ranks in the same order:
tensor parallelism varies fastest. It is kept in a variable `mesh`, of the function that makes it where
nobody else asks, else of the module, and the questions become `mesh["tp"].size()`,
`mesh["dp"].get_local_rank()` and `mesh["tp"].get_group()`. A file that only asks gets a variable that
the file with the start has to set, which is a review. `rmsg(message)` puts the ranks of the mesh in front.

Marked are context and expert parallelism, and groups as lists of ranks that no rewritten collective takes.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.meshes import (
    GETTERS,
    IS_INITIALIZED,
    PARAMETERS,
    RANKED_MESSAGE,
    STARTS,
    Where,
    dimension_of,
    is_default,
    made_mesh,
    mesh_of,
    name_of_mesh,
    update_one_by_one,
)
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

STATE = "neuronx_distributed.parallel_layers.parallel_state"
DESTROY = f"{STATE}.destroy_model_parallel"
WORLD = f"{STATE}.get_world_group"
FIRST = f"{STATE}.is_global_rank_zero"
WHY = "a device mesh counts the ranks in the same order, tensor parallelism fastest"
INSTEAD = {
    "group": 'mesh["{}"].get_group()',
    "next_rank": 'dist.get_global_rank(mesh["{0}"].get_group(), (stage + 1) % mesh["{0}"].size())',
    "prev_rank": 'dist.get_global_rank(mesh["{0}"].get_group(), (stage - 1) % mesh["{0}"].size())',
    "rank": 'mesh["{}"].get_local_rank()',
    "size": 'mesh["{}"].size()',
    "src_rank": 'dist.get_global_rank(mesh["{}"].get_group(), 0)',
}
NEIGHBOUR = (
    "torch.distributed.get_global_rank({{part}}.get_group(), "
    "({{part}}.get_local_rank() {} 1) % {{part}}.size())"
)

MESSAGE = '''\
def {name}(message, mesh):
    """A message with the rank of the process, of all and in each kind of parallelism, in front."""
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    places = dict.fromkeys(["pp", "tp", "dp", "cp"], -1 if mesh is None else 0)
    if mesh is not None:
        places.update(zip(mesh.mesh_dim_names, mesh.get_coordinate()))
    ranks = "_".join(f"{{kind}}{{place}}" for kind, place in places.items())
    return f"[rank_{{rank}}_{{ranks}}] {{message}}"
'''


@codemod.uses(STARTS)
def decide_start(site: Site, use: Use) -> None:
    """Make a device mesh."""
    mesh = mesh_of(site)
    if mesh.refused:
        todo = 'make a mesh with `init_device_mesh("neuron", sizes, mesh_dim_names=names)`'
        site.mark(use.whole, use.name, mesh.refused, todo)
        return
    assert use.call is not None
    alone = site.alone(use.call)
    assert alone is not None
    group = site.group(use)
    bound = edits.arguments(use.call, PARAMETERS)
    before: list[edits.Statement] = []
    sizes = {}
    for dimension, parameter in (("tp", PARAMETERS[0]), ("pp", PARAMETERS[1])):
        value = bound.value(parameter)
        if value is not None and not edits.is_pure(value):
            name = group.fresh(f"{dimension}_size")
            before += group.statements("{name} = {value}\n", name=name, value=value)
            value = cst.Name(name.value)
        sizes[dimension] = cst.Integer("1") if is_default(value) or value is None else value
    group.replace_statement(alone, [*before, *made_mesh(site, group, sizes, mesh.dimensions)])
    if edits.code_of(sizes["tp"]) != "1" and update_one_by_one(site, group):
        todo = (
            "its optimizers get `foreach=False`, since sharded parameters and plain ones cannot be updated "
            "in one call; where a plan shards all of them it can go"
        )
        group.review(use.call, use.name, WHY, todo)
    else:
        group.fixed(use.call, use.name, WHY)


@codemod.uses(GETTERS)
def decide_getter(site: Site, use: Use) -> None:
    """Ask the mesh."""
    dimension, what = GETTERS[use.claim]
    instead = INSTEAD[what].format(dimension or use.claim.rpartition("get_")[2].partition("_")[0])
    if use.call is None or use.method:
        site.mark(use.chain, use.name, "the function is passed on, not called", f"pass `lambda: {instead}`")
        return
    bound = edits.arguments(use.call, ("as_list",))
    as_list = bound.value("as_list")
    if bound.spread or bound.extra:
        site.mark(use.call, use.name, "it is called with arguments it does not have", f"use `{instead}`")
        return
    if as_list is not None and edits.code_of(as_list) != "False":
        return  # whoever takes the lists of ranks answers for them, or nobody can
    mesh = mesh_of(site)
    if mesh.refused:
        todo = f"with a device mesh it is `{instead}`"
        site.mark(use.call, use.name, f"there is no device mesh in this file: {mesh.refused}", todo)
        return
    if not dimension:
        _one_alone(site, use, what, mesh.where)
        return
    group = site.group(use)
    part = dimension_of(site, group, dimension)
    template = {
        "group": "{part}.get_group()",
        "rank": "{part}.get_local_rank()",
        "next_rank": NEIGHBOUR.format("+"),
        "prev_rank": NEIGHBOUR.format("-"),
        "size": "{part}.size()",
        "src_rank": "torch.distributed.get_global_rank({part}.get_group(), 0)",
    }[what]
    group.replace(use.call, group.expression(template, part=part))
    _tell(site, group, use, WHY)


def _one_alone(site: Site, use: Use, what: str, where: Where) -> None:
    """Answer for a kind of parallelism that the start does not ask for: it has one member."""
    answer = {"rank": "0", "size": "1"}.get(what)
    assert use.call is not None
    if where is Where.HANDED_OVER or answer is None:
        todo = "give the mesh one more dimension, and ask that"
        site.mark(use.call, use.name, "context and expert parallelism are dimensions of their own", todo)
        return
    group = site.group(use)
    group.replace(use.call, cst.Integer(answer))
    group.fixed(use.call, use.name, "the mesh that this file makes has no such dimension")


@codemod.uses([IS_INITIALIZED])
def decide_initialized(site: Site, use: Use) -> None:
    """Ask whether the mesh is made."""
    mesh = mesh_of(site)
    if use.call is None or use.method or mesh.refused:
        site.mark(use.whole, use.name, "there is no device mesh in this file", "ask whether it is made")
        return
    group = site.group(use)
    around = site.parent(use.call)
    negated = isinstance(around, cst.UnaryOperation) and isinstance(around.operator, cst.Not)
    old = around if negated and around is not None else use.call
    new = group.expression(f"{{mesh}} is {'' if negated else 'not '}None", mesh=name_of_mesh(site, group))
    group.replace(old, edits.parenthesized(new) if _binds(site, old) else new)
    _tell(site, group, use, "the variable is empty until the mesh is made")


@codemod.uses([RANKED_MESSAGE])
def decide_message(site: Site, use: Use) -> None:
    """Put the ranks of the mesh in front of a message."""
    mesh = mesh_of(site)
    if use.call is None or use.method or len(use.call.args) != 1 or use.call.args[0].star or mesh.refused:
        reason = mesh.refused or "the function is passed on, or what it is called with cannot be seen"
        site.mark(use.whole, use.name, reason, "put `dist.get_rank()` in front of the message")
        return
    group = site.group(use)
    helper = group.helper("with_ranks", MESSAGE)
    args = [edits.positional(use.call.args[0]), cst.Arg(name_of_mesh(site, group))]
    group.replace(use.call, edits.with_arguments(use.call.with_changes(func=helper), args))
    _tell(site, group, use, "a helper puts the ranks of the mesh in front")


def _binds(site: Site, node: cst.CSTNode) -> bool:
    """Whether what stands around an expression binds tighter than a comparison."""
    return isinstance(
        site.parent(node), (cst.Attribute, cst.BinaryOperation, cst.Comparison, cst.ComparisonTarget)
    )


@codemod.uses([DESTROY, WORLD, FIRST])
def decide_rest(site: Site, use: Use) -> None:
    """What needs no mesh."""
    if use.call is None or use.method:
        site.mark(use.chain, use.name, "the function is passed on, not called", "ask torch.distributed")
        return
    alone = site.alone(use.call)
    if use.claim == DESTROY and (alone is None or use.call.args):
        site.mark(use.call, use.name, "its result is used, which was never anything", "drop it")
        return
    if use.claim == WORLD and use.call.args:
        todo = "use `dist.group.WORLD` where the list of ranks went"
        site.mark(use.call, use.name, "torch names a group by an object, not by lists of ranks", todo)
        return
    group = site.group(use)
    if use.claim == DESTROY:
        assert alone is not None
        group.replace_statement(alone)
        why = "it only forgot the groups; `destroy_process_group` ends those of the mesh with the others"
    elif use.claim == WORLD:
        group.replace(use.call, cst.Attribute(group.ref("torch.distributed.group"), cst.Name("WORLD")))
        why = "torch keeps the group of all processes"
    else:
        group.replace(use.call, group.expression("torch.distributed.get_rank() == 0"))
        why = "the first process of the job has rank 0"
    group.fixed(use.call, use.name, why)


def _tell(site: Site, group: Group, use: Use, why: str) -> None:
    todo = mesh_of(site).todo
    if todo:
        group.review(use.whole, use.name, why, todo)
    else:
        group.fixed(use.whole, use.name, why)
