"""One walk over a module: its scopes, what binds names in them, and the order things run in.

LibCST's own scope provider costs several times the parse, so this is a pass of our own. It visits
only what can hold a name, and while it goes it writes down, for each body of code that runs as one
piece (a *frame*), a small control-flow graph: blocks, the blocks that may run before each, and the
loads and bindings of each name in the order in which they happen. Which binding reaches which load
is worked out from that later, for the names somebody asks about.

`names.py` asks the questions; nothing else should need this module.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import libcst as cst

EACH = "each"
"""In `Binding.path`: an element of the iterable."""
STAR = "*"
"""In `Binding.path`: the rest that a starred target takes."""

Path = tuple[int | str, ...]


class Kind(str, enum.Enum):
    """What binds a name."""

    IMPORT = "import"
    ASSIGN = "assignment"
    AUG_ASSIGN = "augmented assignment"
    ANNOTATION_ONLY = "annotation"
    PARAMETER = "parameter"
    FUNCTION = "function"
    CLASS = "class"
    FOR = "for"
    WITH = "with"
    EXCEPT = "except"
    WALRUS = "walrus"
    MATCH = "match"
    TYPE_PARAM = "type parameter"
    TYPE_ALIAS = "type alias"


class ScopeKind(str, enum.Enum):
    """What makes a scope."""

    MODULE = "module"
    FUNCTION = "function"
    LAMBDA = "lambda"
    CLASS = "class"
    COMPREHENSION = "comprehension"
    TYPE_PARAMS = "type parameters"


@dataclass(eq=False, repr=False)
class Binding:
    """One place that gives a name a meaning."""

    name: str
    kind: Kind
    node: cst.CSTNode
    """The Name that is bound; for imports the ImportAlias, for `def` and `class` the whole definition."""
    statement: cst.CSTNode
    """The statement it stands in, such as can carry a comment."""
    scope: Scope
    order: int
    """Position among all bindings of the module, in the order in which they run."""
    value: cst.BaseExpression | None = None
    """What is assigned: the right side, the iterable, the context manager, the default of a parameter."""
    path: Path = ()
    """How to get from the value to what the name holds: indexes, `EACH`, `STAR`."""
    target: str = ""
    """Of an import: the absolute name it stands for."""
    annotation: cst.Annotation | None = None
    frame: Frame | None = None
    """The frame whose code binds it; not that of the scope when declared global or nonlocal."""

    @property
    def dotted(self) -> bool:
        """Whether this is `import a.b`, which binds only `a` and shares it with its like."""
        return (
            isinstance(self.node, cst.ImportAlias)
            and self.node.asname is None
            and isinstance(self.node.name, cst.Attribute)
        )

    def __repr__(self) -> str:
        return f"<{self.kind.value} of {self.name!r} in {self.scope!r}>"


@dataclass(eq=False, repr=False)
class Scope:
    """A region in which names are bound."""

    kind: ScopeKind
    node: cst.CSTNode
    parent: Scope | None
    frame: Frame
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    names: list[cst.Name] = field(default_factory=list)
    """Loads directly in this scope, not in one nested in it."""
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    returns: list[cst.Return] = field(default_factory=list)
    yields: list[cst.Yield] = field(default_factory=list)

    def __repr__(self) -> str:
        name = getattr(self.node, "name", None)
        return f"<{self.kind.value} {name.value if isinstance(name, cst.Name) else ''}>"


class Op(enum.IntEnum):
    """What happens to a name at one point of a frame."""

    LOAD = 0
    LATE_LOAD = 1
    """A load in an annotation, which may be evaluated after everything else."""
    BIND = 2
    """Runs whenever the frame gets this far."""
    BIND_BRANCH = 3
    """Runs only on some ways through the frame."""
    BIND_MAYBE = 4
    """Inside an expression that may be skipped: what was bound before may still hold."""
    UNBIND = 5


Event = tuple[int, Op, Binding | cst.Name]


class Frame:
    """A body of code that runs as one piece: a module, a function, a lambda.

    Classes and comprehensions run inside the frame around them.
    """

    __slots__ = ("events", "preds")

    def __init__(self) -> None:
        self.preds: list[list[int]] = [[]]
        self.events: dict[str, list[Event]] = {}

    def reachable(self) -> list[bool]:
        """For each block, whether any way from the entry leads to it."""
        succs: list[list[int]] = [[] for _ in self.preds]
        for block, preds in enumerate(self.preds):
            for pred in preds:
                succs[pred].append(block)
        seen = [False] * len(self.preds)
        seen[0] = True
        todo = [0]
        while todo:
            for block in succs[todo.pop()]:
                if not seen[block]:
                    seen[block] = True
                    todo.append(block)
        return seen


@dataclass(eq=False)
class AttributeStore:
    """`something.attr = value`, in any of the shapes that bind a name."""

    node: cst.Attribute
    kind: Kind
    value: cst.BaseExpression | None
    path: Path
    scope: Scope


@dataclass(eq=False)
class _Loop:
    top: int
    after: int


@dataclass(eq=False)
class _Finally:
    entry: int
    pending: set[str] = field(default_factory=set)


# Fields of nodes that hold no name: tokens, whitespace, and text.
_TOKENS = frozenset(
    {
        "asynchronous",
        "body_indent",
        "colon",
        "comma",
        "comment",
        "conversion",
        "default_indent",
        "default_newline",
        "dot",
        "empty_lines",
        "encoding",
        "end",
        "equal",
        "first_colon",
        "first_line",
        "footer",
        "has_trailing_newline",
        "header",
        "indent",
        "last_line",
        "lbrace",
        "lbracket",
        "leading_lines",
        "leading_whitespace",
        "lines_after_decorators",
        "lpar",
        "newline",
        "operator",
        "posonly_ind",
        "rbrace",
        "rbracket",
        "relative",
        "rpar",
        "second_colon",
        "semicolon",
        "separator",
        "star",
        "start",
        "trailing_comma",
        "trailing_whitespace",
    }
)
_LEAVES = (
    cst.Name,
    cst.Integer,
    cst.Float,
    cst.Imaginary,
    cst.SimpleString,
    cst.FormattedStringText,
    cst.Ellipsis,
)


class _Children(dict[type[cst.CSTNode], tuple[str, ...]]):
    """Which fields of a node class to visit; worked out the first time a class is met."""

    def __missing__(self, kind: type[cst.CSTNode]) -> tuple[str, ...]:
        fields: tuple[str, ...] = ()
        if not issubclass(kind, _LEAVES):
            fields = tuple(
                each.name
                for each in dataclasses.fields(kind)
                if each.name not in _TOKENS and not each.name.startswith("whitespace")
            )
        self[kind] = fields
        return fields


_CHILDREN = _Children()
_CHILDREN[cst.IfExp] = ("test", "body", "orelse")

_F = TypeVar("_F", bound=Callable[..., None])
_Handler = Callable[["Walk", cst.CSTNode], None]
_HANDLERS: dict[type[cst.CSTNode], _Handler] = {}


def _on(*kinds: type[cst.CSTNode]) -> Callable[[_F], _F]:
    """Register how the walk treats a kind of node."""

    def register(handler: _F) -> _F:
        for kind in kinds:
            _HANDLERS[kind] = cast("_Handler", handler)
        return handler

    return register


# LibCST has no nodes of their own for these.
_CONSTANTS = frozenset({"None", "True", "False"})
# Swallows what its body raises, so that the code after it may run with the body half done.
_SWALLOWING = frozenset({"suppress", "raises", "assertRaises", "assertRaisesRegex", "warns"})
# Calls and subscripts whose strings may be types; names.py looks closer.
_STRING_TAKERS = frozenset({"cast", "TypeVar", "NewType", "ForwardRef"})


class Walk:
    """The result of the walk. Tables are keyed by `id(node)`: nodes hash in Python, which is slow."""

    def __init__(self, module: cst.Module, package: str) -> None:
        self.module = module
        self.package = package
        self.parents: dict[int, cst.CSTNode] = {}
        self.nodes: list[cst.CSTNode] = []
        """Every node that was visited, in the order in which they run; a few stand twice."""
        self.scopes: dict[int, Scope] = {}
        """The scope a node stands in."""
        self.made: dict[int, Scope] = {}
        """The scope a definition, lambda or comprehension makes."""
        self.bound: dict[int, list[Binding]] = {}
        """The bindings a Name, alias or definition makes."""
        self.loads: dict[str, list[cst.Name]] = {}
        self.load_ids: set[int] = set()
        self.imports: list[Binding] = []
        self.stars: list[tuple[cst.ImportFrom, str]] = []
        self.stores: list[AttributeStore] = []
        self.calls: list[cst.Call] = []
        self.quoted: list[cst.SimpleString | cst.ConcatenatedString] = []
        """Strings in annotations."""
        self.maybe_quoted: list[cst.Call | cst.Subscript] = []
        """Calls and subscripts whose strings are types if the callee is from `typing`."""
        self.declared: set[str] = set()
        """Names in global and nonlocal statements."""

        self._order = 0
        self._frame = Frame()
        self._block = 0
        self._branch = 0
        self._maybe = 0
        self._late = False
        self._dispatch: int | None = None
        self._exits: list[_Loop | _Finally] = []
        self._statement: cst.CSTNode = module
        self._nonlocal: list[tuple[Binding, Scope]] = []
        self.root = self._scope = Scope(ScopeKind.MODULE, module, None, self._frame)
        self.scopes[id(module)] = self.made[id(module)] = self.root
        for statement in module.body:
            self.visit(statement, module)
        for binding, scope in self._nonlocal:
            owner = scope.parent
            while owner and (owner.kind is ScopeKind.CLASS or binding.name not in owner.bindings):
                owner = owner.parent
            binding.scope = owner or self.root
            binding.scope.bindings.setdefault(binding.name, []).append(binding)

    # The walk itself.

    def enter(self, node: cst.CSTNode, parent: cst.CSTNode) -> None:
        """Note where a node stands, without visiting it."""
        key = id(node)
        self.nodes.append(node)
        self.parents[key] = parent
        self.scopes[key] = self._scope

    def visit(self, node: cst.CSTNode, parent: cst.CSTNode) -> None:
        """Visit a node in the order in which its parts run."""
        parents, scopes, scope = self.parents, self.scopes, self._scope
        nodes = self.nodes
        while True:
            key = id(node)
            nodes.append(node)
            parents[key] = parent
            scopes[key] = scope
            if node.__class__ is not cst.Attribute:
                break
            # Long dotted chains are common; they cost no stack here.
            assert isinstance(node, cst.Attribute)
            key = id(node.attr)
            parents[key] = node
            scopes[key] = scope
            parent, node = node, node.value
        if node.__class__ is cst.Name:
            assert isinstance(node, cst.Name)
            self.load(node)
            return
        handler = _HANDLERS.get(node.__class__)
        if handler is not None:
            handler(self, node)
            return
        for name in _CHILDREN[node.__class__]:
            child = getattr(node, name)
            if isinstance(child, cst.CSTNode):
                self.visit(child, node)
            elif child.__class__ is tuple or child.__class__ is list:
                for each in child:
                    self.visit(each, node)

    def visit_all(self, nodes: Iterable[cst.CSTNode], parent: cst.CSTNode) -> None:
        for node in nodes:
            self.visit(node, parent)

    def visit_some(self, node: cst.CSTNode | None, parent: cst.CSTNode) -> None:
        if node is not None:
            self.visit(node, parent)

    def load(self, node: cst.Name) -> None:
        name = node.value
        if name in _CONSTANTS:
            return
        self.load_ids.add(id(node))
        self._scope.names.append(node)
        loads = self.loads.get(name)
        if loads is None:
            loads = self.loads[name] = []
        loads.append(node)
        self._event(name, Op.LATE_LOAD if self._late else Op.LOAD, node)

    def _event(self, name: str, op: Op, what: Binding | cst.Name) -> None:
        events = self._frame.events.get(name)
        if events is None:
            events = self._frame.events[name] = []
        events.append((self._block, op, what))

    def bind(
        self,
        name: str,
        kind: Kind,
        node: cst.CSTNode,
        *,
        value: cst.BaseExpression | None = None,
        path: Path = (),
        target: str = "",
        annotation: cst.Annotation | None = None,
    ) -> Binding:
        scope = self._scope
        if kind is Kind.WALRUS:
            # A walrus binds in the function around the comprehensions it stands in.
            while scope.kind is ScopeKind.COMPREHENSION and scope.parent:
                scope = scope.parent
        self._order += 1
        binding = Binding(
            name,
            kind,
            node,
            self._statement,
            scope,
            self._order,
            value,
            path,
            target,
            annotation,
            self._frame,
        )
        self.bound.setdefault(id(node), []).append(binding)
        if name in scope.globals:
            binding.scope = scope = self.root
        if name in scope.nonlocals:
            self._nonlocal.append((binding, scope))
        else:
            scope.bindings.setdefault(name, []).append(binding)
        if kind is Kind.ANNOTATION_ONLY:
            return binding
        if self._dispatch is not None:
            self._may_raise()
        if self._maybe:
            op = Op.BIND_MAYBE
        elif self._branch:
            op = Op.BIND_BRANCH
        else:
            op = Op.BIND
        self._event(name, op, binding)
        return binding

    def bind_target(
        self,
        target: cst.CSTNode,
        parent: cst.CSTNode,
        kind: Kind,
        value: cst.BaseExpression | None,
        path: Path = (),
        annotation: cst.Annotation | None = None,
    ) -> None:
        """Bind everything in the target of an assignment, a loop, a `with`."""
        self.enter(target, parent)
        if isinstance(target, cst.Name):
            self.bind(target.value, kind, target, value=value, path=path, annotation=annotation)
        elif isinstance(target, (cst.Tuple, cst.List)):
            starred = False
            for index, element in enumerate(target.elements):
                self.enter(element, target)
                if isinstance(element, cst.StarredElement):
                    starred = True
                    step: int | str = STAR
                else:
                    step = index - len(target.elements) if starred else index
                self.bind_target(element.value, element, kind, value, (*path, step))
        elif isinstance(target, cst.Attribute):
            self.visit(target.value, target)
            self.enter(target.attr, target)
            if kind is not Kind.ANNOTATION_ONLY:
                self.stores.append(AttributeStore(target, kind, value, path, self._scope))
        elif isinstance(target, cst.Subscript):
            self.visit(target.value, target)
            self.visit_all(target.slice, target)
        else:
            self.visit(target, parent)

    # Blocks.

    def block(self, *preds: int) -> int:
        """A new block that runs after any of these."""
        self._frame.preds.append(list(preds))
        return len(self._frame.preds) - 1

    def edge(self, source: int, target: int) -> None:
        self._frame.preds[target].append(source)

    def _may_raise(self) -> None:
        """Here the code inside a `try` may leave for the handlers with what is bound so far."""
        assert self._dispatch is not None
        self.edge(self._block, self._dispatch)
        self._block = self.block(self._block)

    def _jump(self, how: str) -> None:
        """Leave through the innermost `finally` or loop, as break, continue, return and raise do."""
        for index in range(len(self._exits) - 1, -1, -1):
            exit_ = self._exits[index]
            if isinstance(exit_, _Finally):
                self.edge(self._block, exit_.entry)
                exit_.pending.add(how)
                return
            if how == "break":
                self.edge(self._block, exit_.after)
                return
            if how == "continue":
                self.edge(self._block, exit_.top)
                return

    def jump(self, how: str) -> None:
        self._jump(how)
        self._block = self.block()

    def suite(self, body: cst.CSTNode, parent: cst.CSTNode) -> None:
        """The body of a compound statement: what stands there runs on some ways only."""
        self._branch += 1
        self.visit(body, parent)
        self._branch -= 1

    def maybe(self, node: cst.CSTNode | None, parent: cst.CSTNode) -> None:
        """Visit an expression that may be skipped."""
        self._maybe += 1
        self.visit_some(node, parent)
        self._maybe -= 1

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """Begin a statement; gives back the one around it."""
        outer, self._statement = self._statement, node
        if self._dispatch is not None:
            self._may_raise()
        return outer

    def run(
        self, scope: Scope, params: cst.Parameters | None, body: Callable[[], None], owner: cst.CSTNode
    ) -> None:
        """Walk the body of a function or lambda, which is a frame of its own."""
        kept = (
            self._scope,
            self._frame,
            self._block,
            self._branch,
            self._maybe,
            self._late,
            self._dispatch,
            self._exits,
            self._statement,
        )
        self._scope, self._frame = scope, scope.frame
        self._block = self._branch = self._maybe = 0
        self._late, self._dispatch, self._exits = False, None, []
        if params is not None:
            self.enter(params, owner)
            for param in _params(params):
                self.enter(param, params)
                self.enter(param.name, param)
                self.bind(
                    param.name.value,
                    Kind.PARAMETER,
                    param.name,
                    value=param.default,
                    annotation=param.annotation,
                )
        body()
        (
            self._scope,
            self._frame,
            self._block,
            self._branch,
            self._maybe,
            self._late,
            self._dispatch,
            self._exits,
            self._statement,
        ) = kept

    def inside(self, scope: Scope) -> Scope:
        """Step into a scope that runs in the same frame; gives back the one around it."""
        outer, self._scope = self._scope, scope
        return outer

    def annotation(self, node: cst.CSTNode | None, parent: cst.CSTNode) -> None:
        if node is None:
            return
        outer, self._late = self._late, True
        self.visit(node, parent)
        self._late = outer


def _params(params: cst.Parameters) -> list[cst.Param]:
    """All parameters, in the order in which they are written."""
    found = [*params.posonly_params, *params.params]
    if isinstance(params.star_arg, cst.Param):
        found.append(params.star_arg)
    found.extend(params.kwonly_params)
    if params.star_kwarg is not None:
        found.append(params.star_kwarg)
    return found


parameters = _params


def last_name(node: cst.CSTNode) -> str:
    """`c` of `a.b.c`, or empty."""
    if isinstance(node, cst.Name):
        return node.value
    return node.attr.value if isinstance(node, cst.Attribute) else ""


def dotted_name(node: cst.CSTNode | None) -> str:
    """`a.b.c` of a pure chain of names, else empty."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return ""
    parts.append(node.value)
    return ".".join(reversed(parts))


