"""Where a program names a device."""

from __future__ import annotations

import libcst as cst

from neuronmigrate.site import Site

KEYWORDS = frozenset({"device", "device_map", "device_type", "map_location"})
AUTOCAST = frozenset({"torch.amp.autocast", "torch.amp.autocast_mode.autocast", "torch.autocast"})
# Callables that take a device in this position.
POSITIONS = {
    "torch.Generator": 0,
    "torch.amp.GradScaler": 0,
    "torch.amp.autocast": 0,
    "torch.amp.autocast_mode.autocast": 0,
    "torch.amp.is_autocast_available": 0,
    "torch.autocast": 0,
    "torch.device": 0,
    "torch.distributed.DeviceMesh": 0,
    "torch.distributed.device_mesh.DeviceMesh": 0,
    "torch.distributed.device_mesh.init_device_mesh": 0,
    "torch.distributed.init_device_mesh": 0,
    "torch.distributed.tensor.DeviceMesh": 0,
    "torch.get_autocast_dtype": 0,
    "torch.get_device_module": 0,
    "torch.is_autocast_enabled": 0,
    "torch.load": 1,
    "torch.set_autocast_dtype": 0,
    "torch.set_autocast_enabled": 0,
    "torch.set_default_device": 0,
}
# Libraries whose `device=` is one of PyTorch's.
LIBRARIES = frozenset(
    {"accelerate", "diffusers", "peft", "safetensors", "sentence_transformers", "torch", "torchaudio"}
) | {"torchmetrics", "torchvision", "transformers", "trl"}
# Libraries that call their own compiler XLA.
FOREIGN = frozenset({"flax", "jax", "jaxlib", "keras", "numpyro", "optax", "tensorflow", "tf"})


def takes_device(site: Site, arg: cst.Arg) -> bool | None:
    """Whether an argument names a device; None when its name says so and the callable is unknown."""
    call = site.parent(arg)
    if not isinstance(call, cst.Call) or arg.star:
        return False
    name = site.name_of(call.func) or ""
    root = name.partition(".")[0]
    if root in FOREIGN:
        return False
    keyword = arg.keyword.value if arg.keyword is not None else ""
    index = -1 if keyword else list(call.args).index(arg)
    if name in POSITIONS and (index == POSITIONS[name] or keyword == "type"):
        return True
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "to" and not name:
        return index == 0 or keyword == "device"
    if keyword not in KEYWORDS:
        return False
    return True if root in LIBRARIES else None


def is_device_type(node: cst.BaseExpression) -> bool:
    """Whether an expression is `something.device.type`."""
    return (
        isinstance(node, cst.Attribute)
        and node.attr.value == "type"
        and isinstance(node.value, (cst.Attribute, cst.Name))
        and last_word(node.value) == "device"
    )


def last_word(node: cst.BaseExpression) -> str:
    """The last name of a chain: `device` of `args.device` and of `config["device"]`."""
    if isinstance(node, cst.Attribute):
        return node.attr.value
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Subscript) and len(node.slice) == 1:
        index = node.slice[0].slice
        if isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
            return str(index.value.evaluated_value)
    return ""
