"""Switches that let the lazy device hold bfloat16: `os.environ["XLA_USE_BF16"] = "1"`.

Tensors went on saying float32 while the device held bfloat16, rounded stochastically; under
`XLA_DOWNCAST_BF16` double meant float32 there. Natively the code says so: the model is moved to the device
as bfloat16, the rounding is switched on, and double becomes float32, as one unit. Inputs that are floats
have to be cast as well, which is said, for the numbers have to be compared.

Switches that are set under a condition or read in the file, and files where no model can be seen to be moved
to the device, are left to `hidden-name`.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import catalogue, edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.environment import DOWNCASTS, Setting, answer, is_read, setting_of
from neuronmigrate.moving import is_module
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site

codemod = Codemod(__name__)

ROUNDING = "NEURON_RT_STOCHASTIC_ROUNDING_EN"
MODELS = (".from_config", ".from_pretrained")
DEVICES = frozenset({"torch_xla.core.xla_model.xla_device", "torch_xla.device"})
# What makes floats when nothing else is said.
FLOATS = frozenset({"torch.empty", "torch.ones", "torch.rand", "torch.randn", "torch.zeros"})
DOUBLES = {"torch.double": "torch.float32", "torch.float64": "torch.float32"}
TODO = (
    "compare the numbers: float inputs have to be bfloat16 as well, `.to(device, torch.bfloat16)`, and numpy "
    "takes them after `.float()`; for float32 weights use torch.autocast instead"
)


@codemod.once
def decide(site: Site) -> None:
    """Write the precision out where the file switches it on for certain."""
    settings = [
        each
        for each in (setting_of(site, key) for key in site.nodes(cst.SimpleString))
        if each is not None and each.name in DOWNCASTS
    ]
    if not settings or any(not _is_on(each) or is_read(site, each) for each in settings):
        return
    if not all(_is_certain(site, each, settings) for each in settings):
        return
    downcast = any(each.name == "XLA_DOWNCAST_BF16" for each in settings)
    if downcast and any(_doubles_model(site, call) for call in site.names.calls):
        return  # a model that is double there was one of float32 on the device
    moves = [call for call in site.names.calls if _moves_model(site, call)]
    if not moves:
        return
    group = site.group()
    rounded = any(key.evaluated_value == ROUNDING for key in site.nodes(cst.SimpleString))
    for setting in settings:
        _write_setting(site, group, setting, rounded)
    for call in moves:
        dtype = group.expression("torch.bfloat16")
        group.replace(call, edits.with_arguments(call, [*call.args, cst.Arg(dtype)]))
    for call in site.names.calls:
        if _is_float_input(site, call):
            dtype_arg = edits.keyword("dtype", group.expression("torch.bfloat16"))
            group.replace(call, edits.with_arguments(call, [*call.args, dtype_arg]))
    why = "the model is moved to the device as bfloat16, which the switch did in silence"
    doubles = _write_doubles(site, group)
    if doubles:
        why += "; double becomes float32, "
        why += "which it meant on the device" if downcast else "though it was bfloat16 on the device as well"
    for setting in settings:
        group.review(setting.key, setting.name, why, TODO, numerics=Numerics.DTYPE)


def _is_on(setting: Setting) -> bool:
    value = setting.value
    text = value.evaluated_value if isinstance(value, cst.SimpleString) else edits.code_of(value)
    return text == "1" and not isinstance(setting.statement, cst.AugAssign)


def _is_certain(site: Site, setting: Setting, settings: list[Setting]) -> bool:
    """Whether a setting runs whenever the code around it does; both branches of a test count as one."""
    inside: cst.CSTNode = setting.statement
    for around in site.ancestors(setting.statement):
        if isinstance(around, (cst.For, cst.While, cst.Try, cst.With, cst.Match)):
            return False
        if isinstance(around, cst.If):
            branches = [around.body, around.orelse.body if isinstance(around.orelse, cst.Else) else None]
            set_in = [
                branch
                for branch in branches
                if branch is not None and any(branch in site.ancestors(each.statement) for each in settings)
            ]
            if len(set_in) != 2 or (inside not in branches and inside is not around.orelse):
                return False
        inside = around
    return True


def _moves_model(site: Site, call: cst.Call) -> bool:
    """Whether a call is `model.to(device)` with the legacy device, and no dtype."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "to" or len(call.args) != 1:
        return False
    if call.args[0].star or call.args[0].keyword is not None:
        return False
    device = site.flow.origin_of(call.args[0].value).producers
    if not device or not all(_is_device(each.name, each.node) for each in device):
        return False
    origins = site.flow.origin_of(func.value)
    return bool(origins.producers) and all(
        _is_model(site, each.name, each.node) for each in origins.producers
    )


