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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import libcst as cst

from neuronmigrate.facts import (
    CallFacts,
    ClassFacts,
    Facts,
    ModuleFacts,
    Outside,
    Producer,
    ProjectFacts,
)
from neuronmigrate.names import (
    EACH,
    STAR,
    AttributeStore,
    Binding,
    Kind,
    Names,
    Path,
    Scope,
    dotted_name,
    last_name,
    parameters,
)

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
]

PASSTHROUGH = frozenset(
    {
        "bfloat16",
        "cpu",
        "cuda",
        "double",
        "eval",
        "float",
        "half",
        "requires_grad_",
        "share_memory",
        "to",
        "train",
    }
)
"""Methods of models and tensors that give back the same thing, moved or converted."""

# Functions that give back (a copy of) one of their arguments: the argument's position.
_SAME = {
    "copy.copy": 0,
    "copy.deepcopy": 0,
    "typing.cast": 1,
    "typing_extensions.cast": 1,
    "contextlib.nullcontext": 0,
    "contextlib.closing": 0,
}
# Functions whose result has the elements of their argument, in some order.
_SAME_ELEMENTS = frozenset(
    {
        "builtins.iter",
        "builtins.list",
        "builtins.reversed",
        "builtins.set",
        "builtins.sorted",
        "builtins.tuple",
        "tqdm.auto.tqdm",
        "tqdm.notebook.tqdm",
        "tqdm.tqdm",
        "tqdm.trange",
    }
)
_KEEPS_ORDER = frozenset({"builtins.iter", "builtins.list", "builtins.tuple"})
# Decorators under which a function still returns what its body returns.
_TRANSPARENT = frozenset(
    {
        "abstractmethod",
        "cache",
        "cache_data",
        "cache_resource",
        "cached_property",
        "classmethod",
        "final",
        "inference_mode",
        "lru_cache",
        "no_grad",
        "override",
        "property",
        "record",
        "staticmethod",
        "wraps",
    }
)
_PROPERTIES = frozenset({"cached_property", "property"})
_MANAGERS = frozenset({"asynccontextmanager", "contextmanager"})
_ADDERS = {"append": 0, "add": 0, "appendleft": 0, "insert": 1}
# Methods after which a container may hold what is not written here.
_MUTATORS = frozenset({"extend", "setdefault", "update"})
# No trail through sane code is longer; what goes round and round is cut here.
_MAX_DEPTH = 60
_MAX_STEPS = 3_000
_MAX_PATH = 4

_Function = cst.FunctionDef | cst.Lambda
_PlacedAt = Callable[[cst.CSTNode], str]


@dataclass(frozen=True)
class Origins:
    """What made a value."""

    producers: tuple[Producer, ...]
    certain: bool
    """Something is known to have made it, and nothing unknown may have."""
    lost: tuple[str, ...]
    """Why the trail was lost, in words."""


class UseKind(str, enum.Enum):
    """What happens to a value at one place."""

    CALLED = "called"
    ATTRIBUTE = "attribute"
    SUBSCRIPT = "subscript"
    ARGUMENT = "argument"
    """Passed to a callable outside the project."""
    HANDED_ON = "handed on"
    """Passed to a function of another module of the project, where `origin_of` finds it again."""
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
    """Where a value goes, in the order in which the places run."""

    uses: tuple[Use, ...]
    lost: tuple[tuple[cst.CSTNode, str], ...]
    """Where the trail was lost, and why, in words."""


@dataclass(frozen=True)
class _Source:
    """A producer, with what following it further takes."""

    name: str
    node: cst.CSTNode | None = None
    place: str = ""
    called: bool = False
    instance: cst.ClassDef | None = None
    """The class of this module that it is an instance of."""
    bound: bool = False
    """A function that was taken from an instance."""
    partial: cst.Call | None = None
    """The `functools.partial` that gives it its first arguments."""

    @property
    def text(self) -> str:
        return f"{self.name}()" if self.called else self.name

    @property
    def definition(self) -> cst.FunctionDef | cst.Lambda | cst.ClassDef | None:
        """The definition in this module that this is, not an instance or a result of it."""
        if self.called or not isinstance(self.node, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return None
        return self.node


@dataclass
class _Trail:
    """What is known so far about where a value came from."""

    sources: dict[_Source, None] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)

    def add(self, *sources: _Source) -> _Trail:
        self.sources.update(dict.fromkeys(sources))
        return self

    def lose(self, why: str) -> _Trail:
        self.lost[why] = None
        return self

    def join(self, other: _Trail) -> _Trail:
        self.sources.update(other.sources)
        self.lost.update(other.lost)
        return self


@dataclass(frozen=True)
class _Site:
    """A call that may run a function of this module."""

    call: cst.Call
    target: _Function
    bound: int
    """How many leading parameters the call does not pass itself."""
    partial: cst.Call | None
    construct: bool = False
    """The call makes an instance; the target is its `__init__`."""


