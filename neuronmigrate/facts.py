"""What one module tells the others about its values, as plain data.

`flow.module_facts` writes it down for each module; `ProjectFacts` joins the modules of a project and
answers what a module cannot know by itself: what an imported function returns, what other modules
pass to a function of this one, what an imported name really stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import libcst as cst

from neuronmigrate.names import EACH, Path, Resolved


@dataclass(frozen=True)
class Producer:
    """What made a value: a call of a callable, or an object that was imported."""

    name: str
    """Qualified name of the callable or of the object; empty when it is not known.

    What a value gives has the name of the value's own producer in front: `tokenizer(...)` comes from
    `transformers.AutoTokenizer.from_pretrained()`, `tokenizer.pad_token` is
    `transformers.AutoTokenizer.from_pretrained().pad_token`, and an element of a result ends in `[0]`.
    """
    node: cst.CSTNode | None = None
    """The call, the literal or the definition, when it stands in this module."""
    place: str = ""
    """`path:line`, when it stands in another module."""
    called: bool = False
    """Whether the value is the result of calling what is named, not that object itself."""

    @property
    def text(self) -> str:
        """The name, with `()` when it was called."""
        return f"{self.name}()" if self.called and self.name else self.name


@dataclass(frozen=True)
class Outside:
    """A value as other modules see it: without nodes, so that it can be pickled."""

    producers: tuple[Producer, ...] = ()
    lost: tuple[str, ...] = ()
    parts: tuple[tuple[int | str, Outside], ...] = ()
    """What is inside, when it is a tuple, list or dictionary that is written out."""

    def at(self, path: Path) -> Outside:
        """What an element of the value is."""
        if not path:
            return self
        step, rest = path[0], path[1:]
        if self.parts:
            inner = [part for key, part in self.parts if step in (key, EACH)]
            return joined([part.at(rest) for part in inner])
        taken = tuple(Producer(f"{each.text}{index_text(step)}", None, each.place) for each in self.producers)
        return Outside(taken, self.lost).at(rest)


def index_text(step: int | str) -> str:
    return f"[{step}]" if isinstance(step, int) or step == EACH else f"[{step!r}]"


def joined(values: Iterable[Outside]) -> Outside:
    """One value that may be any of several."""
    producers: dict[Producer, None] = {}
    lost: dict[str, None] = {}
    parts: dict[int | str, list[Outside]] = {}
    for each in values:
        producers.update(dict.fromkeys(each.producers))
        lost.update(dict.fromkeys(each.lost))
        for key, part in each.parts:
            parts.setdefault(key, []).append(part)
    return Outside(tuple(producers), tuple(lost), tuple((key, joined(found)) for key, found in parts.items()))


@dataclass(frozen=True)
class CallFacts:
    """One call of a function of the project."""

    callee: str
    bound: bool
    """Called through an instance, so that the first parameter is not among the arguments."""
    args: tuple[tuple[int | str, Outside], ...]
    """Positions and keywords, with what is passed."""
    spread: bool
    """Whether `*` or `**` may pass more."""
    place: str


@dataclass(frozen=True)
class ClassFacts:
    """A class at the top of a module."""

    bases: tuple[str, ...]
    attributes: dict[str, Outside]
    methods: frozenset[str]


@dataclass(frozen=True)
class ModuleFacts:
    """What a module gives to and takes from the others."""

    module: str
    defined: frozenset[str] = frozenset()
    """Every name at its top."""
    exports: dict[str, Resolved] = field(default_factory=dict)
    """Names at its top that stand for something imported."""
    stars: tuple[str, ...] = ()
    """Modules whose names it takes over wholesale."""
    values: dict[str, Outside] = field(default_factory=dict)
    returns: dict[str, Outside] = field(default_factory=dict)
    """By the function's name in the module, such as `load` or `Service.load`."""
    classes: dict[str, ClassFacts] = field(default_factory=dict)
    calls: tuple[CallFacts, ...] = ()
    reads: frozenset[str] = frozenset()
    """Absolute names of other modules' things that it reads."""
    attributes: frozenset[str] = frozenset()
    """Names of the attributes that it reads on anything but imported modules and classes."""


