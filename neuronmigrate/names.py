"""What a name stands for.

Everything that has to know whether `xm` is `torch_xla.core.xla_model` asks here, and is answered for
dotted chains of names alone: never by spelling, never through a call. Two candidates are two
candidates; it is for the asker to leave such a place alone.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import libcst as cst

from neuronmigrate.scopes import (
    EACH,
    STAR,
    AttributeStore,
    Binding,
    Event,
    Frame,
    Kind,
    Op,
    Path,
    Scope,
    ScopeKind,
    Walk,
    dotted_name,
    last_name,
    parameters,
)

__all__ = [
    "EACH",
    "STAR",
    "AttributeStore",
    "Binding",
    "DunderAll",
    "Kind",
    "Names",
    "Path",
    "QuotedType",
    "Resolved",
    "Scope",
    "ScopeKind",
    "dotted_name",
    "last_name",
    "parameters",
]

_BUILTINS = frozenset(dir(builtins))
# Calls that import what their first argument names.
_IMPORTERS = frozenset({"importlib.import_module", "builtins.__import__", "pytest.importorskip"})
_TYPING = ("typing.", "typing_extensions.", "collections.abc.", "builtins.")
_NodeT = TypeVar("_NodeT", bound=cst.CSTNode)
# How often one name of the project may stand for another before we stop following.
_MAX_EXPORTS = 20


@dataclass(frozen=True)
class Resolved:
    """What an expression stands for."""

    names: frozenset[str] = frozenset()
    certain: bool = False
    """Exactly one name, and nothing else that may reach this place."""

    @property
    def name(self) -> str | None:
        """The one name when it is certain."""
        return next(iter(self.names)) if self.certain else None


Exports = Callable[[str], Resolved | None]


@dataclass(frozen=True)
class QuotedType:
    """A string that holds a type, and the names it mentions."""

    node: cst.SimpleString | cst.ConcatenatedString
    expression: cst.BaseExpression
    """The string, parsed; its nodes are not part of the module."""
    names: tuple[tuple[cst.BaseExpression, Resolved], ...]
    """Each dotted chain in the expression and what it stands for."""
    bindings: tuple[Binding, ...]
    """The bindings that those chains lean on."""


@dataclass(frozen=True)
class DunderAll:
    """What `__all__` says."""

    names: tuple[str, ...]
    literal: bool
    """Whether it is written out in full, so that `names` is all of it."""
    strings: tuple[cst.SimpleString, ...]


@dataclass(frozen=True)
class _Answer:
    names: frozenset[str]
    other: bool
    """Something that is no known name may be meant as well."""


_NOTHING = _Answer(frozenset(), False)
_OTHER = _Answer(frozenset(), True)


def _union(answers: Iterable[_Answer]) -> _Answer:
    names: frozenset[str] = frozenset()
    other = False
    for answer in answers:
        names |= answer.names
        other = other or answer.other
    return _Answer(names, other)


class Names:
    """Scopes, bindings and meanings of the names in one module.

    Raises RecursionError when the module nests deeper than Python's stack allows.
    """

    def __init__(
        self,
        module: cst.Module,
        *,
        module_name: str = "",
        is_package: bool = False,
        exports: Exports | None = None,
    ) -> None:
        self.module = module
        self.module_name = module_name
        self.package = module_name if is_package else module_name.rpartition(".")[0]
        self._exports = exports
        self._walk = Walk(module, self.package)
        self.module_scope: Scope = self._walk.root
        self.imports: tuple[Binding, ...] = tuple(self._walk.imports)
        """Every name an import statement binds, in order."""
        self.stars: tuple[tuple[cst.ImportFrom, str], ...] = tuple(self._walk.stars)
        """The star imports and the absolute names of their modules."""
        self.calls: tuple[cst.Call, ...] = tuple(self._walk.calls)
        self.stores: tuple[AttributeStore, ...] = tuple(self._walk.stores)
        """Assignments to attributes."""
        self._reached: dict[tuple[int, str], tuple[dict[int, tuple[Binding, ...]], frozenset[int]]] = {}
        self._reachable: dict[int, list[bool]] = {}
        self._references: dict[str, dict[int, list[cst.Name]]] = {}
        self._answers: dict[int, _Answer] = {}
        self._asking: set[int] = set()
        self._left_out: set[int] = set()
        self._cuts = 0
        self._exported: dict[str, Resolved | None] = {}

    # Where a node stands.

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around this one; None for the module and for nodes of another tree."""
        return self._walk.parents.get(id(node))

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around this one, from the inside out."""
        parents = self._walk.parents
        parent = parents.get(id(node))
        while parent is not None:
            yield parent
            parent = parents.get(id(parent))

    def statement(self, node: cst.CSTNode) -> cst.SimpleStatementLine | cst.BaseCompoundStatement | None:
        """The nearest statement around (or equal to) a node above which a comment can stand."""
        at: cst.CSTNode | None = node
        while at is not None:
            if isinstance(at, (cst.SimpleStatementLine, cst.BaseCompoundStatement)):
                return at
            at = self._walk.parents.get(id(at))
        return None

    def scope(self, node: cst.CSTNode) -> Scope:
        """The scope a node stands in. Raises KeyError for a node of another tree."""
        return self._walk.scopes[id(node)]

    def scope_made_by(self, node: cst.CSTNode) -> Scope | None:
        """The scope that a definition, lambda, comprehension or the module makes."""
        return self._walk.made.get(id(node))

    def function_of(self, node: cst.CSTNode) -> Scope | None:
        """The function or lambda whose body a node runs in; None at the top of the module."""
        scope: Scope | None = self.scope(node)
        while scope is not None and scope.kind not in (ScopeKind.FUNCTION, ScopeKind.LAMBDA):
            scope = scope.parent
        return scope

    def class_of(self, node: cst.CSTNode) -> cst.ClassDef | None:
        """The class in whose body, at any depth, a node stands."""
        for each in self.ancestors(node):
            if isinstance(each, cst.ClassDef):
                return each
        return None

    @cached_property
    def _order(self) -> dict[int, int]:
        return {key: number for number, key in enumerate(self._walk.parents)}

    def order_of(self, node: cst.CSTNode) -> int:
        """Position of a node in the order in which the module runs, nearly that of the text."""
        return self._order.get(id(node), -1)

    def nodes(self, kind: type[_NodeT]) -> Iterator[_NodeT]:
        """All nodes of a kind, in the order in which they run."""
        seen: set[int] = set()
        for node in self._walk.nodes:
            if isinstance(node, kind) and id(node) not in seen:
                seen.add(id(node))
                yield node

    # Bindings.

    @cached_property
    def bindings(self) -> tuple[Binding, ...]:
        """Every binding of the module, in the order in which they run."""
        found = {id(each): each for made in self._walk.bound.values() for each in made}
        return tuple(sorted(found.values(), key=lambda each: each.order))

    def is_load(self, node: cst.CSTNode) -> bool:
        """Whether a Name is read here, so that it has a meaning to ask for."""
        return id(node) in self._walk.load_ids

    def loads(self, name: str) -> tuple[cst.Name, ...]:
        """Every place that reads a plain name of this spelling."""
        return tuple(self._walk.loads.get(name, ()))

    def bound_by(self, node: cst.CSTNode) -> tuple[Binding, ...]:
        """The bindings that a target Name, an ImportAlias or a definition makes."""
        return tuple(self._walk.bound.get(id(node), ()))

    def lookup(self, name: str, at: cst.CSTNode) -> Scope | None:
        """The scope in which a plain name would be found from here; None for builtins and unknown."""
        return self._find(name, self.scope(at))

    def _find(self, name: str, start: Scope) -> Scope | None:
        scope: Scope | None = start
        while scope is not None:
            if name in scope.globals:
                return self.module_scope if name in self.module_scope.bindings else None
            if name in scope.bindings and (scope.kind is not ScopeKind.CLASS or scope is start):
                return scope
            scope = scope.parent
        return None

    def bindings_at(self, node: cst.Name) -> tuple[Binding, ...]:
        """The bindings that may reach a name where it is read; of a target, those it makes."""
        walk = self._walk
        if id(node) not in walk.load_ids:
            return tuple(walk.bound.get(id(node), ()))
        start = walk.scopes[id(node)]
        scope = self._find(node.value, start)
        if scope is None:
            return ()
        return self._still(self._reaching(node, start, scope))

    def _still(self, found: tuple[Binding, ...]) -> tuple[Binding, ...]:
        return tuple(each for each in found if id(each) not in self._left_out) if self._left_out else found

    def leave_out(self, code: Set[cst.CSTNode]) -> None:
        """From now on, answer as if nothing were bound in this code."""
        for made in self._walk.bound.values():
            for each in made:
                if not code.isdisjoint([each.node, *self.ancestors(each.node)]):
                    self._left_out.add(id(each))
        self._references.clear()
        self._answers.clear()

    def _reaching(self, node: cst.Name, start: Scope, scope: Scope) -> tuple[Binding, ...]:
        """The bindings that reach a name from the scope that it is found in."""
        if start.frame is not scope.frame:
            return self._all(scope, node.value)
        reached, unbound = self._reach(scope, node.value)
        found = reached.get(id(node), ())
        if scope.kind is ScopeKind.CLASS and id(node) in unbound:
            # A name that a class body has not bound yet is looked up among the globals.
            root = self.module_scope
            if node.value in root.bindings:
                if start.frame is root.frame:
                    found += self._reach(root, node.value)[0].get(id(node), ())
                else:
                    found += self._all(root, node.value)
        return found

    def _all(self, scope: Scope, name: str) -> tuple[Binding, ...]:
        found = scope.bindings.get(name, ())
        return self._still(tuple(each for each in found if each.kind is not Kind.ANNOTATION_ONLY))

    def _reach(self, scope: Scope, name: str) -> tuple[dict[int, tuple[Binding, ...]], frozenset[int]]:
        """For each load of a name found in a scope: the bindings that reach it, and where none may."""
        key = (id(scope), name)
        known = self._reached.get(key)
        if known is not None:
            return known
        events: list[Event] = []
        straight = True
        scopes = self._walk.scopes
        for event in scope.frame.events.get(name, ()):
            what = event[2]
            if isinstance(what, Binding):
                if what.scope is scope:
                    events.append(event)
                    straight = straight and event[1] is Op.BIND
                continue
            found = self._find(name, scopes[id(what)])
            # What a class body has not bound is looked up among the globals; a del there stays there.
            from_class = (
                scope.kind is ScopeKind.MODULE and found is not None and found.kind is ScopeKind.CLASS
            )
            if found is scope or (from_class and event[1] is not Op.UNBIND):
                events.append(event)
                straight = straight and event[1] is not Op.UNBIND
        everything = self._all(scope, name)
        foreign = tuple(each for each in everything if each.frame is not scope.frame)
        if straight:
            reached, unbound = _straight(events)
        else:
            reached, unbound = self._solve(scope.frame, events, everything)
        late = {id(what) for _, op, what in events if op is Op.LATE_LOAD}
        for load, found_here in list(reached.items()):
            if foreign:
                found_here = found_here + foreign
            if load in late and not found_here:
                found_here = everything
            reached[load] = found_here
        answer = self._reached[key] = (reached, unbound)
        return answer

    def _solve(
        self, frame: Frame, events: Sequence[Event], everything: tuple[Binding, ...]
    ) -> tuple[dict[int, tuple[Binding, ...]], frozenset[int]]:
        """Reaching definitions by iteration over the blocks; sets are bit masks, bit 0 is "unbound"."""
        order: list[Binding] = []
        bits: dict[int, int] = {}
        for _, _, what in events:
            if isinstance(what, Binding) and id(what) not in bits:
                bits[id(what)] = 2 << len(order)
                order.append(what)
        dotted = sum(bits[id(each)] for each in order if each.dotted)
        everywhere = (2 << len(order)) - 1

        def step(op: Op, what: Binding | cst.Name) -> tuple[int, int]:
            if op is Op.UNBIND:
                return 0, 1
            bit = bits[id(what)]
            if op is Op.BIND_MAYBE:
                return everywhere, bit
            return (dotted, bit) if isinstance(what, Binding) and what.dotted else (0, bit)

        change: dict[int, tuple[int, int]] = {}
        for block, op, what in events:
            if op > Op.LATE_LOAD:
                keep, add = step(op, what)
                kept, added = change.get(block, (everywhere, 0))
                change[block] = kept & keep, (added & keep) | add
        preds = frame.preds
        out = [0] * len(preds)
        start = [0] * len(preds)
        start[0] = 1
        moving = True
        while moving:
            moving = False
            for block, before in enumerate(preds):
                state = 1 if block == 0 else 0
                for pred in before:
                    state |= out[pred]
                start[block] = state
                if block in change and state:
                    keep, add = change[block]
                    state = (state & keep) | add
                if state != out[block]:
                    out[block] = state
                    moving = True
        reachable = self._reachable.get(id(frame))
        if reachable is None:
            reachable = self._reachable[id(frame)] = frame.reachable()
        reached: dict[int, tuple[Binding, ...]] = {}
        unbound: set[int] = set()
        masks: dict[int, int] = {}
        now = dict.fromkeys((block for block, _, _ in events), -1)
        for block, op, what in events:
            state = now[block]
            if state < 0:
                # Code that no way leads to is still code that a person reads: nothing is ruled out.
                state = start[block] if reachable[block] else everywhere
            if op > Op.LATE_LOAD:
                keep, add = step(op, what)
                state = (state & keep) | add
            else:
                masks[id(what)] = masks.get(id(what), 0) | state
            now[block] = state
        for load, state in masks.items():
            if state & 1:
                unbound.add(load)
            reached[load] = tuple(each for each in order if state & bits[id(each)])
        return reached, frozenset(unbound)

    def references(self, binding: Binding) -> tuple[cst.Name, ...]:
        """The loads that a binding may reach, in the order in which they stand."""
        known = self._references.get(binding.name)
        if known is None:
            known = self._references[binding.name] = {}
            for load in self._walk.loads.get(binding.name, ()):
                for each in self.bindings_at(load):
                    known.setdefault(id(each), []).append(load)
        return tuple(known.get(id(binding), ()))

    # Choosing names.

    @cached_property
    def taken(self) -> frozenset[str]:
        """Every name that is bound, read or declared anywhere in the module."""
        bound = {each.name for made in self._walk.bound.values() for each in made}
        return frozenset(bound.union(self._walk.loads, self._walk.declared))

    def is_free(self, name: str, at: cst.CSTNode) -> bool:
        """Whether nothing is called so as seen from here, and no code expects it from elsewhere.

        A builtin is not free, nor is a name that is read and bound nowhere: a star import or
        an `exec` may give it.
        """
        if name in _BUILTINS:
            return False
        scope: Scope | None = self.scope(at)
        if scope is not None and name in scope.bindings:
            return False
        while scope is not None:
            if name in scope.globals or name in scope.nonlocals:
                return False
            scope = scope.parent
        if self._find(name, self.scope(at)) is not None:
            return False
        return all(
            self._find(name, self._walk.scopes[id(load)]) is not None
            for load in self._walk.loads.get(name, ())
        )

    # Meanings.

    def names_of(self, expression: cst.BaseExpression) -> Resolved:
        """What a dotted chain of names stands for; empty for everything else.

        Names of builtins come as `builtins.print`. A chain that begins with a name of this module
        which is no import, and leads to none, is empty.
        """
        parts: list[str] = []
        base: cst.BaseExpression = expression
        while isinstance(base, cst.Attribute):
            parts.append(base.attr.value)
            base = base.value
        if not isinstance(base, cst.Name) or id(base) not in self._walk.load_ids:
            return Resolved()
        parts.reverse()
        return self._resolved(self._chain(base.value, parts, self.bindings_at(base), self.scope(base)))

    def names_of_binding(self, binding: Binding) -> Resolved:
        """What a name stands for if this binding gives it."""
        return self._resolved(self._meaning(binding))

    def names_in(self, expression: cst.BaseExpression, at: cst.CSTNode) -> Resolved:
        """As `names_of`, for a chain that is not part of the module, as if it were read at a node."""
        parts = dotted_name(expression).split(".")
        if not parts[0]:
            return Resolved()
        scope = self.scope(at)
        found = self._find(parts[0], scope)
        bindings = self._all(found, parts[0]) if found is not None else ()
        return self._resolved(self._chain(parts[0], parts[1:], bindings, scope))

    def name_of(self, expression: cst.BaseExpression) -> str | None:
        """The one name that a chain certainly stands for."""
        return self.names_of(expression).name

    @staticmethod
    def _resolved(answer: _Answer) -> Resolved:
        names = answer.names
        if len(names) > 1:
            # `except ImportError: Trainer = object` is a stand-in, not a second candidate.
            names = frozenset(each for each in names if not each.startswith("builtins.")) or names
        return Resolved(names, len(answer.names) == 1 and not answer.other)

    def _chain(self, base: str, parts: Sequence[str], bindings: Sequence[Binding], scope: Scope) -> _Answer:
        if not bindings:
            return self._unbound(base, parts, scope)
        return _union(self._member(each, parts) for each in bindings)

    def _unbound(self, base: str, parts: Sequence[str], scope: Scope) -> _Answer:
        """A name that no binding reaches: from a star import, a builtin, or nothing."""
        if self._find(base, scope) is not None:
            return _NOTHING
        for module in (*(module for _, module in reversed(self.stars)), self.module_name):
            # What this module itself hands on tells of names that the starred one defines.
            if self.stars and self._export(f"{module}.{base}") is not None:
                return self._settle(".".join((module, base, *parts)))
        if base in _BUILTINS:
            return _Answer(frozenset({".".join(("builtins", base, *parts))}), bool(self.stars))
        return _NOTHING

    def _member(self, binding: Binding, parts: Sequence[str]) -> _Answer:
        """What `name.part.part` stands for, if this binding gives the name."""
        if parts:
            owner = self.instance_class(binding)
            if owner is not None:
                return self._class_member(owner, parts, subclasses=True)
            if isinstance(binding.node, cst.ClassDef):
                return self._class_member(binding.node, parts, subclasses=False)
        answer = self._meaning(binding)
        if not parts:
            return answer
        settled = [self._settle(".".join((name, *parts))) for name in answer.names]
        settled.append(_Answer(frozenset(), answer.other))
        return _union(settled)

    def _class_member(self, owner: cst.ClassDef, parts: Sequence[str], *, subclasses: bool) -> _Answer:
        found: list[_Answer] = []
        for each in self.class_attribute(owner, parts[0], subclasses=subclasses):
            if isinstance(each, Binding):
                found.append(self._member(each, parts[1:]))
                continue
            answer = self._meaning(each)
            found.extend(self._settle(".".join((name, *parts[1:]))) for name in answer.names)
            found.append(_Answer(frozenset(), answer.other))
        return _union(found) if found else _OTHER

    def _meaning(self, binding: Binding | AttributeStore) -> _Answer:
        """What a name or an attribute stands for through one binding."""
        key = id(binding)
        known = self._answers.get(key)
        if known is not None:
            return known
        if key in self._asking:
            self._cuts += 1
            return _NOTHING
        self._asking.add(key)
        cuts = self._cuts
        try:
            answer = self._work_out(binding)
        finally:
            self._asking.discard(key)
        # An answer that leant on a question still open is not the whole answer.
        if cuts == self._cuts or not self._asking:
            self._answers[key] = answer
        return answer

    def _work_out(self, binding: Binding | AttributeStore) -> _Answer:
        if isinstance(binding, AttributeStore):
            return _OTHER if binding.kind is Kind.AUG_ASSIGN else self._value(binding.value, binding.path)
        if binding.kind is Kind.IMPORT:
            return self._settle(binding.target)
        if binding.kind in (Kind.ASSIGN, Kind.WALRUS):
            return self._value(binding.value, binding.path)
        if binding.kind is Kind.PARAMETER and binding.value is not None:
            # Callers may pass something else.
            return _Answer(self._value(binding.value, ()).names, True)
        return _OTHER

    def _value(self, value: cst.BaseExpression | None, path: Path) -> _Answer:
        """What an assigned expression stands for."""
        for index in path:
            if not isinstance(value, (cst.Tuple, cst.List)) or not isinstance(index, int):
                return _OTHER
            elements = value.elements
            if any(isinstance(each, cst.StarredElement) for each in elements) or not (
                -len(elements) <= index < len(elements)
            ):
                return _OTHER
            value = elements[index].value
        if isinstance(value, cst.NamedExpr):
            return self._value(value.value, ())
        if isinstance(value, (cst.Name, cst.Attribute)):
            found = self.names_of(value)
            return _Answer(found.names, not found.certain)
        if isinstance(value, cst.IfExp):
            return _union((self._value(value.body, ()), self._value(value.orelse, ())))
        if isinstance(value, cst.BooleanOperation):
            return _union((self._value(value.left, ()), self._value(value.right, ())))
        if isinstance(value, cst.Call) and value.args and value.args[0].keyword is None:
            first = value.args[0].value
            if isinstance(first, cst.SimpleString) and self.names_of(value.func).names & _IMPORTERS:
                text = first.evaluated_value
                if isinstance(text, str) and text and not text.startswith("."):
                    return _Answer(frozenset({text}), True)
        return _OTHER

    def _export(self, name: str) -> Resolved | None:
        if self._exports is None:
            return None
        if name not in self._exported:
            self._exported[name] = self._exports(name)
        return self._exported[name]

    def _settle(self, name: str, depth: int = 0) -> _Answer:
        """Follow a name through modules of the project that only hand it on."""
        if self._exports is None or depth > _MAX_EXPORTS:
            return _Answer(frozenset({name}), False)
        end = name.find(".")
        while True:
            prefix = name if end < 0 else name[:end]
            through = self._export(prefix)
            if through is not None and through.names != {prefix}:
                rest = name[len(prefix) :]
                found = [self._settle(each + rest, depth + 1) for each in sorted(through.names)]
                found.append(_Answer(frozenset(), not through.certain and len(through.names) < 2))
                return _union(found)
            if end < 0:
                return _Answer(frozenset({name}), False)
            end = name.find(".", end + 1)

    # Classes of this module.

    def instance_class(self, binding: Binding) -> cst.ClassDef | None:
        """The class whose instance (or which itself) the first parameter of a method holds."""
        if binding.kind is not Kind.PARAMETER:
            return None
        function = binding.scope.node
        if not isinstance(function, cst.FunctionDef):
            return None
        owner = binding.scope.parent
        while owner is not None and owner.kind is ScopeKind.TYPE_PARAMS:
            owner = owner.parent
        if owner is None or not isinstance(owner.node, cst.ClassDef):
            return None
        params = parameters(function.params)
        if params[0].name is not binding.node or (isinstance(params[0].star, str) and params[0].star):
            return None
        if any(last_name(each.decorator) == "staticmethod" for each in function.decorators):
            return None
        return owner.node

    def class_attribute(
        self, owner: cst.ClassDef, name: str, *, subclasses: bool = False
    ) -> tuple[Binding | AttributeStore, ...]:
        """Everything in this module that gives an attribute of a class or its instances a value.

        Bases that are defined in this module are included; subclasses on demand, since the `self`
        of a method may be an instance of one.
        """
        found: list[Binding | AttributeStore] = []
        seen: set[int] = set()
        todo = [owner]
        while todo:
            each = todo.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            bindings = self._walk.made[id(each)].bindings.get(name, ())
            found.extend(one for one in bindings if one.kind is not Kind.ANNOTATION_ONLY)
            found.extend(self._stores_of_classes.get((id(each), name), ()))
            todo.extend(self.local_bases(each))
            if subclasses:
                todo.extend(self._subclasses.get(id(each), ()))
        return tuple(found)

    @cached_property
    def classes(self) -> tuple[cst.ClassDef, ...]:
        """Every class the module defines, at any depth."""
        return tuple(scope.node for scope in self._walk.made.values() if isinstance(scope.node, cst.ClassDef))

    @cached_property
    def functions(self) -> tuple[cst.FunctionDef, ...]:
        """Every function and method the module defines, at any depth."""
        return tuple(
            scope.node for scope in self._walk.made.values() if isinstance(scope.node, cst.FunctionDef)
        )

    def stored_attributes(self, owner: cst.ClassDef) -> frozenset[str]:
        """Names of the attributes that methods of a class assign."""
        return frozenset(name for key, name in self._stores_of_classes if key == id(owner))

    @cached_property
    def _subclasses(self) -> dict[int, list[cst.ClassDef]]:
        found: dict[int, list[cst.ClassDef]] = {}
        for each in self.classes:
            for base in self.local_bases(each):
                found.setdefault(id(base), []).append(each)
        return found

    def local_bases(self, owner: cst.ClassDef) -> tuple[cst.ClassDef, ...]:
        """The bases of a class that are defined in this module."""
        found: list[cst.ClassDef] = []
        for base in owner.bases:
            value = base.value.value if isinstance(base.value, cst.Subscript) else base.value
            if isinstance(value, cst.Name):
                found.extend(
                    each.node for each in self.bindings_at(value) if isinstance(each.node, cst.ClassDef)
                )
        return tuple(found)

    @cached_property
    def _stores_of_classes(self) -> dict[tuple[int, str], list[AttributeStore]]:
        """Assignments through `self`, `cls` or the name of the class."""
        found: dict[tuple[int, str], list[AttributeStore]] = {}
        for store in self.stores:
            base = store.node.value
            if not isinstance(base, cst.Name):
                continue
            for binding in self.bindings_at(base):
                owner = self.instance_class(binding)
                if owner is None and isinstance(binding.node, cst.ClassDef):
                    owner = binding.node
                if owner is not None:
                    found.setdefault((id(owner), store.node.attr.value), []).append(store)
        return found

    # Text that holds names.

    def annotation_strings(self) -> Iterator[QuotedType]:
        """Strings that hold types: annotations, `cast("X", ...)`, bounds, `Optional["X"]`.

        Strings that are not expressions are left out.
        """
        for node in self._walk.quoted:
            quoted = self._quoted(node)
            if quoted is not None:
                yield quoted
        for holder in self._walk.maybe_quoted:
            for string in self._strings_in(holder):
                quoted = self._quoted(string)
                if quoted is not None:
                    yield quoted

    def _strings_in(self, holder: cst.Call | cst.Subscript) -> Iterator[cst.SimpleString]:
        if isinstance(holder, cst.Subscript):
            if not any(name.startswith(_TYPING) for name in self.names_of(holder.value).names):
                return
            name = last_name(holder.value)
            if name == "Literal":
                return
            for element in holder.slice[: 1 if name == "Annotated" else None]:
                if isinstance(element.slice, cst.Index) and isinstance(element.slice.value, cst.SimpleString):
                    yield element.slice.value
            return
        if not any(name.startswith(_TYPING) for name in self.names_of(holder.func).names):
            return
        name = last_name(holder.func)
        for index, arg in enumerate(holder.args):
            if not isinstance(arg.value, cst.SimpleString):
                continue
            keyword = arg.keyword.value if arg.keyword is not None else None
            first = name in ("cast", "ForwardRef")
            if keyword in ("bound", "typ", "arg") or (keyword is None and (index == 0) is first):
                yield arg.value

    def _quoted(self, node: cst.SimpleString | cst.ConcatenatedString) -> QuotedType | None:
        text = node.evaluated_value
        if not isinstance(text, str) or not text.strip():
            return None
        try:
            expression = cst.parse_expression(text.strip())
        except (cst.ParserSyntaxError, SyntaxError):
            return None
        scope = self.scope(node)
        names: list[tuple[cst.BaseExpression, Resolved]] = []
        bindings: list[Binding] = []
        for chain in _chains(expression):
            names.append((chain, self.names_in(chain, node)))
            base = dotted_name(chain).partition(".")[0]
            found = self._find(base, scope)
            if found is not None:
                bindings.extend(each for each in self._all(found, base) if each not in bindings)
        return QuotedType(node, expression, tuple(names), tuple(bindings))

    @cached_property
    def dunder_all(self) -> DunderAll | None:
        """What `__all__` lists; None when the module has none."""
        bindings = self.module_scope.bindings.get("__all__", ())
        if not bindings:
            return None
        strings: list[cst.SimpleString] = []
        literal = True
        for binding in bindings:
            if binding.kind is Kind.ANNOTATION_ONLY:
                continue
            plain = binding.kind in (Kind.ASSIGN, Kind.AUG_ASSIGN) and not binding.path
            if not plain or binding.value is None or not _listed(binding.value, strings):
                literal = False
        for load in self._walk.loads.get("__all__", ()):
            method = self.parent(load)
            call = self.parent(method) if isinstance(method, cst.Attribute) else None
            if not isinstance(method, cst.Attribute) or not isinstance(call, cst.Call):
                continue
            values = [arg.value for arg in call.args]
            if method.attr.value == "append" and len(values) == 1:
                if isinstance(values[0], cst.SimpleString):
                    strings.append(values[0])
                else:
                    literal = False
            elif method.attr.value == "extend" and len(values) == 1:
                literal = _listed(values[0], strings) and literal
            else:
                literal = False
        names = [each.evaluated_value for each in strings]
        return DunderAll(tuple(each for each in names if isinstance(each, str)), literal, tuple(strings))


def _straight(events: Sequence[Event]) -> tuple[dict[int, tuple[Binding, ...]], frozenset[int]]:
    """Reaching definitions when each binding runs whenever the frame gets that far."""
    reached: dict[int, tuple[Binding, ...]] = {}
    unbound: set[int] = set()
    current: tuple[Binding, ...] = ()
    for _, _, what in events:
        if not isinstance(what, Binding):
            reached[id(what)] = current
            if not current:
                unbound.add(id(what))
        elif what.dotted:
            current = (*(each for each in current if each.dotted), what)
        else:
            current = (what,)
    return reached, frozenset(unbound)


def _listed(value: cst.BaseExpression, strings: list[cst.SimpleString]) -> bool:
    """Collect the strings of a literal list; whether there was nothing else in it."""
    if isinstance(value, (cst.List, cst.Tuple, cst.Set)):
        plain = [each.value for each in value.elements if isinstance(each.value, cst.SimpleString)]
        strings.extend(plain)
        return len(plain) == len(value.elements)
    if isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.Add):
        left = _listed(value.left, strings)
        return _listed(value.right, strings) and left
    return isinstance(value, cst.Name) and value.value == "__all__"


def _chains(expression: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The longest dotted chains in an expression of another tree."""
    todo: list[cst.CSTNode] = [expression]
    while todo:
        node = todo.pop()
        if isinstance(node, (cst.Name, cst.Attribute)) and dotted_name(node):
            yield node
        elif isinstance(node, cst.Arg):
            todo.append(node.value)
        elif not (isinstance(node, cst.Subscript) and last_name(node.value) == "Literal"):
            todo.extend(reversed(node.children))
