"""Where a value came from, and where it goes.

`model.generate(...)` is only ours if the model is, and what a legacy object did by itself has to be
written out wherever it ends up. Both questions are followed through assignments, unpacking,
attributes, containers that are written out, calls of functions of this module and, with the facts of
the project, of others. Where the trail ends the answer says so, in words: an answer that is not
certain is for the asker to leave alone.

A *path* leads into a container: `(1,)` is the second element, `("key",)` an entry, `EACH` any element.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from neuronmigrate.facts import (
    CallFacts,
    ClassFacts,
    Facts,
    ModuleFacts,
    Outside,
    Producer,
    ProjectFacts,
    settle,
)
from neuronmigrate.names import EACH, STAR, AttributeStore, Binding, Kind, Path, dotted_name
from neuronmigrate.origins import (
    ADDERS,
    FIXTURES,
    KEEPS_ORDER,
    MANAGERS,
    MAX_PATH,
    MAX_STEPS,
    PASSTHROUGH,
    PROPERTIES,
    SAME,
    SAME_ELEMENTS,
    Backward,
    CallSite,
    Function,
    Origins,
    function_name,
    is_decorated,
    literal_key,
    may_be,
    short,
    subscript_key,
)
from neuronmigrate.telling import module_facts

__all__ = [
    "PASSTHROUGH",
    "CallFacts",
    "ClassFacts",
    "Facts",
    "Flow",
    "ModuleFacts",
    "Origins",
    "Outside",
    "Producer",
    "ProjectFacts",
    "Use",
    "UseKind",
    "Uses",
    "module_facts",
    "settle",
]


class UseKind(str, enum.Enum):
    """What happens to a value at one place."""

    CALLED = "called"
    ATTRIBUTE = "attribute"
    SUBSCRIPT = "subscript"
    ARGUMENT = "argument"
    """Passed to a callable outside the project."""
    HANDED_ON = "handed on"
    """Within reach of another module of the project, alone or in a container: passed to a function
    there, or returned, kept or named where that module reads it. `origin_of` finds it again there."""
    RETURNED = "returned"
    STORED = "stored"
    """Put where it cannot be followed."""
    BOUND = "bound"
    """Given a name or an attribute, which is followed."""
    ENTERED = "entered"
    """The context manager of a `with`."""
    COMPARED = "compared"
    """Compared or tested for truth."""
    ITERATED = "iterated"
    """Iterated over or unpacked."""
    OPERAND = "operand"
    DISCARDED = "discarded"
    """A statement of its own."""
    OTHER = "other"


@dataclass(frozen=True)
class Use:
    """One expression that holds the value."""

    node: cst.BaseExpression
    kind: UseKind


@dataclass(frozen=True)
class Uses:
    """Where a value goes, in the order in which the places run; outer expressions before inner ones."""

    uses: tuple[Use, ...]
    lost: tuple[tuple[cst.CSTNode, str], ...]
    """Where the trail was lost, and why, in words."""


class Flow(Backward):
    """Follows values through one module. Nothing in it raises on code that parses."""

    def uses_of(self, value: cst.BaseExpression) -> Uses:
        """Every place that holds the value of an expression, from the expression itself on."""
        try:
            if self.sites_by_function is None:
                self.find_sites()
            return _Forward(self).run(value)
        except RecursionError:
            return Uses((), ((value, "it nests too deep to be followed"),))


class _Forward:
    """One search for the places a value goes to."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.names = flow.names
        self.uses: dict[tuple[int, UseKind], Use] = {}
        self.lost: dict[tuple[int, str], tuple[cst.CSTNode, str]] = {}
        self.seen: set[tuple[int, Path]] = set()
        self.todo: list[tuple[cst.BaseExpression, Path]] = []

    def run(self, value: cst.BaseExpression) -> Uses:
        self.push(value, ())
        while self.todo:
            node, path = self.todo.pop()
            self.flow.begin()
            self.follow(node, path)
        order = self.names.order_of
        uses = sorted(self.uses.values(), key=lambda each: (order(each.node), each.kind is UseKind.HANDED_ON))
        lost = sorted(self.lost.values(), key=lambda each: order(each[0]))
        return Uses(tuple(uses), tuple(lost))

    def push(self, node: cst.BaseExpression, path: Path) -> None:
        key = (id(node), path)
        if key in self.seen:
            return
        self.seen.add(key)
        if len(path) > MAX_PATH or len(self.seen) > MAX_STEPS:
            self.lose(node, "the trail is longer than can be followed")
            return
        self.todo.append((node, path))

    def use(self, node: cst.BaseExpression, kind: UseKind, path: Path = ()) -> None:
        """Note a use of the value; of a container that holds it, nothing is noted."""
        if not path:
            self.uses[id(node), kind] = Use(node, kind)

    def hand(self, node: cst.BaseExpression) -> None:
        """Note that another module gets the value, or a container that holds it."""
        self.uses[id(node), UseKind.HANDED_ON] = Use(node, UseKind.HANDED_ON)

    def lose(self, node: cst.CSTNode, why: str) -> None:
        self.lost[id(node), why] = (node, why)

    def readers(self, binding: Binding, path: Path) -> None:
        for load in self.names.references(binding):
            self.push(load, path)

    def follow(self, node: cst.BaseExpression, path: Path) -> None:
        self.bindings(node, path)
        parent = self.names.parent(node)
        if isinstance(parent, cst.Expr):
            self.use(node, UseKind.DISCARDED, path)
        elif isinstance(parent, (cst.Assign, cst.AnnAssign, cst.NamedExpr)):
            self.assigned(node, parent, path)
        elif isinstance(parent, cst.Return):
            self.use(node, UseKind.RETURNED, path)
            function = self.names.function_of(parent)
            if function is not None:
                self.returned(node, function.node, path)
        elif isinstance(parent, cst.Lambda):
            self.use(node, UseKind.RETURNED, path)
            self.returned(node, parent, path)
        elif isinstance(parent, cst.Arg):
            call = self.names.parent(parent)
            if isinstance(call, cst.Call):
                self.argument(node, parent, call, path)
            else:
                self.use(node, UseKind.OTHER, path)
        elif isinstance(parent, cst.Call):
            self.use(node, UseKind.CALLED, path)
        elif isinstance(parent, cst.Attribute):
            self.attribute(node, parent, path)
        elif isinstance(parent, cst.Subscript):
            self.subscript(node, parent, path)
        elif isinstance(parent, (cst.Element, cst.StarredElement)):
            self.element(node, parent, path)
        elif isinstance(parent, (cst.DictElement, cst.StarredDictElement)):
            self.entry(node, parent, path)
        elif isinstance(parent, cst.Await):
            self.push(parent, path)
        elif isinstance(parent, cst.IfExp):
            if parent.test is node:
                self.use(node, UseKind.COMPARED, path)
            else:
                self.push(parent, path)
        elif isinstance(parent, cst.BooleanOperation):
            self.push(parent, path)
        elif isinstance(
            parent,
            (
                cst.Comparison,
                cst.ComparisonTarget,
                cst.If,
                cst.While,
                cst.Assert,
                cst.CompIf,
                cst.Match,
                cst.MatchCase,
            ),
        ) or (isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not)):
            self.use(node, UseKind.COMPARED, path)
        elif isinstance(parent, (cst.BinaryOperation, cst.UnaryOperation, cst.AugAssign)):
            self.use(node, UseKind.OPERAND, path)
            if path:
                self.lose(node, "in a container that an operator takes")
        elif isinstance(parent, (cst.For, cst.CompFor)):
            self.use(node, UseKind.ITERATED, path)
        elif isinstance(parent, cst.WithItem):
            self.use(node, UseKind.ENTERED, path)
        elif isinstance(parent, (cst.ListComp, cst.SetComp, cst.GeneratorExp, cst.DictComp)):
            self.push(parent, (EACH, *path))
        elif isinstance(parent, cst.Yield):
            self.yielded(node, parent, path)
        elif isinstance(parent, (cst.Param, cst.Del)):
            pass
        else:
            self.use(node, UseKind.OTHER, path)

    def bindings(self, node: cst.BaseExpression, path: Path) -> None:
        """Follow everything that gets this value or a part of it by assignment, loop, `with`, match."""
        for store in self.flow.stores_by_value.get(id(node), ()):
            if store.kind in (Kind.AUG_ASSIGN, Kind.EXCEPT):
                continue
            inner = _unpacked(store.path, path)
            if inner is None:
                if not path:
                    self.use(node, UseKind.ITERATED)
                continue
            if isinstance(store, AttributeStore):
                self.kept(node, store.node, inner)
            else:
                self.readers(store, inner)
                if store.scope is self.names.module_scope and self.used_elsewhere(self.flow.qualified(store)):
                    self.hand(node)
                if isinstance(store.scope.node, cst.ClassDef):
                    self.reach(node, store.scope.node, store.name)
                    for load in self.flow.attribute_loads(store.scope.node, store.name):
                        self.push(load, inner)

    def assigned(
        self, node: cst.BaseExpression, parent: cst.Assign | cst.AnnAssign | cst.NamedExpr, path: Path
    ) -> None:
        if isinstance(parent, cst.NamedExpr):
            self.use(node, UseKind.BOUND, path)
            self.push(parent, path)
            return
        places = parent.targets if isinstance(parent, cst.Assign) else [parent]
        targets = [each.target for each in places]
        for target in targets:
            if isinstance(target, cst.Subscript):
                key = subscript_key(target)
                self.contain(node, target.value, (EACH if key is None else key, *path))
        stored = (id(node), UseKind.STORED) in self.uses
        if not stored or any(isinstance(each, cst.Name) for each in targets):
            self.use(node, UseKind.BOUND, path)

    def contain(self, node: cst.BaseExpression, holder: cst.BaseExpression, path: Path) -> None:
        """Follow a container that now holds the value at a path."""
        while isinstance(holder, cst.Subscript):
            key = subscript_key(holder)
            path = (EACH if key is None else key, *path)
            holder = holder.value
        stores: Sequence[Binding | AttributeStore] = ()
        if isinstance(holder, cst.Name):
            stores = self.names.bindings_at(holder)
            for binding in self.names.bindings_at(holder):
                self.readers(binding, path)
        elif isinstance(holder, cst.Attribute):
            owner = self.owner(holder.value)
            if owner is not None:
                stores = self.names.class_attribute(owner, holder.attr.value, subclasses=True)
                for load in self.flow.attribute_loads(owner, holder.attr.value):
                    self.push(load, path)
        # A container that was made elsewhere is read under other names as well.
        if stores and all(self.fresh(each.value, each.path) for each in stores):
            return
        self.use(node, UseKind.STORED, path[1:])
        self.lose(node, "put into a container that is not of this function")

    def fresh(self, value: cst.BaseExpression | None, path: Path) -> bool:
        """Whether an expression makes a container that nothing else holds yet."""
        for step in path:
            if not isinstance(value, cst.Tuple) or not isinstance(step, int):
                return False
            if any(isinstance(each, cst.StarredElement) for each in value.elements):
                return False
            value = value.elements[step].value if -len(value.elements) <= step < len(value.elements) else None
        if isinstance(value, cst.Call):
            name = self.names.name_of(value.func) or ""
            return name.startswith(("builtins.", "collections."))
        return isinstance(value, (cst.List, cst.ListComp, cst.BaseDict, cst.BaseSet))

    def owner(self, base: cst.BaseExpression) -> cst.ClassDef | None:
        """The class of this module that an object is an instance of, or is."""
        for each in self.flow.trail_of(base, ()).sources:
            if each.instance is not None:
                return each.instance
            if isinstance(each.definition, cst.ClassDef):
                return each.definition
        return None

    def kept(self, node: cst.BaseExpression, target: cst.Attribute, path: Path) -> None:
        """The value is kept as an attribute."""
        owner = self.owner(target.value)
        if owner is None:
            self.use(node, UseKind.STORED, path)
            self.lose(node, f"kept as `{dotted_name(target) or target.attr.value}`")
            return
        self.reach(node, owner, target.attr.value)
        for load in self.flow.attribute_loads(owner, target.attr.value):
            self.push(load, path)

    def returned(self, node: cst.BaseExpression, function: cst.CSTNode, path: Path) -> None:
        assert isinstance(function, (cst.FunctionDef, cst.Lambda))
        flow = self.flow
        sites = [site for site in flow.call_sites(function) if not site.construct]
        for site in sites:
            self.push(site.call, path)
        known = bool(sites)
        if isinstance(function, cst.FunctionDef):
            known = self.special(function, path) or known
        who = f"`{function_name(function)}`"
        escape = flow.escapes(function)
        if escape:
            self.lose(node, f"returned by {who}, which is {escape}")
        elif not self.hand_out(node, function) and not known:
            self.lose(node, f"returned by {who}, whose callers are not known")

    def special(self, function: cst.FunctionDef, path: Path) -> bool:
        """Functions that run without being called by name: properties, `__enter__`, those of frameworks."""
        takers = list(self.flow.takers(function))
        for each in takers:
            self.readers(each, path)
        if takers:
            return True
        owner = self.names.scope(function).node
        if not isinstance(owner, cst.ClassDef):
            return False
        if is_decorated(function, PROPERTIES):
            loads = self.flow.attribute_loads(owner, function.name.value)
            for load in loads:
                self.push(load, path)
            return bool(loads)
        if function.name.value in ("__enter__", "__aenter__"):
            self.entered(owner, path)
            return True
        return False

    def entered(self, owner: cst.ClassDef, path: Path) -> None:
        """Follow the targets of each `with` over an instance of a class."""
        family = self.flow.family(owner)
        for item in self.names.nodes(cst.WithItem):
            sources = self.flow.trail_of(item.item, ()).sources
            if any(each.instance is not None and each.instance in family for each in sources):
                self.targets(item.item, path)

    def targets(self, item: cst.BaseExpression, path: Path) -> None:
        for store in self.flow.stores_by_value.get(id(item), ()):
            inner = _unpacked(store.path, path)
            if inner is not None and isinstance(store, Binding):
                self.readers(store, inner)

    def yielded(self, node: cst.BaseExpression, parent: cst.Yield, path: Path) -> None:
        function = self.names.function_of(parent)
        self.use(node, UseKind.RETURNED, path)
        definition = function.node if function is not None else None
        fixture = isinstance(definition, cst.FunctionDef) and is_decorated(definition, FIXTURES)
        if fixture and isinstance(definition, cst.FunctionDef) and self.special(definition, path):
            return
        if isinstance(definition, cst.FunctionDef) and is_decorated(definition, MANAGERS):
            sites = self.flow.call_sites(definition)
            for site in sites:
                self.targets(site.call, path)
            if self.hand_out(node, definition) or sites:
                return
        name = function_name(definition) if isinstance(definition, (cst.FunctionDef, cst.Lambda)) else ""
        self.lose(node, f"yielded by `{name}`")

    def hand_out(self, node: cst.BaseExpression, function: Function) -> bool:
        """Note it if other modules call the function that returns the value; whether they do."""
        if not isinstance(function, cst.FunctionDef):
            return False
        owner = self.names.scope(function).node
        used = self.used_elsewhere(self.flow.qualified(self.names.bound_by(function)[0]))
        if isinstance(owner, cst.ClassDef):
            used = used or self.attribute_used_elsewhere(owner, function.name.value)
        if used:
            self.hand(node)
        return used

    def reach(self, node: cst.BaseExpression, owner: cst.ClassDef, attribute: str) -> None:
        """Note it if other modules may read the attribute that holds the value."""
        if self.attribute_used_elsewhere(owner, attribute):
            self.hand(node)

    def used_elsewhere(self, name: str) -> bool:
        facts = self.flow.facts
        return facts is not None and bool(self.names.module_name) and facts.used_elsewhere(name)

    def attribute_used_elsewhere(self, owner: cst.ClassDef, attribute: str) -> bool:
        facts = self.flow.facts
        if facts is None or not self.names.module_name:
            return False
        return facts.attribute_used_elsewhere(self.flow.qualified_class(owner), attribute)

    def attribute(self, node: cst.BaseExpression, parent: cst.Attribute, path: Path) -> None:
        call = self.names.parent(parent)
        called = call if isinstance(call, cst.Call) and call.func is parent else None
        method = parent.attr.value
        if not path:
            self.use(node, UseKind.ATTRIBUTE)
            if called is not None and method in self.flow.passthrough:
                self.push(called, ())
            return
        if called is None:
            return
        if method in ("get", "pop", "setdefault"):
            key = literal_key(called.args[0].value) if called.args else -1
            if key is None or may_be(key, path[0]):
                self.push(called, path[1:])
        elif method == "copy":
            self.push(called, path)
        elif method == "values":
            self.push(called, (EACH, *path[1:]))
        elif method == "items":
            self.push(called, (EACH, 1, *path[1:]))

    def subscript(self, node: cst.BaseExpression, parent: cst.Subscript, path: Path) -> None:
        if not path:
            self.use(node, UseKind.SUBSCRIPT)
            return
        if isinstance(self.names.parent(parent), (cst.AssignTarget, cst.Del)):
            return
        if len(parent.slice) == 1 and isinstance(parent.slice[0].slice, cst.Slice):
            self.push(parent, (EACH, *path[1:]))
            return
        key = subscript_key(parent)
        if key is None or may_be(key, path[0]):
            self.push(parent, path[1:])

    def element(self, node: cst.BaseExpression, parent: cst.Element | cst.StarredElement, path: Path) -> None:
        holder = self.names.parent(parent)
        if isinstance(holder, cst.Set):
            self.push(holder, (EACH, *path))
        elif isinstance(holder, (cst.Tuple, cst.List)):
            if isinstance(self.names.parent(holder), cst.Del):
                return
            before = holder.elements[: holder.elements.index(parent)]
            if isinstance(parent, cst.StarredElement):
                self.use(node, UseKind.ITERATED, path)
                if path:
                    self.push(holder, (EACH, *path[1:]))
            elif any(isinstance(each, cst.StarredElement) for each in before):
                self.push(holder, (EACH, *path))
            else:
                self.push(holder, (len(before), *path))
        else:
            # In a subscript or a slice: a key.
            self.use(node, UseKind.OTHER, path)

    def entry(
        self, node: cst.BaseExpression, parent: cst.DictElement | cst.StarredDictElement, path: Path
    ) -> None:
        holder = self.names.parent(parent)
        assert isinstance(holder, cst.Dict)
        if isinstance(parent, cst.StarredDictElement):
            self.use(node, UseKind.ITERATED, path)
            if path:
                self.push(holder, path)
        elif parent.value is node:
            key = literal_key(parent.key)
            self.push(holder, (EACH if key is None else key, *path))
        else:
            self.use(node, UseKind.OTHER, path)

    def argument(self, node: cst.BaseExpression, arg: cst.Arg, call: cst.Call, path: Path) -> None:
        resolved = self.names.names_of(call.func)
        name = self.flow.callee_name(call.func)
        index = call.args.index(arg)
        if name in SAME and index == SAME[name]:
            self.push(call, path)
            return
        if path and self.through(name, call, index, path):
            return
        if name == "builtins.dict" and arg.keyword is not None:
            self.push(call, (arg.keyword.value, *path))
            return
        if isinstance(call.func, cst.Attribute) and not resolved.names and not arg.star:
            inner = _put(call.func.attr.value, call, index, path)
            if inner is not None and self.flow.is_container(call.func.value):
                self.contain(node, call.func.value, inner)
                return
        if name == "functools.partial" and index > 0:
            # Where the partial is called, the search for call sites has found it.
            found = [
                site
                for sites in (self.flow.sites_by_function or {}).values()
                for site in sites
                if site.partial is call
            ]
            for site in found:
                self.passed(site, arg, path)
            if found:
                return
        sites = self.flow.sites_of_call.get(id(call), ())
        for site in sites:
            self.passed(site, arg, path)
        if sites:
            return
        facts = self.flow.facts
        if facts is not None and any(facts.knows(each) for each in resolved.names):
            self.hand(node)
            return
        self.use(node, UseKind.ARGUMENT, path)
        if path:
            self.lose(node, f"in a container passed to `{short(call.func)}`")

    def through(self, name: str, call: cst.Call, index: int, path: Path) -> bool:
        """Whether a builtin hands the elements of its argument on, and if so, follow them."""
        rest = path[1:]
        if name in SAME_ELEMENTS and index == 0:
            self.push(call, path if name in KEEPS_ORDER else (EACH, *rest))
        elif name == "builtins.dict" and index == 0:
            self.push(call, path)
        elif name == "builtins.enumerate" and index == 0:
            self.push(call, (EACH, 1, *rest))
        elif name == "builtins.zip":
            self.push(call, (EACH, index, *rest))
        elif name == "builtins.next" and index == 0:
            self.push(call, rest)
        else:
            return name in _LOOKERS
        return True

    def passed(self, site: CallSite, arg: cst.Arg, path: Path) -> None:
        """Follow a value into the parameters of a function of this module."""
        name = function_name(site.target)
        receiver: tuple[cst.Param, Path] | None = None
        if arg.star and not path:
            self.use(arg.value, UseKind.ITERATED)
        elif arg.star == "*":
            at = site.position(arg)
            if at < 0 or not isinstance(path[0], int) or path[0] < 0:
                self.lose(arg.value, f"passed by `*` to `{name}`")
                return
            receiver, path = site.by_position(at + path[0]), path[1:]
        elif arg.star == "**":
            if path[0] == EACH:
                self.lose(arg.value, f"passed by `**` to `{name}`")
                return
            receiver, path = site.by_keyword(str(path[0])), path[1:]
        elif arg.keyword is None and site.position(arg) < 0:
            self.lose(arg.value, f"passed to `{name}` after a `*`")
        else:
            receiver = site.receiver(arg)
        if receiver is not None:
            param, inner = receiver
            for binding in self.names.bound_by(param.name):
                self.readers(binding, (*inner, *path))


# Builtins that look at a container and give nothing of it back.
_LOOKERS = frozenset(
    f"builtins.{name}"
    for name in ("all", "any", "bool", "hasattr", "id", "isinstance", "len", "print", "repr", "str", "type")
)


def _put(method: str, call: cst.Call, index: int, path: Path) -> Path | None:
    """Where in a container a method puts its argument; None if it does not."""
    arg = call.args[index]
    if index == ADDERS.get(method):
        return (EACH, *path)
    if method == "extend" and path:
        return (EACH, *path[1:])
    if method == "update":
        return (arg.keyword.value, *path) if arg.keyword is not None else path or None
    if method == "setdefault" and index == 1:
        key = literal_key(call.args[0].value)
        return (EACH if key is None else key, *path)
    return None


def _unpacked(taken: Path, path: Path) -> Path | None:
    """Where in a target the value stands, if the target takes it; None if it does not."""
    for number, step in enumerate(taken):
        if number >= len(path):
            return None
        if step == STAR:
            return (EACH, *path[number + 1 :])
        if not may_be(step, path[number]):
            return None
    return path[len(taken) :]
