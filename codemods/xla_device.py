"""The XLA device: `xm.xla_device()`, `torch_xla.device()`, and `"xla"` where a device is named.

The native backend registers the device type `neuron`, so `torch.device("neuron")` is written, without an
index: each process owns one core. The string goes with the places that compare it. Since the old device
had an index and the new one has none, a comparison with `tensor.device` compares types. `torch.autocast`
computed in bfloat16 on XLA; its native default is float16, so the dtype is written out.

Marked are an index, unless it is the process index that `xmp.spawn` hands out, `"xla:0"`, and a string
that comes from outside, such as a command line: scripts and YAML files that pass `xla` have to change
with it. Backend names, messages and keys are no devices. In a file that uses none of the legacy packages
only a string that PyTorch itself takes for a device counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import catalogue, edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.devices import AUTOCAST, is_device_type, last_word, takes_device
from neuronmigrate.names import AttributeStore, Binding, Kind, ScopeKind
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

DEVICES = ("torch_xla.core.xla_model.xla_device", "torch_xla.device")
SPAWNS = frozenset({"torch_xla.distributed.xla_multiprocessing.spawn", "torch_xla.launch"})
PROCESS_GROUPS = frozenset({"torch.distributed.init_process_group", "torch.distributed.new_group"})
REGISTERED = "the native backend registers the device type `neuron`"
NAMED = "`xla` names the device here, which is `neuron` now"
INSTEAD = (
    'write `torch.device("neuron")`, without an index: each process owns one core, so start one process for '
    "each core with torchrun"
)
VALUE = "write `neuron` once whatever reads or passes it (scripts, YAML, Docker) expects that"
COMPARED = "compare with `neuron` once whatever sets it (scripts, YAML, Docker) passes that"
_INDEXED = re.compile(r"xla:\d+")


@codemod.uses(DEVICES)
def decide(site: Site, use: Use) -> None:
    """Write the native device, and compare types where the old device was compared."""
    call = use.call
    if call is None or use.method:
        todo = 'pass a function that returns `torch.device("neuron")`'
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(call, ("n", "devkind"))
    given = {name: arg.value for name, arg in bound.by_name.items() if edits.code_of(arg.value) != "None"}
    index = given.pop("index", None) or given.pop("n", None)
    if bound.spread or bound.extra or given:
        what = f"`{next(iter(given))}=`" if given else "arguments that cannot be seen from here"
        site.mark(call, use.name, f"it is called with {what}", INSTEAD)
        return
    if index is not None and not _is_process_index(site, index):
        why = f"it asks for device {edits.short(index)}"
        site.mark(call, use.name, why, INSTEAD)
        return
    group = site.group(use)
    _follow_device(site, group, call, use.name)
    if not any(isinstance(edit, edits.Replace) and edit.old is call for edit in group.edits):
        group.replace(call, group.expression('torch.device("neuron")'))
    if index is not None:
        todo = f"the process index `{edits.short(index)}` goes: start one process for each core with torchrun"
        group.review(call, use.name, REGISTERED, todo)
    else:
        group.fixed(call, use.name, REGISTERED)


@codemod.once
def decide_strings(site: Site) -> None:
    """Rewrite or mark the strings that name the device."""
    if "xla" not in site.positions.code:
        return
    world = _World.of(site)
    if world is not None:
        _Strings(site, world).decide()


@dataclass(frozen=True)
class _World:
    """What a file has to do with devices."""

    legacy: bool
    """It uses one of the legacy packages, so that `xla` most likely means the device."""

    @classmethod
    def of(cls, site: Site) -> _World | None:
        """None for a file that has neither PyTorch nor a legacy package."""
        targets = [binding.target for binding in site.names.imports]
        targets += [module for _, module in site.names.stars]
        if any(map(catalogue.is_legacy, targets)) or site.uses:
            return cls(True)
        return cls(False) if any(target.partition(".")[0] == "torch" for target in targets) else None


# What becomes of a value.


@dataclass
class _Ends:
    """Where a value goes."""

    devices: list[cst.Arg] = field(default_factory=list)
    """Arguments that PyTorch takes for a device."""
    likely: list[cst.Arg] = field(default_factory=list)
    """Arguments that are called device, of callables that are not known."""
    compared: list[tuple[cst.Comparison, cst.BaseExpression]] = field(default_factory=list)
    """Comparisons, and what holds the value there."""
    types: list[cst.Attribute] = field(default_factory=list)
    """`device.type`."""
    indexes: list[cst.Attribute] = field(default_factory=list)
    """`device.index`."""
    backends: list[cst.Arg] = field(default_factory=list)
    passed: list[cst.Call] = field(default_factory=list)
    """Calls of functions that are not known."""
    seen: set[cst.CSTNode] = field(default_factory=set)


def _ends(site: Site, value: cst.BaseExpression) -> _Ends:
    ends = _Ends()
    _follow(site, value, ends)
    return ends


def _follow(site: Site, node: cst.CSTNode, ends: _Ends) -> None:
    """Note where a value goes, through names, attributes of self and functions of this module."""
    if node in ends.seen:
        return
    ends.seen.add(node)
    parent = site.parent(node)
    if isinstance(parent, (cst.IfExp, cst.BooleanOperation)) and node is not getattr(parent, "test", None):
        _follow(site, parent, ends)
    elif isinstance(parent, cst.NamedExpr):
        _follow(site, parent, ends)
        _follow_bindings(site, parent.target, ends)
    elif isinstance(parent, cst.Arg):
        _follow_argument(site, parent, ends)
    elif isinstance(parent, cst.Assign):
        for target in parent.targets:
            _follow_bindings(site, target.target, ends)
    elif isinstance(parent, cst.AnnAssign):
        _follow_bindings(site, parent.target, ends)
    elif isinstance(parent, cst.Param) and parent.default is node:
        _follow_bindings(site, parent.name, ends)
    elif isinstance(parent, cst.Return):
        function = site.names.function_of(node)
        if function is not None and isinstance(function.node, cst.FunctionDef):
            for binding in site.names.bound_by(function.node):
                for reference in site.names.references(binding):
                    call = site.parent(reference)
                    if isinstance(call, cst.Call) and call.func is reference:
                        _follow(site, call, ends)
    elif isinstance(parent, (cst.Comparison, cst.ComparisonTarget)):
        comparison = parent if isinstance(parent, cst.Comparison) else site.parent(parent)
        assert isinstance(comparison, cst.Comparison) and isinstance(node, cst.BaseExpression)
        ends.compared.append((comparison, node))
    elif isinstance(parent, cst.Element):
        _follow_element(site, parent, ends)
    elif isinstance(parent, cst.Attribute):
        if parent.attr.value == "type":
            ends.types.append(parent)
        elif parent.attr.value == "index":
            ends.indexes.append(parent)
    elif isinstance(parent, cst.DictElement):
        _follow_dict(site, parent, ends)


def _follow_element(site: Site, element: cst.Element, ends: _Ends) -> None:
    """`a, b = device, 0`, and `tensor.device in (device, other)`."""
    holder = site.parent(element)
    assert isinstance(holder, (cst.Tuple, cst.List, cst.Set))
    around = site.parent(holder)
    if isinstance(around, cst.ComparisonTarget):
        _follow(site, holder, ends)
    elif isinstance(around, cst.Assign):
        index = list(holder.elements).index(element)
        for target in around.targets:
            names = getattr(target.target, "elements", ())
            if len(names) == len(holder.elements):
                _follow_bindings(site, names[index].value, ends)


def _follow_bindings(site: Site, target: cst.BaseExpression, ends: _Ends) -> None:
    owner: cst.CSTNode | None = None
    name = ""
    if isinstance(target, cst.Name):
        for binding in site.names.bound_by(target):
            for reference in site.names.references(binding):
                _follow(site, reference, ends)
            if binding.scope.kind is ScopeKind.CLASS:
                owner, name = binding.scope.node, binding.name
    elif isinstance(target, cst.Attribute):
        owner, name = _owner(site, target.value), target.attr.value
    if owner is not None:
        for other in site.nodes(cst.Attribute):
            if other.attr.value == name and other is not target and _owner(site, other.value) is owner:
                _follow(site, other, ends)


def _owner(site: Site, node: cst.BaseExpression) -> cst.ClassDef | None:
    """The class of this module that `self`, or the class's own name, stands for."""
    bindings = site.names.bindings_at(node) if isinstance(node, cst.Name) else ()
    if len(bindings) != 1:
        return None
    owner = site.names.instance_class(bindings[0]) or bindings[0].node
    return owner if isinstance(owner, cst.ClassDef) else None


