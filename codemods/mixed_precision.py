"""Autocast of torch_xla and of scripts that say `"cuda"` and mean the Neuron device, and what went with it.

`torch_xla.amp.autocast(device)` computed in bfloat16, and so does `torch.autocast("neuron",
dtype=torch.bfloat16)`; its own default would be float16. Scripts for Trainium also wrote
`torch.autocast("cuda")` and patched `torch.cuda.is_bf16_supported`, because the legacy package caught that;
natively it casts nothing, in silence. In a file that uses the legacy packages, and CUDA for nothing else,
it becomes the Neuron device, and the patch goes; so do the patches of Transformers that stood in for it. A
gradient scaler stays as one that is switched off, since bfloat16 needs none.

Marked is an autocast in a file that uses CUDA as well.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Call, Codemod
from neuronmigrate.effects import forget
from neuronmigrate.environment import PATCHED, PATCHES
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

AMP = ("torch_xla.amp.autocast", "torch_xla.amp.autocast_mode.autocast")
AUTOCAST = frozenset({"torch.amp.autocast", "torch.amp.autocast_mode.autocast", "torch.autocast"})
CUDA_AUTOCAST = frozenset({"torch.cuda.amp.autocast", "torch.cuda.amp.autocast_mode.autocast"})
WHY = "the device casts to bfloat16, which is written out: its own default is float16"


_SCALING = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "enabled", "use_zero_grad")
for _name in ("torch_xla.amp.GradScaler", "torch_xla.amp.grad_scaler.GradScaler"):
    # What it was told about scaling (torch_xla/amp/grad_scaler.py, 2.1 to 2.9) has no effect any more.
    codemod.symbol(
        _name,
        Call(
            'torch.amp.GradScaler("neuron", enabled=False)',
            args=_SCALING,
            dropped=_SCALING,
        ),
        because="bfloat16 has the range of float32, so the scaler is there but scales nothing",
        todo="check that the autocast around it is bfloat16: the device has no scaling for float16",
        numerics=Numerics.REORDERED,
    )


@codemod.uses(AMP)
def decide(site: Site, use: Use) -> None:
    """Write torch's own autocast."""
    call = use.call
    if call is None or use.method:
        todo = 'use `torch.autocast("neuron", dtype=torch.bfloat16)`'
        site.mark(use.chain, use.name, "it is passed on, not called", todo)
        return
    bound = edits.arguments(call, ("device", "enabled", "dtype", "cache_enabled"))
    if bound.spread or bound.extra:
        todo = 'use `torch.autocast("neuron", dtype=torch.bfloat16)`'
        site.mark(call, use.name, "its arguments cannot be seen from here", todo)
        return
    group = site.group(use)
    args = [cst.Arg(edits.string("neuron"))]
    args += [
        edits.keyword(name, bound.by_name[name].value)
        for name in ("dtype", "enabled", "cache_enabled")
        if name in bound.by_name
    ]
    _write(site, group, call, args)
    device = bound.value("device")
    if device is not None:
        for each in site.uses:
            if device in (each.whole, *site.ancestors(each.node)):
                site.settled.add(each)
        forget(site, device)
    group.fixed(call, use.name, WHY)


def _write(site: Site, group: Group, call: cst.Call, args: list[cst.Arg]) -> None:
    dtype = next((arg for arg in args if arg.keyword is not None and arg.keyword.value == "dtype"), None)
    if dtype is None or edits.code_of(dtype.value) == "None":
        args = [arg for arg in args if arg is not dtype]
        args.insert(1, edits.keyword("dtype", group.expression("torch.bfloat16")))
    group.replace(call, edits.with_arguments(call.with_changes(func=group.ref("torch.autocast")), args))


