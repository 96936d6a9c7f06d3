"""What a codemod sees of one file: questions about names and values, and the verbs to answer with.

A handler gets a Site, asks, and either marks a node or opens a group, tells the group its edits and
says how each finding ended. Nothing is changed until every codemod has answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.config import Settings
from neuronmigrate.edits import Edit, Statement
from neuronmigrate.flow import Flow
from neuronmigrate.names import Binding, Names
from neuronmigrate.plan import Numerics, State
from neuronmigrate.positions import Positions
from neuronmigrate.project import Project

NodeT = TypeVar("NodeT", bound=cst.CSTNode)
Constant = bool | int | str | None

REF = "_neuronmigrate_ref_"
FRESH = "_neuronmigrate_new_"


@dataclass(eq=False)
class Use:
    """One place where a legacy name is used, imports aside."""

    node: cst.BaseExpression
    """The part of the chain that stands for `claim`."""
    chain: cst.BaseExpression
    """The whole dotted chain."""
    name: str
    """The qualified legacy name of the whole chain, such as `optimum.neuron.X.from_pretrained`."""
    claim: str
    """The part of the name that a codemod answers for, such as `optimum.neuron.X`."""
    certain: bool
    """False when something else, but its native twin, may stand behind the name here as well."""
    binding: Binding
    """The import or assignment that brought the name in."""
    call: cst.Call | None
    """The call of the chain, when it is called."""
    stored: bool = False
    """Whether the place is assigned to, not read."""
    quoted: str = ""
    """The chain as it stands inside a string that holds a type; `node` is the string then."""
    alias: bool = False
    """Whether the name came through an assignment that gave it another name."""
    ambiguous: str = ""
    """The names it may stand for, in words, when there are several."""
    twin: bool = False
    """Whether the only other thing that it may stand for is its native twin."""

    @property
    def method(self) -> str:
        """What follows the claimed name, such as `from_pretrained`."""
        return self.name.removeprefix(self.claim).lstrip(".")

    @property
    def whole(self) -> cst.BaseExpression:
        """The call when there is one, else the name."""
        return self.call or self.chain


@dataclass(frozen=True)
class Known:
    """What an expression is natively, whoever runs it, and who says so."""

    node: cst.BaseExpression
    constant: Constant
    codemod: str
    found: str
    why: str
    use: Use | None = None


@dataclass(eq=False)
class Answer:
    """A finding before its place is worked out."""

    node: cst.CSTNode
    codemod: str
    state: State
    found: str
    why: str
    todo: str
    numerics: Numerics
    group: Group | None = None
    comment: bool = True
    """Whether a mark leaves a comment."""
    by_hand: str = ""
    """What a person can do where the group does not hold."""

    @property
    def message(self) -> str:
        """Why and what to do, as one text."""
        return f"{self.why}; {self.todo}" if self.todo else self.why


@dataclass(eq=False)
class Ref:
    """A name that new code needs. Which local name stands for it is settled with the imports."""

    token: str
    target: str
    anchor: Binding | None
    """The legacy import whose place the new import takes."""
    local: str
    """The local name to keep, when the user chose one."""
    module_form: bool
    """Reach the name through its module, as the legacy code did."""


@dataclass(eq=False)
class Fresh:
    """A variable that new code needs, and the name it would like."""

    token: str
    name: str


@dataclass(eq=False)
class Helper:
    """A function that several groups call; it is written once, above its first caller."""

    name: cst.Name
    code: Sequence[Statement]


@dataclass(eq=False)
class Group:
    """Edits and findings that belong together: applied whole or not at all."""

    site: Site
    codemod: str
    name: str
    anchor: Binding | None
    uncertain: bool
    edits: list[Edit] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    helpers: dict[str, None] = field(default_factory=dict)
    """Keys of the helpers it calls."""
    releases: list[cst.CSTNode] = field(default_factory=list)
    """Import aliases without a use that go with it."""
    refused: str = ""

    def fixed(
        self,
        node: cst.CSTNode,
        found: str,
        why: str,
        *,
        numerics: Numerics = Numerics.SAME,
        by_hand: str = "",
    ) -> None:
        """Say that a use is rewritten and its meaning kept."""
        self._answer(node, State.FIXED, found, why, "", numerics, by_hand)

    def review(
        self,
        node: cst.CSTNode,
        found: str,
        why: str,
        todo: str,
        *,
        numerics: Numerics = Numerics.SAME,
        by_hand: str = "",
    ) -> None:
        """Say that a use is rewritten, and name the one thing to look at."""
        self._answer(node, State.REVIEW, found, why, todo, numerics, by_hand)

    def replace(self, old: cst.CSTNode, new: cst.CSTNode) -> None:
        """Put an expression or an argument in the place of another. `new` may hold parts of `old`."""
        quote = self.site.enclosing_quotes(old)
        if quote:
            requoted = new.visit(_Requote(quote, self.site))
            assert isinstance(requoted, cst.CSTNode)
            new = requoted
        self.edits.append(edits.Replace(old, new))

    def replace_statement(
        self, old: cst.BaseSmallStatement | cst.BaseCompoundStatement, new: Sequence[Statement] = ()
    ) -> None:
        """Put statements in the place of one; none removes it."""
        self.edits.append(edits.ReplaceStatement(old, new))

    def insert(self, at: Statement, new: Sequence[Statement], *, before: bool = True) -> None:
        """Add statements before or after one."""
        self.edits.append(edits.Insert(at, new, before))

    def unindent(self, old: cst.With | cst.If | cst.Try, body: cst.BaseSuite) -> None:
        """Put the statements of `body`, a block of `old`, in the place of `old`."""
        self.site.rebuilt.add(old)
        self.edits.append(edits.Unindent(old, body))

    def omit(self, old: cst.Decorator | cst.WithItem) -> None:
        """Take out a decorator, or one of several contexts of a `with`."""
        self.edits.append(edits.Omit(old))

    def refuse(self, reason: str) -> None:
        """Give up: none of the edits is applied and each finding becomes a mark with this reason."""
        self.refused = self.refused or reason

    def ref(self, target: str, *, local: str = "", module_form: bool = False) -> cst.Name:
        """An expression for a qualified name such as `torch.distributed.get_rank`.

        The import it needs is added where the legacy import stands, unless the file has one already.
        """
        token = f"{REF}{len(self.site.refs)}_"
        self.site.refs[token] = Ref(token, target, self.anchor, local, module_form)
        return cst.Name(token)

    def fresh(self, name: str) -> cst.Name:
        """A variable that means nothing else in this file; the name is varied until it is free."""
        token = f"{FRESH}{len(self.site.fresh_names)}_"
        self.site.fresh_names[token] = Fresh(token, name)
        return cst.Name(token)

    def helper(self, name: str, code: str, *, shim: str = "", **holes: cst.BaseExpression) -> cst.Name:
        """A function or class for this file, written once for all groups that ask for it by this name.

        `code` is its definition as a template: `{name}` stands for its name, other dotted names are
        qualified. `shim` names what neuronmigrate.runtime.helpers has in its place, called the same way:
        under `--shim` that is imported.
        """
        if shim and self.site.settings.shim:
            return self.ref(f"neuronmigrate.runtime.helpers.{shim}")
        if name not in self.site.helpers:
            token = self.fresh(name)
            self.site.helpers[name] = Helper(token, self.statements(code, name=token, **holes))
        self.helpers[name] = None
        return cst.Name(self.site.helpers[name].name.value)

    def rename(self, use: Use, new: str, *, alias: bool = True) -> None:
        """Let the name stand for another one. An alias that the user chose stays, if that is wanted."""
        local = ""
        if use.quoted:
            token = self.ref(new, module_form="." in use.quoted).value
            text = edits.code_of(use.node).replace(use.quoted, token)
            self.replace(use.node, cst.SimpleString(text))
            return
        if alias and isinstance(use.node, cst.Name) and _is_renamed_import(use.binding):
            local = use.binding.name
        module_form = isinstance(use.node, cst.Attribute)
        self.replace(use.node, self.ref(new, local=local, module_form=module_form))

    def expression(self, template: str, **holes: cst.BaseExpression) -> cst.BaseExpression:
        """Parse a template whose dotted names are qualified (`torch.device("neuron")`), with imports."""
        parsed = edits.expression(template, **holes)
        kept = frozenset(node for hole in holes.values() for node in _walk(hole))
        resolved = parsed.visit(_Resolve(self, kept))
        assert isinstance(resolved, cst.BaseExpression)
        return resolved

    def statements(self, template: str, **holes: cst.BaseExpression) -> list[Statement]:
        """Parse statements whose dotted names are qualified, with imports."""
        kept = frozenset(node for hole in holes.values() for node in _walk(hole))
        parsed = edits.statements(template, self.site.module, **holes)
        resolved = [statement.visit(_Resolve(self, kept)) for statement in parsed]
        return [statement for statement in resolved if isinstance(statement, Statement)]

    def _answer(
        self,
        node: cst.CSTNode,
        state: State,
        found: str,
        why: str,
        todo: str,
        numerics: Numerics,
        by_hand: str,
    ) -> None:
        if self.uncertain and state is State.FIXED:
            state = State.REVIEW
            todo = "another binding of this name may be meant here: check that this one is"
        # A group that several codemods share says of each finding whose it is.
        codemod = self.site.codemod or self.codemod
        self.answers.append(
            Answer(node, codemod, state, found, why, todo, numerics, group=self, by_hand=by_hand)
        )


class Site:
    """One file under one codemod after the other."""

    def __init__(
        self,
        path: str,
        module: cst.Module,
        names: Names,
        flow: Flow,
        positions: Positions,
        project: Project,
        settings: Settings,
    ) -> None:
        self.path = path
        self.module = module
        self.names = names
        self.flow = flow
        self.positions = positions
        self.project = project
        self.settings = settings
        self.codemod = ""
        """Name of the codemod that is deciding."""
        self.uses: tuple[Use, ...] = ()
        """Every use of a legacy name in this file."""
        self.groups: list[Group] = []
        self.answers: list[Answer] = []
        self.refs: dict[str, Ref] = {}
        self.fresh_names: dict[str, Fresh] = {}
        self.helpers: dict[str, Helper] = {}
        self.settled: set[Use] = set()
        """Uses that a codemod answered while it looked at another one."""
        self.known: dict[cst.BaseExpression, Known] = {}
        """Expressions with one value natively, known before anything else is decided."""
        self.decided: set[cst.CSTNode] = set()
        """Statements whose test is such an expression: a branch of them stays, or nothing."""
        self.gone: set[cst.CSTNode] = set()
        """Code that no such test leaves standing."""
        self.released: set[cst.CSTNode] = set()
        """Import aliases without a use that may go."""
        self.kept_imports: set[cst.CSTNode] = set()
        """Import aliases that stay even without a use."""
        self.blocked: dict[str, str] = {}
        """Legacy packages that a string in this file names, and the string."""
        listed = names.dunder_all
        self.exported = frozenset(listed.names) if listed else frozenset()
        """The names in `__all__`."""
        self.notes: dict[str, set[cst.CSTNode]] = {}
        """What a codemod wants to remember about nodes of this file, by its name."""
        self.aliases: dict[cst.Assign, tuple[Binding, Use]] = {}
        """Assignments that only give a legacy name another name; they go when nothing reads that."""
        self.rebuilt: set[Statement] = set()
        """Compound statements that an edit writes anew, body and all."""
        self.kept_names: set[str] = set()
        """Names that may be left without a reader."""
        self.keywords: list[tuple[str, str]] = []
        """Callables and the keywords that were put into calls of them, for the proof."""

    # Questions

    def name_of(self, node: cst.BaseExpression) -> str | None:
        """The qualified name a dotted chain stands for, when that is certain."""
        return self.names.name_of(node)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """The node around a node."""
        return self.names.parent(node)

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The nodes around a node, from the inside out."""
        return self.names.ancestors(node)

    def statement(self, node: cst.CSTNode) -> Statement:
        """The statement around a node that can carry a comment."""
        found = self.names.statement(node)
        assert found is not None, "a finding stands in a statement"
        return found

    def nodes(self, kind: type[NodeT]) -> Sequence[NodeT]:
        """All nodes of one kind in the order of the text."""
        return self.positions.nodes(kind)

    @property
    def count(self) -> int:
        """How many answers there are so far."""
        return len(self.answers) + sum(len(group.answers) for group in self.groups)

    def alone(self, node: cst.BaseExpression) -> cst.Expr | None:
        """The statement that consists of this expression alone, or None."""
        parent = self.parent(node)
        if isinstance(parent, cst.Await):
            parent = self.parent(parent)
        return parent if isinstance(parent, cst.Expr) else None

    def suite(self, small: cst.CSTNode) -> cst.IndentedBlock | cst.SimpleStatementSuite | cst.Module | None:
        """The block that a small statement stands in."""
        for around in self.ancestors(small):
            if isinstance(around, (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)):
                return around
        return None

    def holds_only(
        self, suite: cst.IndentedBlock | cst.SimpleStatementSuite | cst.Module, small: cst.CSTNode
    ) -> bool:
        """Whether a block holds one small statement and nothing else."""
        if len(suite.body) != 1:
            return False
        only = suite.body[0]
        return only is small or (isinstance(only, cst.SimpleStatementLine) and list(only.body) == [small])

    def enclosing_quotes(self, node: cst.CSTNode) -> str:
        """The quote characters of the f-strings around a node, as `"`, `'` or both."""
        return "".join(
            sorted(
                {
                    around.start.lstrip("fFrRbBtT")[0]
                    for around in self.ancestors(node)
                    if isinstance(around, cst.FormattedString)
                }
            )
        )

    # Answers

    def group(self, use: Use | None = None) -> Group:
        """Open a group of edits. New imports go where the import of `use` stands."""
        count = sum(group.codemod == self.codemod for group in self.groups)
        group = Group(
            self,
            self.codemod,
            f"{self.codemod}-{count + 1}",
            use.binding if use else None,
            uncertain=bool(use and not use.certain),
        )
        self.groups.append(group)
        return group

    def know(
        self, node: cst.BaseExpression, constant: Constant, found: str, why: str, use: Use | None = None
    ) -> None:
        """Say what an expression is natively; what follows from it is folded."""
        self.known[node] = Known(node, constant, self.codemod, found, why, use)

    def mark(self, node: cst.CSTNode, found: str, why: str, todo: str = "", *, comment: bool = True) -> None:
        """Leave a use as it is, with a comment on its statement that says why and what to do."""
        self.answers.append(
            Answer(node, self.codemod, State.MARKED, found, why, todo, Numerics.SAME, comment=comment)
        )

    def note(self, node: cst.CSTNode, found: str, why: str) -> None:
        """Say aloud that something is left alone on purpose."""
        self.answers.append(
            Answer(node, self.codemod, State.NOTE, found, why, "", Numerics.SAME, comment=False)
        )


