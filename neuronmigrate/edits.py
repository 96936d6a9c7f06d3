"""New syntax for codemods, and the edits that put it in place.

A codemod builds expressions and statements here and hands them to a group; it never touches white
space, commas or import statements itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
HOLE = "_neuronmigrate_hole_"

# What may fill a hole without parentheses: it binds tighter than any operator around it.
_ATOMS = (
    cst.Attribute,
    cst.Call,
    cst.Dict,
    cst.DictComp,
    cst.FormattedString,
    cst.List,
    cst.ListComp,
    cst.Name,
    cst.Set,
    cst.SetComp,
    cst.SimpleString,
    cst.Subscript,
)
_NUMBERS = (cst.Integer, cst.Float, cst.Imaginary)


@dataclass(eq=False)
class Replace:
    """An expression or argument becomes another one; `new` may hold parts of `old`."""

    old: cst.CSTNode
    new: cst.CSTNode


@dataclass(eq=False)
class ReplaceStatement:
    """A statement, simple or compound, becomes several, or none."""

    old: cst.BaseSmallStatement | cst.BaseCompoundStatement
    new: Sequence[Statement] = ()


@dataclass(eq=False)
class Insert:
    """Statements stand before or after one that stays."""

    at: Statement
    new: Sequence[Statement]
    before: bool = True


@dataclass(eq=False)
class Unindent:
    """A block takes the place of the compound statement around it, comments and layout kept."""

    old: cst.With | cst.If | cst.Try
    body: cst.BaseSuite


@dataclass(eq=False)
class Omit:
    """A decorator, or one of several contexts of a `with`, goes; the comments about it stay."""

    old: cst.Decorator | cst.WithItem


Edit = Replace | ReplaceStatement | Insert | Omit | Unindent


@dataclass
class Arguments:
    """The arguments of a call, looked up by the parameters of the legacy callable.

    `spread` is true when a `*` or `**` hides some of them; `extra` holds those that are no parameters.
    """

    by_name: dict[str, cst.Arg] = field(default_factory=dict)
    extra: list[cst.Arg] = field(default_factory=list)
    spread: bool = False

    def value(self, name: str) -> cst.BaseExpression | None:
        """The expression given for a parameter, or None."""
        found = self.by_name.get(name)
        return None if found is None else found.value


def arguments(call: cst.Call, parameters: Sequence[str]) -> Arguments:
    """Bind the arguments of a call to parameter names; positional ones in the order given."""
    bound = Arguments()
    for index, arg in enumerate(call.args):
        if arg.star:
            bound.spread = True
            bound.extra.append(arg)
        elif arg.keyword is not None:
            bound.by_name[arg.keyword.value] = arg
            if arg.keyword.value not in parameters:
                bound.extra.append(arg)
        elif index < len(parameters) and not bound.spread:
            bound.by_name[parameters[index]] = arg
        else:
            bound.extra.append(arg)
    return bound


def is_atom(node: cst.BaseExpression) -> bool:
    """Whether an expression binds tighter than any operator."""
    return isinstance(node, _ATOMS)


def parenthesized(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression in parentheses, unless it needs none wherever it stands."""
    if is_atom(node) or node.lpar:
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def fill(node: cst.CSTNode, holes: Mapping[str, cst.BaseExpression]) -> cst.CSTNode:
    """Put expressions into the holes of parsed template code, in parentheses where they need them."""
    return _ensure_node(node.visit(_Filler(holes)))


def expression(template: str, **holes: cst.BaseExpression) -> cst.BaseExpression:
    """Parse an expression with `{name}` holes.

    Raises libcst.ParserSyntaxError for a template that is not an expression: a bug of the codemod.
    """
    if holes:
        template = template.format_map({name: HOLE + name for name in holes})
    return _ensure_expression(fill(cst.parse_expression(template), holes))