def _follow_argument(site: Site, arg: cst.Arg, ends: _Ends) -> None:
    call = site.parent(arg)
    if not isinstance(call, cst.Call):
        return
    name = site.name_of(call.func) or ""
    is_device = takes_device(site, arg)
    if is_device:
        ends.devices.append(arg)
        return
    if name in PROCESS_GROUPS:
        ends.backends.append(arg)
        return
    parameter = _parameter(site, call, arg)
    if parameter is not None:
        _follow_bindings(site, parameter.name, ends)
    elif is_device is None:
        ends.likely.append(arg)
    elif not name.startswith("builtins.") and not catalogue.is_legacy(name):
        ends.passed.append(call)


def _parameter(site: Site, call: cst.Call, arg: cst.Arg) -> cst.Param | None:
    """The parameter of a function of this module that an argument is for."""
    if not isinstance(call.func, cst.Name) or arg.star:
        return None
    bindings = site.names.bindings_at(call.func)
    if len(bindings) != 1:
        return None
    function = bindings[0].node
    skipped = 0
    if isinstance(function, cst.ClassDef):
        inits = [each for each in function.body.body if _is_init(each)]
        function, skipped = (inits[0] if len(inits) == 1 else function), 1
    if not isinstance(function, cst.FunctionDef):
        return None
    params = function.params
    if arg.keyword is not None:
        named = [*params.params, *params.kwonly_params, *params.posonly_params]
        return next((each for each in named if each.name.value == arg.keyword.value), None)
    given = list(call.args)
    if any(each.star for each in given[: given.index(arg)]):
        return None
    position = given.index(arg) + skipped
    positional = [*params.posonly_params, *params.params]
    return positional[position] if position < len(positional) else None