class Facts(Protocol):
    """What `Flow` asks about the other modules of the project. None is: not of this project."""

    def knows(self, name: str) -> bool:
        """Whether a qualified name is of this project."""

    def value_of(self, name: str) -> Outside | None:
        """What a name at the top of a module holds."""

    def returned_by(self, function: str) -> Outside | None:
        """What a function or method returns."""

    def attribute_of(self, owner: str, attribute: str) -> Outside | None:
        """What an attribute of a class or its instances holds."""

    def method_of(self, owner: str, name: str) -> str | None:
        """Qualified name of a method of a class, its own or inherited."""

    def passed_to(self, function: str, parameter: str, position: int) -> Outside | None:
        """What modules other than the function's own pass as a parameter."""

    def used_elsewhere(self, name: str) -> bool:
        """Whether a module other than its own reads a name."""

    def attribute_used_elsewhere(self, owner: str, attribute: str) -> bool:
        """Whether a module other than that of a class may read an attribute of its instances."""


class ProjectFacts:
    """The facts of several modules, asked together. Nothing in it raises."""

    def __init__(self, modules: Iterable[ModuleFacts] = ()) -> None:
        self.modules: dict[str, ModuleFacts] = {each.module: each for each in modules if each.module}
        self._calls: dict[str, list[tuple[str, CallFacts]]] = {}
        self._reads: dict[str, set[str]] = {}
        for module in self.modules.values():
            for call in module.calls:
                callee = self._settled(call.callee)
                self._calls.setdefault(callee, []).append((module.module, call))
            for name in module.reads:
                settled = self._settled(name)
                parts = settled.split(".")
                for end in range(1, len(parts) + 1):
                    self._reads.setdefault(".".join(parts[:end]), set()).add(module.module)

    def _split(self, name: str) -> tuple[ModuleFacts, str] | None:
        """The module that a qualified name is in, and the rest of the name."""
        end = len(name)
        while end > 0:
            module = self.modules.get(name[:end])
            if module is not None:
                return module, name[end + 1 :]
            end = name.rfind(".", 0, end)
        return None

    def exports(self, name: str) -> Resolved | None:
        """What a name of the project stands for, when its module only hands it on. For `Names`."""
        return self._exports(name, set())

    def _exports(self, name: str, seen: set[str]) -> Resolved | None:
        found = self._split(name)
        if found is None or not found[1] or "." in found[1] or name in seen:
            return None
        seen.add(name)
        module, rest = found
        if rest in module.exports:
            return module.exports[rest]
        if rest in module.defined:
            return None
        for star in reversed(module.stars):
            behind = self.modules.get(star)
            if behind is None:
                continue
            through = self._exports(f"{star}.{rest}", seen)
            if through is not None:
                return through
            if rest in behind.defined and not rest.startswith("_"):
                return Resolved(frozenset({f"{star}.{rest}"}), True)
        return None

    def _settled(self, name: str) -> str:
        """The name under which a thing of the project is defined."""
        for _ in range(20):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                through = self.exports(".".join(parts[:end]))
                if through is not None and through.certain and through.name is not None:
                    name = ".".join([through.name, *parts[end:]])
                    break
            else:
                return name
        return name

    def knows(self, name: str) -> bool:
        found = self._split(self._settled(name))
        return found is not None and (not found[1] or found[1].partition(".")[0] in found[0].defined)

    def value_of(self, name: str) -> Outside | None:
        found = self._split(self._settled(name))
        return found[0].values.get(found[1]) if found else None

    def returned_by(self, function: str) -> Outside | None:
        function = self._settled(function)
        found = self._split(function)
        if found is None:
            return None
        return found[0].returns.get(found[1])

    def method_of(self, owner: str, name: str) -> str | None:
        owner = self._settled(owner)
        for each in (owner, *self._bases(owner)):
            found = self._split(each)
            own = found[0].classes.get(found[1]) if found is not None else None
            if own is not None and name in own.methods:
                return f"{each}.{name}"
        return None

    def attribute_of(self, owner: str, attribute: str) -> Outside | None:
        values: list[Outside] = []
        owner = self._settled(owner)
        for name in (owner, *self._bases(owner)):
            found = self._split(name)
            if found is not None and found[1] in found[0].classes:
                value = found[0].classes[found[1]].attributes.get(attribute)
                if value is not None:
                    values.append(value)
        return joined(values) if values else None

    def bases_of(self, owner: str) -> Sequence[str]:
        """The classes that a class of the project derives from, the nearest first, those outside as well."""
        return self._bases(self._settled(owner))

    def defines(self, owner: str, method: str) -> bool:
        """Whether a class of the project, or a class of the project that it derives from, has a method."""
        found = map(self._split, (self._settled(owner), *self.bases_of(owner)))
        return any(
            each is not None
            and (known := each[0].classes.get(each[1])) is not None
            and method in known.methods
            for each in found
        )

    def _bases(self, owner: str) -> Sequence[str]:
        """The classes that a class of the project derives from, the nearest first."""
        order: list[str] = []
        todo = [owner]
        while todo:
            found = self._split(todo.pop(0))
            if found is None or found[1] not in found[0].classes:
                continue
            for base in found[0].classes[found[1]].bases:
                settled = self._settled(base)
                if settled not in order and settled != owner:
                    order.append(settled)
                    todo.append(settled)
        return order

    def passed_to(self, function: str, parameter: str, position: int) -> Outside | None:
        home = self._split(function)
        values: list[Outside] = []
        for module, call in self._calls.get(function, ()):
            if home is not None and module == home[0].module:
                continue
            at = position - call.bound
            given = [value for key, value in call.args if key in (parameter, at)]
            values.extend(given)
            if not given and call.spread:
                values.append(Outside(lost=(f"spread into the call at {call.place}",)))
        return joined(values) if values else None

    def used_elsewhere(self, name: str) -> bool:
        home = self._split(name)
        own = home[0].module if home else ""
        return bool(self._reads.get(name, set()) - {own})

    def attribute_used_elsewhere(self, owner: str, attribute: str) -> bool:
        home = self._split(owner)
        own = home[0].module if home else ""
        return self.used_elsewhere(owner) and any(
            attribute in each.attributes for each in self.modules.values() if each.module != own
        )

    def homes(self, facts: ModuleFacts) -> set[str]:
        """The modules of the project that a module reads from or passes something to."""
        found = set()
        for name in (*facts.reads, *facts.stars, *(call.callee for call in facts.calls)):
            for each in (name, self._settled(name)):
                home = self._split(each)
                if home is not None:
                    found.add(home[0].module)
        return found