# Statements.


@_on(cst.SimpleStatementLine)
def _line(walk: Walk, node: cst.SimpleStatementLine) -> None:
    outer, walk._statement = walk._statement, node
    _small(walk, node)
    walk._statement = outer


@_on(cst.SimpleStatementSuite)
def _suite(walk: Walk, node: cst.SimpleStatementSuite) -> None:
    _small(walk, node)


def _small(walk: Walk, node: cst.SimpleStatementLine | cst.SimpleStatementSuite) -> None:
    for each in node.body:
        if walk._dispatch is not None:
            walk._may_raise()
        walk.visit(each, node)


@_on(cst.Assign)
def _assign(walk: Walk, node: cst.Assign) -> None:
    walk.visit(node.value, node)
    for target in node.targets:
        walk.enter(target, node)
        walk.bind_target(target.target, target, Kind.ASSIGN, node.value)


@_on(cst.AnnAssign)
def _ann_assign(walk: Walk, node: cst.AnnAssign) -> None:
    walk.annotation(node.annotation, node)
    if node.value is None:
        walk.bind_target(node.target, node, Kind.ANNOTATION_ONLY, None, annotation=node.annotation)
        return
    if last_name(node.annotation.annotation) == "TypeAlias":
        walk.annotation(node.value, node)
    else:
        walk.visit(node.value, node)
    walk.bind_target(node.target, node, Kind.ASSIGN, node.value, annotation=node.annotation)


