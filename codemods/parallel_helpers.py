"""Small helpers of NxD, such as `move_model_to_device(model, device)`, `divide(a, b)` and `get_device()`.

Each has one counterpart in torch or Python. `clip_grad_norm` looked at the norm over all shards of tensor
parallel layers: a helper does, since `torch.nn.utils.clip_grad_norm_` takes sharded parameters or plain
ones, not both. `bucket_allreduce_gradients` averaged over the processes with the same shard, and becomes a
sum over that dimension of the device mesh. `get_grad_norm`, `allreduce_sequence_parallel_gradients` and
`cast_all` become helpers as well.

Marked are functions that are passed on, and arguments that concern ZeRO-1 or other kinds of parallelism.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Call, Codemod, Drop, Rename
from neuronmigrate.helpers import clip_helper
from neuronmigrate.meshes import dimension_of, mesh_of
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

NXD = "neuronx_distributed"
WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
CLIPS = {
    f"{NXD}.parallel_layers.clip_grad_norm": ("parameters", "max_norm", "norm_type"),
    f"{NXD}.parallel_layers.grads.clip_grad_norm": ("parameters", "max_norm", "norm_type"),
}
NORM = f"{NXD}.parallel_layers.grads.get_grad_norm"
SEQUENCE = f"{NXD}.parallel_layers.grads.allreduce_sequence_parallel_gradients"
CAST = f"{NXD}.parallel_layers.utils.cast_all"
REDUCE = f"{NXD}.parallel_layers.grads.bucket_allreduce_gradients"
REDUCE_HELPER = '''\
def {name}(gradients, group):
    """Average gradients over a group, the own part of sharded ones."""
    for gradient in gradients:
        gradient = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        torch.distributed.all_reduce(gradient, group=group)
        gradient.div_(torch.distributed.get_world_size(group))
'''

NORM_HELPER = '''\
def {name}(parameters, norm_type=2):
    """The norm of all gradients together, sharded ones and plain ones."""
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    gradients = [param.grad for param in parameters if param.grad is not None]
    norms = [torch.linalg.vector_norm(gradient, norm_type) for gradient in gradients]
    norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    return torch.linalg.vector_norm(torch.stack(norms), norm_type)
'''
SEQUENCE_HELPER = '''\
def {name}(optimizer, group):
    """Sum the gradients of weights that each saw a part of the sequence over a group."""
    for param in [param for each in optimizer.param_groups for param in each["params"]]:
        gradient = param.grad if param.grad is not None else getattr(param, "main_grad", None)
        if gradient is not None and getattr(param, "sequence_parallel_enabled", False):
            torch.distributed.all_reduce(gradient, group=group)
'''
CAST_HELPER = '''\
def {name}(state, from_dtype=torch.float32, to_dtype=torch.bfloat16):
    """Cast the tensors of one dtype in nested containers to another."""
    if isinstance(state, torch.Tensor):
        return state.to(to_dtype) if state.dtype == from_dtype else state
    if isinstance(state, dict):
        return {{key: {name}(value, from_dtype, to_dtype) for key, value in state.items()}}
    if isinstance(state, (list, tuple)):
        return type(state)({name}(value, from_dtype, to_dtype) for value in state)
    return state
'''
SEQUENCE_TODO = (
    "it looks for weights with `sequence_parallel_enabled`, which norms of NxD set: set it on the weights of "
    "norms that see a part of the sequence, or give those `SequenceParallel()` in a plan and drop this"
)

codemod.symbol(
    f"{NXD}.parallel_layers.move_model_to_device",
    Call("{model}.to({device})", args=("model", "device")),
    because="a model moves in place, sharded or not",
)
codemod.symbol(
    f"{NXD}.parallel_layers.pad.get_number_of_extra_heads",
    Call("-{n_head} % {tp_degree}", args=("n_head", "tp_degree")),
    because="it is what the next multiple lies above",
)
codemod.symbol(
    f"{NXD}.parallel_layers.utils.divide",
    Call("{numerator} // {denominator}", args=("numerator", "denominator")),
    because="plain division without a rest; torch refuses sizes that do not fit",
)
codemod.symbol(
    f"{NXD}.parallel_layers.utils.get_local_world_size",
    Call('int(os.environ["LOCAL_WORLD_SIZE"])'),
    because="the launcher sets the number of processes of the host",
)
codemod.symbol(
    f"{NXD}.parallel_layers.utils.is_pjrt_device",
    Call("True"),
    because="it asked for the newer of two runtimes of torch_xla",
)
codemod.symbol(
    f"{NXD}.parallel_layers.utils.is_torch_version_greater_than_2",
    Call("True"),
    because="the native stack begins at torch 2.13",
)
codemod.symbol(
    f"{NXD}.parallel_layers.utils.move_model_to_device",
    Call("{model}.to({device})", args=("model", "device")),
    because="a model moves in place, sharded or not",
)
codemod.symbol(
    f"{NXD}.parallel_layers.utils.requires_init_pg_override",
    Call("False"),
    because="it asked for torch 2.0, and the native stack begins at 2.13",
)
codemod.symbol(
    f"{NXD}.parallel_layers.utils.set_tensor_model_parallel_attributes",
    Drop(),
    because="only NxD reads these attributes; a sharded parameter is a DTensor",
)
codemod.symbol(
    f"{NXD}.parallel_layers.utils.split_tensor_along_last_dim",
    Call("torch.chunk({tensor}, {num_partitions}, dim=-1)", args=("tensor", "num_partitions")),
    because="torch has the same for sizes that can be divided",
)
codemod.symbol(
    f"{NXD}.utils.activation_checkpoint.apply_activation_checkpointing",
    Rename(f"{WRAPPER}.apply_activation_checkpointing"),
    because="torch has the same function",
)
codemod.symbol(
    f"{NXD}.utils.cpu_mode",
    Call("not torch.accelerator.is_available()"),
    because="torch knows whether there is a device",
    todo="the variable NXD_CPU_MODE decided before; without a device it is True now",
)
codemod.symbol(
    f"{NXD}.utils.get_device",
    Call('torch.device("neuron")'),
    because="the native backend registers the device type `neuron`",
)
codemod.symbol(
    f"{NXD}.utils.logger.get_logger",
    Call("logging.getLogger({name})", args=("name", "rank0_only"), dropped=("rank0_only",)),
    because="it was a logger of Python with a handler",
    todo="it wrote to stdout, on rank 0 alone unless told otherwise: configure `logging` so",
)
codemod.symbol(
    f"{NXD}.utils.model_utils.get_model_sequential",
    Call(
        "{model}.to({device})",
        args=("model", "device", "sequential_move_factor", "param_init_fn"),
        dropped=("sequential_move_factor",),
    ),
    because="a model moves in place; that the processes of a host did so in turn only spared its memory",
)
codemod.symbol(
    f"{NXD}.utils.model_utils.init_on_device",
    Rename("accelerate.init_on_device"),
    because="NxD takes this function of Accelerate itself where that is installed",
)
codemod.symbol(
    f"{NXD}.utils.model_utils.move_model_to_device",
    Call("{model}.to({device})", args=("model", "device")),
    because="a model moves in place, sharded or not",
)


@codemod.uses(CLIPS)
def decide_clip(site: Site, use: Use) -> None:
    """Clip by the norm over all shards."""
    todo = "use `torch.nn.utils.clip_grad_norm_` where all parameters are sharded, or none is"
    if use.call is None or use.method:
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(use.call, CLIPS[use.claim])
    force = bound.by_name.pop("force_spmd", None)
    extra = [arg for arg in bound.extra if arg is not force]
    if bound.spread or extra or "parameters" not in bound.by_name or "max_norm" not in bound.by_name:
        site.mark(use.call, use.name, "it is called with arguments that concern ZeRO-1", todo)
        return
    group = site.group(use)
    helper = clip_helper(group)
    args = [arg for arg in use.call.args if arg is not force]
    group.replace(use.call, edits.with_arguments(use.call.with_changes(func=helper), args))
    why = "a helper clips by the norm over all shards, whether a parameter is sharded or not"
    group.fixed(use.call, use.name, why, numerics=Numerics.REORDERED)


@codemod.uses([REDUCE])
def decide_reduce(site: Site, use: Use) -> None:
    """Average over the processes that hold the same shard."""
    mesh = mesh_of(site)
    todo = "all-reduce each gradient over the group of the data parallel processes, and divide by its size"
    if use.call is None or use.method or len(use.call.args) != 1 or use.call.args[0].star or mesh.refused:
        site.mark(use.whole, use.name, "its arguments, or the device mesh, cannot be seen from here", todo)
        return
    group = site.group(use)
    helper = group.helper("average_over", REDUCE_HELPER)
    part = edits.expression("{part}.get_group()", part=dimension_of(site, group, "dp"))
    args = [edits.positional(use.call.args[0]), cst.Arg(part)]
    group.replace(use.call, edits.with_arguments(use.call.with_changes(func=helper), args))
    why = "a helper averages over the data parallel dimension of the mesh"
    if mesh.todo:
        group.review(use.call, use.name, why, mesh.todo, numerics=Numerics.REORDERED)
    else:
        group.fixed(use.call, use.name, why, numerics=Numerics.REORDERED)


@codemod.uses([NORM])
def decide_norm(site: Site, use: Use) -> None:
    """Take the norm over all shards."""
    todo = "use `torch.nn.utils.get_total_norm` where all parameters are sharded, or none is"
    if use.call is None or use.method:
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(use.call, ("parameters", "norm_type"))
    force = bound.by_name.pop("force_spmd", None)
    if bound.spread or any(arg is not force for arg in bound.extra) or "parameters" not in bound.by_name:
        site.mark(use.call, use.name, "it is called with arguments that concern ZeRO-1", todo)
        return
    group = site.group(use)
    args = [arg for arg in use.call.args if arg is not force]
    helper = group.helper("get_grad_norm", NORM_HELPER)
    group.replace(use.call, edits.with_arguments(use.call.with_changes(func=helper), args))
    why = "a helper takes the norm over all shards, whether a parameter is sharded or not"
    group.fixed(use.call, use.name, why, numerics=Numerics.REORDERED)


@codemod.uses([SEQUENCE])
def decide_sequence(site: Site, use: Use) -> None:
    """Sum the gradients of norms over the processes that share a sequence."""
    mesh = mesh_of(site)
    if use.call is None or use.method or len(use.call.args) != 1 or use.call.args[0].star or mesh.refused:
        todo = "sum the gradients of norms over the tensor parallel processes, or use `SequenceParallel()`"
        reason = mesh.refused or "its argument cannot be seen from here"
        site.mark(use.whole, use.name, reason, todo)
        return
    group = site.group(use)
    helper = group.helper("sum_sequence_parallel_gradients", SEQUENCE_HELPER)
    part = edits.expression("{part}.get_group()", part=dimension_of(site, group, "tp"))
    args = [edits.positional(use.call.args[0]), cst.Arg(part)]
    group.replace(use.call, edits.with_arguments(use.call.with_changes(func=helper), args))
    why = "a helper sums over the tensor parallel dimension of the mesh"
    todo = "; ".join(each for each in (SEQUENCE_TODO, mesh.todo) if each)
    group.review(use.call, use.name, why, todo, numerics=Numerics.REORDERED)


@codemod.uses([CAST])
def decide_cast(site: Site, use: Use) -> None:
    """Put a function with its parameters in its place."""
    if use.method:
        site.mark(use.chain, use.name, "more than the function is meant", "use `Tensor.to(dtype)`")
        return
    group = site.group(use)
    group.replace(use.node, group.helper("cast_all", CAST_HELPER))
    group.fixed(use.whole, use.name, "a helper of the same parameters casts")