class Flow:
    """Follows values through one module. Nothing in it raises on code that parses."""

    def __init__(
        self, names: Names, facts: Facts | None = None, *, passthrough: frozenset[str] = PASSTHROUGH
    ) -> None:
        self.names = names
        self.facts = facts
        self.passthrough = passthrough
        self._known: dict[tuple[int, Path], _Trail] = {}
        self._open: set[tuple[int, Path]] = set()
        self._cuts = 0
        self._depth = 0
        self._steps = 0
        self._sites_known: dict[int, list[_Site]] | None = None
        self._sites_of_call: dict[int, list[_Site]] = {}
        self._escaped: dict[int, str] = {}

    # Backward.

    def origin_of(self, expression: cst.BaseExpression) -> Origins:
        """What made the value of an expression."""
        return self._origins(self._ask(lambda: self._from(expression, ())))

    def origin_of_element(self, expression: cst.BaseExpression, path: Path) -> Origins:
        """What made an element of a container: `(1,)`, `("key",)`, or `(EACH,)` for any."""
        return self._origins(self._ask(lambda: self._from(expression, path)))

    def _ask(self, question: Callable[[], _Trail]) -> _Trail:
        self._depth = self._steps = 0
        try:
            return question()
        except RecursionError:
            # Only code that nests nearly as deep as Python allows comes here.
            self._open.clear()
            return _Trail().lose("it nests too deep to be followed")

    @staticmethod
    def _origins(trail: _Trail) -> Origins:
        producers: dict[Producer, None] = {}
        for each in trail.sources:
            producers[Producer(each.name, each.node, each.place, each.called)] = None
        return Origins(tuple(producers), bool(producers) and not trail.lost, tuple(trail.lost))

    def _guarded(self, at: object, path: Path, work: Callable[[], _Trail]) -> _Trail:
        """Run a step of the search unless it is being run already: then the rest is found there."""
        key = id(at), path
        if key in self._open:
            self._cuts += 1
            return _Trail()
        self._steps += 1
        if len(path) > _MAX_PATH:
            # A function that takes containers apart by calling itself leads ever deeper.
            return _Trail().lose("it is nested too deep in containers")
        if self._depth >= _MAX_DEPTH or self._steps > _MAX_STEPS:
            self._cuts += 1
            return _Trail().lose("the trail is longer than can be followed")
        self._open.add(key)
        self._depth += 1
        try:
            return work()
        finally:
            self._depth -= 1
            self._open.discard(key)

    def _from(self, expression: cst.BaseExpression, path: Path) -> _Trail:
        key = (id(expression), path)
        known = self._known.get(key)
        if known is not None:
            return known
        cuts = self._cuts
        trail = self._guarded(expression, path, lambda: self._look(expression, path))
        # What was cut short on the way is the whole answer only to the outermost question.
        if cuts == self._cuts or not self._depth:
            self._known[key] = trail
        return trail

    def _either(self, expressions: Iterable[cst.BaseExpression], path: Path) -> _Trail:
        trail = _Trail()
        for each in expressions:
            trail.join(self._from(each, path))
        return trail

    def _look(self, node: cst.BaseExpression, path: Path) -> _Trail:
        if isinstance(node, cst.Name):
            return self._from_name(node, path)
        if isinstance(node, cst.Attribute):
            return self._from_attribute(node, path)
        if isinstance(node, cst.Call):
            return self._from_call(node, path)
        if isinstance(node, cst.Subscript):
            return self._from_subscript(node, path)
        if isinstance(node, (cst.Await, cst.NamedExpr)):
            return self._from(node.expression if isinstance(node, cst.Await) else node.value, path)
        if isinstance(node, cst.IfExp):
            return self._either((node.body, node.orelse), path)
        if isinstance(node, cst.BooleanOperation):
            return self._either((node.left, node.right), path)
        if path:
            return self._from_inside(node, path)
        return self._from_literal(node)

    def _from_literal(self, node: cst.BaseExpression) -> _Trail:
        trail = _Trail()
        literal = _literal_type(node)
        if literal:
            return trail.add(_Source(f"builtins.{literal}", node))
        if isinstance(node, cst.Lambda):
            return trail.add(_Source("", node))
        trail.add(_Source("", node))
        if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison)):
            return trail.lose("the result of an operator")
        if isinstance(node, cst.Yield):
            return trail.lose("what is sent into a generator")
        return trail.lose("an expression that cannot be followed")

    def _from_inside(self, node: cst.BaseExpression, path: Path) -> _Trail:
        """An element of a container that is written out."""
        step, rest = path[0], path[1:]
        if isinstance(node, (cst.Tuple, cst.List, cst.Set)):
            elements = node.elements
            starred = [n for n, each in enumerate(elements) if isinstance(each, cst.StarredElement)]
            if isinstance(step, int) and not starred:
                if -len(elements) <= step < len(elements):
                    return self._from(elements[step].value, rest)
                return _Trail()
            if isinstance(step, int) and 0 <= step < starred[0]:
                return self._from(elements[step].value, rest)
            if isinstance(step, int) and step < 0 and -step < len(elements) - starred[-1]:
                return self._from(elements[step].value, rest)
            trail = _Trail()
            for each in elements:
                inner = (EACH, *rest) if isinstance(each, cst.StarredElement) else rest
                trail.join(self._from(each.value, inner))
            return trail
        if isinstance(node, cst.Dict):
            return self._from_dict(node, step, rest)
        if isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp)):
            return self._from(node.elt, rest)
        if isinstance(node, cst.DictComp):
            return self._from(node.value, rest)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.BitOr)):
            # Lists and dictionaries joined: the element is of either.
            return self._either((node.left, node.right), (EACH, *rest) if isinstance(step, int) else path)
        whole = self._from(node, ())
        trail = _Trail(lost=dict(whole.lost))
        for source in whole.sources:
            trail.add(_Source(f"{source.text}{_index(step)}" if source.name else "", node))
        return trail

    def _from_dict(self, node: cst.Dict, step: int | str, rest: Path) -> _Trail:
        trail = _Trail()
        for element in reversed(node.elements):
            if isinstance(element, cst.StarredDictElement):
                trail.join(self._from(element.value, (step, *rest)))
            elif isinstance(element, cst.DictElement):
                key = _key(element.key)
                if step == EACH or key is None:
                    trail.join(self._from(element.value, rest))
                elif key == step:
                    # Written last, so it holds whatever came before.
                    return trail.join(self._from(element.value, rest))
        return trail

    # Names.

    def _from_name(self, node: cst.Name, path: Path) -> _Trail:
        if node.value in ("None", "True", "False"):
            # Nothing can be called or read on None, so it does not blur where a value came from.
            return _Trail() if node.value == "None" else _Trail().add(_Source("builtins.bool", node))
        bindings = self.names.bindings_at(node)
        if not bindings:
            return self._imported(self.names.names_of(node).names, path, f"`{node.value}` is not known here")
        trail = _Trail()
        for binding in bindings:
            trail.join(self._from_binding(binding, path))
        if path:
            trail.join(self._put_in(bindings, path))
        return trail

    def _imported(self, found: frozenset[str], path: Path, otherwise: str) -> _Trail:
        if not found:
            return _Trail().add(_Source("")).lose(otherwise)
        trail = _Trail()
        for name in sorted(found):
            outside = self.facts.value_of(name) if self.facts else None
            trail.join(self._from_outside(outside or Outside((Producer(name),)), path))
        return trail

    @staticmethod
    def _from_outside(value: Outside, path: Path) -> _Trail:
        value = value.at(path)
        trail = _Trail()
        for each in value.producers:
            trail.add(_Source(each.name, None, each.place, each.called))
        for why in value.lost:
            trail.lose(why)
        return trail

    def _from_binding(self, binding: Binding, path: Path) -> _Trail:
        return self._guarded(binding, path, lambda: self._look_at(binding, path))

    def _look_at(self, binding: Binding, path: Path) -> _Trail:
        kind = binding.kind
        if kind is Kind.IMPORT:
            found = self.names.names_of_binding(binding).names
            return self._imported(found, path, f"`{binding.name}` is not known here")
        if kind is Kind.PARAMETER:
            return self._from_parameter(binding, path)
        if kind is Kind.FUNCTION:
            return _Trail().add(_Source(self.qualified(binding), binding.node))
        if kind is Kind.CLASS:
            return _Trail().add(_Source(self.qualified(binding), binding.node))
        return self._from_stored(binding, path)

    def _from_stored(self, store: Binding | AttributeStore, path: Path) -> _Trail:
        """What an assignment, a loop or a `with` puts into its target."""
        if store.value is None:
            return _Trail().add(_Source("")).lose("it is declared and never given a value here")
        if store.kind is Kind.AUG_ASSIGN:
            return _Trail().add(_Source("")).lose("it is changed by an operator")
        if store.kind is Kind.EXCEPT:
            return self._called(self._from(store.value, ()), None)
        if store.kind is Kind.MATCH and store.path:
            return _Trail().add(_Source("")).lose("taken out by a pattern")
        inner = (*store.path, *path)
        if STAR in store.path:
            if not path:
                return _Trail().add(_Source("builtins.list", store.node))
            # The element of a starred target is some element of the value.
            at = store.path.index(STAR)
            inner = (*store.path[:at], EACH, *path[1:])
        if store.kind is Kind.WITH:
            return self._entered(store.value, inner)
        return self._from(store.value, inner)

    def _put_in(self, bindings: Sequence[Binding], path: Path) -> _Trail:
        """What is put into a container after it was made."""
        trail = _Trail()
        for binding in bindings:
            if binding.kind in (Kind.IMPORT, Kind.FUNCTION, Kind.CLASS):
                continue
            for load in self.names.references(binding):
                trail.join(self._put_by(load, path))
        return trail

    def _put_by(self, holder: cst.BaseExpression, path: Path) -> _Trail:
        """What one use of a container puts into it: `holder[key] = v`, `holder.append(v)`."""
        step, rest = path[0], path[1:]
        around = self.names.parent(holder)
        if isinstance(around, cst.Subscript) and around.value is holder:
            target = self.names.parent(around)
            value = target
            if isinstance(target, cst.AssignTarget):
                value = self.names.parent(target)
            if isinstance(value, cst.Assign) and isinstance(target, cst.AssignTarget):
                key = _subscript_key(around)
                if step == EACH or key is None or key == step:
                    return self._from(value.value, rest)
        if isinstance(around, cst.Attribute):
            call = self.names.parent(around)
            if isinstance(call, cst.Call) and call.func is around:
                method = around.attr.value
                if method in _ADDERS and len(call.args) > _ADDERS[method] and isinstance(step, (int, str)):
                    if step == EACH or isinstance(step, int):
                        return self._from(call.args[_ADDERS[method]].value, rest)
                elif method == "extend" and call.args:
                    return self._from(call.args[0].value, (EACH, *rest))
                elif method in _MUTATORS:
                    return _Trail().lose(f"put into a container by `{method}`")
        return _Trail()

    # Attributes.

    def _from_attribute(self, node: cst.Attribute, path: Path) -> _Trail:
        resolved = self.names.names_of(node)
        if resolved.certain and not self._reaches_class(node.value):
            return self._imported(resolved.names, path, "")
        return self._attribute(self._from(node.value, ()), node.attr.value, path, node)

    def _reaches_class(self, base: cst.BaseExpression) -> bool:
        """Whether the chain begins with `self` or a class of this module."""
        while isinstance(base, cst.Attribute):
            base = base.value
        return isinstance(base, cst.Name) and any(
            self.names.instance_class(each) is not None or each.kind is Kind.CLASS
            for each in self.names.bindings_at(base)
        )

    def _attribute(self, base: _Trail, name: str, path: Path, node: cst.CSTNode | None) -> _Trail:
        """An attribute of what a value may be."""
        trail = _Trail(lost=dict(base.lost))
        for each in base.sources:
            if each.name == "builtins.super" and each.called and node is not None:
                trail.join(self._super_attribute(node, name, path))
                continue
            owner = each.instance
            if owner is None and isinstance(each.definition, cst.ClassDef):
                owner = each.definition
            if owner is not None:
                trail.join(self._class_attribute(each, owner, name, path))
            elif each.name:
                trail.join(self._outer_attribute(each, name, path, node))
            else:
                trail.add(_Source("", node))
        return trail

    def _super_attribute(self, node: cst.CSTNode, name: str, path: Path) -> _Trail:
        """An attribute of `super()`."""
        owner = self.names.class_of(node)
        trail = _Trail()
        for base in self.names.local_bases(owner) if owner is not None else ():
            if self.names.class_attribute(base, name):
                source = _Source(self.qualified_class(base), base, called=True, instance=base)
                trail.join(self._class_attribute(source, base, name, path))
        return trail if trail.sources else trail.add(_Source(f"builtins.super().{name}", node))

    def _outer_attribute(self, base: _Source, name: str, path: Path, node: cst.CSTNode | None) -> _Trail:
        """An attribute of something that is not made of code of this module."""
        if self.facts is not None and (base.called or base.node is None):
            value = self.facts.attribute_of(base.name, name)
            if value is not None:
                return self._from_outside(value, path)
            method = self.facts.method_of(base.name, name)
            if method is not None:
                return _Trail().add(_Source(method, None, base.place, bound=base.called))
        source = _Source(f"{base.text}.{name}", node if base.node is not None else None, base.place)
        for step in path:
            source = replace(source, name=f"{source.name}{_index(step)}")
        return _Trail().add(source)

    def _class_attribute(self, base: _Source, owner: cst.ClassDef, name: str, path: Path) -> _Trail:
        instance = base.instance is not None
        stores = self.names.class_attribute(owner, name, subclasses=instance)
        trail = _Trail()
        for each in stores:
            if isinstance(each, AttributeStore):
                trail.join(self._guarded(each, path, partial(self._from_stored, each, path)))
            elif isinstance(each.node, cst.FunctionDef):
                if _decorated(each.node, _PROPERTIES):
                    trail.join(self._returned(each.node, path))
                else:
                    trail.add(self._method(each, instance))
            else:
                trail.join(self._from_binding(each, path))
                if _decorated(owner, frozenset({"dataclass"})) and each.annotation is not None:
                    trail.lose(f"a field of the dataclass `{owner.name.value}`")
        for store in self._foreign_stores(owner, name):
            trail.join(self._from_stored(store, path))
        if path:
            for load in self._attribute_loads(owner, name):
                trail.join(self._put_by(load, path))
        if stores or trail.sources:
            return trail
        trail.join(self._inherited(owner, name, path, instance))
        return trail

    def _inherited(self, owner: cst.ClassDef, name: str, path: Path, instance: bool) -> _Trail:
        """An attribute that no class of this module sets: of a base in another one, or set from afar."""
        own = self.qualified_class(owner)
        if self.facts is not None:
            value = self.facts.attribute_of(own, name)
            if value is not None:
                return self._from_outside(value, path)
            method = self.facts.method_of(own, name)
            if method is not None:
                return _Trail().add(_Source(method, None, bound=instance))
        bases = sorted(
            base
            for one in (owner, *self._local_ancestors(owner))
            for arg in one.bases
            for base in self.names.names_of(arg.value).names
        )
        trail = _Trail()
        for base in bases:
            trail.add(_Source(f"{base}().{name}" if instance else f"{base}.{name}"))
        return trail.lose(f"`{name}` of `{owner.name.value}` is not set in this module")

    def _method(self, binding: Binding, instance: bool) -> _Source:
        assert isinstance(binding.node, cst.FunctionDef)
        bound = _decorated(binding.node, frozenset({"classmethod"})) or (
            instance and not _decorated(binding.node, frozenset({"staticmethod"}))
        )
        return _Source(self.qualified(binding), binding.node, bound=bound)

    def _local_ancestors(self, owner: cst.ClassDef) -> list[cst.ClassDef]:
        found: list[cst.ClassDef] = []
        todo = list(self.names.local_bases(owner))
        while todo:
            each = todo.pop(0)
            if each not in found:
                found.append(each)
                todo.extend(self.names.local_bases(each))
        return found

    def _family(self, owner: cst.ClassDef) -> list[cst.ClassDef]:
        """A class, what it derives from and what derives from it, in this module."""
        found = [owner, *self._local_ancestors(owner)]
        found.extend(each for each in self.names.classes if owner in self._local_ancestors(each))
        return found

    @cached_property
    def _stores_by_name(self) -> dict[str, list[AttributeStore]]:
        found: dict[str, list[AttributeStore]] = {}
        for store in self.names.stores:
            found.setdefault(store.node.attr.value, []).append(store)
        return found

    def _foreign_stores(self, owner: cst.ClassDef, name: str) -> Iterator[AttributeStore]:
        """Assignments to an attribute from outside the class: `instance.attr = value`."""
        for store in self._stores_by_name.get(name, ()):
            base = store.node.value
            if self._reaches_class(base):
                continue
            trail = self._from(base, ())
            family = self._family(owner)
            if any(each.instance is not None and each.instance in family for each in trail.sources):
                yield store

    @cached_property
    def _attributes(self) -> dict[str, list[cst.Attribute]]:
        """All attributes by name, wherever they are read or written."""
        found: dict[str, list[cst.Attribute]] = {}
        for node in self.names.nodes(cst.Attribute):
            found.setdefault(node.attr.value, []).append(node)
        return found

    def _attribute_loads(self, owner: cst.ClassDef, name: str) -> list[cst.Attribute]:
        """The places where an attribute of a class of this module, or of its instances, is read."""
        family = self._family(owner)
        written = {id(store.node) for store in self._stores_by_name.get(name, ())}
        found = []
        for node in self._attributes.get(name, ()):
            if id(node) not in written and self._is_of(node.value, family):
                found.append(node)
        return found

    def _is_of(self, base: cst.BaseExpression, family: Sequence[cst.ClassDef]) -> bool:
        if isinstance(base, cst.Name):
            for binding in self.names.bindings_at(base):
                if self.names.instance_class(binding) in family or binding.node in family:
                    return True
        trail = self._from(base, ())
        return any(
            (each.instance is not None and each.instance in family) or each.definition in family
            for each in trail.sources
        )

    # Calls.

    def _from_call(self, node: cst.Call, path: Path) -> _Trail:
        func = node.func
        resolved = self.names.names_of(func)
        if resolved.certain:
            through = self._from_known(node, next(iter(resolved.names)), path)
            if through is not None:
                return through
        if isinstance(func, cst.Attribute) and not resolved.names:
            through = self._from_method(node, func, path)
            if through is not None:
                return through
        return self._called(self._from(func, ()), node, path)

    def _from_known(self, node: cst.Call, name: str, path: Path) -> _Trail | None:
        """Calls of builtins and of the standard library that hand a value on."""
        args = [arg for arg in node.args if arg.keyword is None and not arg.star]
        if name in _SAME:
            return self._from(args[_SAME[name]].value, path) if len(args) > _SAME[name] else None
        if name == "builtins.getattr" and len(args) > 1:
            attribute = args[1].value
            if not isinstance(attribute, cst.SimpleString):
                return _Trail().add(_Source("", node)).lose("an attribute whose name is worked out")
            text = str(attribute.evaluated_value)
            trail = _Trail().join(self._attribute(self._from(args[0].value, ()), text, path, node))
            return trail.join(self._from(args[2].value, path)) if len(args) > 2 else trail
        if name == "builtins.next" and args:
            return self._from(args[0].value, (EACH, *path))
        if name == "builtins.dict" and path:
            return self._from_dict_call(node, path)
        if not args or not path:
            return None
        rest = path[1:]
        if name in _SAME_ELEMENTS:
            return self._from(args[0].value, path if name in _KEEPS_ORDER else (EACH, *rest))
        if name == "builtins.enumerate" and rest:
            if rest[0] == 0:
                return _Trail().add(_Source("builtins.int", node))
            return self._from(args[0].value, (EACH, *rest[1:]))
        if name == "builtins.zip" and rest and isinstance(rest[0], int) and 0 <= rest[0] < len(args):
            return self._from(args[rest[0]].value, (EACH, *rest[1:]))
        return None

    def _from_dict_call(self, node: cst.Call, path: Path) -> _Trail:
        step, rest = path[0], path[1:]
        trail = _Trail()
        for arg in node.args:
            if arg.keyword is None:
                trail.join(self._from(arg.value, path))
            elif step in (EACH, arg.keyword.value):
                trail.join(self._from(arg.value, rest))
        return trail

    def _from_method(self, node: cst.Call, func: cst.Attribute, path: Path) -> _Trail | None:
        """Methods that give back their object, or an element of a container."""
        method = func.attr.value
        if method in self.passthrough:
            base = self._from(func.value, ())
            if not any(self._defines(each, method) for each in base.sources):
                return self._from(func.value, path)
            return None
        args = [arg for arg in node.args if arg.keyword is None and not arg.star]
        if method in ("get", "pop", "items", "values", "copy") and not self._container(func.value):
            return None
        if method in ("get", "pop"):
            key = _key(args[0].value) if args else -1
            trail = _Trail().join(self._from(func.value, (EACH if key is None else key, *path)))
            return trail.join(self._from(args[1].value, path)) if len(args) > 1 else trail
        if method == "copy":
            return self._from(func.value, path)
        if method == "values" and path:
            return self._from(func.value, (EACH, *path[1:]))
        if method == "items" and len(path) > 1:
            if path[1] == 0:
                return _Trail().add(_Source("builtins.str", node))
            return self._from(func.value, (EACH, *path[2:]))
        return None

    def _container(self, node: cst.BaseExpression) -> bool:
        """Whether a value is a dictionary or list that is written out here."""
        kinds = ("builtins.dict", "builtins.list", "builtins.tuple", "builtins.set")
        sources = self._from(node, ()).sources
        return bool(sources) and all(each.name in kinds for each in sources)

    def _defines(self, source: _Source, method: str) -> bool:
        if source.instance is None:
            return False
        stores = self.names.class_attribute(source.instance, method, subclasses=True)
        return any(isinstance(each, Binding) for each in stores)

    def _called(self, callee: _Trail, node: cst.Call | None, path: Path = ()) -> _Trail:
        """What calling something gives."""
        trail = _Trail(lost=dict(callee.lost))
        for each in callee.sources:
            trail.join(self._called_one(each, node, path))
        return trail

    def _called_one(self, callee: _Source, node: cst.Call | None, path: Path) -> _Trail:
        definition = callee.definition
        if isinstance(definition, cst.FunctionDef):
            return self._returned(definition, path)
        if isinstance(definition, cst.Lambda):
            return self._from(definition.body, path)
        if isinstance(definition, cst.ClassDef) and not path:
            return _Trail().add(_Source(callee.name, node, called=True, instance=definition))
        if callee.instance is not None:
            trail = _Trail()
            for method in self._call_methods(callee.instance):
                trail.join(self._returned(method, path))
            if trail.sources or trail.lost:
                return trail
        if callee.name == "functools.partial" and callee.called and isinstance(callee.node, cst.Call):
            inner = callee.node.args[0].value if callee.node.args else None
            if inner is not None:
                return self._called(self._from(inner, ()), node, path)
        if not callee.called and self.facts is not None:
            value = self.facts.returned_by(callee.name)
            if value is not None:
                return self._from_outside(value, path)
        if not callee.name:
            return _Trail().add(_Source("", node, called=True))
        source = _Source(callee.text, node, callee.place if node is None else "", called=True)
        for step in path:
            source = _Source(f"{source.text}{_index(step)}", node, source.place)
        return _Trail().add(source)

    def _call_methods(self, owner: cst.ClassDef) -> list[cst.FunctionDef]:
        """What runs when an instance is called: `__call__`, or `forward` as torch's modules have it."""
        for name in ("__call__", "forward"):
            found = [
                each.node
                for each in self.names.class_attribute(owner, name)
                if isinstance(each, Binding) and isinstance(each.node, cst.FunctionDef)
            ]
            if found:
                return found
        return []

    def _returned(self, function: cst.FunctionDef, path: Path) -> _Trail:
        """What a function of this module returns."""
        scope = self.names.scope_made_by(function)
        assert scope is not None
        trail = _Trail()
        name = function.name.value
        if scope.yields:
            if not _decorated(function, _MANAGERS):
                trail.lose(f"`{name}` is a generator")
            return trail.add(_Source("", function, called=True))
        for each in function.decorators:
            if last_name(_callee(each.decorator)) not in _TRANSPARENT:
                trail.lose(f"`{name}` is decorated with `{_short(each.decorator)}`")
        for statement in scope.returns:
            if statement.value is not None:
                trail.join(self._from(statement.value, path))
        return trail

    def _entered(self, item: cst.BaseExpression, path: Path) -> _Trail:
        """What `with item as x` binds."""
        trail = _Trail()
        callee = item
        if isinstance(item, cst.Await):
            callee = item.expression
        if isinstance(callee, cst.Call):
            for each in self._from(callee.func, ()).sources:
                function = each.definition
                if isinstance(function, cst.FunctionDef) and _decorated(function, _MANAGERS):
                    scope = self.names.scope_made_by(function)
                    assert scope is not None
                    for one in scope.yields:
                        if isinstance(one.value, cst.BaseExpression):
                            trail.join(self._from(one.value, path))
        if trail.sources or trail.lost:
            return trail
        whole = self._from(item, ())
        for each in whole.sources:
            methods = [
                one.node
                for name in ("__enter__", "__aenter__")
                if each.instance is not None
                for one in self.names.class_attribute(each.instance, name)
                if isinstance(one, Binding) and isinstance(one.node, cst.FunctionDef)
            ]
            for method in methods:
                trail.join(self._returned(method, path))
            if not methods:
                trail.join(self._from(item, path))
        for why in whole.lost:
            trail.lose(why)
        return trail

    def _from_subscript(self, node: cst.Subscript, path: Path) -> _Trail:
        if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Slice):
            if path:
                return self._from(node.value, (EACH, *path[1:]))
            whole = self._from(node.value, ())
            trail = _Trail(lost=dict(whole.lost))
            for each in whole.sources:
                sequence = each.name in ("builtins.list", "builtins.tuple", "builtins.str")
                trail.add(each if sequence else _Source(f"{each.text}[:]" if each.name else "", node))
            return trail
        key = _subscript_key(node)
        return self._from(node.value, (EACH if key is None else key, *path))

    # Parameters.

    def _from_parameter(self, binding: Binding, path: Path) -> _Trail:
        function = binding.scope.node
        assert isinstance(function, (cst.FunctionDef, cst.Lambda))
        owner = self.names.instance_class(binding)
        if owner is not None:
            assert isinstance(function, cst.FunctionDef)
            is_class = _decorated(function, frozenset({"classmethod"})) or function.name.value in (
                "__new__",
                "__init_subclass__",
                "__class_getitem__",
            )
            name = self.qualified_class(owner)
            if is_class:
                return _Trail().add(_Source(name, owner))
            return _Trail().add(_Source(name, owner, called=True, instance=owner))
        trail = _Trail()
        sites = self._sites(function)
        known = False
        for site in sites:
            trail.join(self._passed(site, binding, path))
            known = True
        outside = self._passed_outside(binding, function)
        if outside is not None:
            trail.join(self._from_outside(outside, path))
            known = True
        who = f"`{_function_name(function)}`"
        escape = self._escapes(function)
        if escape:
            trail.lose(f"a parameter of {who}, which is {escape}")
        elif not known:
            trail.lose(f"a parameter of {who} whose callers are not known")
        if not known:
            if binding.value is not None:
                trail.join(self._from(binding.value, path))
            trail.join(self._annotated(binding, path))
            if not trail.sources:
                trail.add(_Source(""))
        return trail

    def _annotated(self, binding: Binding, path: Path) -> _Trail:
        """What the annotation of a parameter says; only a hint, so the trail stays lost."""
        if binding.annotation is None or path:
            return _Trail()
        trail = _Trail()
        note = binding.annotation.annotation
        if isinstance(note, cst.Subscript) and last_name(note.value) == "Optional":
            inner = note.slice[0].slice
            note = inner.value if isinstance(inner, cst.Index) else note
        if isinstance(note, cst.BinaryOperation):
            note = note.left
        names = self.names.names_of(note).names
        if isinstance(note, cst.SimpleString):
            for quoted in self.names.annotation_strings():
                if quoted.node is note and len(quoted.names) == 1:
                    names = quoted.names[0][1].names
        for name in sorted(names):
            if not name.startswith(("builtins.", "typing.")):
                trail.add(_Source(name, called=True))
        return trail

    def _passed_outside(self, binding: Binding, function: _Function) -> Outside | None:
        if self.facts is None or not isinstance(function, cst.FunctionDef) or not self.names.module_name:
            return None
        position = next(
            (n for n, each in enumerate(parameters(function.params)) if each.name is binding.node), -1
        )
        name = self.qualified(self.names.bound_by(function)[0])
        found = self.facts.passed_to(name, binding.name, position)
        if found is None and function.name.value == "__init__":
            found = self.facts.passed_to(name.rpartition(".")[0], binding.name, position - 1)
        return found

    def _passed(self, site: _Site, binding: Binding, path: Path) -> _Trail:
        """What one call passes as a parameter."""
        function = site.target
        order = parameters(function.params)
        param = next(each for each in order if each.name is binding.node)
        params = function.params
        plain = [*params.posonly_params, *params.params]
        position = plain.index(param) if param in plain else -1
        given: list[cst.Arg] = []
        if site.partial is not None:
            given.extend(site.partial.args[1:])
        given.extend(site.call.args)
        if param is params.star_kwarg:
            return self._passed_keywords(given, plain, params, path)
        trail = _Trail()
        at = site.bound
        sure = False
        for arg in given:
            if arg.star == "*":
                if position >= at or param is params.star_arg:
                    trail.join(self._from(arg.value, (EACH, *path)))
                    trail.lose("passed by `*`")
            elif arg.star == "**":
                if param in params.posonly_params or param is params.star_arg or sure:
                    continue
                trail.join(self._from_spread(arg.value, binding.name, path))
            elif arg.keyword is not None:
                if arg.keyword.value == binding.name and param not in params.posonly_params:
                    trail.join(self._from(arg.value, path))
                    sure = True
            else:
                if at == position:
                    trail.join(self._from(arg.value, path))
                    sure = True
                elif param is params.star_arg and at >= len(plain) and path:
                    if path[0] in (EACH, at - len(plain)):
                        trail.join(self._from(arg.value, path[1:]))
                    sure = True
                at += 1
        if param is params.star_arg:
            return trail if path else trail.add(_Source("builtins.tuple", param))
        if not sure and binding.value is not None:
            trail.join(self._from(binding.value, path))
        return trail

    def _from_spread(self, value: cst.BaseExpression, name: str, path: Path) -> _Trail:
        """What `**value` passes by one keyword: nothing, if the keys are known and it is none of them."""
        keys = self._keys(value)
        if keys is None:
            return self._from(value, (name, *path)).join(_Trail()).lose("passed by `**`")
        return self._from(value, (name, *path)) if name in keys else _Trail()

    def _keys(self, value: cst.BaseExpression) -> set[str] | None:
        """The keys of a dictionary, when each is written out."""
        found: set[str] = set()
        sources = self._from(value, ()).sources
        if not sources:
            return None
        for each in sources:
            node = each.node
            if isinstance(node, cst.Dict):
                for element in node.elements:
                    key = _key(element.key) if isinstance(element, cst.DictElement) else None
                    if not isinstance(key, str):
                        return None
                    found.add(key)
            elif each.name == "builtins.dict" and isinstance(node, cst.Call):
                if any(arg.keyword is None for arg in node.args):
                    return None
                found.update(arg.keyword.value for arg in node.args if arg.keyword is not None)
            else:
                return None
        return found

    def _passed_keywords(
        self, given: Sequence[cst.Arg], plain: Sequence[cst.Param], params: cst.Parameters, path: Path
    ) -> _Trail:
        """What arrives in `**kwargs`."""
        trail = _Trail()
        if not path:
            return trail.add(_Source("builtins.dict", params.star_kwarg))
        taken = {each.name.value for each in (*plain, *params.kwonly_params)}
        for arg in given:
            if arg.star == "**":
                trail.join(self._from(arg.value, path))
            elif arg.keyword is not None:
                name = arg.keyword.value
                if name not in taken and path[0] in (EACH, name):
                    trail.join(self._from(arg.value, path[1:]))
        return trail

    # Who calls whom.

    def _sites(self, function: _Function) -> Sequence[_Site]:
        """The calls in this module that may run a function."""
        if self._sites_known is None:
            self._find_sites()
        assert self._sites_known is not None
        return self._sites_known.get(id(function), ())

    def _find_sites(self) -> None:
        """Find out for every call which functions of this module it may run.

        In two rounds: which function a call through a parameter runs depends on other calls.
        """
        known: dict[int, list[_Site]] = {}
        self._sites_known = known
        seen: set[tuple[int, int]] = set()
        # What is asked on the way is asked in the middle of another question.
        kept = self._depth, self._steps, self._open
        todo = self.names.calls if self.names.functions or any(self.names.nodes(cst.Lambda)) else ()
        for _ in range(2):
            again: list[cst.Call] = []
            for call in todo:
                self._depth, self._steps, self._open = 0, 0, set()
                trail = self._from(call.func, ())
                if trail.lost:
                    again.append(call)
                for source in trail.sources:
                    for site in self._sites_of(call, source):
                        if (id(call), id(site.target)) not in seen:
                            seen.add((id(call), id(site.target)))
                            known.setdefault(id(site.target), []).append(site)
                            self._sites_of_call.setdefault(id(call), []).append(site)
            # The answers so far were given without knowing every caller.
            self._known.clear()
            self._escaped.clear()
            todo = tuple(again)
        self._depth, self._steps, self._open = kept
        self._cuts += 1

    def _sites_of(self, call: cst.Call, source: _Source) -> Iterator[_Site]:
        definition = source.definition
        if isinstance(definition, cst.ClassDef):
            for each in self.names.class_attribute(definition, "__init__"):
                if isinstance(each, Binding) and isinstance(each.node, cst.FunctionDef):
                    yield _Site(call, each.node, 1, source.partial, construct=True)
                    return
        elif definition is not None:
            yield _Site(call, definition, int(source.bound), source.partial)
        elif source.instance is not None:
            for method in self._call_methods(source.instance):
                yield _Site(call, method, 1, source.partial)
        elif source.name == "functools.partial" and source.called and isinstance(source.node, cst.Call):
            made = source.node
            if made.args and not made.args[0].star:
                for inner in self._from(made.args[0].value, ()).sources:
                    yield from self._sites_of(call, replace(inner, partial=made))

    def _escapes(self, function: _Function) -> str:
        """How a function gets where it may be called unseen; empty when it does not."""
        key = id(function)
        if key not in self._escaped:
            self._escaped[key] = ""
            self._escaped[key] = self._escape(function)
        return self._escaped[key]

    def _escape(self, function: _Function) -> str:
        if isinstance(function, cst.Lambda):
            return "" if self._sites(function) else "a lambda that is passed on"
        for each in function.decorators:
            name = last_name(_callee(each.decorator))
            if name not in _TRANSPARENT and name not in _MANAGERS:
                return f"decorated with `{_short(each.decorator)}`"
        loads: list[cst.BaseExpression] = [
            load for binding in self.names.bound_by(function) for load in self.names.references(binding)
        ]
        owner = self.names.scope(function).node
        if isinstance(owner, cst.ClassDef) and not _decorated(function, _PROPERTIES):
            loads.extend(self._attribute_loads(owner, function.name.value))
        for load in loads:
            around = self.names.parent(load)
            if isinstance(around, cst.Arg):
                call = self.names.parent(around)
                if isinstance(call, cst.Call):
                    if self.names.name_of(call.func) == "functools.partial":
                        continue
                    if self._sites_of_call.get(id(call)):
                        continue
                    return f"passed to `{_short(call.func)}`"
            if isinstance(around, (cst.Element, cst.DictElement, cst.Return)):
                return "passed on as a value"
        return ""

    # Forward.

    def uses_of(self, value: cst.BaseExpression) -> Uses:
        """Every place that holds the value of an expression, from the expression itself on."""
        try:
            if self._sites_known is None:
                self._find_sites()
            return _Forward(self).run(value)
        except RecursionError:
            return Uses((), ((value, "it nests too deep to be followed"),))

    @cached_property
    def stores_by_value(self) -> dict[int, list[Binding | AttributeStore]]:
        """What takes its value from an expression, by the expression's identity."""
        found: dict[int, list[Binding | AttributeStore]] = {}
        stores: list[Binding | AttributeStore] = [*self.names.bindings, *self.names.stores]
        for each in stores:
            if each.value is not None:
                found.setdefault(id(each.value), []).append(each)
        return found

    # Names of this module's own things.

    def qualified(self, binding: Binding) -> str:
        """The qualified name of what a binding defines: `package.module.Class.method`."""
        return self._qualified(binding.name, binding.scope)

    def qualified_class(self, owner: cst.ClassDef) -> str:
        """The qualified name of a class of this module."""
        return self.qualified(self.names.bound_by(owner)[0])

    def _qualified(self, name: str, scope: Scope) -> str:
        parts = [name]
        at: Scope | None = scope
        while at is not None:
            if isinstance(at.node, cst.ClassDef):
                parts.append(at.node.name.value)
            elif isinstance(at.node, cst.FunctionDef):
                parts += ["<locals>", at.node.name.value]
            at = at.parent
        if self.names.module_name:
            parts.append(self.names.module_name)
        return ".".join(reversed(parts))


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
            self.flow._depth = self.flow._steps = 0
            self.follow(node, path)
        order = self.names.order_of
        uses = sorted(self.uses.values(), key=lambda each: order(each.node))
        lost = sorted(self.lost.values(), key=lambda each: order(each[0]))
        return Uses(tuple(uses), tuple(lost))

    def push(self, node: cst.BaseExpression, path: Path) -> None:
        key = (id(node), path)
        if key in self.seen:
            return
        self.seen.add(key)
        if len(path) > _MAX_PATH or len(self.seen) > _MAX_STEPS:
            self.lose(node, "the trail is longer than can be followed")
            return
        self.todo.append((node, path))

    def use(self, node: cst.BaseExpression, kind: UseKind, path: Path = ()) -> None:
        """Note a use of the value; of a container that holds it, nothing is noted."""
        if not path:
            self.uses[id(node), kind] = Use(node, kind)

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

    def assigned(
        self, node: cst.BaseExpression, parent: cst.Assign | cst.AnnAssign | cst.NamedExpr, path: Path
    ) -> None:
        self.use(node, UseKind.BOUND, path)
        if isinstance(parent, cst.NamedExpr):
            self.push(parent, path)
            return
        targets = [each.target for each in parent.targets] if isinstance(parent, cst.Assign) else []
        for target in targets:
            if isinstance(target, cst.Subscript):
                key = _subscript_key(target)
                self.contain(node, target.value, (EACH if key is None else key, *path))

    def contain(self, node: cst.BaseExpression, holder: cst.BaseExpression, path: Path) -> None:
        """Follow a container that now holds the value at a path."""
        while isinstance(holder, cst.Subscript):
            key = _subscript_key(holder)
            path = (EACH if key is None else key, *path)
            holder = holder.value
        if isinstance(holder, cst.Name):
            bindings = self.names.bindings_at(holder)
            for binding in bindings:
                self.readers(binding, path)
            if bindings and all(each.kind is not Kind.PARAMETER for each in bindings):
                return
        elif isinstance(holder, cst.Attribute):
            owner = self.owner(holder.value)
            if owner is not None:
                for load in self.flow._attribute_loads(owner, holder.attr.value):
                    self.push(load, path)
                return
        self.use(node, UseKind.STORED, path[1:])
        self.lose(node, "put into a container that is not of this function")

    def owner(self, base: cst.BaseExpression) -> cst.ClassDef | None:
        """The class of this module that an object is an instance of, or is."""
        for each in self.flow._from(base, ()).sources:
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
        for load in self.flow._attribute_loads(owner, target.attr.value):
            self.push(load, path)

    def returned(self, node: cst.BaseExpression, function: cst.CSTNode, path: Path) -> None:
        assert isinstance(function, (cst.FunctionDef, cst.Lambda))
        flow = self.flow
        sites = [site for site in flow._sites(function) if not site.construct]
        for site in sites:
            self.push(site.call, path)
        known = bool(sites)
        if isinstance(function, cst.FunctionDef):
            known = self.special(node, function, path) or known
        who = f"`{_function_name(function)}`"
        escape = flow._escapes(function)
        if escape:
            self.lose(node, f"returned by {who}, which is {escape}")
        elif not known and not self.read_elsewhere(function):
            self.lose(node, f"returned by {who}, whose callers are not known")

    def special(self, node: cst.BaseExpression, function: cst.FunctionDef, path: Path) -> bool:
        """Functions that run without being called by name: properties, `__enter__`."""
        owner = self.names.scope(function).node
        if not isinstance(owner, cst.ClassDef):
            return False
        if _decorated(function, _PROPERTIES):
            loads = self.flow._attribute_loads(owner, function.name.value)
            for load in loads:
                self.push(load, path)
            return bool(loads)
        if function.name.value in ("__enter__", "__aenter__"):
            self.entered(owner, path)
            return True
        return False

    def entered(self, owner: cst.ClassDef, path: Path) -> None:
        """Follow the targets of each `with` over an instance of a class."""
        family = self.flow._family(owner)
        for item in self.names.nodes(cst.WithItem):
            sources = self.flow._from(item.item, ()).sources
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
        if isinstance(definition, cst.FunctionDef) and _decorated(definition, _MANAGERS):
            sites = self.flow._sites(definition)
            for site in sites:
                self.targets(site.call, path)
            if sites or self.read_elsewhere(definition):
                return
        name = _function_name(definition) if isinstance(definition, (cst.FunctionDef, cst.Lambda)) else ""
        self.lose(node, f"yielded by `{name}`")

    def read_elsewhere(self, function: _Function) -> bool:
        """Whether other modules call a function: there, `origin_of` finds what it returns."""
        facts = self.flow.facts
        if facts is None or not isinstance(function, cst.FunctionDef) or not self.names.module_name:
            return False
        name = self.flow.qualified(self.names.bound_by(function)[0])
        if facts.used_elsewhere(name):
            return True
        owner = self.names.scope(function).node
        return isinstance(owner, cst.ClassDef) and facts.used_elsewhere(self.flow.qualified_class(owner))

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
            key = _key(called.args[0].value) if called.args else -1
            if key is None or _may_be(key, path[0]):
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
        key = _subscript_key(parent)
        if key is None or _may_be(key, path[0]):
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
            key = _key(parent.key)
            self.push(holder, (EACH if key is None else key, *path))
        else:
            self.use(node, UseKind.OTHER, path)

    def argument(self, node: cst.BaseExpression, arg: cst.Arg, call: cst.Call, path: Path) -> None:
        resolved = self.names.names_of(call.func)
        name = resolved.name or ""
        index = call.args.index(arg)
        if name in _SAME and index == _SAME[name]:
            self.push(call, path)
            return
        if path and self.through(name, call, index, path):
            return
        if name == "builtins.dict" and arg.keyword is not None:
            self.push(call, (arg.keyword.value, *path))
            return
        if isinstance(call.func, cst.Attribute) and index == _ADDERS.get(call.func.attr.value):
            holder = call.func.value
            if not resolved.names and self.flow._container(holder):
                self.contain(node, holder, (EACH, *path))
                return
        if name == "functools.partial" and index > 0:
            # Where the partial is called, the search for call sites has found it.
            found = [
                site
                for sites in (self.flow._sites_known or {}).values()
                for site in sites
                if site.partial is call
            ]
            for site in found:
                self.passed(site, arg, path)
            if found:
                return
        sites = self.flow._sites_of_call.get(id(call), ())
        for site in sites:
            self.passed(site, arg, path)
        if sites:
            return
        facts = self.flow.facts
        if facts is not None and any(facts.knows(each) for each in resolved.names):
            self.use(node, UseKind.HANDED_ON, path)
            return
        self.use(node, UseKind.ARGUMENT, path)
        if path:
            self.lose(node, f"in a container passed to `{_short(call.func)}`")

    def through(self, name: str, call: cst.Call, index: int, path: Path) -> bool:
        """Whether a builtin hands the elements of its argument on, and if so, follow them."""
        rest = path[1:]
        if name in _SAME_ELEMENTS and index == 0:
            self.push(call, path if name in _KEEPS_ORDER else (EACH, *rest))
        elif name == "builtins.dict" and index == 0:
            self.push(call, path)
        elif name == "builtins.enumerate" and index == 0:
            self.push(call, (EACH, 1, *rest))
        elif name == "builtins.zip":
            self.push(call, (EACH, index, *rest))
        elif name == "builtins.next" and index == 0:
            self.push(call, rest)
        else:
            return name in ("builtins.len", "builtins.print", "builtins.bool", "builtins.isinstance")
        return True

    def passed(self, site: _Site, arg: cst.Arg, path: Path) -> None:
        """Follow a value into the parameters of a function of this module."""
        function = site.target
        params = function.params
        plain = [*params.posonly_params, *params.params]
        given = [*(site.partial.args[1:] if site.partial is not None else ()), *site.call.args]
        before = [each for each in given[: given.index(arg)] if each.keyword is None and each.star != "**"]
        at = site.bound + len(before)
        if arg.star == "*":
            if not path:
                self.use(arg.value, UseKind.ITERATED)
            elif isinstance(path[0], int) and path[0] >= 0:
                self.positional(site, plain, at + path[0], path[1:])
            else:
                self.lose(arg.value, f"passed by `*` to `{_function_name(function)}`")
        elif arg.star == "**":
            if not path:
                self.use(arg.value, UseKind.ITERATED)
            elif path[0] == EACH:
                self.lose(arg.value, f"passed by `**` to `{_function_name(function)}`")
            else:
                self.keyword(site, str(path[0]), path[1:])
        elif arg.keyword is not None:
            self.keyword(site, arg.keyword.value, path)
        elif any(each.star for each in before):
            self.lose(arg.value, f"passed to `{_function_name(function)}` after a `*`")
        else:
            self.positional(site, plain, at, path)

    def positional(self, site: _Site, plain: Sequence[cst.Param], at: int, path: Path) -> None:
        star = site.target.params.star_arg
        if at < len(plain):
            self.parameter(plain[at], path)
        elif isinstance(star, cst.Param):
            self.parameter(star, (at - len(plain), *path))

    def keyword(self, site: _Site, name: str, path: Path) -> None:
        params = site.target.params
        for each in (*params.params, *params.kwonly_params):
            if each.name.value == name:
                self.parameter(each, path)
                return
        if params.star_kwarg is not None:
            self.parameter(params.star_kwarg, (name, *path))

    def parameter(self, param: cst.Param, path: Path) -> None:
        for binding in self.names.bound_by(param.name):
            self.readers(binding, path)