@_on(cst.AugAssign)
def _aug_assign(walk: Walk, node: cst.AugAssign) -> None:
    if isinstance(node.target, cst.Name):
        walk.enter(node.target, node)
        walk.load(node.target)
        walk.visit(node.value, node)
        walk.bind(node.target.value, Kind.AUG_ASSIGN, node.target, value=node.value)
    else:
        walk.visit(node.value, node)
        walk.bind_target(node.target, node, Kind.AUG_ASSIGN, node.value)


@_on(cst.Del)
def _del(walk: Walk, node: cst.Del) -> None:
    walk.visit(node.target, node)
    todo: list[cst.CSTNode] = [node.target]
    while todo:
        target = todo.pop()
        if isinstance(target, cst.Name):
            if walk._dispatch is not None:
                walk._may_raise()
            walk._event(target.value, Op.UNBIND, target)
            # As in Python, a del makes the name local.
            if target.value not in walk._scope.globals | walk._scope.nonlocals:
                walk._scope.bindings.setdefault(target.value, [])
        elif isinstance(target, (cst.Tuple, cst.List)):
            todo.extend(element.value for element in reversed(target.elements))


@_on(cst.Global)
def _global(walk: Walk, node: cst.Global) -> None:
    for item in node.names:
        walk.enter(item, node)
        walk.enter(item.name, item)
        walk.declared.add(item.name.value)
        if walk._scope.kind is not ScopeKind.MODULE:
            walk._scope.globals.add(item.name.value)


