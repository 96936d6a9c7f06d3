"""Which names a module binds, reads, and reads too early: the ground of the proofs about names.

It works on the stdlib's `ast` and shares no code with `names.py`, because it is there to catch the
mistakes that are made through `names.py`. One pass keeps, for each scope, the set of names that are
bound on every path to here; branches copy the set and joins intersect it.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Key = tuple[str, str]
"""Dotted path of a scope, `<module>` for the module, and a name."""

NEVER = 0
"""Nothing binds the name, or nothing before the place where it is read."""
SOMETIMES = 1
"""Bound on some paths only, or perhaps by a star import."""
ALWAYS = 2

_BUILTINS = frozenset(dir(builtins)) | {
    "__annotations__",
    "__builtins__",
    "__class__",
    "__conditional_annotations__",
    "__file__",
    "__module__",
    "__path__",
    "__qualname__",
    "WindowsError",
}
_REFLECTION = frozenset({"locals", "globals", "vars", "eval", "exec", "dir"})
_LAZY_ANNOTATIONS = sys.version_info >= (3, 14)
_TRY_STAR = getattr(ast, "TryStar", ast.Try)
_TYPE_ALIAS = getattr(ast, "TypeAlias", None)


@dataclass(frozen=True)
class Weak:
    """A read that may find nothing."""

    level: int
    line: int


@dataclass
class Scan:
    """What one module's text says about its names. Lines count from 1."""

    weak: dict[Key, Weak] = field(default_factory=dict)
    """Reads that are not bound on every path; the worst one of each name in each scope."""
    unused_imports: dict[Key, int] = field(default_factory=dict)
    unread: dict[Key, int] = field(default_factory=dict)
    """Plain assignments in modules and functions whose name nothing reads."""
    uncalled: dict[Key, int] = field(default_factory=dict)
    """Functions and classes whose name nothing reads, outside of classes."""
    doubled: dict[Key, int] = field(default_factory=dict)
    """Names that are imported twice in one block."""
    bound: set[Key] = field(default_factory=set)
    """Every name bound in modules and functions."""
    roots: set[str] = field(default_factory=set)
    """Top-level packages that are imported anywhere."""


@dataclass
class _Body:
    """What a function's body tells the scopes around it; lines count from the function's own."""

    weak: list[tuple[str, str, int, int]] = field(default_factory=list)
    unused: list[tuple[str, str, int]] = field(default_factory=list)
    unread: list[tuple[str, str, int]] = field(default_factory=list)
    uncalled: list[tuple[str, str, int]] = field(default_factory=list)
    doubled: list[tuple[str, str, int]] = field(default_factory=list)
    bound: list[Key] = field(default_factory=list)
    roots: set[str] = field(default_factory=set)
    free: list[tuple[str, int, str]] = field(default_factory=list)
    globals: set[str] = field(default_factory=set)


class _Scope:
    def __init__(self, path: str, kind: str, parent: _Scope | None) -> None:
        self.path = path
        self.kind = kind
        self.parent = parent
        self.sure: set[str] | None = set()
        self.seen: set[str] = set()
        self.loads: list[tuple[str, int, int, str]] = []
        self.free: list[tuple[str, int, str]] = []
        self.read: set[str] = set()
        self.declared_global: set[str] = set()
        self.declared_nonlocal: set[str] = set()
        self.imports: dict[str, int] = {}
        self.assigned: dict[str, int] = {}
        self.defined: dict[str, int] = {}
        self.breaks: list[list[set[str] | None]] = []
        self.comprehensions: list[set[str]] = []
        self.reflects = False
        self.star = False


def _copy(names: set[str] | None) -> set[str] | None:
    return None if names is None else set(names)


def _meet(states: Iterable[set[str] | None]) -> set[str] | None:
    """Join paths; None is a path that nothing comes out of."""
    alive = [state for state in states if state is not None]
    return set.intersection(*alive) if alive else None