class _Requote(cst.CSTTransformer):
    """Turns the quotes of new strings, which would end the f-string around them before Python 3.12."""

    def __init__(self, taken: str, site: Site) -> None:
        super().__init__()
        self.taken = taken
        self.site = site

    def on_visit(self, node: cst.CSTNode) -> bool:
        # What stood there before keeps its identity: other edits are about it.
        return self.site.parent(node) is None

    # LibCST's own signature ties the result to the type of each node, which one override for all cannot say.
    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]:
        if self.site.parent(original_node) is not None:
            return updated_node
        return super().on_leave(original_node, updated_node)

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        free = [quote for quote in "\"'" if quote not in self.taken]
        if not free or updated_node.quote[0] == free[0] or "\\" in updated_node.value:
            return updated_node
        inner = updated_node.raw_value
        if free[0] in inner:
            return updated_node
        return updated_node.with_changes(value=updated_node.prefix + free[0] + inner + free[0])


class _Resolve(cst.CSTTransformer):
    """Turns the qualified names of a template into references."""

    def __init__(self, group: Group, kept: frozenset[cst.CSTNode]) -> None:
        super().__init__()
        self.group = group
        self.kept = kept

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node not in self.kept and not isinstance(node, cst.Attribute)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        if original_node in self.kept:
            return updated_node
        name = dotted(original_node)
        if name is not None and name.partition(".")[0] in TEMPLATE_ROOTS:
            return self.group.ref(name)
        value = original_node.value.visit(self)
        assert isinstance(value, cst.BaseExpression)
        return updated_node.with_changes(value=value)


TEMPLATE_ROOTS = frozenset(
    {
        "accelerate",
        "contextlib",
        "dataclasses",
        "diffusers",
        "functools",
        "importlib",
        "logging",
        "math",
        "os",
        "peft",
        "sentence_transformers",
        "time",
        "torch",
        "transformers",
        "trl",
    }
)
"""Packages whose dotted names in a template are references."""


def dotted(node: cst.BaseExpression) -> str | None:
    """The text of a pure chain of names, or None."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        inner = dotted(node.value)
        return None if inner is None else f"{inner}.{node.attr.value}"
    return None


def _is_renamed_import(binding: Binding) -> bool:
    return isinstance(binding.node, cst.ImportAlias) and binding.node.asname is not None


def _walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from _walk(child)