@_on(cst.Nonlocal)
def _nonlocal(walk: Walk, node: cst.Nonlocal) -> None:
    for item in node.names:
        walk.enter(item, node)
        walk.enter(item.name, item)
        walk.declared.add(item.name.value)
        walk._scope.nonlocals.add(item.name.value)


def _enter_chain(walk: Walk, node: cst.CSTNode, parent: cst.CSTNode) -> None:
    """Note the place of names in an import, which are no loads."""
    walk.enter(node, parent)
    while isinstance(node, cst.Attribute):
        walk.enter(node.attr, node)
        walk.enter(node.value, node)
        node = node.value


def _import_alias(walk: Walk, alias: cst.ImportAlias, prefix: str) -> None:
    name = dotted_name(alias.name)
    _enter_chain(walk, alias.name, alias)
    target = f"{prefix}{name}"
    if alias.asname is not None:
        walk.enter(alias.asname, alias)
        walk.enter(alias.asname.name, alias.asname)
        assert isinstance(alias.asname.name, cst.Name)
        local = alias.asname.name.value
    else:
        local = name.partition(".")[0]
        if not prefix:
            target = local
    walk.imports.append(walk.bind(local, Kind.IMPORT, alias, target=target))


@_on(cst.Import)
def _import(walk: Walk, node: cst.Import) -> None:
    for alias in node.names:
        walk.enter(alias, node)
        _import_alias(walk, alias, "")