def _is_init(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.FunctionDef) and node.name.value == "__init__"


def _follow_dict(site: Site, element: cst.DictElement, ends: _Ends) -> None:
    """`{"device": "xla"}` that is spread into calls names the device there."""
    if not isinstance(element.key, cst.SimpleString):
        return
    holder = site.parent(element)
    assert holder is not None
    spreads: list[cst.CSTNode] = [holder]
    around = site.parent(holder)
    if isinstance(around, cst.Assign):
        for target in around.targets:
            for binding in site.names.bound_by(target.target):
                spreads.extend(site.names.references(binding))
    key = str(element.key.evaluated_value)
    for spread in spreads:
        arg = site.parent(spread)
        if isinstance(arg, cst.Arg) and arg.star == "**" and key in ("device", "device_map", "device_type"):
            call = site.parent(arg)
            assert isinstance(call, cst.Call)
            name = site.name_of(call.func) or ""
            (ends.devices if name.startswith("torch.") else ends.likely).append(arg)


def _sources(site: Site, node: cst.BaseExpression, seen: set[cst.CSTNode]) -> list[cst.BaseExpression] | None:
    """The expressions whose value something may hold; None when one of them cannot be seen."""
    if node in seen:
        return []
    seen.add(node)
    if isinstance(node, cst.NamedExpr):
        return _sources(site, node.value, seen)
    if isinstance(node, cst.IfExp):
        return _all_sources(site, [node.body, node.orelse], seen)
    if isinstance(node, cst.BooleanOperation):
        return _all_sources(site, [node.left, node.right], seen)
    given: list[Binding | AttributeStore] = []
    if isinstance(node, cst.Name) and edits.code_of(node) != "None":
        given.extend(site.names.bindings_at(node))
    elif isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
        owner = _owner(site, node.value)
        if owner is not None:
            given.extend(site.names.class_attribute(owner, node.attr.value))
    else:
        return [node]
    values = []
    for each in given:
        value = each.value
        if each.kind not in (Kind.ASSIGN, Kind.WALRUS) or len(each.path) > 1:
            return None
        if each.path and isinstance(value, cst.Tuple) and isinstance(each.path[0], int):
            value = value.elements[each.path[0]].value
        elif each.path:
            return None
        if value is None:
            return None
        values.append(value)
    return _all_sources(site, values, seen) if values else None


