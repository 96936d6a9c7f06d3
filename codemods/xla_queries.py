"""Small questions and moves of torch_xla that have one native counterpart, such as `xm.is_xla_tensor(t)`.

Counts of devices are asked of `torch.accelerator`, a tensor's place of its device. The optimizers without
host synchronisation are torch's own, `xm.send_cpu_data_to_device` is a list of moves, and a replication
that is set up, or a package's own seed of dropout, goes.
"""

from __future__ import annotations

from neuronmigrate.codemod import Call, Codemod, Drop, Rename

codemod = Codemod(__name__)

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
    "torch_xla.core.xla_model.send_cpu_data_to_device",
    Call("[tensor.to({device}) for tensor in {data}]", args=("data", "device", "input_sharding")),
    because="each tensor is moved, and the answer is a list as before",
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
