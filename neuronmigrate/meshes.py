"""The device mesh of a program that used the parallel state of NxD.

`initialize_model_parallel` kept its groups in a module of NxD, where every file could ask for them. Torch
keeps a mesh in a variable, so what replaces the questions depends on where the mesh is made: in this
function, elsewhere in this file, or in another file, which then has to hand it over.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import libcst as cst

from neuronmigrate import edits, targets
from neuronmigrate.edits import Statement
from neuronmigrate.facts import ModuleFacts
from neuronmigrate.flow import UseKind
from neuronmigrate.names import Names
from neuronmigrate.site import Group, Site, Use

_LAYERS = "neuronx_distributed.parallel_layers"
_STATE = f"{_LAYERS}.parallel_state"
STARTS = (f"{_LAYERS}.initialize_model_parallel", f"{_STATE}.initialize_model_parallel")
CONFIGS = tuple(f"neuronx_distributed.{path}neuronx_distributed_config" for path in ("", "trainer."))
"""What made the groups, and a configuration for the models and optimizers of NxD besides."""
CONFIG_PARAMETERS = (
    *("tensor_parallel_size", "pipeline_parallel_size", "expert_parallel_size", "context_parallel_size"),
    *("pipeline_config", "optimizer_config", "activation_checkpoint_config", "pad_model"),
    *("sequence_parallel", "model_init_config", "lora_config", "mixed_precision_config"),
    *("sequential_move_factor", "lnc_size"),
)
PARAMETERS = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "skip_collective_init",
    "lnc_size",
    "mesh_only",
)
"""Of `initialize_model_parallel` (neuronx_distributed/parallel_layers/parallel_state.py)."""
ONE_DIMENSION = {
    "context_model_parallel": "",
    "data_parallel": "dp",
    "expert_model_parallel": "",
    "pipeline_model_parallel": "pp",
    "tensor_model_parallel": "tp",
}
"""The dimension of the mesh that each kind of parallelism becomes; empty where there is none."""
GETTERS = {
    f"{_STATE}.get_{kind}_{what}": (dimension, what)
    for kind, dimension in ONE_DIMENSION.items()
    for what in (
        *("group", "rank", "size"),
        *(("src_rank",) if dimension in ("dp", "tp") else ()),
        *(("next_rank", "prev_rank") if dimension == "pp" else ()),
    )
}
LAYERS = {
    f"{path}.{layer}": layer
    for path in (_LAYERS, f"{_LAYERS}.layers")
    for layer in ("ColumnParallelLinear", "ParallelEmbedding", "RowParallelLinear")
}
"""The parallel layers that torch has a style for."""
REPLICA_GROUPS = {
    f"{_STATE}.get_{kind}_replica_groups": dimension for kind, dimension in ONE_DIMENSION.items() if dimension
}
"""What lists the groups of a dimension."""
IS_INITIALIZED = f"{_STATE}.model_parallel_is_initialized"
RANKED_MESSAGE = f"{_STATE}.rmsg"
EARLY = frozenset({IS_INITIALIZED, RANKED_MESSAGE})
"""What could be called before there were groups."""
MAKERS = tuple(
    f"neuronx_distributed.{path}initialize_parallel_{what}"
    for path in ("", "trainer.")
    for what in ("model", "optimizer")
)
ASKS = frozenset({*GETTERS, *LAYERS, *MAKERS, *EARLY})
"""What needs the mesh, as well as everything below `REGIONS`."""
REGIONS = (f"{_LAYERS}.mappings.", f"{_LAYERS}.loss_functions", f"{_LAYERS}.parallel_cross_entropy")
MAKE = "torch.distributed.init_device_mesh"
HAND_OVER = (
    "this file makes no mesh: see that its `mesh` is set where `init_device_mesh` is called, before it is "
    "needed"
)
WIDE = 90
"""Characters of a call up to which it stands on one line."""


class Where(enum.Enum):
    """Where the mesh is kept, as seen from one file."""

    LOCAL = "a variable of the function that makes it"
    MODULE = "a variable of the module"
    HANDED_OVER = "a variable of the module that another one sets"


@dataclass(frozen=True)
class Mesh:
    """What is known about the mesh of a file."""

    where: Where
    start: Use | None = None
    refused: str = ""
    """Why the call that makes the mesh stays as it is; then all that needs it stays, too."""
    dimensions: tuple[str, ...] = ()
    """Of the mesh, outermost first; empty where another file makes it."""

    @property
    def todo(self) -> str:
        """What a person has to do for it to be reached."""
        return HAND_OVER if self.where is Where.HANDED_OVER else ""


_FOUND: WeakKeyDictionary[Names, Mesh] = WeakKeyDictionary()
_NAMES: WeakKeyDictionary[Names, cst.Name] = WeakKeyDictionary()


def mesh_of(site: Site) -> Mesh:
    """Where a file has its mesh."""
    if site.names not in _FOUND:
        _FOUND[site.names] = _find(site)
    return _FOUND[site.names]


def name_of_mesh(site: Site, group: Group) -> cst.Name:
    """The variable that holds the mesh."""
    if _needs_default(site):
        return group.helper("mesh", "{name} = None\n")
    if site.names not in _NAMES:
        _NAMES[site.names] = group.fresh("mesh")
    return cst.Name(_NAMES[site.names].value)


def shares_from(site: Site) -> cst.FunctionDef | None:
    """The function that makes the mesh and has to give it to the module; None where nobody else asks."""
    found = mesh_of(site)
    return _function_of(site, found.start) if found.start and found.where is Where.MODULE else None


def dimension_of_groups(site: Site, groups: cst.BaseExpression) -> str:
    """The dimension of the mesh whose groups an expression lists; empty when it is another expression."""
    for use in site.uses:
        if use.call is groups and use.name in REPLICA_GROUPS:
            return "" if mesh_of(site).refused else REPLICA_GROUPS[use.name]
        if use.call is groups and use.claim in GETTERS:
            dimension, what = GETTERS[use.claim]
            as_list = edits.arguments(use.call, ("as_list",)).value("as_list")
            if what == "group" and as_list is not None and edits.code_of(as_list) == "True":
                return "" if mesh_of(site).refused else dimension
    return ""


def process_group_of(site: Site, group: Group, groups: cst.BaseExpression) -> cst.BaseExpression | None:
    """The process group of one dimension of the mesh, for an expression that lists its groups.

    Nobody else has to answer for that expression then.
    """
    dimension = dimension_of_groups(site, groups)
    if not dimension:
        return None
    site.settled.update(use for use in site.uses if use.call is groups)
    return edits.expression("{part}.get_group()", part=dimension_of(site, group, dimension))


def dimension_of(site: Site, group: Group, dimension: str) -> cst.BaseExpression:
    """The part of the mesh along one dimension."""
    return edits.expression("{mesh}[{key}]", mesh=name_of_mesh(site, group), key=edits.string(dimension))


def _needs_default(site: Site) -> bool:
    """Whether the variable has to hold something before the mesh is made."""
    found = mesh_of(site)
    asked = any(use.claim in EARLY for use in site.uses)
    return (
        found.where is Where.HANDED_OVER
        or shares_from(site) is not None
        or (asked and found.where is Where.MODULE)
    )


def _find(site: Site) -> Mesh:
    starts = [use for use in site.uses if use.claim in (*STARTS, *CONFIGS) and not use.method]
    if not starts:
        return Mesh(Where.HANDED_OVER)
    if len(starts) > 1:
        return Mesh(Where.MODULE, starts[0], "it is called in several places of this file")
    start = starts[0]
    needing = [
        use
        for use in site.uses
        if use.claim in ASKS or use.name in REPLICA_GROUPS or use.claim.startswith(REGIONS)
    ]
    function = _function_of(site, start)
    inside = function is not None and all(function in site.ancestors(use.node) for use in needing)
    # A region becomes a function of the module, which reads the mesh of the module.
    shared = any(use.claim in EARLY or use.claim.startswith(REGIONS) for use in needing)
    where = Where.LOCAL if inside and not shared else Where.MODULE
    refused = _refusal_of_config(site, start) if start.claim in CONFIGS else _refusal(site, start)
    pipeline = any(GETTERS.get(use.claim, ("", ""))[0] == "pp" for use in needing)
    if not refused and start.claim in STARTS:
        assert start.call is not None
        pipeline = pipeline or not is_default(
            edits.arguments(start.call, PARAMETERS).value("pipeline_model_parallel_size")
        )
    return Mesh(where, start, refused, ("pp", "dp", "tp") if pipeline else ("dp", "tp"))


def _refusal(site: Site, start: Use) -> str:
    """Why a start cannot be rewritten."""
    if start.call is None or site.alone(start.call) is None:
        return "it is passed on, or its result is used"
    if not start.certain or start.ambiguous:
        return "another function may be meant here"
    bound = edits.arguments(start.call, PARAMETERS)
    if bound.spread or bound.extra:
        return "its arguments cannot be seen from here"
    for name in ("context_parallel_size", "expert_model_parallel_size"):
        if not is_default(bound.value(name)):
            return f"`{name}` asks for a dimension of its own"
    for name in ("skip_collective_init", "mesh_only"):
        value = bound.value(name)
        if value is not None and edits.code_of(value) != "False":
            return f"with `{name}` it makes no groups"
    return ""


def _refusal_of_config(site: Site, start: Use) -> str:
    """Why a configuration of NxD, and all that is made by it, cannot be rewritten."""
    call = start.call
    if call is None or not start.certain or start.ambiguous:
        return "it is passed on, or another function may be meant here"
    bound = edits.arguments(call, CONFIG_PARAMETERS)
    if bound.spread or bound.extra:
        return "its arguments cannot be seen from here"
    for name in CONFIG_PARAMETERS[1:4]:
        if not is_default(bound.value(name)):
            return f"`{name}` asks for a kind of parallelism that no plan can follow"
    for name in ("pad_model", "lora_config", "pipeline_config"):
        value = bound.value(name)
        if value is not None and edits.code_of(value) not in ("None", "False"):
            return f"`{name}` changes the model"
    optimizer = bound.value("optimizer_config")
    if optimizer is not None and edits.code_of(optimizer) != "None" and dictionary(site, optimizer) is None:
        return "its `optimizer_config` cannot be seen from here"
    assign = site.parent(call)
    line = None if assign is None else site.parent(assign)
    if (
        not isinstance(assign, cst.Assign)
        or len(assign.targets) != 1
        or not isinstance(assign.targets[0].target, cst.Name)
        or not isinstance(line, cst.SimpleStatementLine)
        or len(line.body) != 1
    ):
        return "it is not assigned to a name in a statement of its own"
    found = site.flow.uses_of(call)
    makers = {id(use.call) for use in site.uses if use.claim in MAKERS and use.call is not None}
    for use in found.uses:
        if use.kind is UseKind.BOUND:
            continue
        arg = site.parent(use.node)
        taker = site.parent(arg) if isinstance(arg, cst.Arg) else None
        if id(taker) not in makers:
            return "more is done with it than to make models and optimizers"
    return "it is handed on to where it cannot be followed" if found.lost else ""


def dictionary(site: Site, value: cst.BaseExpression) -> dict[str, cst.BaseExpression] | None:
    """The entries of a dictionary that is written out with texts as keys; None where it is not."""
    if not isinstance(value, cst.Dict):
        made = site.flow.origin_of(value)
        nodes = [each.node for each in made.producers]
        if not made.certain or len(nodes) != 1 or not isinstance(nodes[0], cst.Dict):
            return None
        value = nodes[0]
    entries = {}
    for each in value.elements:
        if not isinstance(each, cst.DictElement) or not isinstance(each.key, cst.SimpleString):
            return None
        entries[str(each.key.evaluated_value)] = each.value
    return entries


def made_mesh(
    site: Site, group: Group, sizes: dict[str, cst.BaseExpression], dimensions: tuple[str, ...]
) -> list[Statement]:
    """The statement that makes the mesh, data parallelism taking what the others leave.

    `sizes` are those of "tp" and "pp". Where other functions ask for the mesh, it becomes one of the
    module.
    """
    name = name_of_mesh(site, group)
    # Models of other files are sharded over it, so it has a name though nobody here asks for it.
    site.kept_names.add("mesh")
    function = shares_from(site)
    if function is not None:
        # Above whatever in the function may ask for it already.
        body = [each for each in function.body.body if not _is_docstring(each)]
        assert isinstance(body[0], Statement)
        item = cst.NameItem(cst.Name(name.value))
        group.insert(body[0], [cst.SimpleStatementLine([cst.Global([item])])])
    holes = {**{f"{key}_size": value for key, value in sizes.items()}, **sizes}
    written = {
        key: edits.code_of(value) if edits.is_literal(value) else f"{{{key}}}" for key, value in holes.items()
    }
    divisors = [written[key] for key in ("pp", "tp") if key in dimensions and written[key] != "1"]
    data = "torch.distributed.get_world_size()"
    if divisors:
        data += f" // {divisors[0]}" if len(divisors) == 1 else f" // ({' * '.join(divisors)})"
    shape = ", ".join([*([written["pp_size"]] if "pp" in dimensions else []), data, written["tp_size"]])
    names = ", ".join(f'"{each}"' for each in dimensions)
    arguments = ['"neuron"', f"({shape})", f"mesh_dim_names=({names})"]
    made = f"{MAKE}({', '.join(arguments)})"
    text = made.format(**{key: edits.code_of(value) for key, value in holes.items()})
    if len(text.replace("torch.distributed", "dist")) > WIDE:
        made = f"{MAKE}(\n" + "".join(f"    {each},\n" for each in arguments) + ")"
    site.keywords.append((MAKE, "mesh_dim_names"))
    start = mesh_of(site).start
    assert start is not None
    name_place = start.node
    statements = group.statements(
        f"{{mesh}} = {made}\n",
        mesh=name,
        **{key: value.deep_clone() for key, value in holes.items() if f"{{{key}}}" in made},
    )
    for module in _askers(site):
        alias = f"{module.rpartition('.')[2]}_module"
        if site.names.is_free(alias, name_place):
            template = f"import {module} as {alias}\n{alias}.mesh = {{mesh}}\n"
            statements += edits.statements(template, site.module, mesh=cst.Name(name.value))
    return statements


def _askers(site: Site) -> list[str]:
    """The modules that this file imports in which NxD's parallel state is asked, and which need the mesh."""
    facts = site.project.facts_of(site.path)
    targets_of = [binding.target for binding in site.names.imports]
    return sorted(
        name
        for name, each in facts.modules.items()
        if name != site.names.module_name
        and "mesh" not in each.defined
        and any(target == name or target.startswith(f"{name}.") for target in targets_of)
        and _asks_for_mesh(each)
    )


