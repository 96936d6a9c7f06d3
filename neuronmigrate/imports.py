"""Settles the imports once all edits stand: legacy ones that nothing uses go, needed ones come.

A new import takes the place of the legacy import it follows from, so that it stays local to a
function, inside an `if`, or behind the environment variables that a script sets on purpose.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import permutations

import libcst as cst
import libcst.matchers as m

from neuronmigrate import catalogue, edits
from neuronmigrate.apply import apply
from neuronmigrate.edits import Statement
from neuronmigrate.names import Binding, Names, Scope, ScopeKind
from neuronmigrate.site import Fresh, Ref

# Modules that are imported whole, and the alias under which they are customary.
WHOLE = {
    **{"os": "", "sys": "", "time": "", "torch": "", "torch.distributed": "dist"},
    "torch.distributed.checkpoint": "dcp",
}
_TOOL_COMMENTS = ("noqa", "type:", "isort:", "pylint:", "pyright:", "ruff:")


def _is_apart(module: str, inside: Sequence[str]) -> bool:
    """Whether a package of torch.distributed is meant, such as `.fsdp`, which is not loaded with it."""
    parts = [*module.split("."), *inside]
    if parts[:2] != ["torch", "distributed"]:
        return False
    return (module == "torch" and len(parts) > 2) or (len(inside) > 1 and inside[0].islower())


@dataclass(frozen=True)
class Wanted:
    """An import to be added: `import module as local`, or `from module import name as local`."""

    module: str
    name: str
    local: str

    @property
    def target(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module

    @property
    def plain(self) -> bool:
        """Whether it is `import a.b` without an alias."""
        return not self.name and self.local == self.module.partition(".")[0]

    @property
    def text(self) -> str:
        """What the target is called once it is imported."""
        return self.module if self.plain else self.local

    def statement(self) -> str:
        """The import as a line of its own."""
        if self.name:
            alias = "" if self.local == self.name else f" as {self.local}"
            return f"from {self.module} import {self.name}{alias}"
        return f"import {self.module}" + ("" if self.plain else f" as {self.local}")


@dataclass(eq=False)
class Slot:
    """A place for new imports: beside one statement, or at the start of the module."""

    block: cst.CSTNode
    at: Statement | None
    replaces: bool
    """Whether the statement is the legacy import whose place they take."""
    wanted: list[Wanted] = field(default_factory=list)


@dataclass(frozen=True)
class Settled:
    """The tree with its imports settled."""

    tree: cst.Module
    removed: frozenset[cst.CSTNode]
    """The import aliases that are gone."""
    emitted: tuple[str, ...]
    """Qualified names that new code refers to, imports included."""
    touched: tuple[cst.CSTNode, ...]
    """Import aliases and `try` statements of lines that changed."""
    instead: dict[str, set[str]]
    """New local names, and the local names of the legacy imports whose place each took."""


class Settler:
    """Settles the imports of one tree with references still open."""

    def __init__(
        self,
        tree: cst.Module,
        names: Names,
        refs: dict[str, Ref],
        fresh: dict[str, Fresh],
        is_legacy: Callable[[Binding], bool],
        removable: Callable[[Binding], bool],
    ) -> None:
        self.tree = tree
        self.names = names
        self.refs = refs
        self.fresh = fresh
        self.going = {
            binding.node: binding
            for binding in names.imports
            if is_legacy(binding) and removable(binding) and not self._survives(binding)
        }
        for alias in [alias for alias in self.going if self._half_guarded(alias)]:
            del self.going[alias]
        self.slots: list[Slot] = []
        self.plan: dict[cst.CSTNode, cst.BaseExpression] = {}
        self.quoted: dict[cst.CSTNode, dict[str, cst.BaseExpression]] = {}
        """What stands for the references inside strings that hold types."""
        self.emitted: list[str] = []
        self.touched: list[cst.CSTNode] = []
        self.instead: dict[str, set[str]] = {}
        self.taken_over: set[cst.CSTNode] = set()
        """Imports of the user's that one above them makes needless."""

    def settle(self) -> Settled:
        """Choose local names, write the imports and take the legacy ones away."""
        self._settle_refs()
        self._settle_fresh()
        changes: list[edits.Edit] = [edits.Replace(old, new) for old, new in self.plan.items()]
        changes += [edits.Replace(old, _unquoted(old, found)) for old, found in self.quoted.items()]
        changes += self._import_edits()
        tree = apply(self.tree, self.names.parent, changes, {}, {}, self._knows)
        return Settled(
            tree,
            frozenset(self.going.keys() - self.taken_over),
            tuple(dict.fromkeys(self.emitted)),
            tuple(self.touched),
            self.instead,
        )

    def _knows(self, node: cst.CSTNode) -> bool:
        return node is self.tree or self.names.parent(node) is not None

    def _statement(self, node: cst.CSTNode) -> Statement:
        found = self.names.statement(node)
        assert found is not None
        return found

    # References

    def _settle_refs(self) -> None:
        places: list[tuple[str, cst.CSTNode]] = [
            (token, node) for token in self.refs for node in self.names.loads(token)
        ]
        for string in self.names.annotation_strings():
            text = edits.code_of(string.node)
            places += [(token, string.node) for token in self.refs if token in text]
        chosen: dict[tuple[str, str, bool, cst.CSTNode | None], list[tuple[str, cst.CSTNode]]] = {}
        for token, node in places:
            ref = self.refs[token]
            anchor = ref.anchor.node if ref.anchor is not None else None
            chosen.setdefault((ref.target, ref.local, ref.module_form, anchor), []).append((token, node))
        # References that share a target and a place share the import; the outermost places come first,
        # so that a function can use what the module already brings.
        for key in sorted(chosen, key=lambda key: self._depth(key[3])):
            self._settle_one(self.refs[chosen[key][0][0]], chosen[key])

    def _settle_one(self, ref: Ref, places: Sequence[tuple[str, cst.CSTNode]]) -> None:
        wanted, rest = self._form(ref)
        self.emitted.append(ref.target)
        by_slot: dict[int, list[tuple[str, cst.CSTNode]]] = {}
        for token, node in places:
            found = self._existing(ref, wanted, rest, node)
            if found is None:
                found = self._planned(wanted, rest, node)
                if found is not None and ref.anchor is not None:
                    self._took_place(edits.code_of(found).partition(".")[0], ref.anchor)
            if found is not None:
                self._put(token, node, found)
            else:
                by_slot.setdefault(self.slots.index(self._slot(ref, node)), []).append((token, node))
        for index, users in self._shared(by_slot).items():
            slot = self.slots[index]
            nodes = [node for _, node in users]
            final, attributes = wanted, rest
            if wanted.name and not self._can_bind(wanted, slot, nodes):
                # The name means something else here: reach it through its module.
                final = Wanted(wanted.module, "", wanted.module.partition(".")[0])
                attributes = f"{wanted.name}.{rest}".rstrip(".")
                users = self._through_planned(final, attributes, users)
                if not users:
                    continue
            final = Wanted(final.module, final.name, self._free_name(final, slot, nodes))
            slot = self._uppermost(final, slot)
            if final not in slot.wanted:
                slot.wanted.append(final)
            self._take_over(final, slot, nodes)
            if slot.replaces and ref.anchor is not None:
                self._took_place(final.local, ref.anchor)
            for token, node in users:
                self._put(token, node, _chain(final.text, attributes))

    def _took_place(self, new: str, old: Binding) -> None:
        self.instead.setdefault(new, set()).add(old.name)

    def _uppermost(self, wanted: Wanted, slot: Slot) -> Slot:
        """The slot of a block where an import is to stand that another legacy import has asked for too."""
        for each in self.slots:
            if each is not slot and each.block is slot.block and wanted in each.wanted:
                if self._height(self.slots.index(each)) <= self._height(self.slots.index(slot)):
                    return each
                each.wanted.remove(wanted)
        return slot

    def _through_planned(
        self, wanted: Wanted, rest: str, users: list[tuple[str, cst.CSTNode]]
    ) -> list[tuple[str, cst.CSTNode]]:
        """Let users reach a module through an import that another target adds; gives those that cannot."""
        left = []
        for token, node in users:
            found = self._planned(wanted, rest, node)
            if found is None:
                left.append((token, node))
            else:
                self._put(token, node, found)
        return left

    def _take_over(self, wanted: Wanted, slot: Slot, users: Iterable[cst.CSTNode]) -> None:
        """Let later imports of the same thing go: they would make the name a local one, or bind it twice.

        One in another branch stays: where that runs, the new import does not.
        """
        home = self._slot_scope(slot)
        start = self.names.order_of(slot.at) if slot.at is not None else -1
        for user in users:
            start_scope: Scope | None = self.names.scope(user)
            scope = start_scope
            while scope is not None:
                seen = scope is start_scope or scope.kind is not ScopeKind.CLASS
                for binding in scope.bindings.get(wanted.local, ()) if seen else ():
                    later = scope is not home or self.names.order_of(binding.node) > start
                    below = self._statement_in(slot.block, binding.node) is not None
                    if binding.target == wanted.target and later and below and binding.node not in self.going:
                        self.going[binding.node] = binding
                        self.taken_over.add(binding.node)
                scope = None if scope is home else scope.parent

    def _shared(
        self, by_slot: dict[int, list[tuple[str, cst.CSTNode]]]
    ) -> dict[int, list[tuple[str, cst.CSTNode]]]:
        """Users of one block share the uppermost of their slots: it stands above all of them."""
        shared: dict[int, list[tuple[str, cst.CSTNode]]] = {}
        for index in sorted(by_slot, key=self._height):
            block = self.slots[index].block
            upper = next((each for each in shared if self.slots[each].block is block), index)
            shared.setdefault(upper, []).extend(by_slot[index])
        return shared

    def _height(self, index: int) -> int:
        slot = self.slots[index]
        return -1 if slot.at is None else list(getattr(slot.block, "body", ())).index(slot.at)

    def _put(self, token: str, node: cst.CSTNode, found: cst.BaseExpression) -> None:
        if isinstance(node, cst.Name):
            self.plan[node] = found
        else:
            self.quoted.setdefault(node, {})[token] = found

    def _planned(self, wanted: Wanted, rest: str, node: cst.CSTNode) -> cst.BaseExpression | None:
        """An expression for the target through an import that is to be added anyway."""
        for slot in self.slots:
            for item in slot.wanted:
                if item.target != wanted.target or (item.name and item.local != wanted.local):
                    continue
                inside = self._statement_in(slot.block, node)
                if inside is None:
                    continue
                body = getattr(slot.block, "body", ())
                if slot.at is not None and body.index(slot.at) > body.index(inside):
                    continue
                if self._is_free(item.local, item.target, self._slot_scope(slot), node):
                    return _chain(item.text, rest)
        return None

    def _slot_scope(self, slot: Slot) -> Scope:
        return self.names.scope(slot.at if slot.at is not None else self.tree)

    def _can_bind(self, wanted: Wanted, slot: Slot, users: Sequence[cst.CSTNode]) -> bool:
        scope = self._slot_scope(slot)
        return all(self._is_free(wanted.local, wanted.target, scope, user) for user in users)

    def _form(self, ref: Ref) -> tuple[Wanted, str]:
        """The import for a target, and the attributes that follow the imported name."""
        parts = ref.target.split(".")
        for length in range(len(parts), 0, -1):
            module, inside = ".".join(parts[:length]), parts[length:]
            if module in WHOLE and not ref.local and not _is_apart(module, inside):
                local = WHOLE[module] or parts[0]
                return Wanted(module, "", local), ".".join(inside)
        # The first capitalised part is the class; a function is the last part.
        cut = next((index for index, part in enumerate(parts) if part[:1].isupper()), len(parts) - 1)
        module, name, rest = ".".join(parts[:cut]), parts[cut], ".".join(parts[cut + 1 :])
        if ref.module_form:
            return Wanted(module, "", module.partition(".")[0]), ".".join(parts[cut:])
        return Wanted(module, name, ref.local or name), rest

    def _existing(self, ref: Ref, wanted: Wanted, rest: str, node: cst.CSTNode) -> cst.BaseExpression | None:
        """An expression for the target through an import that the file has already."""
        best: tuple[int, cst.BaseExpression] | None = None
        for binding in self.names.imports:
            alias = binding.node
            if alias in self.going or not isinstance(alias, cst.ImportAlias):
                continue
            if ref.local and binding.name != ref.local:
                continue
            found = self._through_import(alias, binding, ref, wanted, rest)
            if found is None or not self._reaches(binding, node, ref.anchor):
                continue
            score, text, attributes = found
            if best is None or score > best[0]:
                best = (score, _chain(text, attributes))
                chosen = binding
        if best is None:
            return None
        if ref.anchor is not None and not self._always_runs(self.names.parent(self._statement(chosen.node))):
            # It is bound where the legacy import is: just as surely, and no more.
            self._took_place(chosen.name, ref.anchor)
        return best[1]

    def _through_import(
        self, alias: cst.ImportAlias, binding: Binding, ref: Ref, wanted: Wanted, rest: str
    ) -> tuple[int, str, str] | None:
        """How good an import is for a target, the name it gives, and the attributes to follow."""
        if isinstance(self.names.parent(alias), cst.Import):
            module = edits.code_of(alias.name)
            text = binding.name if alias.asname is not None else module
            if module == wanted.target:
                return 3, text, rest
            if alias.asname is None and binding.name == wanted.target:
                return 2, binding.name, rest  # `import torch.nn` binds `torch` as well
            if wanted.name and module == wanted.module and not self._has_from_import(wanted.module):
                return 1, text, f"{wanted.name}.{rest}".rstrip(".")
            return None
        if binding.target == wanted.target:
            return 4, binding.name, rest
        if not wanted.name and binding.target.startswith(wanted.module + "."):
            # `from torch.distributed import get_rank` where the module was wanted.
            after = ref.target.removeprefix(binding.target)
            if after == "" or (after != ref.target and after.startswith(".")):
                return 5, binding.name, after.lstrip(".")
        return None

    def _has_from_import(self, module: str) -> bool:
        return any(
            isinstance(parent := self.names.parent(binding.node), cst.ImportFrom)
            and parent.module is not None
            and not parent.relative
            and edits.code_of(parent.module) == module
            for binding in self.names.imports
        )

    def _reaches(self, binding: Binding, node: cst.CSTNode, anchor: Binding | None = None) -> bool:
        """Whether a name from an import means just that import at a node.

        One beside the legacy import `anchor` was bound wherever the legacy name was.
        """
        if self.names.lookup(binding.name, node) is not binding.scope:
            return False
        for other in binding.scope.bindings[binding.name]:
            if other.node in self.going or other is binding:
                continue
            if other.target != binding.target or not other.target:
                return False
        statement = self._statement(binding.node)
        block = self.names.parent(statement)
        if block is None:
            return False
        beside = (
            anchor is not None
            and self._knows(anchor.node)
            and self.names.parent(self._statement(anchor.node)) is block
            and self._sees(node, anchor)
        )
        return beside or self._precedes(block, statement, node)

    def _precedes(self, block: cst.CSTNode, statement: Statement, node: cst.CSTNode) -> bool:
        """Whether a statement of a block runs before a node, or can only run before it."""
        inside = self._statement_in(block, node)
        if inside is None:
            return False
        body = getattr(block, "body", ())
        return body.index(statement) <= body.index(inside)

    def _statement_in(self, block: cst.CSTNode, node: cst.CSTNode) -> cst.CSTNode | None:
        """The statement of a block that holds a node."""
        current = node
        for around in self.names.ancestors(node):
            if around is block:
                return current
            current = around
        return None

    # Places

    def _depth(self, anchor: cst.CSTNode | None) -> int:
        if anchor is None or not self._knows(anchor):
            return 0
        return sum(1 for _ in self.names.ancestors(anchor))

    def _slot(self, ref: Ref, node: cst.CSTNode) -> Slot:
        if ref.anchor is not None and self._knows(ref.anchor.node):
            # An import in a `try` may fail, and what takes its place may not: it goes above the `try`.
            statement: Statement = self._guard(ref.anchor.node) or self._statement(ref.anchor.node)
            block = self.names.parent(statement)
            module = self._form(ref)[0].module
            if _is_standard(module) or (module in WHOLE and not self._always_runs(block)):
                # What is always there need not hang on whether the legacy package was.
                return self._default_slot(node, module)
            # Where the legacy name was seen from, the new one is: it is bound in the same place.
            if isinstance(block, (cst.Module, cst.IndentedBlock)) and self._sees(node, ref.anchor):
                return self._open(Slot(block, statement, replaces=True))
        return self._default_slot(node, self._form(ref)[0].module)

    def _always_runs(self, block: cst.CSTNode | None) -> bool:
        """Whether a block is the body of the module or of a function, not of an `if` or a `try`."""
        around = self.names.parent(block) if block is not None else None
        return isinstance(block, cst.Module) or isinstance(around, cst.FunctionDef)

    def _sees(self, node: cst.CSTNode, binding: Binding) -> bool:
        here = self.names.bound_by(binding.node)
        scope: Scope | None = self.names.scope(node)
        while scope is not None:
            if here and scope is here[0].scope:
                return True
            scope = scope.parent
        return False

    def _default_slot(self, node: cst.CSTNode, module: str) -> Slot:
        """Beside the imports of the module above a node: next to its like, else after the last one."""
        limit = self._statement_in(self.tree, node)
        root = module.partition(".")[0]
        docstring: Statement | None = None
        first: Statement | None = None
        last: Statement | None = None
        alike: Statement | None = None
        for statement in self.tree.body:
            if statement is limit:
                break
            if not isinstance(statement, cst.SimpleStatementLine):
                continue
            roots = {each for small in statement.body for each in _roots(small)}
            if "__future__" in roots or (statement is self.tree.body[0] and _is_string(statement.body[0])):
                docstring = statement
            elif roots:
                first = first or statement
                last = statement
                same = root in roots or (_is_standard(root) and any(map(_is_standard, roots)))
                alike = statement if same else alike
        if alike is None and _is_standard(root) and first is not None:
            return self._open(Slot(self.tree, first, replaces=True))
        return self._open(Slot(self.tree, alike or last or docstring, replaces=False))

    def _open(self, slot: Slot) -> Slot:
        for known in self.slots:
            if known.at is slot.at and known.block is slot.block:
                return known
        self.slots.append(slot)
        return slot

    def _free_name(self, wanted: Wanted, slot: Slot, users: Iterable[cst.CSTNode]) -> str:
        scope = self._slot_scope(slot)
        candidates = [wanted.local, wanted.module.replace(".", "_")]
        candidates += [f"{wanted.local}_{number}" for number in range(2, 100)]
        for name in candidates:
            if all(self._is_free(name, wanted.target, scope, user) for user in users):
                return name
        raise AssertionError(f"no name is free for {wanted.target}")

    def _is_free(self, name: str, target: str, scope: Scope, user: cst.CSTNode) -> bool:
        """Whether a name can be bound in a scope and be read as that at a node below it."""
        first: Scope | None = self.names.scope(user)
        current = first
        while current is not None:
            seen = current is first or current.kind is not ScopeKind.CLASS
            for binding in current.bindings.get(name, ()) if seen else ():
                if binding.node not in self.going and binding.target != target:
                    return False
            if current is scope:
                return not any(
                    name == other.local and other.target != target
                    for slot in self.slots
                    for other in slot.wanted
                    if self._slot_scope(slot) is scope
                )
            current = current.parent
        return False

    def _settle_fresh(self) -> None:
        by_token: dict[str, list[cst.Name]] = {}
        declared = self._declared_global() if self.fresh else {}
        for token in self.fresh:
            bound = [each.node for each in self.names.bindings if each.name == token]
            named = [
                node.name if isinstance(node, (cst.FunctionDef, cst.ClassDef)) else node for node in bound
            ]
            nodes = [*self.names.loads(token), *(node for node in named if isinstance(node, cst.Name))]
            nodes += declared.get(token, [])
            if nodes:
                by_token[token] = nodes
        taken: set[str] = set()
        locals_wanted = {wanted.local for slot in self.slots for wanted in slot.wanted}
        for token, uses in by_token.items():
            base = self.fresh[token].name
            for name in [base, *(f"{base}_{number}" for number in range(2, 100))]:
                if name in taken or name in locals_wanted:
                    continue
                if all(self._becomes_free(name, node) for node in uses):
                    taken.add(name)
                    for node in uses:
                        self.plan[node] = cst.Name(name)
                    break

    def _becomes_free(self, name: str, at: cst.CSTNode) -> bool:
        """Whether a name means nothing once the imports that go are gone."""
        if self.names.is_free(name, at):
            return True
        bindings = self.names.module_scope.bindings.get(name, ())
        return (
            bool(bindings)
            and all(binding.node in self.going for binding in bindings)
            and self.names.lookup(name, at) is self.names.module_scope
        )

    def _declared_global(self) -> dict[str, list[cst.Name]]:
        """The names in `global` statements."""
        found: dict[str, list[cst.Name]] = {}
        for statement in m.findall(self.tree, m.Global()):
            assert isinstance(statement, cst.Global)
            for item in statement.names:
                found.setdefault(item.name.value, []).append(item.name)
        return found

    # Import statements

    def _survives(self, binding: Binding) -> bool:
        """Whether anything still uses a legacy import."""
        alias = binding.node
        assert isinstance(alias, cst.ImportAlias)
        references = self.names.references(binding)
        if any(binding in string.bindings for string in self.names.annotation_strings()):
            return True
        if isinstance(self.names.parent(alias), cst.Import) and alias.asname is None:
            # `import a.b` binds `a`; what goes through `a` to somewhere else has its own import.
            dotted = edits.code_of(alias.name)
            return any(
                self._through(node, dotted) or self.names.bindings_at(node) == (binding,)
                for node in references
            )
        return bool(references)

    def _through(self, node: cst.Name, dotted: str) -> bool:
        chain: cst.BaseExpression = node
        text = node.value
        parent = self.names.parent(chain)
        while isinstance(parent, cst.Attribute) and parent.value is chain:
            chain, text = parent, f"{text}.{parent.attr.value}"
            parent = self.names.parent(chain)
        return text == dotted or text.startswith(dotted + ".") or dotted.startswith(text + ".")

    def _import_edits(self) -> list[edits.Edit]:
        result: list[edits.Edit] = []
        gone: dict[cst.CSTNode, list[cst.CSTNode]] = {}
        for alias in self.going:
            statement = self.names.parent(alias)
            assert statement is not None
            gone.setdefault(statement, []).append(alias)
        guards = self._emptied_guards(gone)
        for guard in guards:
            self.touched.append(guard)
            for small in _smalls(guard.body):
                self.touched += gone.pop(small, [])
        for small, wanted in self._merge().items():
            assert not isinstance(small.names, cst.ImportStar)
            self.touched += small.names
            result.append(edits.Replace(small, _with_names(small, gone.pop(small, []), wanted)))
        self._gather(gone)
        for slot in self.slots:
            new = self._lines(slot.wanted)
            at = slot.at if slot.at is not None else next(iter(self.tree.body), None)
            if not new or not isinstance(at, Statement):
                continue
            smalls = at.body if isinstance(at, cst.SimpleStatementLine) else ()
            whole = [
                small
                for small in smalls
                if isinstance(small, (cst.Import, cst.ImportFrom))
                and small in gone
                and self._all_go(small, gone)
            ]
            if isinstance(slot.at, cst.Try) and slot.at in guards:
                guards.remove(slot.at)
                result.append(edits.ReplaceStatement(slot.at, new))
            elif slot.replaces and whole:
                self.touched += gone.pop(whole[0])
                result.append(edits.ReplaceStatement(whole[0], new))
            else:
                result.append(edits.Insert(at, new, before=slot.replaces or slot.at is None))
        result += [edits.ReplaceStatement(guard) for guard in guards]
        for small, aliases in gone.items():
            assert isinstance(small, (cst.Import, cst.ImportFrom))
            assert not isinstance(small.names, cst.ImportStar)
            self.touched += small.names
            if self._all_go(small, gone):
                result.append(edits.ReplaceStatement(small))
            else:
                result.append(edits.Replace(small, _with_names(small, aliases, [])))
        return result

    @staticmethod
    def _all_go(small: cst.Import | cst.ImportFrom, gone: dict[cst.CSTNode, list[cst.CSTNode]]) -> bool:
        return not isinstance(small.names, cst.ImportStar) and len(gone[small]) == len(small.names)

    def _guard(self, alias: cst.CSTNode) -> cst.Try | None:
        """The `try` that an import is guarded by."""
        block = self.names.parent(self._statement(alias))
        guard = self.names.parent(block) if block is not None else None
        return guard if isinstance(guard, cst.Try) and guard.body is block else None

    def _half_guarded(self, alias: cst.CSTNode) -> bool:
        """Whether an import cannot go because the `try` around it cannot go as a whole."""
        guard = self._guard(alias)
        if guard is None:
            return False
        if not guarded_try(guard):
            return not gives_up(self.names, guard)
        for small in _smalls(guard.body):
            assert isinstance(small, (cst.Import, cst.ImportFrom))
            assert not isinstance(small.names, cst.ImportStar)
            for other in small.names:
                for binding in self.names.bound_by(other):
                    rivals = binding.scope.bindings[binding.name]
                    if other not in self.going or any(self.names.references(each) for each in rivals):
                        return True
        return False

    def _emptied_guards(self, gone: dict[cst.CSTNode, list[cst.CSTNode]]) -> list[cst.Try]:
        """The `try` statements that only guarded legacy imports which all go."""
        guards = {guard for small in gone if (guard := self._guard(small)) is not None}
        return [
            guard
            for guard in guards
            if guarded_try(guard)
            and all(
                isinstance(small, (cst.Import, cst.ImportFrom))
                and small in gone
                and self._all_go(small, gone)
                for small in _smalls(guard.body)
            )
        ]

    def _merge(self) -> dict[cst.ImportFrom, list[Wanted]]:
        """Names that join a `from` import of the same module and block, taken out of their slots."""
        merged: dict[cst.ImportFrom, list[Wanted]] = {}
        for slot in self.slots:
            for wanted in list(slot.wanted):
                home = self._home(slot, wanted)
                if home is not None:
                    slot.wanted.remove(wanted)
                    merged.setdefault(home, []).append(wanted)
        return merged

    def _gather(self, gone: Collection[cst.CSTNode]) -> None:
        """Let places among the same imports share one.

        All names move up where only legacy imports that go stand between; else those of a module that the
        upper place imports from as well.
        """
        for first, second in permutations(self.slots, 2):
            between = self._between(first, second)
            if not first.wanted or not all(
                isinstance(each, (cst.Import, cst.ImportFrom)) for each in between
            ):
                continue
            modules = {wanted.module for wanted in first.wanted if wanted.name}
            alone = all(small in gone for small in between)
            joining = [
                wanted for wanted in second.wanted if alone or (wanted.name and wanted.module in modules)
            ]
            first.wanted += joining
            second.wanted = [wanted for wanted in second.wanted if wanted not in joining]

    @staticmethod
    def _between(first: Slot, second: Slot) -> Sequence[cst.CSTNode | None]:
        """The small statements from one place down to another; None for a block, or for no way down."""
        body = getattr(first.block, "body", ())
        if first.block is not second.block or first.at not in body or second.at not in body:
            return [None]
        start, stop = body.index(first.at), body.index(second.at)
        return [
            small
            for statement in body[start : stop + 1]
            for small in (statement.body if isinstance(statement, cst.SimpleStatementLine) else [None])
        ] or [None]

    def _home(self, slot: Slot, wanted: Wanted) -> cst.ImportFrom | None:
        if not wanted.name:
            return None
        body = getattr(slot.block, "body", ())
        limit = body.index(slot.at) if slot.at is not None else 0
        for index, statement in enumerate(body):
            if not isinstance(statement, cst.SimpleStatementLine):
                if index > limit:
                    return None
                continue
            for small in statement.body:
                if (
                    isinstance(small, cst.ImportFrom)
                    and small.module is not None
                    and not small.relative
                    and not isinstance(small.names, cst.ImportStar)
                    and edits.code_of(small.module) == wanted.module
                ):
                    return small
                if index > limit and not isinstance(small, (cst.Import, cst.ImportFrom)):
                    # Code between here and a later import may need the name already.
                    return None
        return None

    def _lines(self, wanted: Sequence[Wanted]) -> list[Statement]:
        whole = sorted(item.statement() for item in wanted if not item.name)
        by_module: dict[str, list[str]] = {}
        for item in sorted(wanted, key=lambda item: item.name):
            if item.name:
                text = item.statement().partition(" import ")[2]
                by_module.setdefault(item.module, []).append(text)
        lines = whole + [
            f"from {module} import {', '.join(by_module[module])}" for module in sorted(by_module)
        ]
        standard = [line for line in lines if _is_standard(line.split()[1])]
        others = [line for line in lines if line not in standard]
        new: list[Statement] = []
        for line in [*standard, *others]:
            new.extend(edits.statements(line + "\n", self.tree))
        if standard and others:
            first = new[len(standard)]
            new[len(standard)] = first.with_changes(leading_lines=[cst.EmptyLine(indent=False)])
        return new