def _is_float_input(site: Site, call: cst.Call) -> bool:
    """Whether a call makes floats on the device right where they are passed to a model."""
    given = edits.arguments(call, ())
    device = given.value("device")
    arg = site.parent(call)
    around = site.parent(arg) if isinstance(arg, cst.Arg) else None
    return (
        site.name_of(call.func) in FLOATS
        and device is not None
        and "dtype" not in given.by_name
        and isinstance(around, cst.Call)
        and all(_is_device(each.name, each.node) for each in site.flow.origin_of(device).producers)
        and any(_is_model(site, each.name, each.node) for each in site.flow.origin_of(around.func).producers)
    )


def _is_device(name: str, node: cst.CSTNode | None) -> bool:
    if name in DEVICES:
        return True
    if name == "torch.device" and isinstance(node, cst.Call) and node.args:
        node = node.args[0].value
    # A device that says `neuron` is native already, and never heeded the switch.
    return isinstance(node, cst.SimpleString) and str(node.evaluated_value).partition(":")[0] == "xla"


def _doubles_model(site: Site, call: cst.Call) -> bool:
    """Whether a call is `Model(...).double()`, or `model.double()` as a statement; outputs are tensors."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "double" or call.args:
        return False
    if isinstance(func.value, cst.Call):
        return _is_model(site, site.name_of(func.value.func) or "", func.value)
    origins = site.flow.origin_of(func.value).producers
    in_place = isinstance(site.parent(call), cst.Expr)
    return in_place and bool(origins) and all(_is_model(site, each.name, each.node) for each in origins)


def _is_model(site: Site, name: str, node: cst.CSTNode | None) -> bool:
    if name.endswith(MODELS) and not catalogue.is_legacy(name):
        return not any(word in name for word in ("Tokenizer", "Processor", "Config", "Extractor"))
    last = name.rpartition(".")[2]
    if name.startswith(("torch.nn.", "torchvision.models.")):
        return name.startswith("torchvision.models.") or last[:1].isupper()
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
        owners = [each.node for each in site.names.bindings_at(node.func)]
        return bool(owners) and all(
            isinstance(each, cst.ClassDef) and is_module(site, each) for each in owners
        )
    return isinstance(node, cst.ClassDef) and is_module(site, node)


def _write_setting(site: Site, group: Group, setting: Setting, rounded: bool) -> None:
    """Switch the rounding on, which the old switch implied."""
    answer(site, setting.statement)
    if rounded:
        group.replace_statement(setting.statement)
        forget(site, setting.statement)
    else:
        quote = setting.key
        new = f"{quote.prefix}{quote.quote}{ROUNDING}{quote.quote}"
        group.replace(setting.key, setting.key.with_changes(value=new))


def _write_doubles(site: Site, group: Group) -> bool:
    """Let double be float32 by its name."""
    found = False
    for node in site.nodes(cst.Attribute):
        parent = site.parent(node)
        if site.name_of(node) in DOUBLES:
            group.replace(node, group.ref(DOUBLES[site.name_of(node) or ""], module_form=True))
            found = True
        elif (
            node.attr.value == "double"
            and isinstance(parent, cst.Call)
            and parent.func is node
            and not parent.args
        ):
            group.replace(node, node.with_changes(attr=cst.Name("float")))
            found = True
    return found