def _all_sources(
    site: Site, nodes: list[cst.BaseExpression], seen: set[cst.CSTNode]
) -> list[cst.BaseExpression] | None:
    found: list[cst.BaseExpression] = []
    for node in nodes:
        some = _sources(site, node, seen)
        if some is None:
            return None
        found += some
    return found


# Devices.


def _follow_device(site: Site, group: Group, device: cst.BaseExpression, found: str) -> None:
    """Adapt what a device object meets on its way, or mark it there."""
    ends = _ends(site, device)
    done = site.notes.setdefault(codemod.name, set())
    for comparison, side in ends.compared:
        if comparison not in done:
            done.add(comparison)
            _compare_types(site, group, comparison, side, device, found)
    for attribute in ends.types:
        for arg in _ends(site, attribute).devices:
            _write_dtype(site, group, arg)
    for attribute in ends.indexes:
        if attribute not in done:
            done.add(attribute)
            todo = "ask the process for its rank, or `torch.neuron.current_device()`"
            site.mark(attribute, found, "the native device is written without an index", todo)


def _compare_types(
    site: Site,
    group: Group,
    comparison: cst.Comparison,
    side: cst.BaseExpression,
    device: cst.BaseExpression,
    found: str,
) -> None:
    """Let a comparison of devices compare their types."""
    only = comparison.comparisons[0]
    other = only.comparator if comparison.left is side else comparison.left
    if isinstance(only.operator, (cst.Is, cst.IsNot)) or edits.code_of(other) == "None":
        return
    if isinstance(other, (cst.SimpleString, cst.FormattedString)):
        return
    is_simple = len(comparison.comparisons) == 1 and isinstance(only.operator, (cst.Equal, cst.NotEqual))
    if not is_simple or any(_holds_text(site, each) for each in (side, other)):
        why = "the old device had an index, as that of a tensor has, and the new one has none"
        site.mark(comparison, found, why, "compare the types of the devices, `tensor.device.type`")
        return
    for each in (side, other):
        if each is device:
            group.replace(each, edits.string("neuron"))
        else:
            group.replace(each, cst.Attribute(edits.parenthesized(each), cst.Name("type")))


def _holds_text(site: Site, node: cst.BaseExpression) -> bool:
    return any(
        isinstance(each, (cst.SimpleString, cst.FormattedString))
        for each in _sources(site, node, set()) or ()
    )


def _makes_device(site: Site, call: cst.Call) -> bool:
    if site.name_of(call.func) in DEVICES:
        return True
    return site.name_of(call.func) == "torch.device" and [_text(arg.value) for arg in call.args] == ["xla"]


def _is_process_index(site: Site, index: cst.BaseExpression) -> bool:
    """Whether an index is the one that the function started in each process gets."""
    if not isinstance(index, cst.Name):
        return False
    for binding in site.names.bindings_at(index):
        function = binding.scope.node
        if binding.kind is not Kind.PARAMETER or not isinstance(function, cst.FunctionDef):
            return False
        first = [*function.params.posonly_params, *function.params.params][:1]
        if not first or first[0].name is not binding.node or not _is_spawned(site, function):
            return False
    return True


