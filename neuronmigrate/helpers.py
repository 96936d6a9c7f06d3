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


def to_cpu_helper(group: Group) -> cst.Name:
    """A function that copies the tensors of nested containers to the CPU, as `xm.save` did."""
    return group.helper("to_cpu", TO_CPU, shim="to_cpu")
