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
from neuronmigrate.devices import AUTOCAST, KEYWORDS, is_device_type, last_word, takes_device
from neuronmigrate.flow import UseKind
from neuronmigrate.names import Kind
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

DEVICES = ("torch_xla.core.xla_model.xla_device", "torch_xla.device")
SPAWNS = frozenset({"torch_xla.distributed.xla_multiprocessing.spawn", "torch_xla.launch"})
SHOWING = frozenset({"critical", "debug", "error", "exception", "format", "info", "log", "warning", "write"})
PROCESS_GROUPS = frozenset({"torch.distributed.init_process_group", "torch.distributed.new_group"})
REGISTERED = "the native backend registers the device type `neuron`"
NAMED = "`xla` names the device here, which is `neuron` now"
INSTEAD = (
    'write `torch.device("neuron")`, without an index: each process owns one core, so start one process for '
    "each core with torchrun"
)
VALUE = "write `neuron` once whatever reads or passes it (scripts, YAML, Docker) expects that"
COMPARED = "compare with `neuron` once whatever sets it (scripts, YAML, Docker) passes that"
UNEQUAL = (
    "the old device had an index, as that of a tensor has, and the new one has none",
    "compare the types of the devices, `tensor.device.type`",
)
_INDEXED = re.compile(r"xla:\d+")


@codemod.uses(DEVICES)
def decide(site: Site, use: Use) -> None:
    """Write the native device, and compare types where the old device was compared."""
    call = use.call
    if call is None or use.method:
        todo = 'pass a function that returns `torch.device("neuron")`'
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(call, ("n", "devkind", "index"))
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
        # A file with marks in it was legacy when they were left, whatever has been rewritten since.
        marked = "(neuronmigrate): [" in site.positions.code
        if any(map(catalogue.is_legacy, targets)) or site.uses or marked:
            return cls(True)
        return cls(False) if any(target.partition(".")[0] == "torch" for target in targets) else None


@dataclass
class _Ends:
    """Where a value goes that is, or names, a device."""

    devices: list[cst.Arg] = field(default_factory=list)
    """Arguments that PyTorch takes for a device."""
    likely: list[cst.Arg] = field(default_factory=list)
    """Arguments that are called device, of callables that are not known."""
    compared: list[tuple[cst.Comparison, cst.BaseExpression]] = field(default_factory=list)
    """Comparisons, and what holds the value there."""
    attributes: list[cst.Attribute] = field(default_factory=list)
    """Arguments that name the backend of a process group."""
    unknown: list[cst.Call] = field(default_factory=list)
    """Calls of functions that may do anything with it."""


def _ends(site: Site, value: cst.BaseExpression) -> _Ends:
    ends = _Ends()
    for use in site.flow.uses_of(value).uses:
        parent = site.parent(use.node)
        if isinstance(parent, cst.Arg):
            _sort(site, parent, ends)
        elif isinstance(parent, cst.Attribute):
            ends.attributes.append(parent)
        elif use.kind is UseKind.COMPARED:
            comparison = site.parent(parent) if isinstance(parent, cst.ComparisonTarget) else parent
            if isinstance(comparison, cst.Comparison):
                ends.compared.append((comparison, use.node))
    element = site.parent(value)
    if isinstance(element, cst.DictElement):
        _follow_dict(site, element, ends)
    return ends


def _sort(site: Site, arg: cst.Arg, ends: _Ends) -> None:
    """Note what an argument is for."""
    call = site.parent(arg)
    if not isinstance(call, cst.Call):
        return
    name = site.name_of(call.func) or ""
    is_device = takes_device(site, arg)
    if name in PROCESS_GROUPS:
        return  # the backend is called as the device is
    if is_device:
        ends.devices.append(arg)
    elif is_device is None:
        ends.likely.append(arg)
        if name or isinstance(call.func, cst.Name):
            ends.unknown.append(call)
    elif not (name.startswith("builtins.") or catalogue.is_legacy(name) or _only_shows(call)):
        ends.unknown.append(call)


