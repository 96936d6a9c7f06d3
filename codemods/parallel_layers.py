"""Parallel layers of NxD: `ColumnParallelLinear`, `RowParallelLinear`, `ParallelEmbedding`, `LayerNorm`.

Each was a layer that held a shard. It becomes the plain layer of torch, and the class that owns it applies
a plan with `parallelize_module` once its layers are there: `ColwiseParallel` and `RowwiseParallel` shard
the weights alike and give local tensors as before, so that code which counts with local sizes stays right.
`gather_output`, `input_is_parallel` and sequence parallelism become the layouts of the plan, and an
`init_method` is called on the whole weight. A fused projection (`stride`) has its rows in another order
than the whole weight of a checkpoint, which is a review.

`isinstance` asks for the plain class, which is a review. Marked are padded layers, groups of their own,
partial outputs, weights that are filled with shards by hand, classes made of these layers, and
`GQAQKVColumnParallelLinear`, which repeats key and value heads.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.meshes import LAYERS, dimension_of, mesh_of
from neuronmigrate.names import parameters
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

LAYER_NORM = "neuronx_distributed.parallel_layers.layer_norm.LayerNorm"
KINDS = {**LAYERS, LAYER_NORM: "LayerNorm"}
STYLE = "torch.distributed.tensor.parallel"
PARAMETERS = {
    "ColumnParallelLinear": (
        *("input_size", "output_size", "bias", "gather_output", "dtype", "device", "stride", "init_method"),
        *("sequence_parallel_enabled", "sequence_dimension", "keep_master_weight", "skip_bias_add", "pad"),
        *("pad_alignment_size_per_rank", "keep_padded_output", "tensor_model_parallel_group"),
        *("reduce_dtype", "rank_ordering"),
    ),
    "RowParallelLinear": (
        *("input_size", "output_size", "bias", "input_is_parallel", "dtype", "device", "stride"),
        *("init_method", "sequence_parallel_enabled", "sequence_dimension", "keep_master_weight"),
        *("skip_bias_add", "pad", "reduce_output", "tensor_model_parallel_group", "reduce_dtype", "tile_cc"),
        "rank_ordering",
    ),
    "ParallelEmbedding": (
        *("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"),
        *("sparse", "init_method", "device", "dtype", "shard_across_embedding", "pad"),
        *("sequence_parallel_enabled", "tensor_model_parallel_group", "use_spmd_rank", "sequence_dimension"),
        *("tile_cc", "rank_ordering", "collect_output"),
    ),
    "LayerNorm": (
        *("normalized_shape", "eps", "elementwise_affine", "bias", "device", "dtype"),
        "sequence_parallel_enabled",
    ),
}
"""In the order of neuronx_distributed/parallel_layers/layers.py and layer_norm.py."""
PLAIN = {
    "ColumnParallelLinear": "torch.nn.Linear",
    "LayerNorm": "torch.nn.LayerNorm",
    "ParallelEmbedding": "torch.nn.Embedding",
    "RowParallelLinear": "torch.nn.Linear",
}
KEPT = {
    "ColumnParallelLinear": ("in_features", "out_features", "bias", "dtype", "device"),
    "LayerNorm": ("normalized_shape", "eps", "elementwise_affine", "bias", "device", "dtype"),
    "ParallelEmbedding": (
        *("num_embeddings", "embedding_dim", "padding_idx", "norm_type", "scale_grad_by_freq", "sparse"),
        *("device", "dtype"),
    ),
    "RowParallelLinear": ("in_features", "out_features", "bias", "dtype", "device"),
}
"""What the plain layer takes, by its own names."""
NEW_NAMES = {"input_size": "in_features", "output_size": "out_features"}
POSITIONAL = 2
"""How many arguments may come by position: the order of the others differs."""
NO_MATTER = frozenset({"keep_master_weight", "pad_alignment_size_per_rank", "reduce_dtype", "tile_cc"})
"""What only told how the shards were made or the sums scheduled."""
ONLY = {
    "collect_output": "True",
    "keep_padded_output": "False",
    "max_norm": "None",
    "pad": "False",
    "rank_ordering": "None",
    "reduce_output": "True",
    "skip_bias_add": "False",
    "use_spmd_rank": "False",
}
"""Arguments that the plan can follow at this value alone, the default."""
GROUP = "neuronx_distributed.parallel_layers.parallel_state.get_tensor_model_parallel_group"
BY_HAND = (
    "make the plain layer, and give it to `parallelize_module` with `ColwiseParallel` or `RowwiseParallel`"
)
ASKED_TODO = (
    "all layers of that class are meant now, and methods of the old ones, such as `init_weight_cpu()`, are "
    "not there"
)
WHY = "the plain layer of torch is sharded by a plan"
STRIDE_TODO = (
    "the rows of the whole weight of `{name}` stand in the order of the processes, each with its part of "
    "every fused projection: bring those of a checkpoint that was not sharded into that order first"
)
SEQUENCE_TODO = (
    "norms that see a part of the sequence need `SequenceParallel()` in a plan as well: the gradients of "
    "their weights have to be summed over the processes"
)


@dataclass
class Layer:
    """One layer and what becomes of it."""

    use: Use
    kind: str
    call: cst.Call
    target: cst.BaseExpression | None
    """What it is assigned to, where it is assigned."""
    name: str = ""
    """Its attribute of the object that owns it."""
    refused: str = ""
    style: str = ""
    """A template of the style of the plan; empty where the layer needs none."""
    holes: dict[str, cst.BaseExpression] = field(default_factory=dict)
    args: list[cst.Arg] = field(default_factory=list)
    gone: list[cst.BaseExpression] = field(default_factory=list)
    todo: list[str] = field(default_factory=list)


@codemod.uses(KINDS)
def decide(site: Site, use: Use) -> None:
    """Rewrite the layers of one block of statements together."""
    if use.call is None and not use.method and _is_asked_for(site, use):
        group = site.group(use)
        group.replace(use.chain, group.ref(PLAIN[KINDS[use.claim]]))
        group.review(use.chain, use.name, "the layers are plain ones now", ASKED_TODO)
        return
    if use.call is None or use.method:
        site.mark(use.chain, use.name, *_no_call(site, use))
        return
    mesh = mesh_of(site)
    if mesh.refused and use.claim != LAYER_NORM:
        site.mark(use.call, use.name, f"there is no device mesh in this file: {mesh.refused}", BY_HAND)
        return
    block = _block(site, use.call)
    layers = []
    for other in site.uses:
        if other.claim not in KINDS or other.call is None or other.method or other in site.settled:
            continue
        if other is not use and (other.ambiguous or block is None or _block(site, other.call) is not block):
            continue
        layer = _layer(site, other, other.call)
        if layer.refused:
            site.mark(other.call, other.name, layer.refused, BY_HAND)
            site.settled.add(other)
        else:
            layers.append(layer)
    owned = [each for each in layers if each.name]
    if owned:
        _rewrite_owned(site, owned)
    for each in layers:
        if not each.name:
            _rewrite_alone(site, each)
        site.settled.add(each.use)


def _is_asked_for(site: Site, use: Use) -> bool:
    """Whether a class stands in the second argument of `isinstance`, alone or in a tuple."""
    node: cst.CSTNode = use.chain
    around = site.parent(node)
    if isinstance(around, cst.Element):
        holder = site.parent(around)
        if not isinstance(holder, cst.Tuple):
            return False
        around = site.parent(holder)
    call = site.parent(around) if isinstance(around, cst.Arg) else None
    return (
        isinstance(call, cst.Call)
        and site.name_of(call.func) in ("builtins.isinstance", "builtins.issubclass")
        and len(call.args) == 2
        and call.args[1] is around
    )


def _no_call(site: Site, use: Use) -> tuple[str, str]:
    """Why a name that is not called stays, and what to do."""
    around = site.parent(use.chain)
    call = site.parent(around) if isinstance(around, cst.Arg) else None
    if isinstance(around, cst.Arg) and isinstance(call, cst.ClassDef):
        return "a class is made of it", "derive from the plain layer, and shard its weights by a plan"
    return "the class itself is looked at", f"the layers are of the class `{PLAIN[KINDS[use.claim]]}` then"


def _block(site: Site, call: cst.Call) -> cst.CSTNode | None:
    """The block whose attributes of `self` hold a layer; None where it is used some other way."""
    assign = site.parent(call)
    if not isinstance(assign, cst.Assign) or not _owner(site, assign):
        return None
    return site.suite(assign)


def _owner(site: Site, assign: cst.Assign) -> str:
    """The name of the object of a method that gets an attribute."""
    if len(assign.targets) != 1:
        return ""
    target = assign.targets[0].target
    function = next((each for each in site.ancestors(assign) if isinstance(each, cst.FunctionDef)), None)
    if not isinstance(target, cst.Attribute) or not isinstance(target.value, cst.Name) or function is None:
        return ""
    first = next(iter(parameters(function.params)), None)
    line = site.parent(assign)
    if (
        first is None
        or first.name.value != target.value.value
        or not isinstance(line, cst.SimpleStatementLine)
    ):
        return ""
    return target.value.value if len(line.body) == 1 else ""


# What becomes of one layer.


def _layer(site: Site, use: Use, call: cst.Call) -> Layer:
    kind = KINDS[use.claim]
    assign = site.parent(call)
    target = assign.targets[0].target if isinstance(assign, cst.Assign) and len(assign.targets) == 1 else None
    layer = Layer(use, kind, call, target)
    if isinstance(assign, cst.Assign) and _owner(site, assign) and isinstance(target, cst.Attribute):
        layer.name = target.attr.value
    bound = edits.arguments(call, PARAMETERS[kind])
    if bound.spread or bound.extra:
        layer.refused = "its arguments cannot be seen from here"
        return layer
    for name, arg in bound.by_name.items():
        _take(site, layer, name, arg)
    if target is not None and not layer.refused and _is_filled(site, call, target):
        layer.refused = f"the weight of `{edits.short(target)}` is filled with a shard by hand"
    _style(layer, bound)
    if layer.gone and not layer.name and bound.value("init_method") is not None:
        layer.refused = layer.refused or "its `init_method` has to be called on the whole weight"
    return layer


def _take(site: Site, layer: Layer, name: str, arg: cst.Arg) -> None:
    """Keep an argument for the plain layer, drop it, or refuse."""
    new = NEW_NAMES.get(name, name)
    text = edits.code_of(arg.value)
    if new in KEPT[layer.kind]:
        if arg.keyword is not None:
            layer.args.append(arg.with_changes(keyword=cst.Name(new)))
        elif KEPT[layer.kind].index(new) == len(layer.args) and not any(each.keyword for each in layer.args):
            layer.args.append(arg)
        else:
            layer.args.append(edits.keyword(new, arg.value).with_changes(comma=arg.comma))
    elif name in ONLY and text != ONLY[name]:
        layer.refused = f"`{name}={text}` has no counterpart in a plan"
    elif name == "tensor_model_parallel_group" and text != "None":
        getter = next((each for each in site.uses if each.call is arg.value and each.claim == GROUP), None)
        if getter is None:
            layer.refused = f"it works within a group of its own, `{edits.short(arg.value)}`"
        else:
            site.settled.add(getter)
            layer.gone.append(arg.value)
    else:
        layer.gone.append(arg.value)


def _style(layer: Layer, bound: edits.Arguments) -> None:
    """The style of the plan, from the arguments that said how a layer was cut."""
    sequence = bound.value("sequence_parallel_enabled")
    parallel = sequence is not None and edits.code_of(sequence) not in ("False", "None")
    dimension = bound.value("sequence_dimension")
    if dimension is None or edits.code_of(dimension) == "None":
        dimension = cst.Integer("0")
    layouts: dict[str, str] = {}
    if layer.kind == "LayerNorm":
        if parallel:
            assert sequence is not None
            if edits.code_of(sequence) != "True" or not layer.name:
                layer.refused = "whether it sees a part of the sequence is known at run time"
            layer.style = f"{STYLE}.SequenceParallel(sequence_dim=0)"
        return
    if parallel and sequence is not None:
        layer.todo.append(SEQUENCE_TODO)
        layer.holes |= {"sequence": sequence, "dimension": dimension}
        shard = "torch.distributed.tensor.Shard({dimension})"
        if edits.code_of(sequence) != "True":
            shard += " if {sequence} else torch.distributed.tensor.Replicate()"
    whole = "torch.distributed.tensor.Replicate()"
    if layer.kind == "ColumnParallelLinear":
        _stride(layer, bound)
        cut = "ColwiseParallel"
        if parallel:
            layouts["input_layouts"] = shard
        _switch(layer, bound, "gather_output", True, layouts, "output_layouts")
    elif layer.kind == "RowParallelLinear":
        cut = "RowwiseParallel"
        stride = bound.value("stride")
        if stride is not None and edits.code_of(stride) != "1":
            layer.refused = layer.refused or "it is cut into strides"
        _switch(layer, bound, "input_is_parallel", False, layouts, "input_layouts")
        if parallel:
            layouts["output_layouts"] = shard
    else:
        across = bound.value("shard_across_embedding")
        text = "False" if across is None else edits.code_of(across)
        if text not in ("True", "False"):
            layer.refused = layer.refused or "which way it is cut is known at run time"
        if parallel and (text == "True" or bound.value("sequence_dimension") is None):
            layer.refused = layer.refused or "it is not said which dimension of its output is the sequence"
        cut = "ColwiseParallel" if text == "True" else "RowwiseParallel"
        layouts["output_layouts" if text == "True" else "input_layouts"] = whole
        if parallel:
            layouts["output_layouts"] = shard
    given = ", ".join(f"{key}={layouts[key]}" for key in sorted(layouts))
    layer.style = f"{STYLE}.{cut}({given})"


def _switch(
    layer: Layer,
    bound: edits.Arguments,
    name: str,
    default: bool,
    layouts: dict[str, str],
    which: str,
) -> None:
    """The layout on the side where whole tensors may be asked for: `Shard(-1)` is the style's own."""
    value = bound.value(name)
    text = str(default) if value is None else edits.code_of(value)
    whole, part = "torch.distributed.tensor.Replicate()", "torch.distributed.tensor.Shard(-1)"
    wants_whole = "True" if name == "gather_output" else "False"
    if text == wants_whole:
        layouts[which] = whole
    elif text not in ("True", "False") and value is not None:
        layer.holes[name] = value
        one, other = (whole, part) if wants_whole == "True" else (part, whole)
        layouts[which] = f"{one} if {{{name}}} else {other}"