def statements(
    template: str, module: cst.Module | None = None, **holes: cst.BaseExpression
) -> list[Statement]:
    """Parse statements with `{name}` holes, in the indentation and newline of `module`."""
    if holes:
        template = template.format_map({name: HOLE + name for name in holes})
    config = cst.PartialParserConfig() if module is None else module.config_for_parsing
    if module is not None:
        # The template is written with four spaces and \n; LibCST keeps what it parses.
        template = re.sub(
            r"^(?: {4})+",
            lambda match: module.default_indent * (len(match[0]) // 4),
            template,
            flags=re.MULTILINE,
        ).replace("\n", module.default_newline)
    parsed = cst.parse_module(template, config)
    body = [fill(statement, holes) for statement in parsed.body]
    return [statement for statement in body if isinstance(statement, Statement)]


def string(text: str) -> cst.SimpleString:
    """A string literal in double quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return cst.SimpleString(f'"{escaped}"')


def keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """A keyword argument `name=value`."""
    return cst.Arg(
        value=value,
        keyword=cst.Name(name),
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )


def with_arguments(call: cst.Call, args: Sequence[cst.Arg]) -> cst.Call:
    """The call with other arguments, in the layout of the old ones.

    Old arguments that stay keep their comments, those above them and those beside them; the comments of an
    argument that goes go with it, but for arguments that somebody took out by a comment. A new one takes the
    separator the old call used, so a call with one argument a line gets the new one on a line of its own.
    """
    if not args:
        return call.with_changes(args=[], whitespace_before_args=cst.SimpleWhitespace(""))
    old = list(call.args)
    # An argument that was given another value or keyword is still the old one here.
    places = {_mark_of(arg): index for index, arg in enumerate(old)}
    # What stood between two arguments, and what stood after the last one.
    between: cst.Comma | None = next(
        (arg.comma for arg in old[:-1] if isinstance(arg.comma, cst.Comma)), None
    )
    if between is None and isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace):
        between = cst.Comma(whitespace_after=call.whitespace_before_args)
    if between is None:
        between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    plain = between.with_changes(whitespace_after=without_comment(between.whitespace_after))
    last_comma = old[-1].comma if old else cst.MaybeSentinel.DEFAULT
    tail = old[-1].whitespace_after_arg if old else cst.SimpleWhitespace("")
    stay = {places[mark] for mark in map(_mark_of, args) if mark in places}
    going = [index for index in range(len(old)) if index not in stay]

    def above(following: int | None) -> list[cst.EmptyLine]:
        """The lines above the next argument, with what was taken out above those that go before it."""
        end = following if following is not None else len(old)
        if following is None and any(index > going[0] for index in stay if going):
            end = 0
        lines = [
            line for index in going if index < end for line in _above(call, index) if _is_taken_out(line)
        ]
        going[:] = [index for index in going if index >= end]
        return [*lines, *_above(call, following)]

    start = call.whitespace_before_args
    first = places.get(_mark_of(args[0]))
    if first != 0 and isinstance(start, cst.ParenthesizedWhitespace):
        start = start.with_changes(empty_lines=above(first))
    result: list[cst.Arg] = []
    for index, arg in enumerate(args):
        at = places.get(_mark_of(arg))
        if index + 1 < len(args):
            following = places.get(_mark_of(args[index + 1]))
            comma = plain
            if at is not None and at + 1 < len(old) and isinstance(arg.comma, cst.Comma):
                comma = arg.comma
            else:
                # One that comes from another call brings the comment beside it along.
                comma = _with_comment(plain, _comment_beside(arg))
            if at is None or following != at + 1:
                comma = _with_above(comma, above(following))
            result.append(arg.with_changes(comma=comma, whitespace_after_arg=_inner(arg)))
        elif at is not None and at + 1 == len(old):
            result.append(arg)
        elif (
            at is None
            and (not old or _mark_of(old[-1]) not in {_mark_of(each) for each in args})
            and _comment_beside(arg) is None
        ):
            # It takes the place of the last one, with what is said there unless it brings its own.
            result.append(arg.with_changes(comma=last_comma, whitespace_after_arg=tail))
        else:
            end, after = last_comma, tail
            beside = _comment_beside(arg)
            if isinstance(end, cst.Comma):
                end = _with_comment(end, beside or cst.TrailingWhitespace())
            else:
                after = without_comment(after)
            result.append(arg.with_changes(comma=end, whitespace_after_arg=after))
    return call.with_changes(args=result, whitespace_before_args=start)


def _mark_of(arg: cst.Arg) -> int:
    """What tells an argument from others, whatever its value and keyword became."""
    return id(arg.comma) if isinstance(arg.comma, cst.Comma) else id(arg.whitespace_after_arg)


def _above(call: cst.Call, index: int | None) -> Sequence[cst.EmptyLine]:
    """The lines above an old argument; none above a new one."""
    if index is None:
        return []
    before = call.args[index - 1].comma if index else None
    space = before.whitespace_after if isinstance(before, cst.Comma) else call.whitespace_before_args
    return list(space.empty_lines) if isinstance(space, cst.ParenthesizedWhitespace) else []


def _is_taken_out(line: cst.EmptyLine) -> bool:
    """Whether a comment is an argument that somebody took out."""
    return line.comment is not None and bool(re.match(r"#\s*\w+\s*=(?!=)", line.comment.value))


def _comment_beside(arg: cst.Arg) -> cst.TrailingWhitespace | None:
    """The comment at the end of an argument's line."""
    for space in (
        arg.comma.whitespace_after if isinstance(arg.comma, cst.Comma) else None,
        arg.whitespace_after_arg,
    ):
        if isinstance(space, cst.ParenthesizedWhitespace) and space.first_line.comment is not None:
            return space.first_line
    return None


def _with_comment(comma: cst.Comma, line: cst.TrailingWhitespace | None) -> cst.Comma:
    space = comma.whitespace_after
    if line is None or not isinstance(space, cst.ParenthesizedWhitespace):
        return comma
    return comma.with_changes(whitespace_after=space.with_changes(first_line=line))


def _with_above(comma: cst.Comma, lines: Sequence[cst.EmptyLine]) -> cst.Comma:
    space = comma.whitespace_after
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return comma
    return comma.with_changes(whitespace_after=space.with_changes(empty_lines=lines))


def without_arguments(call: cst.Call, gone: Sequence[cst.Arg]) -> cst.Call:
    """The call without some of its arguments."""
    return with_arguments(call, [arg for arg in call.args if arg not in gone])


def positional(arg: cst.Arg, value: cst.BaseExpression | None = None) -> cst.Arg:
    """An argument without its keyword, with its comments, and perhaps with another value."""
    return arg.with_changes(
        keyword=None, equal=cst.MaybeSentinel.DEFAULT, value=arg.value if value is None else value
    )


def is_literal(node: cst.BaseExpression) -> bool:
    """Whether the expression is a constant: evaluating it can neither fail nor act."""
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.expression, _NUMBERS)
    if isinstance(node, cst.Name):
        return node.value in ("True", "False", "None")
    return isinstance(node, (cst.SimpleString, cst.Ellipsis, *_NUMBERS))