def _stored(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


_SKIPPED_FIELDS = frozenset({"ctx", "op", "ops", "type_comment", "kind", "conversion", "attr", "is_async"})


class Scanner:
    """Scans versions of one file; function bodies that stay the same are looked at once."""

    def __init__(self) -> None:
        self._bodies: dict[tuple[str, str, bool], _Body] = {}
        self._fields: dict[type[ast.AST], tuple[str, ...]] = {}
        self._lines: list[str] = []
        self._lazy = False
        self._block = 0
        self._imported: dict[tuple[int, str], int] = {}
        self._out = _Body()
        self._offset = 0
        self._scope = _Scope("<module>", "module", None)

    def scan(self, tree: ast.Module, text: str) -> Scan:
        """Look at a module. `text` is its source with `\\n` as the only line ending."""
        self._lines = text.split("\n")
        self._lazy = _LAZY_ANNOTATIONS or any(
            isinstance(node, ast.ImportFrom)
            and node.module == "__future__"
            and any(alias.name == "annotations" for alias in node.names)
            for node in tree.body
        )
        self._out = out = _Body()
        self._offset = 0
        self._imported = {}
        self._scope = scope = _Scope("<module>", "module", None)
        self._statements(tree.body)
        exported = _exported(tree)
        scope.read |= exported

        weak: dict[Key, Weak] = {}

        def note(path: str, name: str, level: int, line: int) -> None:
            old = weak.get((path, name))
            if old is None or level < old.level:
                weak[path, name] = Weak(level, line)

        for name, line, level, path in scope.loads:
            scope.read.add(name)
            if name not in scope.seen:
                if name in _BUILTINS:
                    continue
                level = SOMETIMES if scope.star or name in out.globals else NEVER
            elif level == NEVER and (scope.star or name in _BUILTINS):
                level = SOMETIMES
            if level < ALWAYS:
                note(path, name, level, line)
        for name, line, path in scope.free:
            scope.read.add(name)
            if name in _BUILTINS or (scope.sure is not None and name in scope.sure):
                continue
            if name in scope.seen:
                if scope.sure is not None:
                    note(path, name, SOMETIMES, line)
            else:
                note(path, name, SOMETIMES if scope.star or name in out.globals else NEVER, line)
        for path, name, level, line in out.weak:
            note(path, name, level, line)
        for name in exported - scope.seen - out.globals:
            note("__all__", name, SOMETIMES if scope.star else NEVER, 1)
        scope.read |= out.globals
        self._close_module(scope)
        return Scan(
            weak=weak,
            unused_imports={(path, name): line for path, name, line in out.unused},
            unread={(path, name): line for path, name, line in out.unread},
            uncalled={(path, name): line for path, name, line in out.uncalled},
            doubled={(path, name): line for path, name, line in out.doubled},
            bound=set(out.bound) | {("<module>", name) for name in scope.seen},
            roots=out.roots,
        )

    def _close_module(self, scope: _Scope) -> None:
        out = self._out
        out.unused += [
            (scope.path, name, line) for name, line in scope.imports.items() if name not in scope.read
        ]
        if not scope.reflects:
            out.unread += [
                (scope.path, name, line) for name, line in scope.assigned.items() if name not in scope.read
            ]
        out.uncalled += [
            (scope.path, name, line) for name, line in scope.defined.items() if name not in scope.read
        ]

    # Binding and reading

    def _bind(self, name: str) -> None:
        scope = self._scope
        if name in scope.declared_global:
            self._out.globals.add(name)
        scope.seen.add(name)
        if scope.sure is not None:
            scope.sure.add(name)

    def _load(self, name: str, line: int) -> None:
        scope = self._scope
        for names in scope.comprehensions:
            if name in names:
                return
        line -= self._offset
        path = scope.path
        while scope.kind == "class":
            if scope.sure is None or name in scope.sure:
                return
            assert scope.parent is not None
            scope = scope.parent
            if any(name in names for names in scope.comprehensions):
                return
        if name in scope.declared_global or name in scope.declared_nonlocal:
            scope.free.append((name, line, path))
            return
        if name in _REFLECTION:
            scope.reflects = True
        if scope.sure is None or name in scope.sure:
            level = ALWAYS
        else:
            level = SOMETIMES if name in scope.seen else NEVER
        scope.loads.append((name, line, level, path))

    def _load_later(self, name: str, line: int) -> None:
        """A read that happens after the scope has run, as in an annotation."""
        scope = self._scope
        for names in scope.comprehensions:
            if name in names:
                return
        scope.free.append((name, line - self._offset, scope.path))

    def _target(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._bind(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._target(element)
        elif isinstance(target, ast.Starred):
            self._target(target.value)
        else:
            self._expression(target)

    # Expressions

    def _expression(self, node: ast.AST | None) -> None:
        if node is None:
            return
        kind = type(node)
        if kind is ast.Name:
            assert isinstance(node, ast.Name)
            self._load(node.id, node.lineno)
            return
        if kind is ast.Constant:
            return
        if isinstance(node, ast.BinOp):
            # Long chains of `+` lean to the left; a loop keeps them off the stack.
            rights = []
            left: ast.expr = node
            while isinstance(left, ast.BinOp):
                rights.append(left.right)
                left = left.left
            self._expression(left)
            for right in reversed(rights):
                self._expression(right)
            return
        if isinstance(node, ast.NamedExpr):
            self._expression(node.value)
            self._bind(node.target.id)
            return
        if isinstance(node, ast.Lambda):
            self._arguments(node.args, annotations=False)
            self._function("<lambda>", node.args, [node.body], (), node.lineno, None)
            return
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            self._comprehension(node.generators, (node.elt,))
            return
        if isinstance(node, ast.DictComp):
            self._comprehension(node.generators, (node.key, node.value))
            return
        fields = self._fields.get(kind)
        if fields is None:
            fields = tuple(name for name in kind._fields if name not in _SKIPPED_FIELDS)
            self._fields[kind] = fields
        for name in fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        self._expression(item)
            elif isinstance(value, ast.AST):
                self._expression(value)

    def _comprehension(self, generators: Sequence[ast.comprehension], values: Iterable[ast.expr]) -> None:
        scope = self._scope
        self._expression(generators[0].iter)
        names: set[str] = set()
        for generator in generators:
            names |= _stored(generator.target)
        scope.comprehensions.append(names)
        for index, generator in enumerate(generators):
            if index:
                self._expression(generator.iter)
            for test in generator.ifs:
                self._expression(test)
        for value in values:
            self._expression(value)
        scope.comprehensions.pop()

    def _annotation(self, node: ast.expr | None, *, later: bool) -> None:
        """Read an annotation; what stands in quotes is read later in any case."""
        if node is None:
            return
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str):
                try:
                    inner = ast.parse(node.value.strip(), mode="eval").body
                except (SyntaxError, ValueError):
                    return
                for name in ast.walk(inner):
                    if isinstance(name, ast.Name):
                        self._load_later(name.id, node.lineno)
            return
        if isinstance(node, ast.Name):
            (self._load_later if later else self._load)(node.id, node.lineno)
            return
        if isinstance(node, ast.Subscript):
            self._annotation(node.value, later=later)
            base = node.value.attr if isinstance(node.value, ast.Attribute) else ""
            base = node.value.id if isinstance(node.value, ast.Name) else base
            if base == "Literal":
                return
            inner_nodes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            for index, element in enumerate(inner_nodes):
                if base == "Annotated" and index and isinstance(element, ast.Constant):
                    continue
                self._annotation(element, later=later)
            return
        if isinstance(node, (ast.BinOp, ast.Attribute, ast.List, ast.Tuple, ast.Starred)):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self._annotation(child, later=later)
            return
        if later:
            for child in ast.walk(node):
                if isinstance(child, ast.Name):
                    self._load_later(child.id, child.lineno)
        else:
            self._expression(node)

    # Functions and classes

    def _arguments(self, arguments: ast.arguments, *, annotations: bool) -> None:
        for default in arguments.defaults:
            self._expression(default)
        for keyword_default in arguments.kw_defaults:
            self._expression(keyword_default)
        if annotations:
            for argument in _parameters(arguments):
                self._annotation(argument.annotation, later=self._lazy)

    def _function(
        self,
        name: str,
        arguments: ast.arguments,
        body: Sequence[ast.AST],
        type_parameters: Sequence[ast.AST],
        line: int,
        end: int | None,
    ) -> None:
        outer, out, offset = self._scope, self._out, self._offset
        path = name if outer.path == "<module>" else f"{outer.path}.{name}"
        text = "" if end is None else "\n".join(self._lines[line - 1 : end])
        cache = (path, text, self._lazy)
        told = self._bodies.get(cache) if text else None
        if told is None:
            told = self._out = _Body()
            self._offset = line - 1
            self._scope = scope = _Scope(path, "function", outer)
            for parameter in _parameters(arguments):
                scope.seen.add(parameter.arg)
                assert scope.sure is not None
                scope.sure.add(parameter.arg)
            self._type_parameters(type_parameters)
            if isinstance(body[0], ast.expr):
                self._expression(body[0])
            else:
                self._statements([node for node in body if isinstance(node, ast.stmt)])
            self._close_function(scope)
            self._scope, self._out, self._offset = outer, out, offset
            if text:
                self._bodies[cache] = told
        shift = line - 1 - offset
        out.weak += [(where, what, level, at + shift) for where, what, level, at in told.weak]
        out.unused += [(where, what, at + shift) for where, what, at in told.unused]
        out.unread += [(where, what, at + shift) for where, what, at in told.unread]
        out.uncalled += [(where, what, at + shift) for where, what, at in told.uncalled]
        out.doubled += [(where, what, at + shift) for where, what, at in told.doubled]
        out.bound += told.bound
        out.roots |= told.roots
        out.globals |= told.globals
        hidden = outer.comprehensions
        outer.free += [
            (what, at + shift, where)
            for what, at, where in told.free
            if not any(what in names for names in hidden)
        ]
        if told.free and _REFLECTION.intersection(what for what, _, _ in told.free):
            outer.reflects = True

    def _close_function(self, scope: _Scope) -> None:
        out = self._out
        local = scope.seen - scope.declared_global - scope.declared_nonlocal
        for name, line, level, path in scope.loads:
            if name not in local:
                out.free.append((name, line, path))
                continue
            scope.read.add(name)
            if level < ALWAYS:
                out.weak.append((path, name, level, line))
        for name, line, path in scope.free:
            if name not in local:
                out.free.append((name, line, path))
                continue
            scope.read.add(name)
            if scope.sure is not None and name not in scope.sure:
                out.weak.append((path, name, SOMETIMES, line))
        out.free += [(name, 0, scope.path) for name in scope.declared_nonlocal]
        out.bound += [(scope.path, name) for name in local]
        out.unused += [
            (scope.path, name, line)
            for name, line in scope.imports.items()
            if name in local and name not in scope.read
        ]
        if not scope.reflects:
            out.unread += [
                (scope.path, name, line)
                for name, line in scope.assigned.items()
                if name in local and name not in scope.read
            ]
        out.uncalled += [
            (scope.path, name, line)
            for name, line in scope.defined.items()
            if name in local and name not in scope.read
        ]

    def _class(self, node: ast.ClassDef) -> None:
        outer = self._scope
        path = node.name if outer.path == "<module>" else f"{outer.path}.{node.name}"
        # Type parameters are seen from the methods too, unlike the names of the class itself.
        type_parameters = getattr(node, "type_params", ())
        outer.comprehensions.append({str(getattr(item, "name", "")) for item in type_parameters})
        self._scope = scope = _Scope(path, "class", outer)
        names = {"__module__", "__qualname__", "__class__"}
        scope.seen |= names
        assert scope.sure is not None
        scope.sure |= names
        for base in node.bases:
            self._expression(base)
        for keyword in node.keywords:
            self._expression(keyword.value)
        self._statements(node.body)
        self._scope = outer
        hidden = outer.comprehensions
        for name, line, where in scope.free:
            # A method does not see the names of its class; an annotation in the class body does.
            if where == path and name in scope.seen:
                continue
            if not any(name in names for names in hidden):
                outer.free.append((name, line, where))
        outer.comprehensions.pop()
        outer.reflects |= scope.reflects
        outer.read |= scope.declared_global

    def _type_parameters(self, parameters: Sequence[ast.AST]) -> None:
        for parameter in parameters:
            name = getattr(parameter, "name", None)
            if isinstance(name, str):
                self._bind(name)
            for part in ("bound", "default_value"):
                value = getattr(parameter, part, None)
                if isinstance(value, ast.expr):
                    self._annotation(value, later=True)

    # Statements

    def _statements(self, body: Sequence[ast.stmt]) -> None:
        block = self._block = self._block + 1
        for node in body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node, block)
            else:
                _STATEMENTS.get(type(node), Scanner._other)(self, node)

    def _other(self, node: ast.stmt) -> None:
        self._expression(node)

    def _import(self, node: ast.Import | ast.ImportFrom, block: int) -> None:
        scope = self._scope
        line = node.lineno - self._offset
        if isinstance(node, ast.ImportFrom):
            if node.module and not node.level:
                self._out.roots.add(node.module.partition(".")[0])
            if node.module == "__future__":
                return
        for alias in node.names:
            if alias.name == "*":
                scope.star = True
                continue
            dotted = isinstance(node, ast.Import) and alias.asname is None and "." in alias.name
            name = alias.asname or (
                alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name
            )
            if isinstance(node, ast.Import):
                self._out.roots.add(alias.name.partition(".")[0])
            if not dotted:
                count = self._imported.get((block, name), 0)
                self._imported[block, name] = count + 1
                if count:
                    self._out.doubled.append((scope.path, name, line))
            if scope.kind != "class" and alias.asname != alias.name:
                scope.imports.setdefault(name, line)
            self._bind(name)

    def _assign(self, node: ast.stmt) -> None:
        assert isinstance(node, ast.Assign)
        self._expression(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._note_assigned(target)
            self._target(target)

    def _note_assigned(self, target: ast.Name) -> None:
        if self._scope.kind != "class":
            self._scope.assigned.setdefault(target.id, target.lineno - self._offset)

    def _annotated(self, node: ast.stmt) -> None:
        assert isinstance(node, ast.AnnAssign)
        in_function = self._scope.kind == "function"
        self._annotation(node.annotation, later=self._lazy or in_function)
        self._expression(node.value)
        if isinstance(node.target, ast.Name):
            if node.value is None:
                self._scope.seen.add(node.target.id)
            else:
                self._note_assigned(node.target)
                self._bind(node.target.id)
        else:
            self._target(node.target)

    def _augmented(self, node: ast.stmt) -> None:
        assert isinstance(node, ast.AugAssign)
        self._expression(node.value)
        if not isinstance(node.target, ast.Name):
            self._expression(node.target)
            return
        # `x += 1` needs x, but nobody learns its value by that: it does not count as a read.
        name, scope = node.target.id, self._scope
        local = scope.kind == "function" and name not in scope.declared_global | scope.declared_nonlocal
        if local and scope.sure is not None and name not in scope.sure:
            level = SOMETIMES if name in scope.seen else NEVER
            self._out.weak.append((scope.path, name, level, node.lineno - self._offset))
        elif not local and name not in scope.seen:
            self._load(name, node.lineno)
        self._bind(name)

    def _delete(self, node: ast.stmt) -> None:
        assert isinstance(node, ast.Delete)
        for target in node.targets:
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    self._load(name.id, name.lineno)
                    if isinstance(name.ctx, ast.Del):
                        self._scope.seen.add(name.id)
                        if self._scope.sure is not None:
                            self._scope.sure.discard(name.id)

    def _leave(self, node: ast.stmt) -> None:
        self._expression(node)
        self._scope.sure = None

    def _break(self, node: ast.stmt) -> None:
        if self._scope.breaks:
            self._scope.breaks[-1].append(_copy(self._scope.sure))
        self._scope.sure = None

    def _global(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Global):
            if self._scope.kind != "module":
                self._scope.declared_global.update(node.names)
                self._scope.free += [
                    (name, node.lineno - self._offset, self._scope.path)
                    for name in node.names
                    if name not in self._scope.seen
                ]
                self._out.globals.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            self._scope.declared_nonlocal.update(node.names)

    def _if(self, node: ast.stmt) -> None:
        scope = self._scope
        ends: list[set[str] | None] = []
        while True:
            assert isinstance(node, ast.If)
            self._expression(node.test)
            start = _copy(scope.sure)
            self._statements(node.body)
            ends.append(scope.sure)
            scope.sure = start
            if len(node.orelse) != 1 or not isinstance(node.orelse[0], ast.If):
                break
            node = node.orelse[0]
        self._statements(node.orelse)
        ends.append(scope.sure)
        scope.sure = _meet(ends)

    def _loop(self, node: ast.stmt) -> None:
        assert isinstance(node, (ast.For, ast.AsyncFor, ast.While))
        scope = self._scope
        first = len(scope.loads)
        endless = False
        if isinstance(node, ast.While):
            self._expression(node.test)
            endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
            start = _copy(scope.sure)
        else:
            self._expression(node.iter)
            start = _copy(scope.sure)
            self._target(node.target)
        scope.breaks.append([])
        self._statements(node.body)
        # The second time round, what the body binds is there.
        for index in range(first, len(scope.loads)):
            name, line, level, path = scope.loads[index]
            if level == NEVER and name in scope.seen:
                scope.loads[index] = (name, line, SOMETIMES, path)
        breaks = scope.breaks.pop()
        if endless:
            scope.sure = _meet(breaks)
            return
        scope.sure = start if scope.sure is None or start is None else start & scope.sure
        self._statements(node.orelse)
        scope.sure = _meet([scope.sure, *breaks])

    def _try(self, node: ast.stmt) -> None:
        assert isinstance(node, (ast.Try, _TRY_STAR))
        scope = self._scope
        start = _copy(scope.sure)
        self._statements(node.body)
        self._statements(node.orelse)
        ends = [scope.sure]
        for handler in node.handlers:
            scope.sure = _copy(start)
            self._expression(handler.type)
            if handler.name:
                self._bind(handler.name)
            self._statements(handler.body)
            if handler.name and scope.sure is not None:
                scope.sure.discard(handler.name)
            ends.append(scope.sure)
        end = _meet(ends)
        if node.finalbody:
            scope.sure = _copy(start)
            self._statements(node.finalbody)
            if scope.sure is None or end is None:
                end = None
            else:
                end |= scope.sure
        scope.sure = end

    def _with(self, node: ast.stmt) -> None:
        assert isinstance(node, (ast.With, ast.AsyncWith))
        for item in node.items:
            self._expression(item.context_expr)
            if item.optional_vars is not None:
                self._target(item.optional_vars)
        self._statements(node.body)

    def _match(self, node: ast.stmt) -> None:
        assert isinstance(node, ast.Match)
        scope = self._scope
        self._expression(node.subject)
        start = _copy(scope.sure)
        ends: list[set[str] | None] = []
        total = False
        for case in node.cases:
            scope.sure = _copy(start)
            for part in ast.walk(case.pattern):
                if isinstance(part, (ast.MatchAs, ast.MatchStar)) and part.name:
                    self._bind(part.name)
                elif isinstance(part, ast.MatchMapping) and part.rest:
                    self._bind(part.rest)
                elif isinstance(part, ast.Name):
                    self._load(part.id, part.lineno)
            self._expression(case.guard)
            self._statements(case.body)
            ends.append(scope.sure)
            total |= case.guard is None and isinstance(case.pattern, ast.MatchAs) and not case.pattern.pattern
        scope.sure = _meet(ends if total else [*ends, start])

    def _def(self, node: ast.stmt) -> None:
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for decorator in node.decorator_list:
            self._expression(decorator)
        parameters: Sequence[ast.AST] = getattr(node, "type_params", ())
        hidden = {str(getattr(parameter, "name", "")) for parameter in parameters}
        self._scope.comprehensions.append(hidden)
        self._arguments(node.args, annotations=True)
        self._annotation(node.returns, later=self._lazy)
        self._scope.comprehensions.pop()
        self._function(node.name, node.args, node.body, parameters, node.lineno, node.end_lineno)
        self._note_defined(node.name, node.lineno, node.decorator_list)
        self._bind(node.name)

    def _class_def(self, node: ast.stmt) -> None:
        assert isinstance(node, ast.ClassDef)
        for decorator in node.decorator_list:
            self._expression(decorator)
        self._class(node)
        self._note_defined(node.name, node.lineno, node.decorator_list)
        self._bind(node.name)

    def _note_defined(self, name: str, line: int, decorators: Sequence[ast.expr]) -> None:
        # A decorator may have registered it somewhere.
        if self._scope.kind != "class" and not decorators:
            self._scope.defined.setdefault(name, line - self._offset)

    def _type_alias(self, node: ast.stmt) -> None:
        name = getattr(node, "name", None)
        value = getattr(node, "value", None)
        hidden = {str(getattr(item, "name", "")) for item in getattr(node, "type_params", ())}
        self._scope.comprehensions.append(hidden)
        if isinstance(value, ast.expr):
            self._annotation(value, later=True)
        self._scope.comprehensions.pop()
        if isinstance(name, ast.Name):
            self._bind(name.id)


_STATEMENTS = {
    ast.Assign: Scanner._assign,
    ast.AnnAssign: Scanner._annotated,
    ast.AugAssign: Scanner._augmented,
    ast.Delete: Scanner._delete,
    ast.Return: Scanner._leave,
    ast.Raise: Scanner._leave,
    ast.Continue: Scanner._leave,
    ast.Break: Scanner._break,
    ast.Global: Scanner._global,
    ast.Nonlocal: Scanner._global,
    ast.If: Scanner._if,
    ast.For: Scanner._loop,
    ast.AsyncFor: Scanner._loop,
    ast.While: Scanner._loop,
    ast.Try: Scanner._try,
    _TRY_STAR: Scanner._try,
    ast.With: Scanner._with,
    ast.AsyncWith: Scanner._with,
    ast.Match: Scanner._match,
    ast.FunctionDef: Scanner._def,
    ast.AsyncFunctionDef: Scanner._def,
    ast.ClassDef: Scanner._class_def,
}
if _TYPE_ALIAS is not None:
    _STATEMENTS[_TYPE_ALIAS] = Scanner._type_alias


def _parameters(arguments: ast.arguments) -> list[ast.arg]:
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    found += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    return found


def _exported(tree: ast.Module) -> set[str]:
    """Names in `__all__`, as far as they are written out."""
    found: set[str] = set()
    for node in ast.walk(ast.Module([part for part in tree.body if not _is_definition(part)], [])):
        value: ast.AST | None = None
        if isinstance(node, ast.Assign):
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
                value = node.value
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
            if isinstance(node.target, ast.Name) and node.target.id == "__all__":
                value = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            base = node.func.value
            if isinstance(base, ast.Name) and base.id == "__all__":
                value = ast.Tuple(list(node.args), ast.Load())
        if value is not None:
            found |= {
                part.value
                for part in ast.walk(value)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            }
    return found


def _is_definition(node: ast.stmt) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
