"""What a module tells the others of its project about its values.

It is asked again when the others have told something new, until nothing new comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import libcst as cst

from neuronmigrate.facts import CallFacts, ClassFacts, ModuleFacts, Outside, Producer
from neuronmigrate.names import AttributeStore, Binding, Kind, Names, Path
from neuronmigrate.origins import PROPERTIES, Backward, Source, Trail, is_decorated, literal_key

_PlacedAt = Callable[[cst.CSTNode], str]


def module_facts(
    names: Names,
    flow: Backward,
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
        self, names: Names, flow: Backward, place: _PlacedAt, project: Callable[[str], bool] | None
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
            value = self.shape(partial(self.flow.result_of, function))
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
            attributes=frozenset(self.attributes()),
        )

    def shape(self, ask: Callable[[Path], Trail], depth: int = 2, path: Path = ()) -> Outside:
        trail = self.flow.ask(lambda: ask(path))
        producers: dict[Producer, None] = {}
        keys: dict[int | str, None] = {}
        for each in trail.sources:
            at = self.place(each.node) if each.node is not None else each.place
            producers[Producer(each.name, None, at, each.called)] = None
            if isinstance(each.node, (cst.Tuple, cst.List)):
                keys.update(dict.fromkeys(range(len(each.node.elements))))
            elif isinstance(each.node, cst.Dict):
                for element in each.node.elements:
                    key = literal_key(element.key) if isinstance(element, cst.DictElement) else None
                    if key is not None:
                        keys[key] = None
        parts: tuple[tuple[int | str, Outside], ...] = ()
        if depth and len(keys) <= 20:
            parts = tuple((key, self.shape(ask, depth - 1, (*path, key))) for key in keys)
        return Outside(tuple(producers), tuple(trail.lost), parts)

    def of_expression(self, value: cst.BaseExpression) -> Outside:
        return self.shape(lambda path: self.flow.trail_of(value, path))

    def of_stores(self, stores: Sequence[Binding | AttributeStore]) -> Outside:
        def ask(path: Path) -> Trail:
            trail = Trail()
            for each in stores:
                if isinstance(each, AttributeStore):
                    trail.join(self.flow.from_stored(each, path))
                elif each.kind is not Kind.ANNOTATION_ONLY:
                    trail.join(self.flow.from_binding(each, path))
            if path:
                trail.join(self.flow.put_into([each for each in stores if isinstance(each, Binding)], path))
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
                isinstance(each.node, cst.FunctionDef) and is_decorated(each.node, PROPERTIES)
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

    def _property(self, owner: cst.ClassDef, name: str, path: Path) -> Trail:
        source = Source(self.flow.qualified_class(owner), called=True, instance=owner)
        return self.flow.from_class(source, owner, name, path)

    def calls(self) -> Iterator[CallFacts]:
        for call in self.names.calls:
            for source in self.flow.ask(partial(self.flow.trail_of, call.func, ())).sources:
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

    def attributes(self) -> Iterator[str]:
        for node in self.names.nodes(cst.Attribute):
            if not self.names.names_of(node).names:
                yield node.attr.value

    def reads(self) -> Iterator[str]:
        names = self.names
        loads = [load for binding in names.imports for load in names.references(binding)]
        if names.stars:
            loads += [
                load for load in names.nodes(cst.Name) if names.is_load(load) and not names.bindings_at(load)
            ]
        for binding in names.imports:
            yield binding.target
        for load in loads:
            chain: cst.BaseExpression = load
            around = names.parent(chain)
            while isinstance(around, cst.Attribute):
                chain, around = around, names.parent(around)
            yield from (each for each in names.names_of(chain).names if not each.startswith("builtins."))


def _telling(value: Outside) -> bool:
    """Whether there is anything to tell beyond a literal."""
    if any(_telling(part) for _, part in value.parts) or value.lost:
        return True
    return any(each.name and not each.name.startswith("builtins.") for each in value.producers)