@_on(cst.ImportFrom)
def _import_from(walk: Walk, node: cst.ImportFrom) -> None:
    if node.module is not None:
        _enter_chain(walk, node.module, node)
    module = absolute(dotted_name(node.module), len(node.relative), walk.package)
    if isinstance(node.names, cst.ImportStar):
        walk.enter(node.names, node)
        walk.stars.append((node, module))
        return
    prefix = module if module.endswith(".") else f"{module}."
    for alias in node.names:
        walk.enter(alias, node)
        _import_alias(walk, alias, prefix)


def absolute(module: str, level: int, package: str) -> str:
    """The absolute name of an imported module; dots stay in front when the package is not known."""
    if level == 0:
        return module
    parts = package.split(".") if package else []
    if level > len(parts):
        return "." * level + module
    return ".".join(parts[: len(parts) - level + 1] + ([module] if module else []))


# PEP 810; not in every LibCST this runs with, and written like the ordinary ones.
for _eager, _lazy in ((cst.Import, "LazyImport"), (cst.ImportFrom, "LazyImportFrom")):
    if hasattr(cst, _lazy):
        _HANDLERS[getattr(cst, _lazy)] = _HANDLERS[_eager]


@_on(cst.Return)
def _return(walk: Walk, node: cst.Return) -> None:
    walk.visit_some(node.value, node)
    scope: Scope = walk._scope
    scope.returns.append(node)
    walk.jump("return")


@_on(cst.Raise)
def _raise(walk: Walk, node: cst.Raise) -> None:
    walk.visit_some(node.exc, node)
    walk.visit_some(node.cause, node)
    if walk._dispatch is not None:
        walk.edge(walk._block, walk._dispatch)
    walk._block = walk.block()


@_on(cst.Break)
def _break(walk: Walk, node: cst.Break) -> None:
    walk.jump("break")


@_on(cst.Continue)
def _continue(walk: Walk, node: cst.Continue) -> None:
    walk.jump("continue")


@_on(cst.If)
def _if(walk: Walk, node: cst.If) -> None:
    outer = walk._statement
    branch = walk._branch
    ends: list[int] = []
    # A long chain of elif costs no stack.
    while True:
        walk.statement(node)
        walk.visit(node.test, node)
        fork = walk._block
        walk._block = walk.block(fork)
        walk.suite(node.body, node)
        ends.append(walk._block)
        if node.orelse is None:
            ends.append(fork)
            break
        walk._block = walk.block(fork)
        walk._branch += 1
        if not isinstance(node.orelse, cst.If):
            walk.visit(node.orelse, node)
            ends.append(walk._block)
            break
        walk.enter(node.orelse, node)
        node = node.orelse
    walk._block = walk.block(*ends)
    walk._branch = branch
    walk._statement = outer


@_on(cst.While)
def _while(walk: Walk, node: cst.While) -> None:
    outer = walk.statement(node)
    walk._branch += 1
    loop = _Loop(walk.block(walk._block), walk.block())
    walk._block = loop.top
    walk.visit(node.test, node)
    fork = walk._block
    walk._block = walk.block(fork)
    walk._exits.append(loop)
    walk.visit(node.body, node)
    walk._exits.pop()
    walk.edge(walk._block, loop.top)
    forever = (isinstance(node.test, cst.Name) and node.test.value == "True") or (
        isinstance(node.test, cst.Integer) and node.test.value != "0"
    )
    walk._block = walk.block() if forever else walk.block(fork)
    _after_loop(walk, loop, node.orelse, node)
    walk._branch -= 1
    walk._statement = outer


def _after_loop(walk: Walk, loop: _Loop, orelse: cst.Else | None, node: cst.CSTNode) -> None:
    walk.visit_some(orelse, node)
    walk.edge(walk._block, loop.after)
    # Blocks are solved in the order of their numbers, so the way on starts a late one.
    walk._block = walk.block(loop.after)