def _roots(small: cst.BaseSmallStatement) -> list[str]:
    """The packages that an import statement names; nothing for another statement."""
    if isinstance(small, cst.ImportFrom):
        return (
            [edits.code_of(small.module).partition(".")[0]] if small.module and not small.relative else ["."]
        )
    if isinstance(small, cst.Import):
        return [edits.code_of(alias.name).partition(".")[0] for alias in small.names]
    return []


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names


def _is_string(small: cst.BaseSmallStatement) -> bool:
    return isinstance(small, cst.Expr) and isinstance(small.value, (cst.SimpleString, cst.ConcatenatedString))


def imported_name(binding: Binding) -> str:
    """The qualified name that an import statement asks for; `import a.b` asks for `a.b`, and binds `a`."""
    if binding.dotted and isinstance(binding.node, cst.ImportAlias):
        return edits.code_of(binding.node.name)
    return binding.target


def guarded_try(node: cst.Try) -> bool:
    """Whether a `try` does nothing but import, and give the names a value when that fails."""
    if node.orelse is not None or node.finalbody is not None or not node.handlers:
        return False
    imports = _smalls(node.body)
    names = set()
    for small in imports:
        if not isinstance(small, (cst.Import, cst.ImportFrom)) or isinstance(small.names, cst.ImportStar):
            return False
        for alias in small.names:
            name = alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
            names.add(name)
    return all(
        isinstance(small, cst.Pass)
        or (
            isinstance(small, cst.Assign)
            and edits.is_pure(small.value)
            and all(
                isinstance(each.target, cst.Name) and each.target.value in names for each in small.targets
            )
        )
        for handler in node.handlers
        for small in _smalls(handler.body)
    )