def _only_shows(call: cst.Call) -> bool:
    """Whether a call formats or logs its arguments."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in SHOWING


def _follow_dict(site: Site, element: cst.DictElement, ends: _Ends) -> None:
    """`{"device": "xla"}` that is spread into calls names the device there."""
    holder = site.parent(element)
    if _text(element.key) not in KEYWORDS or not isinstance(holder, cst.Dict):
        return
    for use in site.flow.uses_of(holder).uses:
        arg = site.parent(use.node)
        if isinstance(arg, cst.Arg) and arg.star == "**":
            call = site.parent(arg)
            assert isinstance(call, cst.Call)
            name = site.name_of(call.func) or ""
            (ends.devices if name.startswith("torch.") else ends.likely).append(arg)


# Devices.


def _follow_device(site: Site, group: Group, device: cst.BaseExpression, found: str) -> None:
    """Adapt what a device object meets on its way, or mark it there."""
    ends = _ends(site, device)
    done = site.notes.setdefault(codemod.name, set())
    for comparison, side in ends.compared:
        if comparison not in done:
            done.add(comparison)
            _compare_types(site, group, comparison, side, device, found)
    for comparison in _looked_up(site, device):
        if comparison not in done:
            done.add(comparison)
            site.mark(comparison, found, *UNEQUAL)
    for attribute in ends.attributes:
        if attribute.attr.value == "type":
            for arg in _ends(site, attribute).devices:
                _write_dtype(site, group, arg)
        elif attribute.attr.value == "index" and attribute not in done:
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
        site.mark(comparison, found, *UNEQUAL)
        return
    for each in (side, other):
        if each is device:
            group.replace(each, edits.string("neuron"))
        else:
            group.replace(each, cst.Attribute(edits.parenthesized(each), cst.Name("type")))


def _looked_up(site: Site, device: cst.BaseExpression) -> Iterator[cst.Comparison]:
    """The comparisons `x in (a, b)` in which a device is one of several."""
    for comparison in site.nodes(cst.Comparison):
        for target in comparison.comparisons:
            if isinstance(target.operator, (cst.In, cst.NotIn)):
                elements = getattr(target.comparator, "elements", ())
                origins = [site.flow.origin_of(each.value) for each in elements]
                if any(each.node is device for origin in origins for each in origin.producers):
                    yield comparison


def _holds_text(site: Site, node: cst.BaseExpression) -> bool:
    return any(each.name == "builtins.str" for each in site.flow.origin_of(node).producers)


def _is_device(site: Site, node: cst.BaseExpression) -> bool:
    """Whether an expression may be a device that this codemod writes anew."""
    return any(
        isinstance(each.node, cst.Call) and (each.name in DEVICES or _names_device(site, each.node))
        for each in site.flow.origin_of(node).producers
    )


def _names_device(site: Site, call: cst.Call) -> bool:
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
        indexed = next((call for call in map(site.parent, ends.devices) if _has_index(site, call)), None)
        if indexed is not None:
            site.mark(node, '"xla"', f"`{edits.short(indexed)}` asks for a device by its index", INSTEAD)
            return
        beside = self._indexed_beside(ends)
        if beside is not None:
            site.mark(node, '"xla"', f"it stands for one device beside `{edits.short(beside)}`", INSTEAD)
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
        if ends.unknown:
            names = sorted({f"`{edits.short(call.func)}`" for call in ends.unknown})
            todo = f"it also goes to {', '.join(names)}: check that nothing there expects `xla`"
            group.review(node, '"xla"', why, todo, numerics=numerics)
        else:
            group.fixed(node, '"xla"', why, numerics=numerics)

    def _indexed_beside(self, ends: _Ends) -> cst.BaseExpression | None:
        """A device with an index that may come to the same place: both have to change together."""
        for arg in (*ends.devices, *ends.likely):
            for made in self.site.flow.origin_of(arg.value).producers:
                node = made.node
                if isinstance(node, cst.SimpleString) and _INDEXED.fullmatch(_text(node)):
                    return node
                if isinstance(node, cst.FormattedString) and _starts_with_index(node):
                    return node
        return None

    def _partner(self, comparison: cst.Comparison, side: cst.BaseExpression) -> cst.SimpleString | None:
        """The `"xla"` that a value is compared with."""
        for node in _walk(comparison):
            if isinstance(node, cst.SimpleString) and node is not side and _text(node) == "xla":
                return node
        return None

    def _is_private(self, node: cst.BaseExpression) -> bool:
        """Whether a value can only be one of the strings that are written in this file."""
        origins = self.site.flow.origin_of(node)
        return origins.certain and all(isinstance(each.node, cst.SimpleString) for each in origins.producers)

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
        elif _is_device(site, other):
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
            return _is_device(self.site, node.value)
        producers = self.site.flow.origin_of(node).producers
        return bool(producers) and all(
            isinstance(each.node, cst.Attribute) and is_device_type(each.node) for each in producers
        )

    def _is_shown_device(self, node: cst.BaseExpression) -> bool:
        """`str(tensor.device)`, in which the name of the type is looked for."""
        if not isinstance(node, cst.Call) or self.site.name_of(node.func) != "builtins.str":
            return False
        shown = node.args[0].value if len(node.args) == 1 else None
        if shown is None:
            return False
        is_named = isinstance(shown, cst.Attribute) and last_word(shown) == "device"
        return is_named or _is_device(self.site, shown)

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