def _unpacked(taken: Path, path: Path) -> Path | None:
    """Where in a target the value stands, if the target takes it; None if it does not."""
    for number, step in enumerate(taken):
        if number >= len(path):
            return None
        if step == STAR:
            return (EACH, *path[number + 1 :])
        if not _may_be(step, path[number]):
            return None
    return path[len(taken) :]


def _may_be(one: int | str, other: int | str) -> bool:
    """Whether two steps may lead to the same element."""
    if EACH in (one, other) or one == other:
        return True
    # Counted from the end on one side only: the length is not known.
    return isinstance(one, int) and isinstance(other, int) and (one < 0) is not (other < 0)


def _index(step: int | str) -> str:
    return f"[{step}]" if isinstance(step, int) or step == EACH else f"[{step!r}]"


def _key(node: cst.BaseExpression) -> int | str | None:
    """The index or key a literal stands for."""
    if isinstance(node, cst.SimpleString):
        text = node.evaluated_value
        return text if isinstance(text, str) else None
    if isinstance(node, cst.Integer):
        return node.evaluated_value
    if (
        isinstance(node, cst.UnaryOperation)
        and isinstance(node.operator, cst.Minus)
        and isinstance(node.expression, cst.Integer)
    ):
        return -node.expression.evaluated_value
    return None