def _is_spawned(site: Site, function: cst.FunctionDef) -> bool:
    for binding in site.names.bound_by(function):
        for reference in site.names.references(binding):
            arg = site.parent(reference)
            call = site.parent(arg) if isinstance(arg, cst.Arg) else None
            if isinstance(call, cst.Call) and site.name_of(call.func) in SPAWNS:
                return True
    return False


def _write_dtype(site: Site, group: Group, arg: cst.Arg) -> bool:
    """Write out the dtype of an autocast that had none."""
    call = site.parent(arg)
    done = site.notes.setdefault(codemod.name, set())
    if not isinstance(call, cst.Call) or site.name_of(call.func) not in AUTOCAST or call in done:
        return False
    done.add(call)
    bound = edits.arguments(call, ("device_type", "dtype"))
    given = bound.by_name.get("dtype")
    if bound.spread or (given is not None and edits.code_of(given.value) != "None"):
        return False
    dtype = group.expression("torch.bfloat16")
    if given is not None:
        group.replace(given.value, dtype)
        return True
    site.keywords.append(("torch.autocast", "dtype"))
    first = call.args[0]
    args = [first, edits.keyword("dtype", dtype), *call.args[1:]]
    group.replace(call, edits.with_arguments(call, args))
    return True


# Strings.