@_on(cst.For)
def _for(walk: Walk, node: cst.For) -> None:
    outer = walk.statement(node)
    walk.visit(node.iter, node)
    walk._branch += 1
    loop = _Loop(walk.block(walk._block), walk.block())
    walk._block = walk.block(loop.top)
    walk.bind_target(node.target, node, Kind.FOR, node.iter, (EACH,))
    walk._exits.append(loop)
    walk.visit(node.body, node)
    walk._exits.pop()
    walk.edge(walk._block, loop.top)
    walk._block = walk.block(loop.top)
    _after_loop(walk, loop, node.orelse, node)
    walk._branch -= 1
    walk._statement = outer


@_on(cst.With)
def _with(walk: Walk, node: cst.With) -> None:
    outer = walk.statement(node)
    swallows = False
    for item in node.items:
        walk.enter(item, node)
        walk.visit(item.item, item)
        if isinstance(item.item, cst.Call) and last_name(item.item.func) in _SWALLOWING:
            swallows = True
        if item.asname is not None:
            walk.enter(item.asname, item)
            walk.bind_target(item.asname.name, item.asname, Kind.WITH, item.item)
    if not swallows:
        # The body runs exactly once, so it is no branch.
        walk.visit(node.body, node)
    else:
        after = walk.block(walk._block)
        outside, walk._dispatch = walk._dispatch, after
        walk.suite(node.body, node)
        walk._dispatch = outside
        walk._block = walk.block(walk._block, after)
    walk._statement = outer


@_on(cst.Try, cst.TryStar)
def _try(walk: Walk, node: cst.Try | cst.TryStar) -> None:
    outer = walk.statement(node)
    walk._branch += 1
    outside = walk._dispatch
    final = None
    beyond = outside
    if node.finalbody is not None:
        final = _Finally(walk.block(), {"raise"} if outside is not None else set())
        walk._exits.append(final)
        beyond = final.entry
    dispatch = walk.block(walk._block) if node.handlers else beyond
    if not node.handlers and dispatch is not None:
        walk.edge(walk._block, dispatch)
    walk._dispatch = dispatch
    walk._block = walk.block(walk._block)
    walk.visit(node.body, node)
    walk._dispatch = beyond
    walk.visit_some(node.orelse, node)
    ends = [walk._block]
    catches_all = False
    for handler in node.handlers:
        assert dispatch is not None
        walk._block = walk.block(dispatch)
        walk.visit(handler, node)
        ends.append(walk._block)
        catches_all = catches_all or handler.type is None
    if node.handlers and not catches_all and beyond is not None:
        assert dispatch is not None
        walk.edge(dispatch, beyond)
    walk._dispatch = outside
    walk._block = walk.block(*ends)
    if node.finalbody is not None:
        assert final is not None
        walk._exits.pop()
        _finally(walk, node.finalbody, node, final)
    walk._branch -= 1
    walk._statement = outer


def _finally(walk: Walk, body: cst.Finally, node: cst.CSTNode, final: _Finally) -> None:
    """Walk a `finally` once, and copy its blocks for the ways that do not go on after it."""
    frame = walk._frame
    first = walk._block = walk.block(walk._block)
    walk.visit(body, node)
    end = walk._block
    count = len(frame.preds) - first
    for preds in frame.preds[:first]:
        preds.extend(pred + count for pred in list(preds) if pred >= first)
    frame.preds.append([final.entry])
    for preds in frame.preds[first + 1 : first + count]:
        frame.preds.append([pred + count if pred >= first else pred for pred in preds])
    for events in frame.events.values():
        if events[-1][0] >= first:
            events.extend([(at + count, op, what) for at, op, what in events if at >= first])
    walk._block = end + count
    for how in sorted(final.pending):
        if how != "raise":
            walk._jump(how)
        elif walk._dispatch is not None:
            walk.edge(walk._block, walk._dispatch)
    walk._block = walk.block(end)


@_on(cst.ExceptHandler, cst.ExceptStarHandler)
def _handler(walk: Walk, node: cst.ExceptHandler | cst.ExceptStarHandler) -> None:
    walk.visit_some(node.type, node)
    if node.name is not None:
        walk.enter(node.name, node)
        walk.bind_target(node.name.name, node.name, Kind.EXCEPT, node.type)
    walk.visit(node.body, node)
    if node.name is not None and isinstance(node.name.name, cst.Name):
        walk._event(node.name.name.value, Op.UNBIND, node.name.name)


@_on(cst.Match)
def _match(walk: Walk, node: cst.Match) -> None:
    outer = walk.statement(node)
    walk.visit(node.subject, node)
    walk._branch += 1
    ends: list[int] = []
    rest = walk._block
    for case in node.cases:
        walk.enter(case, node)
        walk._block = walk.block(rest)
        _pattern(walk, case.pattern, case, node.subject)
        walk.visit_some(case.guard, case)
        # A pattern may bind before it or its guard fails.
        fork = walk._block
        rest = walk.block(rest, fork)
        walk._block = walk.block(fork)
        walk.visit(case.body, case)
        ends.append(walk._block)
        irrefutable = isinstance(case.pattern, cst.MatchAs) and case.pattern.pattern is None
        if irrefutable and case.guard is None:
            rest = walk.block()
    walk._block = walk.block(*ends, rest)
    walk._branch -= 1
    walk._statement = outer