def gives_up(names: Names, guard: cst.Try) -> bool:
    """Whether a `try` with more in it than legacy imports ends what runs here when one of them fails."""
    if all(_is_legacy_import(names, small) for small in _smalls(guard.body)):
        return False
    return bool(guard.handlers) and all(_leaves(names, handler.body) for handler in guard.handlers)


def _is_legacy_import(names: Names, small: cst.CSTNode) -> bool:
    if not isinstance(small, (cst.Import, cst.ImportFrom)) or isinstance(small.names, cst.ImportStar):
        return False
    bindings = [binding for alias in small.names for binding in names.bound_by(alias)]
    return all(catalogue.is_legacy(imported_name(binding)) for binding in bindings)


def _leaves(names: Names, block: cst.BaseSuite) -> bool:
    """Whether a block ends the function or the program."""
    smalls = list(_smalls(block))
    small = smalls[-1] if smalls else None
    if isinstance(small, (cst.Return, cst.Raise)):
        return True
    call = small.value if isinstance(small, cst.Expr) else None
    return isinstance(call, cst.Call) and names.name_of(call.func) in (
        "builtins.exit",
        "os._exit",
        "sys.exit",
    )


def _closing(
    own: cst.Comma | cst.MaybeSentinel, last: cst.Comma | cst.MaybeSentinel
) -> cst.Comma | cst.MaybeSentinel:
    """The comma after a name that becomes the last one: its own comment, the layout of the old last one."""
    if not isinstance(own, cst.Comma) or not isinstance(last, cst.Comma):
        return last
    mine, end = own.whitespace_after, last.whitespace_after
    if isinstance(mine, cst.ParenthesizedWhitespace) and isinstance(end, cst.ParenthesizedWhitespace):
        line = end.first_line.with_changes(
            comment=mine.first_line.comment, whitespace=mine.first_line.whitespace
        )
        return last.with_changes(whitespace_after=end.with_changes(first_line=line))
    return last


