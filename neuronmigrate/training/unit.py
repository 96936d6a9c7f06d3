"""Trainer, arguments, parser and model of a training script: one unit, rewritten whole or not at all.

Half of it would not run: the native trainer reads fields that the legacy arguments lack, and the other way
round. So all codemods of training put their edits into one group for each file.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

import libcst as cst

from neuronmigrate import catalogue, edits
from neuronmigrate.flow import Use as FlowUse
from neuronmigrate.flow import UseKind
from neuronmigrate.loads.arguments import Load, Table, sorted_arguments, written_out
from neuronmigrate.names import dotted_name
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use
from neuronmigrate.training.evidence import Evidence, newest
from neuronmigrate.training.fields import OWN_CLASS, Fate, rule
from neuronmigrate.training.kinds import (
    ARGUMENTS,
    NATIVE_PARSERS,
    PARSERS,
    PARSING,
    PLAIN_ARGUMENTS,
    TRAINERS,
    ArgumentsKind,
)

_PARSED = re.compile(r"\(\)\.(\w+)\(\)\[(\d+)\]$")


@dataclass(frozen=True)
class Source:
    """What makes an object of training arguments."""

    name: str
    """The qualified legacy name of the class, for a class of this file that of its legacy base."""
    call: cst.Call | None = None
    """The constructor's call."""
    parsed: cst.BaseExpression | None = None
    """The class as it is given to a parser that fills it."""
    owner: cst.ClassDef | None = None
    """The class of this file that derives from the legacy one."""
    derived: bool = False
    """Whether it is a class of the script, in this file or another one."""
    plain: bool = False
    """Whether it is Transformers' own class, which trainers before 0.4.0 took as well."""


@dataclass(eq=False)
class Training:
    """A trainer that a file makes."""

    call: cst.Call
    """The constructor's call."""
    name: str
    """The qualified legacy name of the trainer; for a subclass, of its legacy base."""
    owner: cst.ClassDef | None
    """The class of this file that derives from it."""
    derived: bool
    """Whether it is a class of the script, in this file or another one."""
    args: cst.BaseExpression | None
    model: cst.BaseExpression | None
    models: tuple[cst.BaseExpression, ...] = ()
    """What the model may be: that, or what the function given as `model_init` gives."""
    sources: tuple[Source, ...] = ()
    """What may have made its arguments; first what those were taken over from, by `to_dict()`."""
    loads: tuple[cst.Call, ...] = ()
    """The calls of this file that may have made its model."""
    given: frozenset[str] = frozenset()
    """The names of its other arguments, and of these."""
    partial: bool = False
    """Whether `call` is the `functools.partial` that gives the class some of its arguments."""
    made: cst.Call | None = None
    """The call that makes it: `call`, or the only call of that `partial`; None where there is none such."""
    peft: bool = False
    """Whether adapters are trained, and the weights that are loaded stay as they are."""