def _pattern(walk: Walk, node: cst.CSTNode, parent: cst.CSTNode, subject: cst.BaseExpression) -> None:
    """Bind the captures of a pattern; classes and values in it are loads."""
    walk.enter(node, parent)
    # A bare capture holds the subject itself; what stands deeper holds some part of it.
    path: Path = () if isinstance(parent, cst.MatchCase) else (EACH,)
    if isinstance(node, cst.MatchAs):
        if node.pattern is not None:
            _pattern(walk, node.pattern, node, subject)
        if node.name is not None:
            walk.bind_target(node.name, node, Kind.MATCH, subject, path)
    elif isinstance(node, cst.MatchStar):
        if node.name is not None:
            walk.bind_target(node.name, node, Kind.MATCH, subject, (EACH,))
    elif isinstance(node, cst.MatchMapping):
        for each in node.elements:
            walk.enter(each, node)
            walk.visit(each.key, each)
            _pattern(walk, each.pattern, each, subject)
        if node.rest is not None:
            walk.bind_target(node.rest, node, Kind.MATCH, subject, (EACH,))
    elif isinstance(node, cst.MatchClass):
        walk.visit(node.cls, node)
        for part in node.patterns:
            walk.enter(part, node)
            _pattern(walk, part.value, part, subject)
        for keyword in node.kwds:
            walk.enter(keyword, node)
            walk.enter(keyword.key, keyword)
            _pattern(walk, keyword.pattern, keyword, subject)
    elif isinstance(node, cst.MatchOr):
        for option in node.patterns:
            walk.enter(option, node)
            _pattern(walk, option.pattern, option, subject)
    elif isinstance(node, (cst.MatchList, cst.MatchTuple)):
        for item in node.patterns:
            if isinstance(item, cst.MatchStar):
                _pattern(walk, item, node, subject)
            else:
                walk.enter(item, node)
                _pattern(walk, item.value, item, subject)
    elif isinstance(node, (cst.MatchValue, cst.MatchSingleton)):
        walk.visit(node.value, node)


# Definitions.


def _type_params(walk: Walk, node: cst.TypeParameters | None, owner: cst.CSTNode) -> Scope | None:
    """Open the scope of `[T: bound]`; gives back the scope to return to, None when there is none."""
    if node is None:
        return None
    scope = Scope(ScopeKind.TYPE_PARAMS, node, walk._scope, walk._frame)
    walk.made[id(node)] = scope
    walk.enter(node, owner)
    outer = walk.inside(scope)
    for each in node.params:
        walk.enter(each, node)
        walk.enter(each.param, each)
        walk.enter(each.param.name, each.param)
        walk.bind(each.param.name.value, Kind.TYPE_PARAM, each.param.name)
        if isinstance(each.param, cst.TypeVar):
            walk.annotation(each.param.bound, each.param)
        walk.annotation(each.default, each)
    return outer


@_on(cst.FunctionDef)
def _function(walk: Walk, node: cst.FunctionDef) -> None:
    outer = walk.statement(node)
    walk.visit_all(node.decorators, node)
    for param in _params(node.params):
        walk.visit_some(param.default, param)
    outside = _type_params(walk, node.type_parameters, node)
    for param in _params(node.params):
        walk.annotation(param.annotation, param)
    walk.annotation(node.returns, node)
    scope = Scope(ScopeKind.FUNCTION, node, walk._scope, Frame())
    if outside is not None:
        walk.inside(outside)
    walk.made[id(node)] = scope
    walk.enter(node.name, node)
    binding = walk.bind(node.name.value, Kind.FUNCTION, node)
    walk.bound[id(node.name)] = [binding]
    walk.run(scope, node.params, lambda: walk.visit(node.body, node), node)
    walk._statement = outer


@_on(cst.Lambda)
def _lambda(walk: Walk, node: cst.Lambda) -> None:
    for param in _params(node.params):
        walk.visit_some(param.default, param)
    scope = Scope(ScopeKind.LAMBDA, node, walk._scope, Frame())
    walk.made[id(node)] = scope
    statement = walk._statement

    def body() -> None:
        walk._statement = statement
        walk.visit(node.body, node)

    walk.run(scope, node.params, body, node)


@_on(cst.ClassDef)
def _class(walk: Walk, node: cst.ClassDef) -> None:
    outer = walk.statement(node)
    walk.visit_all(node.decorators, node)
    outside = _type_params(walk, node.type_parameters, node)
    walk.visit_all(node.bases, node)
    walk.visit_all(node.keywords, node)
    scope = Scope(ScopeKind.CLASS, node, walk._scope, walk._frame)
    walk.made[id(node)] = scope
    around = walk.inside(scope)
    walk.visit(node.body, node)
    walk.inside(around if outside is None else outside)
    walk.enter(node.name, node)
    binding = walk.bind(node.name.value, Kind.CLASS, node)
    walk.bound[id(node.name)] = [binding]
    walk._statement = outer


@_on(cst.TypeAlias)
def _type_alias(walk: Walk, node: cst.TypeAlias) -> None:
    outside = _type_params(walk, node.type_parameters, node)
    walk.annotation(node.value, node)
    if outside is not None:
        walk.inside(outside)
    walk.enter(node.name, node)
    walk.bind(node.name.value, Kind.TYPE_ALIAS, node.name, value=node.value)


