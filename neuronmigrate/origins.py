"""Where a value came from: the search behind `Flow.origin_of`.

It goes back through assignments, unpacking, attributes, containers that are written out, calls of
functions of this module and, with the facts of the project, of others. Where the trail ends the
answer says so, in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import libcst as cst

from neuronmigrate.facts import Facts, Outside, Producer, index_text
from neuronmigrate.names import (
    EACH,
    STAR,
    AttributeStore,
    Binding,
    Kind,
    Names,
    Path,
    Scope,
    last_name,
    parameters,
)

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
SAME = {
    "copy.copy": 0,
    "copy.deepcopy": 0,
    "typing.cast": 1,
    "typing_extensions.cast": 1,
    "contextlib.nullcontext": 0,
    "contextlib.closing": 0,
}
# Functions whose result has the elements of their argument, in some order.
SAME_ELEMENTS = frozenset(
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
KEEPS_ORDER = frozenset({"builtins.iter", "builtins.list", "builtins.tuple"})
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
        "fixture",
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
PROPERTIES = frozenset({"cached_property", "property"})
MANAGERS = frozenset({"asynccontextmanager", "contextmanager"})
FIXTURES = frozenset({"fixture"})
# What SageMaker's inference toolkit calls, and what it passes on: giver, taker, position.
HANDED = (
    ("model_fn", "predict_fn", 1),
    ("model_fn", "transform_fn", 0),
    ("input_fn", "predict_fn", 0),
    ("predict_fn", "output_fn", 0),
)
ADDERS = {"append": 0, "add": 0, "appendleft": 0, "insert": 1}
# Methods after which a container may hold what is not written here.
MUTATORS = frozenset({"extend", "setdefault", "update"})
# No trail through sane code is longer; what goes round and round is cut here.
_MAX_DEPTH = 60
MAX_STEPS = 3_000
MAX_PATH = 4
_MAX_SOURCES = 40
_MAX_NAME = 240
# Which functions a call may run is asked for every call of a module.
_CALLEE_STEPS = 400
_NEVER = 1_000_000

Function = cst.FunctionDef | cst.Lambda


@dataclass(frozen=True)
class Origins:
    """What made a value."""

    producers: tuple[Producer, ...]
    certain: bool
    """Something is known to have made it, and nothing unknown may have."""
    lost: tuple[str, ...]
    """Why the trail was lost, in words."""


@dataclass(frozen=True)
class Source:
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
        return f"{self.name}()" if self.called and self.name else self.name

    @property
    def definition(self) -> cst.FunctionDef | cst.Lambda | cst.ClassDef | None:
        """The definition in this module that this is, not an instance or a result of it."""
        if self.called or not isinstance(self.node, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
            return None
        return self.node


@dataclass
class Trail:
    """What is known so far about where a value came from."""

    sources: dict[Source, None] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)

    def add(self, *sources: Source) -> Trail:
        self.sources.update(dict.fromkeys(sources))
        return self

    def lose(self, why: str) -> Trail:
        self.lost[why] = None
        return self

    def join(self, other: Trail) -> Trail:
        self.sources.update(other.sources)
        self.lost.update(other.lost)
        return self


@dataclass
class _Search:
    """One question on its way."""

    limit: int = MAX_STEPS
    steps: int = 0
    open: dict[tuple[int, str, Path], int] = field(default_factory=dict)
    """What is being looked at, with its depth."""
    cut_at: int = _NEVER
    """The outermost depth at which something was met that is being looked at already."""


@dataclass(frozen=True)
class CallSite:
    """A call that may run a function of this module."""

    call: cst.Call
    target: Function
    bound: int
    """How many leading parameters the call does not pass itself."""
    partial: cst.Call | None
    construct: bool = False
    """The call makes an instance; the target is its `__init__`."""

    def receiver(self, arg: cst.Arg) -> tuple[cst.Param, Path] | None:
        """The parameter that gets an argument which is no `*` or `**`, and where in it it is."""
        if arg.keyword is not None:
            return self.by_keyword(arg.keyword.value)
        at = self.position(arg)
        return None if at < 0 else self.by_position(at)

    def position(self, arg: cst.Arg) -> int:
        """The position that a positional argument begins at; -1 behind a `*`."""
        at = self.bound
        for each in (*(self.partial.args[1:] if self.partial is not None else ()), *self.call.args):
            if each is arg:
                break
            if each.star == "*":
                return -1
            at += each.keyword is None and not each.star
        return at

    def by_position(self, at: int) -> tuple[cst.Param, Path] | None:
        """The parameter at a position."""
        params = self.target.params
        plain = [*params.posonly_params, *params.params]
        if at < len(plain):
            return plain[at], ()
        star = params.star_arg
        return (star, (at - len(plain),)) if isinstance(star, cst.Param) else None

    def by_keyword(self, name: str) -> tuple[cst.Param, Path] | None:
        """The parameter that a keyword goes to."""
        params = self.target.params
        for each in (*params.params, *params.kwonly_params):
            if each.name.value == name:
                return each, ()
        return (params.star_kwarg, (name,)) if params.star_kwarg is not None else None


class Backward:
    """Follows values back through one module. Nothing in it raises on code that parses."""

    def __init__(
        self, names: Names, facts: Facts | None = None, *, passthrough: frozenset[str] = PASSTHROUGH
    ) -> None:
        self.names = names
        self.facts = facts
        self.passthrough = passthrough
        self._known: dict[tuple[int, str, Path], Trail] = {}
        self._search = _Search()
        self._putters_known: dict[int, list[cst.Name]] = {}
        self.sites_by_function: dict[int, list[CallSite]] | None = None
        self.sites_of_call: dict[int, list[CallSite]] = {}
        self._escaped: dict[int, str] = {}

    # Backward.

    def origin_of(self, expression: cst.BaseExpression) -> Origins:
        """What made the value of an expression."""
        return self._origins(self.ask(lambda: self.trail_of(expression, ())))

    def origin_of_element(self, expression: cst.BaseExpression, path: Path) -> Origins:
        """What made an element of a container: `(1,)`, `("key",)`, or `(EACH,)` for any."""
        return self._origins(self.ask(lambda: self.trail_of(expression, path)))

    def begin(self) -> None:
        """Begin a question: whatever was asked before no longer counts against its length."""
        self._search = _Search()

    def ask(self, question: Callable[[], Trail]) -> Trail:
        self.begin()
        try:
            return question()
        except RecursionError:
            # Only code that nests nearly as deep as Python allows comes here.
            return Trail().lose("it nests too deep to be followed")

    @staticmethod
    def _origins(trail: Trail) -> Origins:
        producers: dict[Producer, None] = {}
        for each in trail.sources:
            producers[Producer(each.name, each.node, each.place, each.called)] = None
        return Origins(tuple(producers), bool(producers) and not trail.lost, tuple(trail.lost))

    def _guarded(self, at: object, path: Path, work: Callable[[], Trail], role: str = "") -> Trail:
        """Run a step of the search unless it is being run already: then the rest is found there."""
        key = id(at), role, path
        known = self._known.get(key)
        if known is not None:
            return known
        search = self._search
        running = search.open.get(key)
        if running is not None:
            search.cut_at = min(search.cut_at, running)
            return Trail()
        if len(path) > MAX_PATH:
            # A function that takes containers apart by calling itself leads ever deeper.
            return Trail().lose("it is nested too deep in containers")
        search.steps += 1
        depth = len(search.open)
        if depth >= _MAX_DEPTH or search.steps > search.limit:
            search.cut_at = -1
            return Trail().lose("the trail is longer than can be followed")
        search.open[key] = depth
        around, search.cut_at = search.cut_at, _NEVER
        try:
            trail = work()
        finally:
            del search.open[key]
        if len(trail.sources) > _MAX_SOURCES:
            few = dict(list(trail.sources.items())[:_MAX_SOURCES])
            trail = Trail(few, dict(trail.lost)).lose("made in more ways than can be told apart")
        # A step that was cut short by one further out is only part of an answer. In a tangle that
        # used up the whole search it is kept all the same: it says that it is lost, and to search
        # the tangle again from each of its ends would take very long.
        if search.cut_at >= depth or not depth or search.steps > search.limit:
            self._known[key] = trail
            search.cut_at = around
        else:
            search.cut_at = min(search.cut_at, around)
        return trail

    def trail_of(self, expression: cst.BaseExpression, path: Path) -> Trail:
        """What made an element of an expression. The trail is shared: it is not to be changed."""
        return self._guarded(expression, path, lambda: self._look(expression, path))

    def _either(self, expressions: Iterable[cst.BaseExpression], path: Path) -> Trail:
        trail = Trail()
        for each in expressions:
            trail.join(self.trail_of(each, path))
        return trail

    def _look(self, node: cst.BaseExpression, path: Path) -> Trail:
        if isinstance(node, cst.Name):
            return self._from_name(node, path)
        if isinstance(node, cst.Attribute):
            return self._from_attribute(node, path)
        if isinstance(node, cst.Call):
            return self._from_call(node, path)
        if isinstance(node, cst.Subscript):
            return self._from_subscript(node, path)
        if isinstance(node, (cst.Await, cst.NamedExpr)):
            return self.trail_of(node.expression if isinstance(node, cst.Await) else node.value, path)
        if isinstance(node, cst.IfExp):
            return self._either((node.body, node.orelse), path)
        if isinstance(node, cst.BooleanOperation):
            return self._either((node.left, node.right), path)
        if path:
            return self._from_inside(node, path)
        return self._from_literal(node)

    def _from_literal(self, node: cst.BaseExpression) -> Trail:
        trail = Trail()
        literal = _literal_type(node)
        if literal:
            return trail.add(Source(f"builtins.{literal}", node))
        if isinstance(node, cst.Lambda):
            return trail.add(Source("", node))
        trail.add(Source("", node))
        if isinstance(node, (cst.BinaryOperation, cst.UnaryOperation, cst.Comparison)):
            return trail.lose("the result of an operator")
        if isinstance(node, cst.Yield):
            return trail.lose("what is sent into a generator")
        return trail.lose("an expression that cannot be followed")

    def _from_inside(self, node: cst.BaseExpression, path: Path) -> Trail:
        """An element of a container that is written out."""
        step, rest = path[0], path[1:]
        if isinstance(node, (cst.Tuple, cst.List, cst.Set)):
            elements = node.elements
            starred = [n for n, each in enumerate(elements) if isinstance(each, cst.StarredElement)]
            if isinstance(step, int) and not starred:
                if -len(elements) <= step < len(elements):
                    return self.trail_of(elements[step].value, rest)
                return Trail()
            if isinstance(step, int) and 0 <= step < starred[0]:
                return self.trail_of(elements[step].value, rest)
            if isinstance(step, int) and step < 0 and -step < len(elements) - starred[-1]:
                return self.trail_of(elements[step].value, rest)
            trail = Trail()
            for each in elements:
                inner = (EACH, *rest) if isinstance(each, cst.StarredElement) else rest
                trail.join(self.trail_of(each.value, inner))
            return trail
        if isinstance(node, cst.Dict):
            return self._from_dict(node, step, rest)
        if isinstance(node, (cst.ListComp, cst.SetComp, cst.GeneratorExp)):
            return self.trail_of(node.elt, rest)
        if isinstance(node, cst.DictComp):
            return self.trail_of(node.value, rest)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.BitOr)):
            # Lists and dictionaries joined: the element is of either.
            return self._either((node.left, node.right), (EACH, *rest) if isinstance(step, int) else path)
        whole = self.trail_of(node, ())
        trail = Trail(lost=dict(whole.lost))
        for source in whole.sources:
            trail.add(Source(f"{source.text}{index_text(step)}" if source.name else "", node))
        return trail

    def _from_dict(self, node: cst.Dict, step: int | str, rest: Path) -> Trail:
        trail = Trail()
        for element in reversed(node.elements):
            if isinstance(element, cst.StarredDictElement):
                trail.join(self.trail_of(element.value, (step, *rest)))
            elif isinstance(element, cst.DictElement):
                key = literal_key(element.key)
                if step == EACH or key is None:
                    trail.join(self.trail_of(element.value, rest))
                elif key == step:
                    # Written last, so it holds whatever came before.
                    return trail.join(self.trail_of(element.value, rest))
        return trail

    # Names.

    def _from_name(self, node: cst.Name, path: Path) -> Trail:
        if node.value in ("None", "True", "False"):
            # Nothing can be called or read on None, so it does not blur where a value came from.
            return Trail() if node.value == "None" else Trail().add(Source("builtins.bool", node))
        bindings = self.names.bindings_at(node)
        if not bindings:
            return self._imported(self.names.names_of(node).names, path, f"`{node.value}` is not known here")
        path = self._shifted([load for each in bindings for load in self._putters(each)], path)
        trail = Trail()
        for binding in bindings:
            trail.join(self.from_binding(binding, path))
        if path:
            trail.join(self.put_into(bindings, path))
        return trail

    def _imported(self, found: frozenset[str], path: Path, otherwise: str) -> Trail:
        if not found:
            return Trail().add(Source("")).lose(otherwise)
        trail = Trail()
        for name in sorted(found):
            outside = self.facts.value_of(name) if self.facts else None
            trail.join(self._from_outside(outside or Outside((Producer(name),)), path))
        return trail

    @staticmethod
    def _from_outside(value: Outside, path: Path) -> Trail:
        value = value.at(path)
        trail = Trail()
        for each in value.producers:
            if len(each.name) > _MAX_NAME:
                # Modules that call each other in a ring would make it longer in every round.
                trail.lose("the trail is longer than can be followed")
            else:
                trail.add(Source(each.name, None, each.place, each.called))
        for why in value.lost:
            trail.lose(why)
        return trail

    def from_binding(self, binding: Binding, path: Path) -> Trail:
        return self._guarded(binding, path, lambda: self._look_at(binding, path))

    def _look_at(self, binding: Binding, path: Path) -> Trail:
        kind = binding.kind
        if kind is Kind.IMPORT:
            found = self.names.names_of_binding(binding).names
            return self._imported(found, path, f"`{binding.name}` is not known here")
        if kind is Kind.PARAMETER:
            return self._from_parameter(binding, path)
        if kind is Kind.FUNCTION:
            return Trail().add(Source(self.qualified(binding), binding.node))
        if kind is Kind.CLASS:
            return Trail().add(Source(self.qualified(binding), binding.node))
        return self.from_stored(binding, path)

    def from_stored(self, store: Binding | AttributeStore, path: Path) -> Trail:
        """What an assignment, a loop or a `with` puts into its target."""
        if store.value is None:
            return Trail().add(Source("")).lose("it is declared and never given a value here")
        if store.kind is Kind.AUG_ASSIGN:
            return Trail().add(Source("")).lose("it is changed by an operator")
        if store.kind is Kind.EXCEPT:
            return self._called(self.trail_of(store.value, ()), None)
        if store.kind is Kind.MATCH and store.path:
            return Trail().add(Source("")).lose("taken out by a pattern")
        inner = (*store.path, *path)
        if STAR in store.path:
            if not path:
                return Trail().add(Source("builtins.list", store.node))
            # The element of a starred target is some element of the value.
            at = store.path.index(STAR)
            inner = (*store.path[:at], EACH, *path[1:])
        if store.kind is Kind.WITH:
            return self._entered(store.value, inner)
        return self.trail_of(store.value, inner)

    def put_into(self, bindings: Sequence[Binding], path: Path) -> Trail:
        """What is put into a container after it was made."""
        trail = Trail()
        for binding in bindings:
            for load in self._putters(binding):
                trail.join(self._guarded(load, path, partial(self._put_by, load, path), "put"))
        return trail

    def _putters(self, binding: Binding) -> list[cst.Name]:
        """The uses of a name that may put something into what it holds."""
        key = id(binding)
        if key not in self._putters_known:
            plain = binding.kind not in (Kind.IMPORT, Kind.FUNCTION, Kind.CLASS)
            loads = self.names.references(binding) if plain else ()
            self._putters_known[key] = [load for load in loads if self._may_put(load)]
        return self._putters_known[key]

    def _may_put(self, load: cst.Name) -> bool:
        around = self.names.parent(load)
        if isinstance(around, cst.Attribute):
            return around.attr.value in ADDERS or around.attr.value in MUTATORS
        if isinstance(around, cst.Subscript):
            return isinstance(self.names.parent(around), cst.AssignTarget)
        # Under another name, or that of a parameter.
        return isinstance(around, cst.Arg) or id(load) in self.stores_by_value

    def _shifted(self, loads: Sequence[cst.BaseExpression], path: Path) -> Path:
        """The path in a list that grows: what is at an index is then any element."""
        if path and isinstance(path[0], int):
            for load in loads:
                around = self.names.parent(load)
                if isinstance(around, cst.Attribute) and around.attr.value in (*ADDERS, "extend"):
                    return (EACH, *path[1:])
        return path

    def _put_by(self, holder: cst.BaseExpression, path: Path) -> Trail:
        """What one use of a container puts into it: `holder[key] = v`, `holder.append(v)`."""
        step, rest = path[0], path[1:]
        around = self.names.parent(holder)
        if isinstance(around, cst.Subscript) and around.value is holder:
            target = self.names.parent(around)
            value = self.names.parent(target) if isinstance(target, cst.AssignTarget) else None
            if isinstance(value, cst.Assign):
                key = subscript_key(around)
                if key is None or may_be(key, step):
                    return self.trail_of(value.value, rest)
            return Trail()
        if isinstance(around, cst.Attribute):
            call = self.names.parent(around)
            if isinstance(call, cst.Call) and call.func is around:
                return self._put_by_method(call, around.attr.value, step, rest)
            return Trail()
        trail = Trail()
        if isinstance(around, cst.Arg):
            call = self.names.parent(around)
            if isinstance(call, cst.Call) and not around.star:
                for site in self.sites_at(call):
                    receiver = site.receiver(around)
                    if receiver is not None and not receiver[1]:
                        trail.join(self.put_into(self.names.bound_by(receiver[0].name), path))
        for each in self.stores_by_value.get(id(holder), ()):
            if isinstance(each, Binding) and not each.path and each.kind is not Kind.PARAMETER:
                trail.join(self.put_into([each], path))
        return trail

    def _put_by_method(self, call: cst.Call, method: str, step: int | str, rest: Path) -> Trail:
        trail = Trail()
        if any(arg.star for arg in call.args) and method in (*ADDERS, *MUTATORS):
            return trail.lose(f"put into a container by `{method}`")
        args = [arg.value for arg in call.args if arg.keyword is None]
        if method in ADDERS and len(args) > ADDERS[method] and not (isinstance(step, str) and step != EACH):
            trail.join(self.trail_of(args[ADDERS[method]], rest))
        elif method == "extend" and args:
            trail.join(self.trail_of(args[0], (EACH, *rest)))
        elif method == "update":
            for arg in call.args:
                if arg.keyword is None:
                    trail.join(self.trail_of(arg.value, (step, *rest)))
                elif step in (EACH, arg.keyword.value):
                    trail.join(self.trail_of(arg.value, rest))
        elif method == "setdefault" and len(args) > 1 and literal_key(args[0]) in (step, None):
            trail.join(self.trail_of(args[1], rest))
        return trail

    # Attributes.

    def _from_attribute(self, node: cst.Attribute, path: Path) -> Trail:
        resolved = self.names.names_of(node)
        if resolved.certain and not self._reaches_class(node.value):
            return self._imported(resolved.names, path, "")
        return self._attribute(self.trail_of(node.value, ()), node.attr.value, path, node)

    def _reaches_class(self, base: cst.BaseExpression) -> bool:
        """Whether the chain begins with `self` or a class of this module."""
        while isinstance(base, cst.Attribute):
            base = base.value
        return isinstance(base, cst.Name) and any(
            self.names.instance_class(each) is not None or each.kind is Kind.CLASS
            for each in self.names.bindings_at(base)
        )

    def _attribute(self, base: Trail, name: str, path: Path, node: cst.CSTNode | None) -> Trail:
        """An attribute of what a value may be."""
        trail = Trail(lost=dict(base.lost))
        for each in base.sources:
            if each.name == "builtins.super" and each.called and node is not None:
                trail.join(self._super_attribute(node, name, path))
                continue
            owner = each.instance
            if owner is None and isinstance(each.definition, cst.ClassDef):
                owner = each.definition
            if owner is not None:
                trail.join(self.from_class(each, owner, name, path))
            elif each.name:
                trail.join(self._outer_attribute(each, name, path, node))
            else:
                trail.add(Source("", node))
        return trail

    def _super_attribute(self, node: cst.CSTNode, name: str, path: Path) -> Trail:
        """An attribute of `super()`."""
        owner = self.names.class_of(node)
        trail = Trail()
        for base in self.names.local_bases(owner) if owner is not None else ():
            if self.names.class_attribute(base, name):
                source = Source(self.qualified_class(base), base, called=True, instance=base)
                trail.join(self.from_class(source, base, name, path))
        return trail if trail.sources else trail.add(Source(f"builtins.super().{name}", node))

    def _outer_attribute(self, base: Source, name: str, path: Path, node: cst.CSTNode | None) -> Trail:
        """An attribute of something that is not made of code of this module."""
        if self.facts is not None and (base.called or base.node is None):
            value = self.facts.attribute_of(base.name, name)
            if value is not None:
                return self._from_outside(value, path)
            method = self.facts.method_of(base.name, name)
            if method is not None:
                return Trail().add(Source(method, None, base.place, bound=base.called))
        source = Source(f"{base.text}.{name}", node if base.node is not None else None, base.place)
        for step in path:
            source = replace(source, name=f"{source.name}{index_text(step)}")
        return Trail().add(source)

    def from_class(self, base: Source, owner: cst.ClassDef, name: str, path: Path) -> Trail:
        instance = base.instance is not None
        stores = self.names.class_attribute(owner, name, subclasses=instance)
        loads = self.attribute_loads(owner, name) if path else []
        path = self._shifted(loads, path)
        trail = Trail()
        for each in stores:
            if isinstance(each, AttributeStore):
                trail.join(self._guarded(each, path, partial(self.from_stored, each, path)))
            elif isinstance(each.node, cst.FunctionDef):
                if is_decorated(each.node, PROPERTIES):
                    trail.join(self.result_of(each.node, path))
                else:
                    trail.add(self._method(each, instance))
            else:
                trail.join(self.from_binding(each, path))
                if is_decorated(owner, frozenset({"dataclass"})) and each.annotation is not None:
                    trail.lose(f"a field of the dataclass `{owner.name.value}`")
        for store in self._foreign_stores(owner, name):
            trail.join(self.from_stored(store, path))
        for load in loads:
            trail.join(self._guarded(load, path, partial(self._put_by, load, path), "put"))
        if stores or trail.sources:
            return trail
        trail.join(self._inherited(owner, name, path, instance))
        return trail

    def _inherited(self, owner: cst.ClassDef, name: str, path: Path, instance: bool) -> Trail:
        """An attribute that no class of this module sets: of a base in another one, or set from afar."""
        own = self.qualified_class(owner)
        if self.facts is not None:
            value = self.facts.attribute_of(own, name)
            if value is not None:
                return self._from_outside(value, path)
            method = self.facts.method_of(own, name)
            if method is not None:
                return Trail().add(Source(method, None, bound=instance))
        bases = sorted(
            base
            for one in (owner, *self._local_ancestors(owner))
            for arg in one.bases
            for base in self.names.names_of(arg.value).names
        )
        trail = Trail()
        for base in bases:
            trail.add(Source(f"{base}().{name}" if instance else f"{base}.{name}"))
        return trail.lose(f"`{name}` of `{owner.name.value}` is not set in this module")

    def _method(self, binding: Binding, instance: bool) -> Source:
        assert isinstance(binding.node, cst.FunctionDef)
        bound = is_decorated(binding.node, frozenset({"classmethod"})) or (
            instance and not is_decorated(binding.node, frozenset({"staticmethod"}))
        )
        return Source(self.qualified(binding), binding.node, bound=bound)

    def _local_ancestors(self, owner: cst.ClassDef) -> list[cst.ClassDef]:
        found: list[cst.ClassDef] = []
        todo = list(self.names.local_bases(owner))
        while todo:
            each = todo.pop(0)
            if each not in found:
                found.append(each)
                todo.extend(self.names.local_bases(each))
        return found

    def family(self, owner: cst.ClassDef) -> list[cst.ClassDef]:
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
            trail = self.trail_of(base, ())
            family = self.family(owner)
            if any(each.instance is not None and each.instance in family for each in trail.sources):
                yield store

    @cached_property
    def _attributes(self) -> dict[str, list[tuple[cst.BaseExpression, cst.BaseExpression]]]:
        """All attributes by name, each with what it is an attribute of; `getattr(a, "name")` too."""
        found: dict[str, list[tuple[cst.BaseExpression, cst.BaseExpression]]] = {}
        for node in self.names.nodes(cst.Attribute):
            found.setdefault(node.attr.value, []).append((node, node.value))
        for call in self.names.calls:
            if len(call.args) > 1 and last_name(call.func) == "getattr":
                name = call.args[1].value
                if isinstance(name, cst.SimpleString):
                    found.setdefault(str(name.evaluated_value), []).append((call, call.args[0].value))
        return found

    def attribute_loads(self, owner: cst.ClassDef, name: str) -> list[cst.BaseExpression]:
        """The places where an attribute of a class of this module, or of its instances, is read."""
        family = self.family(owner)
        written = {id(store.node) for store in self._stores_by_name.get(name, ())}
        return [
            node
            for node, base in self._attributes.get(name, ())
            if id(node) not in written and self._is_of(base, family)
        ]

    def _is_of(self, base: cst.BaseExpression, family: Sequence[cst.ClassDef]) -> bool:
        if isinstance(base, cst.Name):
            for binding in self.names.bindings_at(base):
                if self.names.instance_class(binding) in family or binding.node in family:
                    return True
        trail = self.trail_of(base, ())
        return any(
            (each.instance is not None and each.instance in family) or each.definition in family
            for each in trail.sources
        )

    # Calls.

    def _from_call(self, node: cst.Call, path: Path) -> Trail:
        func = node.func
        name = self.callee_name(func)
        if name:
            through = self._from_known(node, name, path)
            if through is not None:
                return through
        if isinstance(func, cst.Attribute) and not self.names.names_of(func).names:
            through = self._from_method(node, func, path)
            if through is not None:
                return through
        return self._called(self.trail_of(func, ()), node, path)

    def callee_name(self, func: cst.BaseExpression) -> str:
        """The one name of a callee, or empty. No star import is taken to shadow a builtin."""
        resolved = self.names.names_of(func)
        if len(resolved.names) != 1:
            return ""
        (name,) = resolved.names
        return name if resolved.certain or name.startswith("builtins.") else ""

    def _from_known(self, node: cst.Call, name: str, path: Path) -> Trail | None:
        """Calls of builtins and of the standard library that hand a value on."""
        args = [arg for arg in node.args if arg.keyword is None and not arg.star]
        if name in SAME:
            return self.trail_of(args[SAME[name]].value, path) if len(args) > SAME[name] else None
        if name == "builtins.getattr" and len(args) > 1:
            attribute = args[1].value
            if not isinstance(attribute, cst.SimpleString):
                return Trail().add(Source("", node)).lose("an attribute whose name is worked out")
            text = str(attribute.evaluated_value)
            trail = Trail().join(self._attribute(self.trail_of(args[0].value, ()), text, path, node))
            return trail.join(self.trail_of(args[2].value, path)) if len(args) > 2 else trail
        if name == "builtins.next" and args:
            return self.trail_of(args[0].value, (EACH, *path))
        if name == "builtins.dict" and path:
            return self._from_dict_call(node, path)
        if not args or not path:
            return None
        rest = path[1:]
        if name in SAME_ELEMENTS:
            return self.trail_of(args[0].value, path if name in KEEPS_ORDER else (EACH, *rest))
        if name == "builtins.enumerate" and rest:
            if rest[0] == 0:
                return Trail().add(Source("builtins.int", node))
            return self.trail_of(args[0].value, (EACH, *rest[1:]))
        if name == "builtins.zip" and rest and isinstance(rest[0], int) and 0 <= rest[0] < len(args):
            return self.trail_of(args[rest[0]].value, (EACH, *rest[1:]))
        return None

    def _from_dict_call(self, node: cst.Call, path: Path) -> Trail:
        step, rest = path[0], path[1:]
        trail = Trail()
        for arg in node.args:
            if arg.keyword is None:
                trail.join(self.trail_of(arg.value, path))
            elif step in (EACH, arg.keyword.value):
                trail.join(self.trail_of(arg.value, rest))
        return trail

    def _from_method(self, node: cst.Call, func: cst.Attribute, path: Path) -> Trail | None:
        """Methods that give back their object, or an element of a container."""
        method = func.attr.value
        if method in self.passthrough:
            base = self.trail_of(func.value, ())
            if not any(self._defines(each, method) for each in base.sources):
                return self.trail_of(func.value, path)
            return None
        args = [arg for arg in node.args if arg.keyword is None and not arg.star]
        if method in ("get", "pop", "items", "values", "copy") and not self.is_container(func.value):
            return None
        if method in ("get", "pop"):
            key = literal_key(args[0].value) if args else -1
            trail = Trail().join(self.trail_of(func.value, (EACH if key is None else key, *path)))
            return trail.join(self.trail_of(args[1].value, path)) if len(args) > 1 else trail
        if method == "copy":
            return self.trail_of(func.value, path)
        if method == "values" and path:
            return self.trail_of(func.value, (EACH, *path[1:]))
        if method == "items" and len(path) > 1:
            if path[1] == 0:
                return Trail().add(Source("builtins.str", node))
            return self.trail_of(func.value, (EACH, *path[2:]))
        return None

    def is_container(self, node: cst.BaseExpression) -> bool:
        """Whether a value is a dictionary or list that is written out here."""
        kinds = ("builtins.dict", "builtins.list", "builtins.tuple", "builtins.set")
        sources = self.trail_of(node, ()).sources
        return bool(sources) and all(each.name in kinds for each in sources)

    def _defines(self, source: Source, method: str) -> bool:
        if source.instance is None:
            return False
        stores = self.names.class_attribute(source.instance, method, subclasses=True)
        return any(isinstance(each, Binding) for each in stores)

    def _called(self, callee: Trail, node: cst.Call | None, path: Path = ()) -> Trail:
        """What calling something gives."""
        trail = Trail(lost=dict(callee.lost))
        for each in callee.sources:
            trail.join(self._called_one(each, node, path))
        return trail

    def _called_one(self, callee: Source, node: cst.Call | None, path: Path) -> Trail:
        definition = callee.definition
        if isinstance(definition, cst.FunctionDef):
            return self.result_of(definition, path)
        if isinstance(definition, cst.Lambda):
            return self.trail_of(definition.body, path)
        if isinstance(definition, cst.ClassDef) and not path:
            return Trail().add(Source(callee.name, node, called=True, instance=definition))
        if callee.instance is not None:
            trail = Trail()
            for method in self._call_methods(callee.instance):
                trail.join(self.result_of(method, path))
            if trail.sources or trail.lost:
                return trail
        if callee.name == "functools.partial" and callee.called and isinstance(callee.node, cst.Call):
            inner = callee.node.args[0].value if callee.node.args else None
            if inner is not None:
                return self._called(self.trail_of(inner, ()), node, path)
        if not callee.called and self.facts is not None:
            value = self.facts.returned_by(callee.name)
            if value is not None:
                return self._from_outside(value, path)
        if not callee.name:
            return Trail().add(Source("", node, called=True))
        source = Source(callee.text, node, callee.place if node is None else "", called=True)
        for step in path:
            source = Source(f"{source.text}{index_text(step)}", node, source.place)
        return Trail().add(source)

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

    def result_of(self, function: cst.FunctionDef, path: Path) -> Trail:
        """What a function of this module returns."""
        scope = self.names.scope_made_by(function)
        assert scope is not None
        trail = Trail()
        name = function.name.value
        if scope.yields:
            if is_decorated(function, FIXTURES):
                for one in scope.yields:
                    if isinstance(one.value, cst.BaseExpression):
                        trail.join(self.trail_of(one.value, path))
                return trail
            if not is_decorated(function, MANAGERS):
                trail.lose(f"`{name}` is a generator")
            return trail.add(Source("", function, called=True))
        for each in function.decorators:
            if last_name(callee_of(each.decorator)) not in _TRANSPARENT:
                trail.lose(f"`{name}` is decorated with `{short(each.decorator)}`")
        for statement in scope.returns:
            if statement.value is not None:
                trail.join(self.trail_of(statement.value, path))
        return trail

    def _entered(self, item: cst.BaseExpression, path: Path) -> Trail:
        """What `with item as x` binds."""
        trail = Trail()
        callee = item
        if isinstance(item, cst.Await):
            callee = item.expression
        if isinstance(callee, cst.Call):
            for each in self.trail_of(callee.func, ()).sources:
                function = each.definition
                if isinstance(function, cst.FunctionDef) and is_decorated(function, MANAGERS):
                    scope = self.names.scope_made_by(function)
                    assert scope is not None
                    for one in scope.yields:
                        if isinstance(one.value, cst.BaseExpression):
                            trail.join(self.trail_of(one.value, path))
        if trail.sources or trail.lost:
            return trail
        whole = self.trail_of(item, ())
        for each in whole.sources:
            methods = [
                one.node
                for name in ("__enter__", "__aenter__")
                if each.instance is not None
                for one in self.names.class_attribute(each.instance, name)
                if isinstance(one, Binding) and isinstance(one.node, cst.FunctionDef)
            ]
            for method in methods:
                trail.join(self.result_of(method, path))
            if not methods:
                trail.join(self.trail_of(item, path))
        for why in whole.lost:
            trail.lose(why)
        return trail

    def _from_subscript(self, node: cst.Subscript, path: Path) -> Trail:
        if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Slice):
            if path:
                return self.trail_of(node.value, (EACH, *path[1:]))
            whole = self.trail_of(node.value, ())
            trail = Trail(lost=dict(whole.lost))
            for each in whole.sources:
                sequence = each.name in ("builtins.list", "builtins.tuple", "builtins.str")
                trail.add(each if sequence else Source(f"{each.text}[:]" if each.name else "", node))
            return trail
        key = subscript_key(node)
        return self.trail_of(node.value, (EACH if key is None else key, *path))

    # Parameters.

    def _from_parameter(self, binding: Binding, path: Path) -> Trail:
        function = binding.scope.node
        assert isinstance(function, (cst.FunctionDef, cst.Lambda))
        owner = self.names.instance_class(binding)
        if owner is not None:
            assert isinstance(function, cst.FunctionDef)
            is_class = is_decorated(function, frozenset({"classmethod"})) or function.name.value in (
                "__new__",
                "__init_subclass__",
                "__class_getitem__",
            )
            name = self.qualified_class(owner)
            if is_class:
                return Trail().add(Source(name, owner))
            return Trail().add(Source(name, owner, called=True, instance=owner))
        trail = Trail()
        known = False
        for site in self.call_sites(function):
            trail.join(self._passed(site, binding, path))
            known = True
        if not known and isinstance(function, cst.FunctionDef):
            for giver in self._givers(function, binding):
                trail.join(self.result_of(giver, path))
                known = True
        outside = self._passed_outside(binding, function)
        if outside is not None:
            trail.join(self._from_outside(outside, path))
            known = True
        who = f"`{function_name(function)}`"
        escape = self.escapes(function)
        if escape:
            trail.lose(f"a parameter of {who}, which is {escape}")
        elif not known:
            trail.lose(f"a parameter of {who} whose callers are not known")
        if not known:
            if binding.value is not None:
                trail.join(self.trail_of(binding.value, path))
            trail.join(self._annotated(binding, path))
            if not trail.sources:
                trail.add(Source(""))
        return trail

    def _givers(self, function: cst.FunctionDef, binding: Binding) -> Iterator[cst.FunctionDef]:
        """Functions whose result a framework passes as a parameter of another function."""
        names = self.names
        if names.scope(function) is names.module_scope:
            order = parameters(function.params)
            for giver, taker, at in HANDED:
                if function.name.value == taker and at < len(order) and order[at].name is binding.node:
                    yield from (each for each in self._top(giver) if each is not function)
        if function.name.value.startswith("test") or is_decorated(function, FIXTURES):
            for each in names.functions:
                if each.name.value == binding.name and is_decorated(each, FIXTURES) and each is not function:
                    yield each

    def _top(self, name: str) -> list[cst.FunctionDef]:
        """The functions of a name at the top of the module."""
        found = self.names.module_scope.bindings.get(name, ())
        return [each.node for each in found if isinstance(each.node, cst.FunctionDef)]

    def takers(self, function: cst.FunctionDef) -> Iterator[Binding]:
        """The parameters as which a framework passes the result of a function."""
        names = self.names
        if names.scope(function) is names.module_scope:
            for giver, taker, position in HANDED:
                if function.name.value == giver:
                    for each in self._top(taker):
                        order = parameters(each.params)
                        if position < len(order):
                            yield from names.bound_by(order[position].name)
        if is_decorated(function, FIXTURES):
            for each in names.functions:
                if each.name.value.startswith("test") or is_decorated(each, FIXTURES):
                    for param in parameters(each.params):
                        if param.name.value == function.name.value:
                            yield from names.bound_by(param.name)

    def _annotated(self, binding: Binding, path: Path) -> Trail:
        """What the annotation of a parameter says; only a hint, so the trail stays lost."""
        if binding.annotation is None or path:
            return Trail()
        trail = Trail()
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
                trail.add(Source(name, called=True))
        return trail

    def _passed_outside(self, binding: Binding, function: Function) -> Outside | None:
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

    def _passed(self, site: CallSite, binding: Binding, path: Path) -> Trail:
        """What one call passes as a parameter."""
        function = site.target
        order = parameters(function.params)
        param = next(each for each in order if each.name is binding.node)
        params = function.params
        plain = [*params.posonly_params, *params.params]
        position = next((number for number, each in enumerate(plain) if each is param), -1)
        given: list[cst.Arg] = []
        if site.partial is not None:
            given.extend(site.partial.args[1:])
        given.extend(site.call.args)
        if param is params.star_kwarg:
            return self._passed_keywords(given, plain, params, path)
        trail = Trail()
        at = site.bound
        sure = False
        for arg in given:
            if arg.star == "*":
                length = self._length(arg.value)
                if length is not None:
                    if at <= position < at + length:
                        trail.join(self.trail_of(arg.value, (position - at, *path)))
                        sure = True
                    elif param is params.star_arg and at + length > len(plain):
                        trail.join(self.trail_of(arg.value, (EACH, *path[1:])))
                        sure = True
                    at += length
                elif position >= at or param is params.star_arg:
                    trail.join(self.trail_of(arg.value, (EACH, *path)))
                    trail.lose("passed by `*`")
            elif arg.star == "**":
                if param in params.posonly_params or param is params.star_arg or sure:
                    continue
                trail.join(self._from_spread(arg.value, binding.name, path))
            elif arg.keyword is not None:
                if arg.keyword.value == binding.name and param not in params.posonly_params:
                    trail.join(self.trail_of(arg.value, path))
                    sure = True
            else:
                if at == position:
                    trail.join(self.trail_of(arg.value, path))
                    sure = True
                elif param is params.star_arg and at >= len(plain) and path:
                    if path[0] in (EACH, at - len(plain)):
                        trail.join(self.trail_of(arg.value, path[1:]))
                    sure = True
                at += 1
        if param is params.star_arg:
            return trail if path else trail.add(Source("builtins.tuple", param))
        if not sure and binding.value is not None:
            trail.join(self.trail_of(binding.value, path))
        return trail

    def _length(self, value: cst.BaseExpression) -> int | None:
        """How many elements a spread value has, when it is written out."""
        nodes: list[cst.CSTNode | None] = [value]
        if not isinstance(value, (cst.Tuple, cst.List)):
            nodes = [each.node for each in self.trail_of(value, ()).sources]
            if not nodes or not all(isinstance(each, cst.Tuple) for each in nodes):
                return None
        lengths = {
            len(each.elements)
            if not any(isinstance(one, cst.StarredElement) for one in each.elements)
            else None
            for each in nodes
            if isinstance(each, (cst.Tuple, cst.List))
        }
        return lengths.pop() if len(lengths) == 1 else None

    def _from_spread(self, value: cst.BaseExpression, name: str, path: Path) -> Trail:
        """What `**value` passes by one keyword: nothing, if the keys are known and it is none of them."""
        keys = self._keys(value)
        if keys is None:
            return Trail().join(self.trail_of(value, (name, *path))).lose("passed by `**`")
        return self.trail_of(value, (name, *path)) if name in keys else Trail()

    def _keys(self, value: cst.BaseExpression) -> set[str] | None:
        """The keys of a dictionary, when each is written out."""
        found: set[str] = set()
        sources = self.trail_of(value, ()).sources
        if not sources:
            return None
        for each in sources:
            node = each.node
            if isinstance(node, cst.Dict):
                for element in node.elements:
                    key = literal_key(element.key) if isinstance(element, cst.DictElement) else None
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
    ) -> Trail:
        """What arrives in `**kwargs`."""
        trail = Trail()
        if not path:
            return trail.add(Source("builtins.dict", params.star_kwarg))
        taken = {each.name.value for each in (*plain, *params.kwonly_params)}
        for arg in given:
            if arg.star == "**":
                trail.join(self.trail_of(arg.value, path))
            elif arg.keyword is not None:
                name = arg.keyword.value
                if name not in taken and path[0] in (EACH, name):
                    trail.join(self.trail_of(arg.value, path[1:]))
        return trail

    # Who calls whom.

    def call_sites(self, function: Function) -> Sequence[CallSite]:
        """The calls in this module that may run a function."""
        if self.sites_by_function is None:
            self.find_sites()
        assert self.sites_by_function is not None
        return self.sites_by_function.get(id(function), ())

    def sites_at(self, call: cst.Call) -> Sequence[CallSite]:
        """The functions of this module that a call may run."""
        if self.sites_by_function is None:
            self.find_sites()
        return self.sites_of_call.get(id(call), ())

    def find_sites(self) -> None:
        """Find out for every call which functions of this module it may run.

        In two rounds: which function a call through a parameter runs depends on other calls.
        """
        known: dict[int, list[CallSite]] = {}
        self.sites_by_function = known
        seen: set[tuple[int, int]] = set()
        # What is asked on the way is asked in the middle of another question.
        kept = self._search
        todo = self.names.calls if self.names.functions or any(self.names.nodes(cst.Lambda)) else ()
        for _ in range(2):
            again: list[cst.Call] = []
            for call in todo:
                self._search = _Search(_CALLEE_STEPS)
                trail = self.trail_of(call.func, ())
                if trail.lost:
                    again.append(call)
                for source in trail.sources:
                    for site in self._sites_of(call, source):
                        if (id(call), id(site.target)) not in seen:
                            seen.add((id(call), id(site.target)))
                            known.setdefault(id(site.target), []).append(site)
                            self.sites_of_call.setdefault(id(call), []).append(site)
            # The answers so far were given without knowing every caller.
            self._known.clear()
            self._escaped.clear()
            todo = tuple(again)
        self._search = kept

    def _sites_of(self, call: cst.Call, source: Source) -> Iterator[CallSite]:
        definition = source.definition
        if isinstance(definition, cst.ClassDef):
            for each in self.names.class_attribute(definition, "__init__"):
                if isinstance(each, Binding) and isinstance(each.node, cst.FunctionDef):
                    yield CallSite(call, each.node, 1, source.partial, construct=True)
                    return
        elif definition is not None:
            yield CallSite(call, definition, int(source.bound), source.partial)
        elif source.instance is not None:
            for method in self._call_methods(source.instance):
                yield CallSite(call, method, 1, source.partial)
        elif source.name == "functools.partial" and source.called and isinstance(source.node, cst.Call):
            made = source.node
            if made.args and not made.args[0].star:
                for inner in self.trail_of(made.args[0].value, ()).sources:
                    yield from self._sites_of(call, replace(inner, partial=made))

    def escapes(self, function: Function) -> str:
        """How a function gets where it may be called unseen; empty when it does not."""
        key = id(function)
        if key not in self._escaped:
            self._escaped[key] = ""
            self._escaped[key] = self._escape(function)
        return self._escaped[key]

    def _escape(self, function: Function) -> str:
        if isinstance(function, cst.Lambda):
            return "" if self.call_sites(function) else "a lambda that is passed on"
        for each in function.decorators:
            name = last_name(callee_of(each.decorator))
            if name not in _TRANSPARENT and name not in MANAGERS:
                return f"decorated with `{short(each.decorator)}`"
        loads: list[cst.BaseExpression] = [
            load for binding in self.names.bound_by(function) for load in self.names.references(binding)
        ]
        owner = self.names.scope(function).node
        if isinstance(owner, cst.ClassDef) and not is_decorated(function, PROPERTIES):
            loads.extend(self.attribute_loads(owner, function.name.value))
        for load in loads:
            around = self.names.parent(load)
            if isinstance(around, cst.Arg):
                call = self.names.parent(around)
                if isinstance(call, cst.Call):
                    if self.names.name_of(call.func) == "functools.partial":
                        continue
                    if self.sites_at(call):
                        continue
                    return f"passed to `{short(call.func)}`"
            if isinstance(around, (cst.Element, cst.DictElement, cst.Return)):
                return "passed on as a value"
        return ""

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


def may_be(one: int | str, other: int | str) -> bool:
    """Whether two steps may lead to the same element."""
    if EACH in (one, other) or one == other:
        return True
    # Counted from the end on one side only: the length is not known.
    return isinstance(one, int) and isinstance(other, int) and (one < 0) is not (other < 0)


def literal_key(node: cst.BaseExpression) -> int | str | None:
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


def subscript_key(node: cst.Subscript) -> int | str | None:
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        return literal_key(node.slice[0].slice.value)
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


def callee_of(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node


def is_decorated(node: cst.FunctionDef | cst.ClassDef, names: frozenset[str]) -> bool:
    return any(last_name(callee_of(each.decorator)) in names for each in node.decorators)


def function_name(function: Function) -> str:
    return function.name.value if isinstance(function, cst.FunctionDef) else "lambda"


def short(node: cst.BaseExpression) -> str:
    text = " ".join(cst.Module([]).code_for_node(node).split())
    return text if len(text) <= 40 else f"{text[:37]}..."
