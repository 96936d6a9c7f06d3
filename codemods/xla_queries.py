"""Small questions and moves of torch_xla that have one native counterpart, such as `xm.is_xla_tensor(t)`.

Counts of devices are asked of `torch.accelerator`, a tensor's place of its device. The optimizers without
host synchronisation are torch's own, a helper does what `xm.send_cpu_data_to_device` did, and a replication
that is set up goes. Where an answer is known, such as that of `xr.using_pjrt()`, the branch that stays takes
the place of the question.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Call, Codemod, Drop, Rename
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

SEND = "torch_xla.core.xla_model.send_cpu_data_to_device"
NOW = "torch_xla.test.test_utils.now"
PARAMETERS = ("datas", "device", "input_sharding")
"""Of torch_xla 2.9 (torch_xla/core/xla_model.py)."""
SENT = '''\
def {name}(data, device):
    """Move the tensors in nested data to the device; tuples, and a tensor by itself, come as lists."""

    def moved(value):
        if isinstance(value, torch.Tensor):
            return value.to(device)
        if isinstance(value, dict):
            return {{key: moved(each) for key, each in value.items()}}
        if isinstance(value, (list, tuple)):
            return [moved(each) for each in value]
        return value

    return moved([data] if isinstance(data, torch.Tensor) else data)
'''

codemod.symbol(
    "torch_xla.amp.syncfree.Adam",
    Rename("torch.optim.Adam"),
    because="the native optimizer does not wait for the host",
)
codemod.symbol(
    "torch_xla.amp.syncfree.AdamW",
    Rename("torch.optim.AdamW"),
    because="the native optimizer does not wait for the host",
)
codemod.symbol(
    "torch_xla.amp.syncfree.SGD",
    Rename("torch.optim.SGD"),
    because="the native optimizer does not wait for the host",
)
codemod.symbol(
    "torch_xla.amp.syncfree.adam.Adam",
    Rename("torch.optim.Adam"),
    because="the native optimizer does not wait for the host",
)
codemod.symbol(
    "torch_xla.amp.syncfree.adamw.AdamW",
    Rename("torch.optim.AdamW"),
    because="the native optimizer does not wait for the host",
)
codemod.symbol(
    "torch_xla.amp.syncfree.sgd.SGD",
    Rename("torch.optim.SGD"),
    because="the native optimizer does not wait for the host",
)
codemod.symbol(
    "torch_xla.core.xla_model._fetch_gradients",
    Call(
        '[p.grad for group in {optimizer}.param_groups for p in group["params"] if p.grad is not None]',
        args=("optimizer",),
    ),
    because="the gradients stand at the parameters of the groups, in this order",
)
codemod.symbol(
    "torch_xla.core.xla_model.is_xla_tensor",
    Call('{tensor}.device.type == "neuron"', args=("tensor",)),
    because="the device of a tensor says where it is",
)
codemod.symbol(
    "torch_xla.core.xla_model.optimization_barrier_",
    Drop(),
    because="no compiler moves operations across it",
)
codemod.symbol(
    "torch_xla.core.xla_model.set_replication",
    Drop(),
    because="each process owns one device, so there is nothing to set up",
)
codemod.symbol(
    "torch_xla.core.xla_model.unlazy",
    Drop(),
    because="tensors hold their values as soon as they are computed",
)
codemod.symbol(
    "torch_xla.core.xla_model.xla_device_hw",
    Call("torch.device({device}).type.upper()", args=("device",)),
    because='the type of the device tells, in capitals as before: "NEURON" or "CPU"',
)
codemod.symbol(
    "torch_xla.device_count",
    Call("torch.accelerator.device_count()"),
    because="the devices that this process sees are counted",
)
codemod.symbol(
    "torch_xla.experimental.eager_mode",
    Drop(),
    because="the native device runs each operation when it is called",
)
codemod.symbol(
    "torch_xla.runtime.addressable_device_count",
    Call("torch.accelerator.device_count()"),
    because="the devices that this process sees are counted",
)
codemod.symbol(
    "torch_xla.runtime.addressable_runtime_device_count",
    Call("torch.accelerator.device_count()"),
    because="the devices that this process sees are counted",
)
codemod.symbol(
    "torch_xla.runtime.device_type",
    Call('"NEURON"'),
    because="code for this device was told this name",
)
codemod.symbol(
    "torch_xla.runtime.is_bf16_supported",
    Call("torch.neuron.is_bf16_supported()"),
    because="the native device answers",
)
codemod.symbol(
    "torch_xla.runtime.set_device_type",
    Drop(),
    because="the native device is named where it is used",
)
codemod.symbol(
    "torch_xla.runtime.using_pjrt",
    Call("True"),
    because="it was always so since torch_xla 2.1",
)


@codemod.uses([NOW])
def decide_now(site: Site, use: Use) -> None:
    """Show the time of day."""
    call = use.call
    bound = edits.arguments(call, ("format",)) if call is not None and not use.method else None
    if call is None or bound is None or bound.spread or bound.extra:
        site.mark(
            use.chain, use.name, "it is passed on, not called", 'pass `lambda: time.strftime("%H:%M:%S")`'
        )
        return
    group = site.group(use)
    shape = bound.value("format") or edits.string("%H:%M:%S")
    group.replace(call, group.expression("time.strftime({shape})", shape=shape))
    group.fixed(call, use.name, "the time of day is shown by Python itself")


@codemod.uses([SEND])
def decide(site: Site, use: Use) -> None:
    """Call a helper that takes whatever the old function took."""
    call = use.call
    bound = edits.arguments(call, PARAMETERS) if call is not None and not use.method else None
    data, device = (bound.value("datas"), bound.value("device")) if bound is not None else (None, None)
    if call is None or bound is None or bound.spread or bound.extra or data is None or device is None:
        todo = "move each tensor in the data with `.to(device)`"
        site.mark(use.chain, use.name, "it is passed on, or its arguments cannot be seen from here", todo)
        return
    if bound.value("input_sharding") is not None:
        todo = "move each tensor with `.to(device)`; a DTensor is made by `distribute_tensor`"
        site.mark(use.chain, use.name, "its argument `input_sharding` has no counterpart", todo)
        return
    group = site.group(use)
    helper = group.helper("send_to_device", SENT)
    args = [cst.Arg(data), cst.Arg(device)]
    group.replace(call, edits.with_arguments(call.with_changes(func=helper), args))
    group.fixed(call, use.name, "a helper moves the tensors as deep as they are nested")