def _stride(layer: Layer, bound: edits.Arguments) -> None:
    stride = bound.value("stride")
    if stride is None or edits.code_of(stride) == "1":
        return
    gathered = bound.value("gather_output")
    if gathered is None or edits.code_of(gathered) != "False":
        layer.refused = layer.refused or "the parts of a fused projection are gathered in another order"
    what = edits.short(layer.target) if layer.target is not None else "the layer"
    layer.todo.append(STRIDE_TODO.format(name=what))


def _is_filled(site: Site, call: cst.Call, target: cst.BaseExpression) -> bool:
    """Whether code in the same function puts something into the weight of a layer."""
    function = next((each for each in site.ancestors(call) if isinstance(each, cst.FunctionDef)), None)
    starts = tuple(f"{edits.code_of(target)}.{name}.data" for name in ("bias", "weight"))
    return function is not None and any(
        edits.code_of(each.target).startswith(starts)
        and function in site.ancestors(each)
        and isinstance(each.target, (cst.Attribute, cst.Subscript))
        for each in site.nodes(cst.AssignTarget)
    )


# The edits.


def _plain(group: Group, layer: Layer) -> cst.Call:
    """The plain layer with the arguments it takes."""
    call = layer.call.with_changes(func=group.ref(PLAIN[layer.kind]))
    group.site.keywords += [
        (PLAIN[layer.kind], each.keyword.value) for each in layer.args if each.keyword is not None
    ]
    return edits.with_arguments(call, layer.args)