@dataclass(eq=False)
class Unit:
    """What a file trains, and the group in which it is rewritten."""

    site: Site
    group: Group
    trainings: list[Training] = field(default_factory=list)
    subclasses: dict[cst.ClassDef, str] = field(default_factory=dict)
    """Classes of this file that derive from a legacy trainer or class of arguments."""
    read: dict[cst.Call, Load] = field(default_factory=dict)
    """The constructor calls of arguments whose fields were sorted."""
    written: set[cst.CSTNode] = field(default_factory=set)
    """Loads of models that have their edit."""

    @functools.cached_property
    def evidence(self) -> Evidence | None:
        """What the names in the file tell of its release, where nothing else does."""
        legacy = self.site.project.legacy_of(self.site.path)
        return newest(self.site, str(legacy.release)) if legacy.assumed else None

    @property
    def release(self) -> str:
        """The release of optimum-neuron that the file was written for."""
        if self.evidence is not None:
            return self.evidence.release
        return str(self.site.project.legacy_of(self.site.path).release)

    @property
    def assumed(self) -> bool:
        """Whether that release is a guess."""
        return self.site.project.legacy_of(self.site.path).assumed

    def say(
        self,
        node: cst.CSTNode,
        found: str,
        why: str,
        todo: Iterable[str] = (),
        *,
        numerics: Numerics = Numerics.SAME,
    ) -> None:
        """Say that a use is rewritten; what is left to look at makes it a review.

        Where the unit does not hold, what the catalogue of legacy names advises is said instead.
        """
        entry = catalogue.nearest(found) if catalogue.is_legacy(found) else None
        by_hand = entry.advice if entry is not None else ""
        look = "; ".join(dict.fromkeys(todo))
        if look:
            self.group.review(node, found, why, look, numerics=numerics, by_hand=by_hand)
        else:
            self.group.fixed(node, found, why, numerics=numerics, by_hand=by_hand)

    def before(self, release: str) -> bool:
        """Whether the file was written for an older release than this one."""
        from packaging.version import Version

        return Version(self.release) < Version(release)

    def sources(self, expression: cst.BaseExpression) -> tuple[Source, ...]:
        """What may have made an object of training arguments. Empty when that cannot be told."""
        return tuple(_sources(self.site, self.subclasses, expression, set()))

    def arguments_of(self, source: Source) -> Load:
        """The fields that a constructor of arguments is given, sorted by what becomes of them.

        Raises ValueError for arguments that a parser fills.
        """
        call = source.call
        if call is None:
            raise ValueError("arguments that a parser fills have no constructor here")
        if call not in self.read:
            kind = ARGUMENTS[source.name]
            use = self.use_of(source.name, call)
            table = replace(table_of(kind, self.release), spread=self._take_over)
            if source.owner is not None:
                table = replace(table, kept=table.kept | self.fields_of(source.owner))
            elif source.derived:
                table = replace(table, passes=True)
            self.read[call] = sorted_arguments(self.site, use, call, kind.native, table)
        return self.read[call]

    def use_of(self, name: str, call: cst.Call, *, partial: bool = False) -> Use:
        """The use of a legacy class behind a call, also where the call names a class of the script."""
        klass = call.args[0].value if partial else call.func
        found = next((each for each in self.site.uses if each.call is call or each.chain is klass), None)
        if found is not None:
            return found
        head: cst.BaseExpression = klass
        while isinstance(head, cst.Attribute):
            head = head.value
        assert isinstance(head, cst.Name), "a class that is known has a name"
        binding = self.site.names.bindings_at(head)[0]
        return Use(klass, klass, name, name, True, binding, call)

    def fields_of(self, owner: cst.ClassDef) -> frozenset[str]:
        """The fields that a class of this file has of its own, or of a base in this file."""
        found: set[str] = set()
        for line in owner.body.body:
            for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
                    found.add(small.target.value)
        for base in owner.bases:
            behind = local_class(self.site, base.value)
            if behind is not None and behind is not owner:
                found |= self.fields_of(behind)
        return frozenset(found)

    def told(self, source: Source, name: str) -> cst.BaseExpression | None:
        """What the constructor of arguments is given for a field; None for nothing, or for no constructor."""
        return None if source.call is None else self.arguments_of(source).told.get(name)

    def taken_over(self, call: cst.Call) -> dict[cst.Arg, tuple[Source, ...]]:
        """The `**training_args.to_dict()` among the arguments of a call, and what made those arguments."""
        found = {}
        for arg in call.args:
            made = self.site.flow.origin_of(arg.value).producers if arg.star == "**" else ()
            nodes = [each.node for each in made]
            if len(nodes) != 1 or not isinstance(nodes[0], cst.Call):
                continue
            func = nodes[0].func
            if isinstance(func, cst.Attribute) and func.attr.value == "to_dict":
                sources = self.sources(func.value)
                if sources:
                    found[arg] = sources
        return found

    def _take_over(self, site: Site, load: Load, arg: cst.Arg) -> bool:
        """Let a dictionary of the fields of other training arguments stand: those are answered for."""
        if arg not in self.taken_over(load.call):
            return False
        load.args.append(arg)
        if isinstance(arg.value, cst.Name):
            load.still_read.update(site.names.bindings_at(arg.value))
        return True

    def training_of(self, load: cst.Call) -> Training | None:
        """The trainer of this file that trains the model which a call loads."""
        return next((each for each in self.trainings if load in each.loads), None)