@codemod.on(cst.Call)
def decide_cuda(site: Site, call: cst.Call) -> None:
    """An autocast of CUDA in a file for legacy devices."""
    name = site.name_of(call.func)
    if name not in AUTOCAST and name not in CUDA_AUTOCAST:
        return
    if not _is_legacy(site):
        return
    bound = edits.arguments(call, ("device_type", "dtype", "enabled", "cache_enabled"))
    kind = bound.value("device_type") if name in AUTOCAST else None
    if name in AUTOCAST and not (isinstance(kind, cst.SimpleString) and kind.evaluated_value == "cuda"):
        return
    if _uses_cuda(site):
        todo = 'where the Neuron device is meant, write `torch.autocast("neuron", dtype=torch.bfloat16)`'
        why = "on the Neuron device it casts nothing, in silence, and this file uses CUDA as well"
        site.mark(call, name, why, todo)
        return
    if name in CUDA_AUTOCAST:
        bound = edits.arguments(call, ("enabled", "dtype", "cache_enabled"))
    if bound.spread or bound.extra:
        todo = 'write `torch.autocast("neuron", dtype=torch.bfloat16)`'
        site.mark(call, name, "on the Neuron device it casts nothing, in silence", todo)
        return
    group = site.group()
    args = [cst.Arg(edits.string("neuron"))]
    args += [
        edits.keyword(each, bound.by_name[each].value)
        for each in ("dtype", "enabled", "cache_enabled")
        if each in bound.by_name
    ]
    _write(site, group, call, args)
    todo = "check that the Neuron device was meant: `cuda` was how scripts for the legacy package said it"
    group.review(call, name, WHY, todo, numerics=Numerics.DTYPE)


@codemod.on(cst.Assign)
def decide_patch(site: Site, assign: cst.Assign) -> None:
    """A function of torch or Transformers that was replaced for the legacy devices."""
    if len(assign.targets) != 1:
        return
    target = assign.targets[0].target
    name = site.name_of(target) if isinstance(target, cst.Attribute) else None
    if name not in PATCHES or not _is_legacy(site) or assign in site.notes.get(PATCHED, ()):
        return
    if name == "torch.cuda.is_bf16_supported" and _uses_cuda(site):
        site.mark(
            assign, name, "it pretends that CUDA has bfloat16, and this file uses CUDA as well", "drop it"
        )
        return
    group = site.group()
    group.replace_statement(assign)
    forget(site, assign.value)
    head: cst.BaseExpression = target
    while isinstance(head, cst.Attribute):
        head = head.value
    if isinstance(head, cst.Name):
        # An import that was there for the patch goes with it.
        aliases = [binding.node for binding in site.names.bindings_at(head)]
        group.releases += [alias for alias in aliases if isinstance(alias, cst.ImportAlias)]
    left = ""
    if isinstance(assign.value, cst.Name):
        left = f"`{assign.value.value}` was there for this alone: drop it unless something else calls it"
    if left:
        group.review(assign, name, PATCHES[name], left)
    else:
        group.fixed(assign, name, PATCHES[name])


def _is_legacy(site: Site) -> bool:
    """Whether a file is for legacy devices."""
    return bool(site.uses) or any(
        binding.target.startswith(("torch_xla", "torch_neuronx", "neuronx_distributed", "optimum.neuron"))
        for binding in site.names.imports
    )


def _uses_cuda(site: Site) -> bool:
    """Whether a file uses CUDA for anything but bfloat16 and autocast."""
    for node in site.nodes(cst.Attribute):
        if isinstance(site.parent(node), cst.AssignTarget):
            continue  # a function that is replaced is not called by that
        name = site.name_of(node) or ""
        if name.startswith("torch.cuda.") and not name.startswith(
            ("torch.cuda.amp", "torch.cuda.is_bf16_supported")
        ):
            return True
        if node.attr.value == "cuda" and isinstance(site.parent(node), cst.Call):
            return True
    for part in site.nodes(cst.FormattedStringText):
        if part.value.startswith("cuda:"):
            return True
    for text in site.nodes(cst.SimpleString):
        if str(text.evaluated_value).partition(":")[0] == "cuda":
            arg = site.parent(text)
            call = site.parent(arg) if isinstance(arg, cst.Arg) else None
            if not isinstance(call, cst.Call) or site.name_of(call.func) not in AUTOCAST:
                return True
    return False