class _Strings:
    """Decides on all strings of a file that say `xla`."""

    def __init__(self, site: Site, world: _World) -> None:
        self.site = site
        self.world = world
        self.done: set[cst.CSTNode] = set()

    def decide(self) -> None:
        strings = [node for node in self.site.nodes(cst.SimpleString) if self._is_expression(node)]
        plain = [node for node in strings if _text(node) == "xla"]
        for node in plain:
            if node not in self.done and self._comparison(node) is None:
                self._decide_value(node)
        for node in plain:
            comparison = self._comparison(node)
            if node not in self.done and comparison is not None:
                self._decide_comparison(node, comparison)
        for node in plain:
            if node not in self.done:
                self._decide_pattern(node)
        for node in strings:
            if _INDEXED.fullmatch(_text(node)):
                self._decide_indexed(node)
        for formatted in self.site.nodes(cst.FormattedString):
            if _starts_with_index(formatted):
                self._decide_indexed(formatted)

    def _is_expression(self, node: cst.SimpleString) -> bool:
        parent = self.site.parent(node)
        return not isinstance(parent, (cst.Expr, cst.ConcatenatedString)) and parent is not None

    def _comparison(self, node: cst.SimpleString) -> cst.Comparison | None:
        """The comparison that a string, or a tuple around it, is a side of."""
        for around in self.site.ancestors(node):
            if isinstance(around, cst.Comparison):
                return around
            if not isinstance(around, (cst.ComparisonTarget, cst.Element, cst.Tuple, cst.List, cst.Set)):
                return None
        return None

    def _decide_value(self, node: cst.SimpleString) -> None:
        """A string that is assigned, passed or returned."""
        site = self.site
        ends = _ends(site, node)
        if not ends.devices and not (self.world.legacy and ends.likely):
            if self.world.legacy:
                self._mark_contract(node, ends)
            return
        self.done.add(node)
        if ends.backends:
            line = site.positions.span(ends.backends[0]).line
            why = f"the same string names the device and, on line {line}, a process group"
            site.mark(node, '"xla"', why, 'write `"neuron"` for both once the group is started natively')
            return
        indexed = next((call for call in map(site.parent, ends.devices) if _has_index(site, call)), None)
        if indexed is not None:
            site.mark(node, '"xla"', f"`{edits.short(indexed)}` asks for a device by its index", INSTEAD)
            return
        compared = []
        for comparison, side in ends.compared:
            partner = self._partner(comparison, side)
            if partner is None:
                continue
            if not self._is_private(side):
                why = f"it is compared with `{edits.short(side)}`, which may come from outside as well"
                site.mark(node, '"xla"', why, VALUE)
                return
            compared.append(partner)
        group = site.group()
        self._rename(group, node)
        for partner in compared:
            if partner not in self.done:
                self.done.add(partner)
                self._rename(group, partner)
                group.fixed(
                    partner, '"xla"', "it is compared with the name of the device, which is `neuron` now"
                )
        why, numerics = NAMED, Numerics.SAME
        for arg in ends.devices:
            if _write_dtype(site, group, arg):
                why = f"{NAMED}; autocast computed in bfloat16 on it, so that is written out"
            call = site.parent(arg)
            assert isinstance(call, cst.Call)
            name = site.name_of(call.func)
            if name == "torch.device":
                _follow_device(site, group, call, '"xla"')
            elif name == "torch.Generator":
                numerics = Numerics.RANDOM
        unknown = [*ends.passed, *(call for call in map(site.parent, ends.likely) if _is_named(site, call))]
        if unknown:
            names = sorted({f"`{edits.short(call.func)}`" for call in unknown if isinstance(call, cst.Call)})
            todo = f"it also goes to {', '.join(names)}: check that nothing there expects `xla`"
            group.review(node, '"xla"', why, todo, numerics=numerics)
        else:
            group.fixed(node, '"xla"', why, numerics=numerics)

    def _partner(self, comparison: cst.Comparison, side: cst.BaseExpression) -> cst.SimpleString | None:
        """The `"xla"` that a value is compared with."""
        for node in _walk(comparison):
            if isinstance(node, cst.SimpleString) and node is not side and _text(node) == "xla":
                return node
        return None

    def _is_private(self, node: cst.BaseExpression) -> bool:
        """Whether a value can only be one of the strings that are written in this file."""
        sources = _sources(self.site, node, set())
        return bool(sources) and all(
            isinstance(each, cst.SimpleString) or edits.code_of(each) == "None" for each in sources or ()
        )

    def _decide_comparison(self, node: cst.SimpleString, comparison: cst.Comparison) -> None:
        site = self.site
        sides = [comparison.left, *(each.comparator for each in comparison.comparisons)]
        others = [side for side in sides if node not in _walk(side)]
        if len(others) != 1:
            return
        other = others[0]
        if self._is_type(other) or self._is_shown_device(other):
            group = site.group()
            self._rename(group, node)
            group.fixed(node, '"xla"', NAMED)
        elif self._is_device(other):
            why = f"`{edits.short(other)}` is a device, which never equals a string"
            site.mark(node, '"xla"', why, f'compare `{edits.short(other)}.type` with `"neuron"`')
        elif self.world.legacy and not self._is_private(other):
            what = edits.short(other)
            why = f"`{what}` is compared with `xla`, and what it holds comes from outside"
            site.mark(node, '"xla"', why, COMPARED)

    def _is_type(self, node: cst.BaseExpression) -> bool:
        """Whether an expression is the type of a device."""
        if is_device_type(node):
            return True
        if isinstance(node, cst.Attribute) and node.attr.value == "type":
            return self._is_device(node.value)
        sources = _sources(self.site, node, set())
        return bool(sources) and all(each is not node and is_device_type(each) for each in sources or ())

    def _is_device(self, node: cst.BaseExpression) -> bool:
        sources = _sources(self.site, node, set())
        return bool(sources) and any(
            isinstance(each, cst.Call) and _makes_device(self.site, each) for each in sources or ()
        )

    def _is_shown_device(self, node: cst.BaseExpression) -> bool:
        """`str(tensor.device)`, in which the name of the type is looked for."""
        if not isinstance(node, cst.Call) or self.site.name_of(node.func) != "builtins.str":
            return False
        return len(node.args) == 1 and (
            self._is_device(node.args[0].value)
            or (isinstance(node.args[0].value, cst.Attribute) and last_word(node.args[0].value) == "device")
        )

    def _decide_pattern(self, node: cst.SimpleString) -> None:
        """`case "xla":` on the type of a device."""
        around = self.site.parent(node)
        while isinstance(around, (cst.MatchValue, cst.MatchOr, cst.MatchOrElement)):
            around = self.site.parent(around)
        match = self.site.parent(around) if isinstance(around, cst.MatchCase) else None
        if not isinstance(match, cst.Match):
            return
        self.done.add(node)
        if self._is_type(match.subject):
            group = self.site.group()
            self._rename(group, node)
            group.fixed(node, '"xla"', NAMED)
        elif self.world.legacy and not self._is_private(match.subject):
            why = (
                f"`{edits.short(match.subject)}` is compared with `xla`, and what it holds comes from outside"
            )
            self.site.mark(node, '"xla"', why, COMPARED)

    def _decide_indexed(self, node: cst.SimpleString | cst.FormattedString) -> None:
        """`"xla:0"` and `f"xla:{index}"`."""
        ends = _ends(self.site, node)
        if ends.devices or (self.world.legacy and (ends.likely or self._comparison_of(node))):
            self.site.mark(node, edits.code_of(node), "it names a device by its index", INSTEAD)

    def _comparison_of(self, node: cst.BaseExpression) -> bool:
        return isinstance(self.site.parent(node), (cst.Comparison, cst.ComparisonTarget))

    def _mark_contract(self, node: cst.SimpleString, ends: _Ends) -> None:
        """A string that people outside of this file write or read as well."""
        site = self.site
        place = self._place(node)
        if place:
            self.done.add(node)
            site.mark(node, '"xla"', place, VALUE)

    def _place(self, node: cst.SimpleString) -> str:
        """In words, where a string stands that is part of a contract; nothing when it is not."""
        for around in self.site.ancestors(node):
            if isinstance(around, cst.Call):
                option = _text(around.args[0].value) if around.args else ""
                is_option = (
                    isinstance(around.func, cst.Attribute) and around.func.attr.value == "add_argument"
                )
                if is_option and "device" in option:
                    return f"the command line takes it for `{option}`"
                return ""
            if isinstance(around, cst.DictElement):
                key = _text(around.key)
                return f"a dictionary holds it as `{key}`" if "device" in key else ""
            if isinstance(around, cst.Return):
                function = self.site.names.function_of(node)
                name = getattr(getattr(function, "node", None), "name", None)
                is_device = isinstance(name, cst.Name) and "device" in name.value
                return f"`{name.value}` returns it" if is_device and isinstance(name, cst.Name) else ""
            if isinstance(around, cst.Assign):
                names = [last_word(target.target) for target in around.targets]
                name = next((each for each in names if "device" in each.lower()), "")
                return f"it is kept as `{name}`, which others may read" if name else ""
            if isinstance(around, cst.BaseSmallStatement):
                return ""
        return ""

    def _rename(self, group: Group, node: cst.SimpleString) -> None:
        self.done.add(node)
        group.replace(node, node.with_changes(value=node.value.replace("xla", "neuron")))


def _is_named(site: Site, call: cst.CSTNode | None) -> bool:
    """Whether a call is of a function with a name of its own, not of a method of some object."""
    return isinstance(call, cst.Call) and (
        isinstance(call.func, cst.Name) or site.name_of(call.func) is not None
    )


def _has_index(site: Site, call: cst.CSTNode | None) -> bool:
    return isinstance(call, cst.Call) and site.name_of(call.func) == "torch.device" and len(call.args) > 1


def _starts_with_index(node: cst.FormattedString) -> bool:
    parts = node.parts
    return (
        len(parts) == 2
        and isinstance(parts[0], cst.FormattedStringText)
        and parts[0].value == "xla:"
        and isinstance(parts[1], cst.FormattedStringExpression)
    )


def _text(node: cst.BaseExpression) -> str:
    if not isinstance(node, cst.SimpleString):
        return ""
    value = node.evaluated_value
    return value if isinstance(value, str) else ""


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