def table_of(kind: ArgumentsKind, release: str) -> Table:
    """What becomes of the fields of a class in a release, as a table of arguments."""
    rules = {name: found for name in kind.fields if (found := rule(name, release, kind.fields)) is not None}

    def those(fate: Fate) -> frozenset[str]:
        return frozenset(name for name, each in rules.items() if each.fate is fate)

    return Table(
        kept=those(Fate.KEPT),
        renamed={name: each.native for name, each in rules.items() if each.fate is Fate.RENAMED},
        consumed=those(Fate.SETTLED),
        dropped=those(Fate.DROPPED),
        refused={name: each.told for name, each in rules.items() if each.fate is Fate.REFUSED},
        positional=("overwrite_output_dir",),
        identifier="output_dir",
    )


def speaks_of_training(site: Site) -> bool:
    """Whether a file names a legacy class of training, or a class of the script that may derive from one."""
    return any(
        catalogue.is_legacy(each.target) or site.project.leads_to_legacy(each.target, site.path)
        for each in site.names.imports
    )


_UNITS: WeakKeyDictionary[Site, Unit] = WeakKeyDictionary()


def unit_of(site: Site, use: Use | None = None) -> Unit:
    """The unit of a file. Its group is opened by whichever codemod comes first.

    New imports of what is written next go where the import of `use` stands.
    """
    unit = _UNITS.get(site)
    if unit is None:
        unit = _UNITS[site] = Unit(site, site.group(use))
        unit.subclasses = _subclasses(site)
        unit.trainings = list(_trainings(site, unit))
    if use is not None:
        unit.group.anchor = use.binding
        unit.group.uncertain = not use.certain
    return unit


def _subclasses(site: Site) -> dict[cst.ClassDef, str]:
    """The classes of a file that derive from a legacy trainer or class of arguments, and that class."""
    found: dict[cst.ClassDef, str] = {}
    grown = True
    while grown:
        grown = False
        for owner in site.nodes(cst.ClassDef):
            names = [legacy_class(site, found, base.value)[0] for base in owner.bases]
            legacy = next(filter(None, names), "")
            if owner not in found and legacy:
                found[owner] = legacy
                grown = True
    return found


def legacy_class(
    site: Site, subclasses: dict[cst.ClassDef, str], expression: cst.BaseExpression
) -> tuple[str, cst.ClassDef | None, bool]:
    """The legacy trainer or class of arguments that an expression stands for or derives from.

    Its qualified name, empty for none; the class of this file that derives from it; whether it is a class of
    the script at all.
    """
    owner = local_class(site, expression)
    if owner is not None:
        return subclasses.get(owner, ""), owner, True
    name = site.name_of(expression)
    if name is None:
        return "", None, False
    if name in TRAINERS or name in ARGUMENTS:
        return name, None, False
    bases = site.project.facts_of(site.path).bases_of(name)
    return next((each for each in bases if each in TRAINERS or each in ARGUMENTS), ""), None, True


def local_class(site: Site, expression: cst.BaseExpression) -> cst.ClassDef | None:
    """The class of this file that a name stands for."""
    if not isinstance(expression, cst.Name):
        return None
    nodes = {each.node for each in site.names.bindings_at(expression)}
    only = nodes.pop() if len(nodes) == 1 else None
    return only if isinstance(only, cst.ClassDef) else None


def _trainings(site: Site, unit: Unit) -> Iterator[Training]:
    for call in site.nodes(cst.Call):
        partial = bool(call.args) and site.name_of(call.func) == "functools.partial"
        klass = call.args[0].value if partial else call.func
        name, owner, derived = legacy_class(site, unit.subclasses, klass)
        if name not in TRAINERS:
            continue
        makers = list(_calls_of(site, call)) if partial else [call]
        given = _given(site, call.args[1:] if partial else call.args)
        if partial and len(makers) == 1:
            # What is given by position follows what the partial has.
            given.update(_given(site, makers[0].args, len(call.args) - 1))
        training = Training(call, name, owner, derived, given.get("args"), given.get("model"))
        training.partial, training.made = partial, makers[0] if len(makers) == 1 else None
        if training.args is not None:
            own = unit.sources(training.args) or _plain_sources(site, unit, training.args)
            behind = [
                each
                for source in own
                if source.call is not None
                for sources in unit.taken_over(source.call).values()
                for each in sources
            ]
            training.sources = (*behind, *own)
        training.models = tuple(_models(site, given))
        loads = [load for model in training.models for load in _loads(site, training, model, 0)]
        training.loads = tuple(dict.fromkeys(loads))
        training.given = frozenset(given)
        config = given.get("peft_config")
        training.peft = training.peft or (config is not None and edits.code_of(config) != "None")
        yield training


