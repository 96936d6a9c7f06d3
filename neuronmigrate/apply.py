"""Puts edits into a tree in one pass, so that an edit inside another one's replacement is kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.edits import Edit, Statement

Comment = tuple[str, cst.CSTNode]
"""A comment line and the node it is about."""

Parent = Callable[[cst.CSTNode], cst.CSTNode | None]

# Comments that say nothing once the lazy graph is gone.
_ABOUT_LAZY_TENSORS = re.compile(r"mark_step|torch_xla\.sync|lazy (graph|tensor)|step marker", re.IGNORECASE)

# Where an expression may stand without parentheses, whatever it is.
_DELIMITED = (
    cst.AnnAssign,
    cst.Annotation,
    cst.Arg,
    cst.Assert,
    cst.Assign,
    cst.AugAssign,
    cst.DictElement,
    cst.Element,
    cst.Expr,
    cst.FormattedStringExpression,
    cst.If,
    cst.Index,
    cst.Lambda,
    cst.Param,
    cst.Raise,
    cst.Return,
    cst.While,
    cst.WithItem,
    cst.Yield,
)


def conflicts(plan: Iterable[Edit]) -> set[cst.CSTNode]:
    """The nodes that two edits want to replace."""
    seen: set[cst.CSTNode] = set()
    twice: set[cst.CSTNode] = set()
    for edit in plan:
        if not isinstance(edit, edits.Insert):
            (twice if edit.old in seen else seen).add(edit.old)
    return twice


def touched(plan: Iterable[Edit]) -> Iterator[cst.CSTNode]:
    """The original nodes that edits change or stand beside."""
    for edit in plan:
        yield edit.at if isinstance(edit, edits.Insert) else edit.old


def apply(
    module: cst.Module,
    parent: Parent,
    plan: Sequence[Edit],
    comments: Mapping[cst.CSTNode, Sequence[Comment]],
    uncomment: Mapping[cst.CSTNode, Sequence[str]],
    known: Callable[[cst.CSTNode], bool],
) -> cst.Module:
    """The module with all edits in place.

    `comments` are lines put above statements, `uncomment` lines taken away from there. `known` says
    whether a node belongs to the original module; only such nodes without an edit below them are left
    unvisited, and so stay the very same objects.
    """
    spine: set[cst.CSTNode] = set()
    for node in [*touched(plan), *comments, *uncomment]:
        current: cst.CSTNode | None = node
        while current is not None and current not in spine:
            spine.add(current)
            current = parent(current)
    result = module.visit(_Applier(module, plan, comments, uncomment, spine, known))
    return result


class _Applier(cst.CSTTransformer):
    def __init__(
        self,
        module: cst.Module,
        plan: Sequence[Edit],
        comments: Mapping[cst.CSTNode, Sequence[Comment]],
        uncomment: Mapping[cst.CSTNode, Sequence[str]],
        spine: set[cst.CSTNode],
        known: Callable[[cst.CSTNode], bool],
    ) -> None:
        super().__init__()
        self.module = module
        self.comments = {statement: list(lines) for statement, lines in comments.items()}
        self.uncomment = uncomment
        self.spine = spine
        self.known = known
        self.stack: list[cst.CSTNode] = []
        self.line: cst.CSTNode | None = None
        """The line whose small statements are being replaced."""
        self.active: set[cst.CSTNode] = set()
        self.replacing: dict[
            cst.CSTNode, edits.Replace | edits.ReplaceStatement | edits.Omit | edits.Unindent
        ] = {}
        self.carried: dict[cst.CSTNode, list[cst.EmptyLine]] = {}
        self.before: dict[cst.CSTNode, list[Statement]] = {}
        self.after: dict[cst.CSTNode, list[Statement]] = {}
        for edit in plan:
            if isinstance(edit, edits.Insert):
                (self.before if edit.before else self.after).setdefault(edit.at, []).extend(edit.new)
            else:
                self.replacing[edit.old] = edit

    def on_visit(self, node: cst.CSTNode) -> bool:
        self.stack.append(node)
        if node in self.replacing and node not in self.active:
            # What is below is visited through the replacement.
            return False
        return node in self.spine or not self.known(node)

    # LibCST's own signature ties the result to the type of the node; an edit may put any other in its place.
    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]:
        self.stack.pop()
        edit = None if original_node in self.active else self.replacing.get(original_node)
        if isinstance(edit, edits.Replace):
            return self._replaced(edit, original_node)
        if isinstance(original_node, cst.SimpleStatementLine):
            assert isinstance(updated_node, cst.SimpleStatementLine)
            return self._line(original_node, updated_node)
        if isinstance(original_node, cst.BaseCompoundStatement):
            assert isinstance(updated_node, cst.BaseCompoundStatement)
            if isinstance(original_node, (cst.ClassDef, cst.FunctionDef)):
                updated_node = self._undecorated(original_node, updated_node)
            if isinstance(original_node, cst.With):
                updated_node = self._entering(original_node, updated_node)
            assert edit is None or isinstance(edit, (edits.ReplaceStatement, edits.Unindent))
            return self._compound(original_node, updated_node, edit)
        if isinstance(original_node, cst.SimpleStatementSuite):
            assert isinstance(updated_node, cst.SimpleStatementSuite)
            return self._suite(original_node, updated_node)
        if isinstance(original_node, (cst.IndentedBlock, cst.Module)):
            return self._block(original_node, updated_node)
        return updated_node

    # Expressions

    def _replaced(self, edit: edits.Replace, original: cst.CSTNode) -> cst.CSTNode:
        self.active.add(original)
        new = edit.new.visit(self)
        self.active.discard(original)
        assert isinstance(new, cst.CSTNode)
        if isinstance(new, cst.BaseExpression) and not new.lpar:
            around = self.stack[-1] if self.stack else None
            if isinstance(original, cst.BaseExpression) and original.lpar:
                if edits.is_atom(new) and _only_for_itself(original, around):
                    return new
                return new.with_changes(lpar=original.lpar, rpar=original.rpar)
            if isinstance(new, (cst.Float, cst.Integer)) and not isinstance(around, cst.Attribute):
                return new
            if not isinstance(around, _DELIMITED) and _strength(new) <= _strength(around):
                return edits.parenthesized(new)
        return new

    # Statements

    def _goes(self, small: cst.CSTNode) -> bool:
        """Whether something takes the place of a small statement, and is not being put there already."""
        return isinstance(self.replacing.get(small), edits.ReplaceStatement) and small not in self.active

    def _line(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine
    ) -> cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]:
        if not any(self._goes(small) for small in original.body):
            return self._around(original, [updated])
        self.line = original
        # Runs of small statements that stay are lines; what replaces one is lines of its own.
        lines: list[Statement] = []
        run: list[cst.BaseSmallStatement] = []
        noted: list[cst.EmptyLine] = []

        def close() -> None:
            if run:
                run[-1] = run[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
                lines.append(updated.with_changes(body=list(run), leading_lines=list(noted)))
                run.clear()
                noted.clear()

        for small, small_updated in zip(original.body, updated.body, strict=True):
            edit = self.replacing.get(small)
            if isinstance(edit, edits.ReplaceStatement) and self._goes(small):
                new = self._new_statements(edit, small)
                if new:
                    close()
                    lines.extend(new)
            else:
                run.append(small_updated)
                noted.extend(self._notes(small))
        close()
        if lines:
            lines[-1] = _with_trailing(lines[-1], original.trailing_whitespace)
        return self._around(original, _with_leading_first(lines, original.leading_lines))

    def _compound(
        self,
        original: cst.BaseCompoundStatement,
        updated: cst.BaseCompoundStatement,
        edit: edits.ReplaceStatement | edits.Unindent | None,
    ) -> cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]:
        if edit is None:
            return self._around(original, [updated])
        leading = getattr(original, "leading_lines", ())
        footer: list[cst.EmptyLine] = []
        if isinstance(edit, edits.Unindent):
            new, footer = self._unindented(edit)
        else:
            new = self._new_statements(edit, original)
        new = _with_leading_first(new, leading)
        is_elif = isinstance(self.stack[-1], cst.If) and self.stack[-1].orelse is original
        if is_elif:
            return self._clause(new)
        placed = self._around(original, new)
        if footer:
            # Comments below the last statement of the block go on below it.
            self.carried.setdefault(self.stack[-1], []).extend(footer)
        return placed

    def _undecorated(
        self, original: cst.ClassDef | cst.FunctionDef, updated: cst.CSTNode
    ) -> cst.ClassDef | cst.FunctionDef:
        """The function or class without the decorators that go."""
        assert isinstance(updated, (cst.ClassDef, cst.FunctionDef))
        decorators: list[cst.Decorator] = []
        waiting: list[cst.EmptyLine] = []
        for decorator, now in zip(original.decorators, updated.decorators, strict=True):
            if isinstance(self.replacing.get(decorator), edits.Omit):
                beside = decorator.trailing_whitespace.comment
                waiting += [line for line in decorator.leading_lines if line.comment is not None]
                waiting += [cst.EmptyLine(comment=beside)] if beside is not None else []
            else:
                decorators.append(now.with_changes(leading_lines=[*waiting, *now.leading_lines]))
                waiting = []
        below = [*waiting, *updated.lines_after_decorators]
        if len(decorators) == len(original.decorators):
            return updated
        return updated.with_changes(decorators=decorators, lines_after_decorators=below)

    def _entering(self, original: cst.With, updated: cst.CSTNode) -> cst.With:
        """The `with` without the contexts that go."""
        assert isinstance(updated, cst.With)
        items = [
            now
            for item, now in zip(original.items, updated.items, strict=True)
            if not isinstance(self.replacing.get(item), edits.Omit)
        ]
        if len(items) == len(original.items):
            return updated
        items[-1] = items[-1].with_changes(comma=original.items[-1].comma)
        return updated.with_changes(items=items)

    def _clause(self, new: list[Statement]) -> cst.CSTNode | cst.RemovalSentinel:
        """What takes the place of an `elif`: another `elif`, an `else`, or nothing."""
        if not new:
            return cst.RemovalSentinel.REMOVE
        if len(new) == 1 and isinstance(new[0], cst.If):
            return new[0]
        return cst.Else(body=cst.IndentedBlock(body=new))

    def _new_statements(self, edit: edits.ReplaceStatement, original: cst.CSTNode) -> list[Statement]:
        self._hand_down(edit, original)
        self.active.add(original)
        new: list[Statement] = []
        for statement in edit.new:
            visited = statement.visit(self)
            several = visited if isinstance(visited, cst.FlattenSentinel) else [visited]
            for each in several:
                if each is cst.RemovalSentinel.REMOVE:
                    continue
                assert isinstance(each, Statement)
                new.append(each)
        self.active.discard(original)
        return new

    def _hand_down(self, edit: edits.ReplaceStatement, original: cst.CSTNode) -> None:
        """Let a comment follow the code it is about into a block that is put around that."""
        holder = original if original in self.comments else self.line
        waiting = self.comments.get(holder, []) if holder is not None else []
        for comment in list(waiting):
            inner = _innermost(edit.new, comment[1])
            if inner is None and holder is original and edit.new:
                inner = edit.new[0]
            if inner is not None and (holder is original or inner not in edit.new):
                waiting.remove(comment)
                self.comments.setdefault(inner, []).append(comment)

    def _notes(self, small: cst.CSTNode) -> list[cst.EmptyLine]:
        """The comments about a small statement that gets a line of its own."""
        return [cst.EmptyLine(comment=cst.Comment(line)) for line, _ in self.comments.get(small, ())]

    def _unindented(self, edit: edits.Unindent) -> tuple[list[Statement], list[cst.EmptyLine]]:
        """The statements of the block, and the comments below the last of them."""
        self.active.add(edit.old)
        body = edit.body.visit(self)
        self.active.discard(edit.old)
        if isinstance(body, cst.SimpleStatementSuite):
            line = cst.SimpleStatementLine(body=body.body, trailing_whitespace=body.trailing_whitespace)
            return [line], []
        assert isinstance(body, cst.IndentedBlock)
        new = [statement for statement in body.body if isinstance(statement, Statement)]
        if new and _is_bare_pass(new[0]) and not _is_bare_pass(edit.body.body[0]):
            new = []  # all of the block went, and what stands around it needs no `pass`
        beside = body.header.comment
        if beside is not None and new:
            note = cst.EmptyLine(comment=beside)
            new[0] = _with_leading(new[0], [note], front=True)
        return new, [line for line in body.footer if line.comment is not None]

    def _around(
        self, original: cst.CSTNode, core: list[Statement]
    ) -> cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNode]:
        """The statement with its comments, and what is inserted before and after it."""
        block = self.stack[-1]
        carried = self.carried.pop(block, [])
        if not core:
            self.carried[block] = [*carried, *self._outlives(original, block)]
            carried = []
        elif not any(line.comment for line in carried):
            # Blank lines alone only close the gap that a statement left.
            leading = getattr(core[0], "leading_lines", ())
            blank_already = len(list(takewhile(lambda line: line.comment is None, leading)))
            carried = carried[blank_already:]
        gone = self.uncomment.get(original, ())
        if core and gone:
            core[0] = _without_lines(core[0], gone)
        lines = self.comments.get(original, ())
        if core and lines:
            added = self._notes(original)
            core[0] = _with_leading(core[0], added, front=False)
        before = [self._inserted(statement) for statement in self.before.get(original, ())]
        after = [self._inserted(statement) for statement in self.after.get(original, ())]
        if before and core:
            # Blank lines move up to what is inserted; comments stay with their statement.
            leading = list(getattr(core[0], "leading_lines", ()))
            blank = []
            while leading and leading[0].comment is None:
                blank.append(leading.pop(0))
            if _is_helper(before[0], block) or _is_variable(before[0], core[0], block):
                blank = _APART
                leading = [*blank, *leading]
                before[1:] = [_with_leading(helper, blank, front=True) for helper in before[1:]]
            elif len(self.stack) > 1 and _is_field(before[-1], core[0], self.stack[-2]):
                leading = [*_APART[:1], *leading]
            before[0] = _with_leading(before[0], blank, front=True)
            core[0] = core[0].with_changes(leading_lines=leading)
        elif before and _is_helper(before[0], block):
            before[0] = _with_leading(before[0], _APART, front=True)
            self.carried[block] = [*_APART, *self.carried.get(block, [])]
        whole = _with_leading_first([*before, *core, *after], carried)
        if not whole:
            return cst.RemovalSentinel.REMOVE
        return whole[0] if len(whole) == 1 else cst.FlattenSentinel(whole)

    def _outlives(self, original: cst.CSTNode, block: cst.CSTNode) -> list[cst.EmptyLine]:
        """The lines above a statement that goes which stay: comments may be about more than it."""
        leading = list(getattr(original, "leading_lines", ()))
        ours = self.uncomment.get(original, ())
        kept = [
            line
            for line in leading
            if line.comment is not None
            and line.comment.value not in ours
            and not _ABOUT_LAZY_TENSORS.search(line.comment.value)
        ]
        kept += self._notes(original)
        is_first = getattr(block, "body", ())[:1] == (original,)
        if leading and leading[0].comment is None and not is_first:
            blank = list(takewhile(lambda line: line.comment is None, leading)) if kept else leading[:1]
            return [*blank, *kept]
        return kept

    def _inserted(self, statement: Statement) -> Statement:
        visited = statement.visit(self)
        assert isinstance(visited, Statement)
        return visited

    def _suite(self, original: cst.SimpleStatementSuite, updated: cst.SimpleStatementSuite) -> cst.CSTNode:
        """`if c: a(); b()`: what is replaced there can only be small statements again."""
        if not any(self._goes(small) for small in original.body):
            return updated
        body: list[cst.BaseSmallStatement] = []
        blocks: list[Statement] = []
        for small, small_updated in zip(original.body, updated.body, strict=True):
            edit = self.replacing.get(small)
            if isinstance(edit, edits.ReplaceStatement) and self._goes(small):
                new = self._new_statements(edit, small)
            else:
                alone = small_updated.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
                new = [cst.SimpleStatementLine(body=[alone], leading_lines=self._notes(small))]
            blocks.extend(new)
        if all(isinstance(block, cst.SimpleStatementLine) for block in blocks):
            for block in blocks:
                assert isinstance(block, cst.SimpleStatementLine)
                body.extend(block.body)
            body = [small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for small in body]
            return updated.with_changes(body=body or [cst.Pass()])
        return cst.IndentedBlock(body=blocks, header=original.trailing_whitespace)

    def _block(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        carried = [line for line in self.carried.pop(original, []) if line.comment is not None]
        if carried:
            footer = [*carried, *getattr(updated, "footer", ())]
            updated = updated.with_changes(footer=footer)
        if isinstance(updated, cst.IndentedBlock) or (isinstance(updated, cst.Module) and not updated.header):
            updated = _without_blank_start(original, updated)
        if isinstance(updated, cst.IndentedBlock) and not updated.body:
            return updated.with_changes(body=[cst.SimpleStatementLine(body=[cst.Pass()])])
        return updated


def _is_bare_pass(node: cst.CSTNode) -> bool:
    """Whether a line is `pass`, and says nothing beside."""
    return isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.Pass)


def _strength(node: cst.CSTNode | None) -> int:
    """How strongly an expression holds together; 9 for what we never leave without parentheses."""
    if isinstance(node, cst.IfExp):
        return 1
    if isinstance(node, cst.BooleanOperation):
        return 2 if isinstance(node.operator, cst.Or) else 3
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        return 4
    if isinstance(node, cst.Comparison):
        return 5
    return 9


def _without_blank_start(original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
    """The block without the blank lines that came to stand first because what stood there went."""
    old, new = getattr(original, "body", ()), getattr(updated, "body", ())
    was = getattr(old[0], "leading_lines", ()) if old else ()
    if not new or (was and was[0].comment is None):
        return updated
    lines = list(getattr(new[0], "leading_lines", ()))
    if not lines or lines[0].comment is not None:
        return updated
    while lines and lines[0].comment is None:
        del lines[0]
    return updated.with_changes(body=[new[0].with_changes(leading_lines=lines), *new[1:]])


def _innermost(statements: Sequence[Statement], node: cst.CSTNode) -> Statement | None:
    """The innermost statement among these and what is inside them that holds a node."""
    for statement in statements:
        found = _holder(statement, node)
        if found is not None:
            return found if isinstance(found, Statement) else statement
    return None


def _holder(tree: cst.CSTNode, node: cst.CSTNode) -> cst.CSTNode | None:
    """The innermost statement below a tree that holds a node; the tree itself if no other does."""
    if tree is node:
        return tree
    for child in tree.children:
        found = _holder(child, node)
        if found is not None:
            return found if isinstance(found, Statement) else tree
    return None


def _only_for_itself(node: cst.BaseExpression, around: cst.CSTNode | None) -> bool:
    """Whether parentheses hold together a conditional expression, and nothing is said in them."""
    spaces = [each.whitespace_after for each in node.lpar] + [each.whitespace_before for each in node.rpar]
    plain = all(isinstance(each, cst.SimpleWhitespace) for each in spaces)
    return plain and isinstance(node, cst.IfExp) and isinstance(around, (cst.Arg, cst.Assign))


# A helper function stands apart from what is around it.
_APART = [cst.EmptyLine(indent=False), cst.EmptyLine(indent=False)]


def _is_helper(inserted: Statement, block: cst.CSTNode) -> bool:
    return isinstance(inserted, (cst.FunctionDef, cst.ClassDef)) and isinstance(block, cst.Module)


def _is_variable(inserted: Statement, below: Statement, block: cst.CSTNode) -> bool:
    """Whether a variable of the module comes to stand above a function or class."""
    return (
        isinstance(inserted, cst.SimpleStatementLine)
        and isinstance(below, (cst.FunctionDef, cst.ClassDef))
        and isinstance(block, cst.Module)
    )


def _is_field(inserted: Statement, below: Statement, around: cst.CSTNode) -> bool:
    """Whether a field of a class comes to stand above a method."""
    return (
        isinstance(inserted, cst.SimpleStatementLine)
        and isinstance(below, (cst.FunctionDef, cst.ClassDef))
        and isinstance(around, cst.ClassDef)
    )


def _with_leading(statement: Statement, lines: Sequence[cst.EmptyLine], *, front: bool) -> Statement:
    if not lines:
        return statement
    old = list(getattr(statement, "leading_lines", ()))
    both = [*lines, *old] if front else [*old, *lines]
    return statement.with_changes(leading_lines=both)


def _with_leading_first(statements: list[Statement], lines: Sequence[cst.EmptyLine]) -> list[Statement]:
    if not statements:
        return []
    return [_with_leading(statements[0], lines, front=True), *statements[1:]]


def _with_trailing(statement: Statement, beside: cst.TrailingWhitespace) -> Statement:
    """The statement with the comment that stood beside the one it replaces."""
    if beside.comment is None:
        return statement
    if isinstance(statement, cst.SimpleStatementLine):
        if statement.trailing_whitespace.comment is not None:
            return statement
        return statement.with_changes(trailing_whitespace=beside)
    if isinstance(statement.body, cst.IndentedBlock) and statement.body.header.comment is None:
        return statement.with_changes(body=statement.body.with_changes(header=beside))
    return statement


def _without_lines(statement: Statement, gone: Sequence[str]) -> Statement:
    old = getattr(statement, "leading_lines", ())
    kept = [line for line in old if line.comment is None or line.comment.value not in gone]
    return statement.with_changes(leading_lines=kept)