def _rewrite_owned(site: Site, layers: list[Layer]) -> None:
    """Make the plain layers of one block, and shard them by one plan."""
    group = site.group(layers[0].use)
    planned = [each for each in layers if each.style]
    for layer in layers:
        group.replace(layer.call, _plain(group, layer))
    last = planned[-1] if planned else None
    for layer in layers:
        assign = site.parent(layer.call)
        assert isinstance(assign, cst.Assign)
        line = site.parent(assign)
        assert isinstance(line, cst.SimpleStatementLine)
        new = _initialized(group, layer)
        if new:
            group.insert(line, new, before=False)
        if layer is last:
            assert isinstance(layer.target, cst.Attribute)
            plan = _plan(site, group, planned, layer.target.value)
            group.insert(_last_touched(site, line, planned), plan, before=False)
    _tell(site, group, layers)


def _last_touched(site: Site, line: cst.SimpleStatementLine, layers: list[Layer]) -> edits.Statement:
    """The last statement of the block that still works on the whole weights of some layers.

    What draws or fills weights is left before the plan; what ties one to another comes after it, since the
    plan makes parameters anew.
    """
    block = site.parent(line)
    owned = {edits.code_of(each.target) for each in layers if each.target is not None}
    found: edits.Statement = line
    body = list(getattr(block, "body", ()))
    for statement in body[body.index(line) + 1 :]:
        text = edits.code_of(statement)
        if any(f"{each}.weight =" in text for each in owned):
            break
        parts = [each for each in m.findall(statement, m.Attribute()) if edits.code_of(each) in owned]
        if parts and isinstance(statement, edits.Statement):
            found = statement
    return found