def _plain_sources(site: Site, unit: Unit, args: cst.BaseExpression) -> tuple[Source, ...]:
    """Transformers' own arguments, where nothing but a legacy trainer gets them, and so the old defaults."""
    if not unit.before(OWN_CLASS):
        return ()
    found = []
    for each in site.flow.origin_of(args).producers:
        if not isinstance(each.node, cst.Call) or each.name not in PLAIN_ARGUMENTS:
            return ()
        uses = site.flow.uses_of(each.node)
        if uses.lost or any(not _stays(site, unit, use) for use in uses.uses):
            return ()
        seq2seq = "Seq2Seq" if "Seq2Seq" in each.name else ""
        found.append(Source(f"optimum.neuron.{seq2seq}NeuronTrainingArguments", call=each.node, plain=True))
    return tuple(found)


def _stays(site: Site, unit: Unit, use: FlowUse) -> bool:
    """Whether a use of arguments hands them to a legacy trainer, or to nobody."""
    if use.kind not in (UseKind.ARGUMENT, UseKind.HANDED_ON, UseKind.RETURNED, UseKind.STORED):
        return True
    call = site.parent(site.parent(use.node) or use.node)
    return isinstance(call, cst.Call) and legacy_class(site, unit.subclasses, call.func)[0] in TRAINERS


def _given(site: Site, args: Sequence[cst.Arg], before: int = 0) -> dict[str, cst.BaseExpression]:
    """What a trainer's constructor is given by name; `before` is how many arguments stand in front."""
    given = {arg.keyword.value: arg.value for arg in args if arg.keyword is not None}
    for index, arg in enumerate(args, before):
        if arg.star == "**":
            # A dictionary that is written out says it as well.
            given = {**(written_out(site, arg.value) or {}), **given}
        elif arg.keyword is None and not arg.star and index < 2:
            given.setdefault(("model", "args")[index], arg.value)
    return given


def _calls_of(site: Site, partial: cst.Call) -> Iterator[cst.Call]:
    """The calls of what a `functools.partial` gives."""
    for use in site.flow.uses_of(partial).uses:
        call = site.parent(use.node)
        if isinstance(call, cst.Call) and call.func is use.node:
            yield call


def _models(site: Site, given: Mapping[str, cst.BaseExpression]) -> Iterator[cst.BaseExpression]:
    """What a trainer may train, by the arguments of its constructor."""
    model, init = given.get("model"), given.get("model_init")
    if model is not None and edits.code_of(model) != "None":
        yield model
    elif isinstance(init, cst.Lambda):
        yield init.body
    elif isinstance(init, cst.Name):
        for binding in site.names.bindings_at(init):
            for node in site.nodes(cst.Return) if isinstance(binding.node, cst.FunctionDef) else ():
                function = site.names.function_of(node)
                if function is not None and function.node is binding.node and node.value is not None:
                    yield node.value


def _loads(site: Site, training: Training, model: cst.BaseExpression, depth: int) -> Iterator[cst.Call]:
    """The calls that load a model, through what wraps it."""
    for each in site.flow.origin_of(model).producers:
        if not isinstance(each.node, cst.Call) or depth > 4:
            continue
        func = each.node.func
        method = func.attr.value if isinstance(func, cst.Attribute) else each.name.rpartition(".")[2]
        if method in ("from_pretrained", "from_config"):
            yield each.node
        elif method in ("get_peft_model", "prepare_model_for_kbit_training") and each.node.args:
            training.peft = True
            yield from _loads(site, training, each.node.args[0].value, depth + 1)


