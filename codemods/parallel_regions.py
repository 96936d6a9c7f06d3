"""Regions of NxD between parallel layers: `mappings.gather_from_sequence_parallel_region(x)` and others.

Each moved a tensor from one way of being spread over the tensor parallel processes to another, and its
gradient back. Functions of the same parameters say both ways as placements of a DTensor, which sends what
has to be sent; plain tensors go in and come out. `parallel_cross_entropy` becomes a function that gathers
the logits of the whole vocabulary: `loss_parallel()` would spare that, but needs the backward pass inside.
So does `from_parallel_logits_to_logprobs`.

Marked are groups of their own and the regions of experts.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.meshes import dimension_of, mesh_of
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

LAYERS = "neuronx_distributed.parallel_layers"
REPLICATE = "torch.distributed.tensor.Replicate()"
PARTIAL = "torch.distributed.tensor.Partial()"
WRAP = "torch.distributed.tensor.DTensor.from_local(tensor, {mesh}, [{placement}], run_check=False)"


def _region(about: str, parameters: str, placement: str, after: str) -> str:
    """The definition of a function that gives a tensor other placements, as a template."""
    wrapped = WRAP.format(mesh="{mesh}", placement=placement)
    return f'def {{name}}({parameters}):\n    """{about}"""\n    whole = {wrapped}\n    return whole{after}\n'


REGIONS = {
    "copy_to_tensor_model_parallel_region": _region(
        "The same tensor; the gradients of the processes are summed.",
        "tensor",
        REPLICATE,
        f".to_local(grad_placements=[{PARTIAL}])",
    ),
    "gather_from_sequence_parallel_region": _region(
        "The whole sequence from its parts; its gradient is summed and split, or only split.",
        "tensor, sequence_dimension=0, to_model_parallel=True",
        "torch.distributed.tensor.Shard(sequence_dimension)",
        f".full_tensor(grad_placements=[{PARTIAL} if to_model_parallel else {REPLICATE}])",
    ),
    "gather_from_tensor_model_parallel_region": _region(
        "The whole tensor from its parts along the last dimension; its gradient is split.",
        "tensor",
        "torch.distributed.tensor.Shard(tensor.dim() - 1)",
        ".full_tensor()",
    ),
    "reduce_from_tensor_model_parallel_region": _region(
        "The sum over the processes; its gradient is that of each part.",
        "tensor",
        PARTIAL,
        ".full_tensor()",
    ),
    "reduce_scatter_to_sequence_parallel_region": _region(
        "The own part of the sum over the processes; the gradient is gathered.",
        "tensor, sequence_dimension=0",
        PARTIAL,
        ".redistribute(placements=[torch.distributed.tensor.Shard(sequence_dimension)]).to_local()",
    ),
    "scatter_to_sequence_parallel_region": _region(
        "The own part of the sequence; its gradient is gathered.",
        "tensor, sequence_dimension=0",
        REPLICATE,
        ".redistribute(placements=[torch.distributed.tensor.Shard(sequence_dimension)]).to_local()",
    ),
    "scatter_to_tensor_model_parallel_region": _region(
        "The own part along the last dimension; its gradient is gathered.",
        "tensor",
        REPLICATE,
        ".redistribute(placements=[torch.distributed.tensor.Shard(tensor.dim() - 1)]).to_local()",
    ),
}
EXPORTED = (
    "copy_to_tensor_model_parallel_region",
    "gather_from_tensor_model_parallel_region",
    "reduce_from_tensor_model_parallel_region",
    "scatter_to_tensor_model_parallel_region",
)
"""Those that the package above `mappings` gives as well."""
NAMES = {
    **{f"{LAYERS}.mappings.{name}": name for name in REGIONS},
    **{f"{LAYERS}.{name}": name for name in EXPORTED},
}
LOSSES = (
    f"{LAYERS}.loss_functions.parallel_cross_entropy",
    f"{LAYERS}.loss_functions_ignore_index.parallel_cross_entropy",
    f"{LAYERS}.parallel_cross_entropy",
)
LOSS = '''\
def {name}(logits, target, label_smoothing=0.0, ignore_index=-100):
    """The cross entropy of each target; each process has the logits of a part of the vocabulary."""
    parts = torch.distributed.tensor.Shard(logits.dim() - 1)
    whole = torch.distributed.tensor.DTensor.from_local(logits, {mesh}, [parts], run_check=False)
    whole = whole.full_tensor()
    words = whole.shape[-1]
    loss = torch.nn.functional.cross_entropy(
        whole.reshape(-1, words),
        target.reshape(-1),
        reduction="none",
        label_smoothing=label_smoothing * words / (words - 1),
        ignore_index=ignore_index,
    )
    return loss.view(target.shape)
'''
LOGPROBS = f"{LAYERS}.loss_functions.from_parallel_logits_to_logprobs"
LOGPROBS_HELPER = '''\
def {name}(logits, target, inference=True):
    """The log probability of each next token; each process has the logits of a part of the vocabulary."""
    parts = torch.distributed.tensor.Shard(logits.dim() - 1)
    whole = torch.distributed.tensor.DTensor.from_local(logits, {mesh}, [parts], run_check=False)
    logprobs = whole.full_tensor()[:, :-1].log_softmax(-1, dtype=torch.float32)
    return logprobs.gather(-1, target[:, 1:].unsqueeze(-1)).squeeze(-1)
'''
LOGPROBS_TODO = "each process holds the logits of the whole vocabulary for a moment"
LOSS_TODO = (
    "a target of -100 has no loss now, where it had one before; each process holds the logits of the whole "
    "vocabulary for a moment, which `loss_parallel()` around loss and backward pass would spare"
)
BY_HAND = "use placements of a DTensor"
IN_PLACE = "reduce_from_tensor_model_parallel_region"
"""It changed its argument as well (`_reduce` in neuronx_distributed/parallel_layers/mappings.py)."""


@codemod.uses(NAMES)
def decide(site: Site, use: Use) -> None:
    """Put a function of the same name in its place."""
    name = NAMES[use.claim]
    if use.call is not None and _has_own_group(site, use):
        return
    _replace(site, use, name, REGIONS[name], "placements of a DTensor say what is sent", "")


@codemod.uses(LOSSES)
def decide_loss(site: Site, use: Use) -> None:
    """Put a function that gathers the logits in its place."""
    why = "a function gathers the logits, and takes the cross entropy of torch"
    _replace(site, use, "parallel_cross_entropy", LOSS, why, LOSS_TODO)


@codemod.uses([LOGPROBS])
def decide_logprobs(site: Site, use: Use) -> None:
    """Put a function that gathers the logits in its place."""
    why = "a function gathers the logits, and takes their log_softmax"
    _replace(site, use, "from_parallel_logits_to_logprobs", LOGPROBS_HELPER, why, LOGPROBS_TODO)


def _has_own_group(site: Site, use: Use) -> bool:
    """Whether a region is not that of the tensor parallel processes; it is marked then."""
    assert use.call is not None
    for arg in use.call.args:
        key = "" if arg.keyword is None else arg.keyword.value
        if key in ("dtype", "process_group", "tile_cc") and edits.code_of(arg.value) not in ("False", "None"):
            site.mark(use.call, use.name, f"`{key}={edits.short(arg.value)}` has no counterpart", BY_HAND)
            return True
    return False


def _replace(site: Site, use: Use, name: str, code: str, why: str, todo: str) -> None:
    mesh = mesh_of(site)
    if use.method or mesh.refused:
        reason = (
            f"there is no device mesh in this file: {mesh.refused}" if mesh.refused else "it is no function"
        )
        site.mark(use.whole, use.name, reason, BY_HAND)
        return
    group: Group = site.group(use)
    alone = None if use.call is None else site.alone(use.call)
    if name == IN_PLACE and alone is not None and use.call is not None and use.call.args:
        template = "torch.distributed.all_reduce({tensor}, group={part}.get_group())\n"
        part = dimension_of(site, group, "tp")
        holes = {"tensor": use.call.args[0].value, "part": part}
        group.replace_statement(alone, group.statements(template, **holes))
        _tell(site, group, use, "its result is not used, but it summed the tensor in place", "")
        return
    helper = group.helper(name, code, mesh=dimension_of(site, group, "tp"))
    gone = [
        arg
        for arg in (use.call.args if use.call is not None else ())
        if arg.keyword is not None and arg.keyword.value in ("dtype", "process_group", "tile_cc")
    ]
    if use.call is None:
        group.replace(use.chain, helper)
    else:
        args = [_renamed(arg) for arg in use.call.args if arg not in gone]
        group.replace(use.call, edits.with_arguments(use.call.with_changes(func=helper), args))
    _tell(site, group, use, why, todo)


def _tell(site: Site, group: Group, use: Use, why: str, todo: str) -> None:
    told = "; ".join(each for each in (todo, mesh_of(site).todo) if each)
    if told:
        group.review(use.whole, use.name, why, told, numerics=Numerics.REORDERED)
    else:
        group.fixed(use.whole, use.name, why, numerics=Numerics.REORDERED)


def _renamed(arg: cst.Arg) -> cst.Arg:
    """The same argument by the name it has in the new function."""
    new = {"input_": "tensor", "vocab_parallel_logits": "logits"}
    if arg.keyword is None or arg.keyword.value not in new:
        return arg
    return arg.with_changes(keyword=cst.Name(new[arg.keyword.value]))