# Expressions.


def _comprehension(walk: Walk, node: cst.BaseComp, elements: Sequence[cst.CSTNode]) -> None:
    scope = Scope(ScopeKind.COMPREHENSION, node, walk._scope, walk._frame)
    walk.made[id(node)] = scope
    loop: cst.CompFor | None = node.for_in
    parent: cst.CSTNode = node
    outer = walk._scope
    walk._maybe += 1
    while loop is not None:
        walk.enter(loop, parent)
        # Only the first iterable is evaluated outside.
        walk.visit(loop.iter, loop)
        if walk._scope is outer:
            walk.inside(scope)
            walk.scopes[id(loop)] = scope
        for_names(walk, loop)
        parent, loop = loop, loop.inner_for_in
    walk.visit_all(elements, node)
    walk._maybe -= 1
    walk.inside(outer)


def for_names(walk: Walk, loop: cst.CompFor) -> None:
    """Bind the targets of one `for` of a comprehension and visit its conditions."""
    # The element is bound before anything in the comprehension reads it.
    maybe, walk._maybe = walk._maybe, 0
    walk.bind_target(loop.target, loop, Kind.FOR, loop.iter, (EACH,))
    walk._maybe = maybe
    walk.visit_all(loop.ifs, loop)


@_on(cst.ListComp, cst.SetComp, cst.GeneratorExp)
def _comp(walk: Walk, node: cst.ListComp | cst.SetComp | cst.GeneratorExp) -> None:
    _comprehension(walk, node, [node.elt])


@_on(cst.DictComp)
def _dict_comp(walk: Walk, node: cst.DictComp) -> None:
    _comprehension(walk, node, [node.key, node.value])


def _starred_dict_comp(walk: Walk, node: cst.CSTNode) -> None:
    assert isinstance(node, cst.BaseComp)
    _comprehension(walk, node, [cast("cst.CSTNode", getattr(node, "value"))])  # noqa: B009


if hasattr(cst, "StarredDictComp"):
    _HANDLERS[cst.StarredDictComp] = _starred_dict_comp


@_on(cst.NamedExpr)
def _named(walk: Walk, node: cst.NamedExpr) -> None:
    walk.visit(node.value, node)
    walk.bind_target(node.target, node, Kind.WALRUS, node.value)


@_on(cst.IfExp)
def _if_exp(walk: Walk, node: cst.IfExp) -> None:
    walk.visit(node.test, node)
    walk.maybe(node.body, node)
    walk.maybe(node.orelse, node)


@_on(cst.BinaryOperation)
def _binary(walk: Walk, node: cst.BinaryOperation) -> None:
    chain = [node]
    while isinstance(chain[-1].left, cst.BinaryOperation):
        walk.enter(chain[-1].left, chain[-1])
        chain.append(chain[-1].left)
    walk.visit(chain[-1].left, chain[-1])
    while chain:
        walk.visit(chain[-1].right, chain.pop())


@_on(cst.BooleanOperation)
def _boolean(walk: Walk, node: cst.BooleanOperation) -> None:
    chain = [node]
    while isinstance(chain[-1].left, cst.BooleanOperation):
        walk.enter(chain[-1].left, chain[-1])
        chain.append(chain[-1].left)
    walk.visit(chain[-1].left, chain[-1])
    while chain:
        walk.maybe(chain[-1].right, chain.pop())


@_on(cst.Arg)
def _arg(walk: Walk, node: cst.Arg) -> None:
    if node.keyword is not None:
        walk.enter(node.keyword, node)
    walk.visit(node.value, node)


@_on(cst.Call)
def _call(walk: Walk, node: cst.Call) -> None:
    walk.visit(node.func, node)
    for arg in node.args:
        # Calls nest deeper than anything else, so their arguments take no step of their own.
        walk.enter(arg, node)
        if arg.keyword is not None:
            walk.enter(arg.keyword, arg)
        walk.visit(arg.value, arg)
    walk.calls.append(node)
    if last_name(node.func) in _STRING_TAKERS:
        walk.maybe_quoted.append(node)


@_on(cst.Yield)
def _yield(walk: Walk, node: cst.Yield) -> None:
    walk._scope.yields.append(node)
    walk.visit_some(node.value, node)


@_on(cst.Annotation)
def _annotation(walk: Walk, node: cst.Annotation) -> None:
    walk.annotation(node.annotation, node)


@_on(cst.SimpleString, cst.ConcatenatedString)
def _string(walk: Walk, node: cst.SimpleString | cst.ConcatenatedString) -> None:
    if walk._late:
        walk.quoted.append(node)
    elif isinstance(node, cst.ConcatenatedString):
        walk.visit(node.left, node)
        walk.visit(node.right, node)


@_on(cst.Subscript)
def _subscript(walk: Walk, node: cst.Subscript) -> None:
    walk.visit(node.value, node)
    name = last_name(node.value)
    if not walk._late:
        if name[:1].isupper():
            walk.maybe_quoted.append(node)
        walk.visit_all(node.slice, node)
        return
    # The strings of Literal are values, and so is all but the first part of Annotated.
    types = {"Literal": 0, "Annotated": 1}.get(name, len(node.slice))
    walk.visit_all(node.slice[:types], node)
    walk._late = False
    walk.visit_all(node.slice[types:], node)
    walk._late = True