def _asks_for_mesh(module: ModuleFacts) -> bool:
    """Whether a module gets things from NxD that need a mesh, and does not start the state itself."""
    names = {name for resolved in module.exports.values() for name in resolved.names}
    names |= {f"{_STATE}." for name in names if name in (_STATE, _LAYERS, f"{_LAYERS}.layers")}
    if names & {*STARTS, *CONFIGS} or "neuronx_distributed" in names:
        return False
    return any(name in ASKS or name.startswith((f"{_STATE}.", *REGIONS)) for name in names)


def _is_docstring(statement: cst.CSTNode) -> bool:
    small = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    return isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))


def update_one_by_one(site: Site, group: Group) -> bool:
    """Let the optimizers of a file with parallel layers update parameter by parameter."""
    found = False
    for call in site.names.calls:
        name = site.name_of(call.func) or ""
        if not name.startswith("torch.optim.") or targets.accepts(name, "foreach") is not True:
            continue
        if any(arg.star or (arg.keyword and arg.keyword.value in ("foreach", "fused")) for arg in call.args):
            continue
        new = edits.with_arguments(call, [*call.args, edits.keyword("foreach", cst.Name("False"))])
        group.replace(call, new)
        site.keywords.append((name, "foreach"))
        found = True
    return found


def is_default(size: cst.BaseExpression | None) -> bool:
    """Whether a size is 1, the default of all of them."""
    return size is None or edits.code_of(size) == "1"


def _function_of(site: Site, use: Use) -> cst.FunctionDef | None:
    return next((each for each in site.ancestors(use.node) if isinstance(each, cst.FunctionDef)), None)
