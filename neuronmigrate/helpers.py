"""Functions that several codemods write into migrated files."""

from __future__ import annotations

import libcst as cst

from neuronmigrate.site import Group

TO_CPU = '''\
def {name}(data):
    """Copy the tensors in nested containers to the CPU; tuples come as lists."""
    if isinstance(data, torch.Tensor):
        return data.detach().cpu()
    if isinstance(data, dict):
        return {{key: {name}(value) for key, value in data.items()}}
    if isinstance(data, (list, tuple)):
        return [{name}(value) for value in data]
    return data
'''
CLIP = '''\
def {name}(parameters, max_norm, norm_type=2.0):
    """Clip gradients, sharded ones and plain ones, by the norm of all of them together."""
    parameters = [param for param in parameters if param.grad is not None]
    norms = [torch.linalg.vector_norm(param.grad, norm_type) for param in parameters]
    norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total, foreach=False)
    return total
'''

AVERAGE_WITHIN = '''\
def {name}(optimizer, max_norm, group):
    """Average the gradients over a group and clip them by their norm, as each step of ZeRO-1 did."""
    params = [param for each in optimizer.param_groups for param in each["params"] if param.grad is not None]
    for param in params:
        gradient = param.grad.to_local() if hasattr(param.grad, "to_local") else param.grad
        torch.distributed.all_reduce(gradient, group=group)
        gradient.div_(torch.distributed.get_world_size(group))
    if max_norm is not None:
        optimizer.grad_norm = {clip}(params, max_norm)
'''


def to_cpu_helper(group: Group) -> cst.Name:
    """A function that copies the tensors of nested containers to the CPU, as `xm.save` did."""
    return group.helper("to_cpu", TO_CPU, shim="to_cpu")


def clip_helper(group: Group) -> cst.Name:
    """A function that clips gradients by the norm of all shards, as the one of NxD did."""
    return group.helper("clip_grad_norm", CLIP)


def average_within_helper(group: Group) -> cst.Name:
    """A function that averages gradients over a group and clips them, to be run before each step."""
    return group.helper("average_and_clip_within", AVERAGE_WITHIN, clip=clip_helper(group))
