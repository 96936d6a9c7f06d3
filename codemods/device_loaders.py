"""Loaders that bring batches to the device: `pl.MpDeviceLoader(loader, device)` and `pl.ParallelLoader`.

They moved the tensors of each batch, turned tuples into lists, and cut the lazy graph; only the first two
need a replacement. Where the loader is only iterated over in `for` loops of this file, the plain loader
takes its place and the batch is moved at the top of the loop. Where it is handed on, kept or asked for
more, a small class around the loader, written once per file, does the same.

Marked are loaders for several devices, which dealt the batches out among them, and sharded inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from neuronmigrate import edits
from neuronmigrate.clocks import synchronize_clocks
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.flow import UseKind
from neuronmigrate.loads.arguments import means_the_same
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

LOADER = "torch_xla.distributed.parallel_loader.MpDeviceLoader"
PARALLEL = "torch_xla.distributed.parallel_loader.ParallelLoader"
TUNING = (
    "batchdim",
    "batches_per_execution",
    "device_prefetch_size",
    "host_to_device_transfer_threads",
    "loader_prefetch_size",
)
# What gives on the items of what it is called with, as its first argument.
_PASSES = frozenset({"builtins.enumerate", "tqdm.auto.tqdm", "tqdm.tqdm", "tqdm.notebook.tqdm"})

MOVE = '''\
def {name}(batch, device):
    """Move the tensors of a batch to the device; tuples come as lists."""
    if hasattr(batch, "to"):
        return batch.to(device)
    if isinstance(batch, dict):
        return {{key: {name}(value, device) for key, value in batch.items()}}
    if isinstance(batch, (list, tuple)):
        return [{name}(value, device) for value in batch]
    return batch
'''
CLASS = '''\
class {name}:
    """A loader whose batches are moved to the device."""

    def __init__(self, loader, device):
        self.loader = loader
        self.device = device

    def __iter__(self):
        for batch in self.loader:
            yield {move}(batch, self.device)

    def __len__(self):
        return len(self.loader)
'''


@dataclass(eq=False)
class Loader:
    """One legacy loader, and the loops over it."""

    use: Use
    call: cst.Call
    inner: cst.BaseExpression
    device: cst.BaseExpression
    rest: list[cst.BaseExpression]
    """Arguments that go."""
    loops: dict[cst.For, cst.BaseAssignTargetExpression] = field(default_factory=dict)
    """The loops over it, and what gets the batch; empty when it becomes the class."""
    unwrapped: list[cst.Call] = field(default_factory=list)
    """Calls of `per_device_loader`."""
    advanced: set[cst.Call] = field(default_factory=set)
    """Those of them that `next()` is asked of: they were iterators."""
    closed: list[cst.Expr] = field(default_factory=list)
    peeled: list[cst.Attribute] = field(default_factory=list)
    """Reads of the plain loader that it held, as in `loader._loader.sampler.set_epoch(epoch)`."""
    todo: list[str] = field(default_factory=list)
    whole: bool = False
    """Whether it has to be an object of its own."""


@codemod.uses([LOADER, PARALLEL])
def decide(site: Site, use: Use) -> None:
    """Decide on all loaders of the file together: several may feed one loop."""
    if use.call is None or use.method:
        todo = "move each batch to the device at the top of the loop, and iterate over the plain loader"
        site.mark(use.whole, use.name, "the class is handed on, or more than its call", todo)
        return
    loaders = []
    for each in site.uses:
        if each.claim in (LOADER, PARALLEL) and each.call is not None and not each.method:
            if each.ambiguous or each in site.settled:
                continue
            site.settled.add(each)
            loader = _read(site, each, each.call)
            if loader is not None:
                _follow(site, loader)
                loaders.append(loader)
    shared: set[cst.For] = set()
    while True:
        # A loop that is fed by a loader that stays an object must not move the batches again.
        more = {loop for loader in loaders if loader.whole for loop in loader.loops}
        if more <= shared:
            break
        shared |= more
        for loader in loaders:
            loader.whole = loader.whole or not shared.isdisjoint(loader.loops)
    done: set[cst.For] = set()
    for loader in loaders:
        _write(site, loader, done)


def _read(site: Site, use: Use, call: cst.Call) -> Loader | None:
    second = "device" if use.claim == LOADER else "devices"
    bound = edits.arguments(call, ("loader", second))
    inner, device = bound.value("loader"), bound.value(second)
    if inner is None or device is None or bound.spread:
        site.mark(
            call,
            use.name,
            "its arguments cannot be seen from here",
            "iterate over the plain loader, and move batches",
        )
        return None
    if use.claim == PARALLEL:
        if not isinstance(device, (cst.List, cst.Tuple)) or len(device.elements) != 1:
            todo = "give each process its own device and a DistributedSampler, and move batches there"
            site.mark(call, use.name, "it deals the batches out among several devices", todo)
            return None
        device = device.elements[0].value
    rest = []
    for arg in bound.extra:
        name = arg.keyword.value if arg.keyword else ""
        if name == "input_sharding" and edits.code_of(arg.value) != "None":
            todo = "distribute the batch with `torch.distributed.tensor.distribute_tensor`"
            site.mark(call, use.name, "it shards the batches over a mesh", todo)
            return None
        if name not in (*TUNING, "input_sharding"):
            what = f"`{name}=`" if name else "one of its arguments"
            site.mark(call, use.name, f"{what} is unknown", "iterate over the plain loader, and move batches")
            return None
        rest.append(arg.value)
    return Loader(use, call, inner, device, rest)


def _follow(site: Site, loader: Loader) -> None:
    """Find the loops over a loader, or that it has to be an object."""
    found = site.flow.uses_of(loader.call)
    places = list(found.uses)
    loader.whole = bool(found.lost)
    for use in places:
        parent = site.parent(use.node)
        if use.kind is UseKind.ATTRIBUTE and isinstance(parent, cst.Attribute):
            around = site.parent(parent)
            name = parent.attr.value
            if isinstance(around, cst.Call) and around.func is parent and loader.use.claim == PARALLEL:
                if name == "per_device_loader" and len(around.args) == 1:
                    loader.unwrapped.append(around)
                    inner = site.flow.uses_of(around)
                    loader.whole = loader.whole or bool(inner.lost)
                    for each in inner.uses:
                        _place(site, loader, each.node, each.kind)
                        if _is_asked(site, each.node, "builtins.next"):
                            loader.advanced.add(around)
                    continue
                alone = site.alone(around)
                if name == "close" and alone is not None:
                    loader.closed.append(alone)
                    continue
            is_read = not (isinstance(around, (cst.AssignTarget, cst.AugAssign)) and around.target is parent)
            if (
                name == "_loader"
                and loader.use.claim == LOADER
                and is_read
                and _is_only_source(site, use.node)
            ):
                loader.peeled.append(parent)
                continue
            loader.whole = True
            line = site.positions.span(use.node).line
            loader.todo.append(f"line {line}: `{edits.short(parent)}` was the legacy loader's own")
        else:
            _place(site, loader, use.node, use.kind)
    loader.whole = loader.whole or not loader.loops


def _place(site: Site, loader: Loader, node: cst.BaseExpression, kind: UseKind) -> None:
    if kind in (UseKind.BOUND, UseKind.DISCARDED, UseKind.COMPARED):
        return
    if kind is UseKind.ARGUMENT and _is_asked(site, node, "builtins.len"):
        return
    loop = _loop_over(site, node)
    if loop is None or not _is_only_source(site, node) or not _can_move(site, loader, loop[0]):
        loader.whole = True
        if loop is not None:
            loader.loops[loop[0]] = loop[1]
        return
    loader.loops[loop[0]] = loop[1]


def _is_asked(site: Site, node: cst.BaseExpression, function: str) -> bool:
    """Whether an expression is the argument of a function."""
    arg = site.parent(node)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and site.name_of(call.func) == function


def _loop_over(site: Site, node: cst.BaseExpression) -> tuple[cst.For, cst.BaseAssignTargetExpression] | None:
    """The loop that runs over an expression, and what gets each batch."""
    counted = False
    while True:
        parent = site.parent(node)
        if isinstance(parent, cst.For) and parent.iter is node:
            break
        call = site.parent(parent) if isinstance(parent, cst.Arg) else None
        if not isinstance(call, cst.Call) or call.args[0] is not parent:
            return None
        name = site.name_of(call.func)
        if name not in _PASSES or (counted and name == "builtins.enumerate"):
            return None
        counted = counted or name == "builtins.enumerate"
        node = call
    target: cst.BaseAssignTargetExpression = parent.target
    if counted:
        if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
            return None
        second = target.elements[1].value
        if not isinstance(second, (cst.Name, cst.Tuple, cst.List)):
            return None
        target = second
    names = [target] if isinstance(target, cst.Name) else _names(target)
    if not names or parent.asynchronous is not None or not isinstance(parent.body, cst.IndentedBlock):
        return None
    return parent, target


def _names(target: cst.CSTNode) -> list[cst.Name]:
    """The names of a flat target such as `(x, y)`; none for any other."""
    if not isinstance(target, (cst.Tuple, cst.List)):
        return []
    names = [each.value for each in target.elements if isinstance(each.value, cst.Name)]
    return names if len(names) == len(target.elements) else []


def _is_only_source(site: Site, node: cst.BaseExpression) -> bool:
    """Whether nothing but legacy loaders may stand at a place."""
    origins = site.flow.origin_of(node)
    makers = [each.node for each in origins.producers]
    ours = {use.call for use in site.uses if use.claim in (LOADER, PARALLEL)}
    for maker in makers:
        func = maker.func if isinstance(maker, cst.Call) else None
        inner = (
            func.value if isinstance(func, cst.Attribute) and func.attr.value == "per_device_loader" else None
        )
        if maker not in ours and (inner is None or not _is_only_source(site, inner)):
            return False
    return origins.certain and bool(makers)


def _can_move(site: Site, loader: Loader, loop: cst.For) -> bool:
    device = loader.device
    return _is_new_device(site, device) or (
        isinstance(device, (cst.Name, cst.Attribute)) and means_the_same(site, device, loop)
    )


def _is_new_device(site: Site, device: cst.BaseExpression) -> bool:
    return isinstance(device, cst.Call) and site.name_of(device.func) in (
        "torch_xla.core.xla_model.xla_device",
        "torch_xla.device",
    )


def _write(site: Site, loader: Loader, done: set[cst.For]) -> None:
    group = site.group(loader.use)
    call = loader.call
    move = group.helper("to_device", MOVE)
    if loader.whole:
        around = group.helper("DeviceLoader", CLASS, shim="DeviceLoader", move=move)
        args = [cst.Arg(loader.inner), cst.Arg(loader.device)]
        group.replace(call, edits.with_arguments(call.with_changes(func=around), args))
        why = "a small class moves each batch to the device as the old loader did"
    else:
        _unwrap(site, group, loader)
        for loop, target in loader.loops.items():
            if loop not in done:
                done.add(loop)
                _move_at(site, group, loader, loop, target, move)
        why = "the plain loader takes its place, and each batch is moved at the top of the loop"
    for each in loader.unwrapped:
        assert isinstance(each.func, cst.Attribute)
        plain = each.func.value
        if each in loader.advanced:
            # `next()` and a loop behind it went on where the other stopped.
            group.replace(each, edits.expression("iter({loader})", loader=plain))
        else:
            group.replace(each, plain)
        _settle(site, each.args[0].value)
    for peeled in loader.peeled:
        new = peeled.with_changes(attr=cst.Name("loader")) if loader.whole else peeled.value
        group.replace(peeled, new)
    for closed in loader.closed:
        group.replace_statement(closed)
    for value in loader.rest:
        _settle(site, value)
    clocks = [synchronize_clocks(site, group, loop, cause=call) for loop in loader.loops]
    todo = "; ".join(dict.fromkeys(each for each in (*loader.todo, *clocks) if each))
    if todo:
        group.review(call, loader.use.name, why, todo)
    else:
        group.fixed(call, loader.use.name, why)


def _unwrap(site: Site, group: Group, loader: Loader) -> None:
    """Put the wrapped loader in the place of the call; a name is not assigned to itself."""
    call, inner = loader.call, loader.inner
    if _is_new_device(site, loader.device):
        _settle(site, loader.device)
    assign = site.parent(call)
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        target = assign.targets[0].target
        if isinstance(target, cst.Name) and isinstance(inner, cst.Name) and target.value == inner.value:
            group.replace_statement(assign)
            return
    group.replace(call, inner)


def _move_at(
    site: Site,
    group: Group,
    loader: Loader,
    loop: cst.For,
    target: cst.BaseAssignTargetExpression,
    move: cst.Name,
) -> None:
    """Move the batch at the top of a loop, unless that is what the loop does itself."""
    if _moves_itself(site, loader, loop, target):
        return
    device: cst.BaseExpression
    if _is_new_device(site, loader.device):
        device = group.expression('torch.device("neuron")')
    else:
        device = loader.device.deep_clone()
    assert isinstance(loop.body, cst.IndentedBlock)
    batch = target.deep_clone()
    assert isinstance(batch, (cst.Name, cst.Tuple, cst.List))
    bare = batch if isinstance(batch, cst.Name) else batch.with_changes(lpar=(), rpar=())
    template = "{move}({batch}, {device})"
    value = edits.expression(template, move=move, batch=edits.parenthesized(bare), device=device)
    line = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(bare.deep_clone())], value)])
    first = loop.body.body[0]
    assert isinstance(first, (cst.SimpleStatementLine, cst.BaseCompoundStatement))
    group.insert(first, [line])


def _moves_itself(site: Site, loader: Loader, loop: cst.For, target: cst.BaseAssignTargetExpression) -> bool:
    """Whether the loop starts with `x, y = x.to(device), y.to(device)`, in one line or several."""
    wanted = {each.value for each in ([target] if isinstance(target, cst.Name) else _names(target))}
    for line in loop.body.body:
        if not isinstance(line, cst.SimpleStatementLine):
            break
        for small in line.body:
            if not isinstance(small, cst.Assign) or len(small.targets) != 1:
                return not wanted
            to, value = small.targets[0].target, small.value
            targets = [to] if isinstance(to, cst.Name) else _names(to)
            values = [each.value for each in value.elements] if isinstance(value, cst.Tuple) else [value]
            if not targets or len(targets) != len(values):
                return not wanted
            for name, moved in zip(targets, values, strict=True):
                if not _is_moved(site, loader, moved, name.value) and not _is_moved_mapping(
                    site, loader, name, moved
                ):
                    return not wanted
                wanted.discard(name.value)
    return not wanted


def _is_moved(site: Site, loader: Loader, value: cst.BaseExpression, name: str) -> bool:
    """Whether a value is `name.to(device)`; `name.to(dtype)` stays where it is."""
    if not m.matches(value, m.Call(func=m.Attribute(value=m.Name(name), attr=m.Name("to")))):
        return False
    assert isinstance(value, cst.Call)
    device = edits.arguments(value, ("device",)).value("device")
    if device is None:
        return False
    if edits.code_of(device) == edits.code_of(loader.device) or _is_new_device(site, device):
        return True
    made = site.flow.origin_of(device)
    return made.certain and all(
        isinstance(each.node, cst.BaseExpression) and _is_new_device(site, each.node)
        for each in made.producers
    )


def _is_moved_mapping(site: Site, loader: Loader, name: cst.Name, value: cst.BaseExpression) -> bool:
    """Whether a value is `{key: value.to(device) for key, value in batch.items()}`."""
    pairs = m.CompFor(
        target=m.Tuple([m.Element(), m.Element(m.Name())]),
        iter=m.Call(func=m.Attribute(value=m.Name(name.value), attr=m.Name("items"))),
        ifs=[],
    )
    if not m.matches(value, m.DictComp(for_in=pairs)):
        return False
    assert isinstance(value, cst.DictComp) and isinstance(value.for_in.target, cst.Tuple)
    item = value.for_in.target.elements[1].value
    assert isinstance(item, cst.Name)
    return _is_moved(site, loader, value.value, item.value)


def _settle(site: Site, region: cst.BaseExpression) -> None:
    """Nobody needs to answer for what is read in an argument that goes."""
    for use in site.uses:
        if use.node is region or region in site.ancestors(use.node):
            site.settled.add(use)
    forget(site, region)