def _sources(
    site: Site,
    subclasses: dict[cst.ClassDef, str],
    expression: cst.BaseExpression,
    seen: set[cst.CSTNode],
) -> Iterator[Source]:
    for each in site.flow.origin_of(expression).producers:
        node = each.node
        if not isinstance(node, cst.Call) or node in seen:
            continue
        seen.add(node)
        name, owner, derived = legacy_class(site, subclasses, node.func)
        if name in ARGUMENTS:
            yield Source(name, call=node, owner=owner, derived=derived)
            continue
        match = _PARSED.search(each.name)
        if match and match[1] in PARSING and isinstance(node.func, cst.Attribute):
            yield from _parsed(site, subclasses, node.func.value, int(match[2]))


def _parsed(
    site: Site, subclasses: dict[cst.ClassDef, str], parser: cst.BaseExpression, index: int
) -> Iterator[Source]:
    """The class of which a parser fills the object at an index."""
    for each in site.flow.origin_of(parser).producers:
        if not isinstance(each.node, cst.Call) or each.name not in PARSERS | NATIVE_PARSERS:
            continue
        classes = parser_classes(site, each.node)
        if index >= len(classes):
            continue
        name, owner, derived = legacy_class(site, subclasses, classes[index])
        if name in ARGUMENTS:
            yield Source(name, parsed=classes[index], owner=owner, derived=derived)


def parser_classes(site: Site, call: cst.Call) -> list[cst.BaseExpression]:
    """The classes that a parser is made for, in their order."""
    given = next(
        (arg.value for arg in call.args if arg.keyword is None or arg.keyword.value == "dataclass_types"),
        None,
    )
    if given is None:
        return []
    if isinstance(given, cst.Name) and local_class(site, given) is None:
        made = site.flow.origin_of(given).producers
        inner = made[0].node if len(made) == 1 else None
        given = inner if isinstance(inner, (cst.Tuple, cst.List)) else given
    if isinstance(given, (cst.Tuple, cst.List)):
        return [each.value for each in given.elements]
    return [given]


def is_parsed(site: Site, node: cst.CSTNode) -> bool:
    """Whether a class is given to a parser that fills it."""
    for around in site.ancestors(node):
        if isinstance(around, cst.Call):
            called = site.name_of(around.func)
            return called in PARSERS or called in NATIVE_PARSERS
        if isinstance(around, (cst.Assign, cst.AnnAssign)):
            value = around.value
            return value is not None and any(
                isinstance(site.parent(use.node), cst.Arg)
                and isinstance(call := site.parent(site.parent(use.node) or use.node), cst.Call)
                and (site.name_of(call.func) in PARSERS or site.name_of(call.func) in NATIVE_PARSERS)
                for use in site.flow.uses_of(value).uses
            )
        if isinstance(around, cst.BaseSmallStatement):
            return False
    return False


def reads_of(site: Site, unit: Unit, attribute: str) -> Iterator[tuple[cst.Attribute, tuple[Source, ...]]]:
    """The places where a setting is read of an object of training arguments, with what made that."""
    for node in site.nodes(cst.Attribute):
        if node.attr.value == attribute and dotted_name(node.value):
            sources = unit.sources(node.value)
            if sources:
                yield node, sources


def is_known(site: Site, load: cst.Call) -> bool:
    """Whether a load is one of Transformers or of Optimum Neuron, so that it can be given its share."""
    name = site.name_of(load.func) or ""
    return name.startswith("transformers.") or catalogue.is_legacy(name)


def resumed(unit: Unit, training: Training) -> cst.Call | None:
    """The call of a trainer's `train` that goes on from a checkpoint."""
    site = unit.site
    for use in site.flow.uses_of(training.made or training.call).uses:
        func = site.parent(use.node)
        call = site.parent(func) if isinstance(func, cst.Attribute) else None
        if isinstance(func, cst.Attribute) and func.attr.value == "train" and isinstance(call, cst.Call):
            given = edits.arguments(call, ("resume_from_checkpoint",)).value("resume_from_checkpoint")
            if given is not None and edits.code_of(given) not in ("None", "False"):
                return call
    return None