def settle(tellers: Mapping[str, Callable[[ProjectFacts], ModuleFacts]], rounds: int = 8) -> ProjectFacts:
    """Ask each module again what it tells the others until nothing new comes.

    `tellers` has a function for each module, by its name. What has not settled after so many
    rounds, because modules call each other in a ring, is told as lost.
    """
    told: dict[str, ModuleFacts] = {}
    facts = ProjectFacts()
    asking = set(tellers)
    for _ in range(rounds):
        before = dict(told)
        told.update({name: tellers[name](facts) for name in sorted(asking)})
        changed = {name for name in asking if told[name] != before.get(name)}
        facts = ProjectFacts(told.values())
        if not changed:
            return facts
        linked = {name: facts.homes(told[name]) for name in tellers}
        # A module hears from those it reads and from those that call it.
        asking = {name for name in tellers if linked[name] & changed}
        asking |= {home for name in changed for home in linked[name] if home in tellers}
    for name in asking:
        now = tellers[name](facts)
        if now != told[name]:
            told[name] = _blurred(told[name], now)
    return ProjectFacts(told.values())


def _blurred(one: ModuleFacts, other: ModuleFacts) -> ModuleFacts:
    """Facts of a module of which those that differ are said to be lost."""
    classes = {
        name: replace(each, attributes=_mixed(each.attributes, other.classes[name].attributes))
        for name, each in one.classes.items()
        if name in other.classes
    }
    return replace(
        other,
        values=_mixed(one.values, other.values),
        returns=_mixed(one.returns, other.returns),
        classes=classes,
        calls=tuple(each if each in one.calls else replace(each, spread=True) for each in other.calls),
    )


def _mixed(one: dict[str, Outside], other: dict[str, Outside]) -> dict[str, Outside]:
    lost = Outside(lost=("modules that call each other in a ring",))
    mixed = {}
    for name in sorted({*one, *other}):
        both = [each[name] for each in (one, other) if name in each]
        mixed[name] = both[0] if len(both) == 2 and both[0] == both[1] else joined([*both, lost])
    return mixed