def _subscript_key(node: cst.Subscript) -> int | str | None:
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        return _key(node.slice[0].slice.value)
    return None


_LITERALS: tuple[tuple[type[cst.BaseExpression], str], ...] = (
    (cst.BaseString, "str"),
    (cst.Integer, "int"),
    (cst.Float, "float"),
    (cst.Imaginary, "complex"),
    (cst.Tuple, "tuple"),
    (cst.List, "list"),
    (cst.ListComp, "list"),
    (cst.BaseSet, "set"),
    (cst.BaseDict, "dict"),
    (cst.Ellipsis, "Ellipsis"),
)


def _literal_type(node: cst.BaseExpression) -> str:
    return next((name for kind, name in _LITERALS if isinstance(node, kind)), "")


def _callee(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node


def _decorated(node: cst.FunctionDef | cst.ClassDef, names: frozenset[str]) -> bool:
    return any(last_name(_callee(each.decorator)) in names for each in node.decorators)


def _function_name(function: _Function) -> str:
    return function.name.value if isinstance(function, cst.FunctionDef) else "lambda"


def _short(node: cst.BaseExpression) -> str:
    text = " ".join(cst.Module([]).code_for_node(node).split())
    return text if len(text) <= 40 else f"{text[:37]}..."


# What a module tells the others.


def module_facts(
    names: Names,
    flow: Flow,
    *,
    place: _PlacedAt = lambda node: "",
    project: Callable[[str], bool] | None = None,
) -> ModuleFacts:
    """What this module gives to and takes from others, as plain data.

    `place` gives `path:line` of a node; `project` says which qualified names are of the project, all
    that are imported when it is not given.
    """
    return _Telling(names, flow, place, project).told()


class _Telling:
    def __init__(
        self, names: Names, flow: Flow, place: _PlacedAt, project: Callable[[str], bool] | None
    ) -> None:
        self.names = names
        self.flow = flow
        self.place = place
        self.project = project

    def told(self) -> ModuleFacts:
        names = self.names
        top = names.module_scope.bindings
        exports = {}
        values = {}
        for name, bindings in top.items():
            found = names.names_in(cst.Name(name), names.module)
            if found.names and not all(each.startswith("builtins.") for each in found.names):
                exports[name] = found
            kept = [each for each in bindings if each.kind not in (Kind.IMPORT, Kind.FUNCTION, Kind.CLASS)]
            if kept and not (name in exports and found.certain):
                value = self.of_stores(bindings)
                if _telling(value):
                    values[name] = value
        returns = {}
        classes = {}
        for function in names.functions:
            scope = names.scope(function)
            around = scope.node
            if isinstance(around, cst.Module):
                own = function.name.value
            elif isinstance(around, cst.ClassDef) and isinstance(names.scope(around).node, cst.Module):
                own = f"{around.name.value}.{function.name.value}"
            else:
                continue
            value = self.shape(partial(self.flow._returned, function))
            if _telling(value):
                returns[own] = value
        for owner in names.classes:
            if isinstance(names.scope(owner).node, cst.Module):
                classes[owner.name.value] = self.of_class(owner)
        return ModuleFacts(
            module=names.module_name,
            defined=frozenset(name for name, bindings in top.items() if bindings),
            exports=exports,
            stars=tuple(module for _, module in names.stars),
            values=values,
            returns=returns,
            classes=classes,
            calls=tuple(self.calls()),
            reads=frozenset(self.reads()),
        )

    def shape(self, ask: Callable[[Path], _Trail], depth: int = 2, path: Path = ()) -> Outside:
        trail = self.flow._ask(lambda: ask(path))
        producers: dict[Producer, None] = {}
        keys: dict[int | str, None] = {}
        for each in trail.sources:
            at = self.place(each.node) if each.node is not None else each.place
            producers[Producer(each.name, None, at, each.called)] = None
            if isinstance(each.node, (cst.Tuple, cst.List)):
                keys.update(dict.fromkeys(range(len(each.node.elements))))
            elif isinstance(each.node, cst.Dict):
                for element in each.node.elements:
                    key = _key(element.key) if isinstance(element, cst.DictElement) else None
                    if key is not None:
                        keys[key] = None
        parts: tuple[tuple[int | str, Outside], ...] = ()
        if depth and len(keys) <= 20:
            parts = tuple((key, self.shape(ask, depth - 1, (*path, key))) for key in keys)
        return Outside(tuple(producers), tuple(trail.lost), parts)

    def of_expression(self, value: cst.BaseExpression) -> Outside:
        return self.shape(lambda path: self.flow._from(value, path))

    def of_stores(self, stores: Sequence[Binding | AttributeStore]) -> Outside:
        def ask(path: Path) -> _Trail:
            trail = _Trail()
            for each in stores:
                if isinstance(each, AttributeStore):
                    trail.join(self.flow._from_stored(each, path))
                elif each.kind is not Kind.ANNOTATION_ONLY:
                    trail.join(self.flow._from_binding(each, path))
            if path:
                trail.join(self.flow._put_in([each for each in stores if isinstance(each, Binding)], path))
            return trail

        return self.shape(ask)

    def of_class(self, owner: cst.ClassDef) -> ClassFacts:
        scope = self.names.scope_made_by(owner)
        assert scope is not None
        attributes: dict[str, Outside] = {}
        methods = set()
        found = set(scope.bindings) | self.names.stored_attributes(owner)
        for name in sorted(found):
            stores = self.names.class_attribute(owner, name)
            functions = [each for each in stores if isinstance(each, Binding) and each.kind is Kind.FUNCTION]
            if any(
                isinstance(each.node, cst.FunctionDef) and _decorated(each.node, _PROPERTIES)
                for each in functions
            ):
                value = self.shape(partial(self._property, owner, name))
            elif functions:
                methods.add(name)
                continue
            else:
                value = self.of_stores(stores)
            if _telling(value):
                attributes[name] = value
        bases = []
        for base in owner.bases:
            value_ = base.value.value if isinstance(base.value, cst.Subscript) else base.value
            local = [
                self.flow.qualified(each)
                for each in (self.names.bindings_at(value_) if isinstance(value_, cst.Name) else ())
                if each.kind is Kind.CLASS
            ]
            bases.extend(local or sorted(self.names.names_of(value_).names))
        return ClassFacts(tuple(bases), attributes, frozenset(methods))

    def _property(self, owner: cst.ClassDef, name: str, path: Path) -> _Trail:
        source = _Source(self.flow.qualified_class(owner), called=True, instance=owner)
        return self.flow._class_attribute(source, owner, name, path)

    def calls(self) -> Iterator[CallFacts]:
        for call in self.names.calls:
            for source in self.flow._ask(partial(self.flow._from, call.func, ())).sources:
                if source.node is not None or source.called or not source.name:
                    continue
                if source.name.startswith("builtins.") or "(" in source.name:
                    continue
                if self.project is not None and not self.project(source.name):
                    continue
                args: list[tuple[int | str, Outside]] = []
                position = 0
                spread = False
                for arg in call.args:
                    if arg.star:
                        spread = True
                    elif arg.keyword is not None:
                        args.append((arg.keyword.value, self.of_expression(arg.value)))
                    else:
                        if not spread:
                            args.append((position, self.of_expression(arg.value)))
                        position += 1
                told = tuple((key, value) for key, value in args if _telling(value))
                yield CallFacts(source.name, source.bound, told, spread, self.place(call))

    def reads(self) -> Iterator[str]:
        for binding in self.names.imports:
            yield binding.target
            for load in self.names.references(binding):
                chain: cst.BaseExpression = load
                around = self.names.parent(chain)
                while isinstance(around, cst.Attribute):
                    chain, around = around, self.names.parent(around)
                yield from self.names.names_of(chain).names


def _telling(value: Outside) -> bool:
    """Whether there is anything to tell beyond a literal."""
    if any(_telling(part) for _, part in value.parts) or value.lost:
        return True
    return any(each.name and not each.name.startswith("builtins.") for each in value.producers)