def _initialized(group: Group, layer: Layer) -> list[edits.Statement]:
    """The call of an `init_method` on the weight of a layer, and nothing if there is none."""
    method = edits.arguments(layer.call, PARAMETERS[layer.kind]).value("init_method")
    if method is None or edits.code_of(method) == "None" or layer.target is None:
        return []
    return group.statements("{method}({layer}.weight)\n", method=method, layer=layer.target.deep_clone())


def _plan(site: Site, group: Group, layers: list[Layer], owner: cst.BaseExpression) -> list[edits.Statement]:
    entries = []
    holes: dict[str, cst.BaseExpression] = {}
    for number, layer in enumerate(layers):
        renamed = {name: f"{name}_{number}" for name in layer.holes}
        style = layer.style.format(**{name: f"{{{new}}}" for name, new in renamed.items()})
        entries.append(f'"{layer.name}": {style}')
        holes |= {renamed[name]: value.deep_clone() for name, value in layer.holes.items()}
    call = f"{STYLE}.parallelize_module"
    template = f"{call}({{owner}}, {{mesh}}, {{{{{entries[0]}}}}})\n"
    if len(entries) > 1:
        lines = "".join(f"        {each},\n" for each in entries)
        template = f"{call}(\n    {{owner}},\n    {{mesh}},\n    {{{{\n{lines}    }}}},\n)\n"
    mesh = dimension_of(site, group, "tp")
    return group.statements(template, owner=owner.deep_clone(), mesh=mesh, **holes)


def _rewrite_alone(site: Site, layer: Layer) -> None:
    """Shard a layer where it is made."""
    group = site.group(layer.use)
    new: cst.BaseExpression = _plain(group, layer)
    if layer.style:
        new = group.expression(
            f"{STYLE}.parallelize_module({{layer}}, {{mesh}}, {layer.style})",
            layer=new,
            mesh=dimension_of(site, group, "tp"),
            **{name: value.deep_clone() for name, value in layer.holes.items()},
        )
    group.replace(layer.call, new)
    _tell(site, group, [layer])


def _tell(site: Site, group: Group, layers: list[Layer]) -> None:
    handed = mesh_of(site).todo
    told: set[str] = set()
    for layer in layers:
        for each in layer.gone:
            if each not in layer.holes.values():
                forget(site, each)
        todo = [each for each in layer.todo if each not in told]
        told.update(todo)
        todo += [handed] if handed and layer.style else []
        numerics = Numerics.REORDERED if layer.style else Numerics.SAME
        why = WHY if layer.style else "the norm is torch's own"
        if todo:
            group.review(layer.call, layer.use.name, why, "; ".join(todo), numerics=numerics)
        else:
            group.fixed(layer.call, layer.use.name, why, numerics=numerics)