def is_pure(node: cst.BaseExpression) -> bool:
    """Whether evaluating the expression cannot act: names, attributes, comparisons and the like."""
    if isinstance(node, cst.Attribute):
        return is_pure(node.value)
    if isinstance(node, cst.UnaryOperation):
        return is_pure(node.expression)
    if isinstance(node, (cst.BinaryOperation, cst.BooleanOperation)):
        return is_pure(node.left) and is_pure(node.right)
    if isinstance(node, cst.Comparison):
        return is_pure(node.left) and all(is_pure(target.comparator) for target in node.comparisons)
    return is_literal(node) or isinstance(node, cst.Name)


def code_of(node: cst.CSTNode) -> str:
    """The source text of a node."""
    return cst.Module(body=[]).code_for_node(node)


def short(node: cst.CSTNode, limit: int = 60) -> str:
    """The source text of a node on one line, cut when it is long."""
    text = " ".join(code_of(node).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


class _Filler(cst.CSTTransformer):
    def __init__(self, holes: Mapping[str, cst.BaseExpression]) -> None:
        super().__init__()
        self.holes = holes
        self.bare: set[cst.CSTNode] = set()

    def visit_Arg(self, node: cst.Arg) -> None:
        self.bare.add(node.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        self.bare.add(node.value)

    def visit_Expr(self, node: cst.Expr) -> None:
        self.bare.add(node.value)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        if not original_node.value.startswith(HOLE):
            return updated_node
        value = self.holes[original_node.value.removeprefix(HOLE)]
        return value if original_node in self.bare else parenthesized(value)


def without_comment(space: cst.BaseParenthesizableWhitespace) -> cst.BaseParenthesizableWhitespace:
    """White space between two items, without the comment that belongs to the first of them."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    return space.with_changes(
        first_line=space.first_line.with_changes(comment=None, whitespace=cst.SimpleWhitespace("")),
        empty_lines=[],
    )


def _inner(arg: cst.Arg) -> cst.BaseParenthesizableWhitespace:
    # A line break after the last argument would stand before a comma once another one follows.
    space = arg.whitespace_after_arg
    return cst.SimpleWhitespace("") if isinstance(space, cst.ParenthesizedWhitespace) else space


def _ensure_node(node: object) -> cst.CSTNode:
    assert isinstance(node, cst.CSTNode)
    return node


def _ensure_expression(node: cst.CSTNode) -> cst.BaseExpression:
    assert isinstance(node, cst.BaseExpression)
    return node