def _unquoted(string: cst.CSTNode, found: dict[str, cst.BaseExpression]) -> cst.BaseExpression:
    """A string that holds a type, with its references settled."""
    text = edits.code_of(string)
    for token, expression in found.items():
        text = text.replace(token, edits.code_of(expression))
    return cst.parse_expression(text)


def _smalls(suite: cst.BaseSuite) -> list[cst.CSTNode]:
    """The small statements of a block; a compound one stands for itself."""
    found: list[cst.CSTNode] = []
    for statement in suite.body:
        found.extend(statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement])
    return found


def _chain(text: str, rest: str) -> cst.BaseExpression:
    node: cst.BaseExpression = cst.parse_expression(text)
    for part in rest.split(".") if rest else ():
        node = cst.Attribute(node, cst.Name(part))
    return node


def _with_names(
    small: cst.Import | cst.ImportFrom, gone: Sequence[cst.CSTNode], wanted: Sequence[Wanted]
) -> cst.Import | cst.ImportFrom:
    """The import statement with some names taken away and others added, layout kept."""
    assert not isinstance(small.names, cst.ImportStar)
    old = list(small.names)
    kept = [alias for alias in old if alias not in gone]
    present = {edits.code_of(alias.name) for alias in kept if alias.asname is None}
    names = [edits.code_of(alias.name) for alias in kept]
    is_sorted = names == sorted(names)
    separators = [alias.comma for alias in old[:-1] if isinstance(alias.comma, cst.Comma)]
    between = separators[0] if separators else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    plain = between.with_changes(whitespace_after=edits.without_comment(between.whitespace_after))
    for item in wanted:
        if item.name in present and item.local == item.name:
            continue
        alias = cst.ImportAlias(cst.Name(item.name))
        if item.local != item.name:
            alias = alias.with_changes(asname=cst.AsName(cst.Name(item.local)))
        position = len(kept)
        if is_sorted:
            position = sum(edits.code_of(other.name) < item.name for other in kept)
        kept.insert(position, alias)
    last = old[-1].comma
    result = []
    for index, alias in enumerate(kept):
        if index + 1 == len(kept):
            result.append(alias.with_changes(comma=_closing(alias.comma, last)))
        elif alias in old[:-1] and isinstance(alias.comma, cst.Comma):
            result.append(alias)
        else:
            result.append(alias.with_changes(comma=plain))
    return small.with_changes(names=result)
