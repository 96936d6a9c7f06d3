"""What a name stands for: small questions with answers, then the same of real code."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import random
import re
import symtable
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libcst as cst
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from libcst.metadata import MetadataWrapper, QualifiedNameSource, ScopeProvider

from neuronmigrate.names import Binding, Kind, Names, Resolved, Scope, ScopeKind


def parsed(code: str, **options: Any) -> Names:
    return Names(cst.parse_module(code), **options)


def asked(names: Names) -> list[cst.BaseExpression]:
    """The arguments of the calls of `ask`, in the order in which they stand."""
    return [
        call.args[0].value
        for call in names.calls
        if isinstance(call.func, cst.Name) and call.func.value == "ask"
    ]


def shown(answer: Resolved) -> str:
    """`a.b` when certain, `a.b?` when not, candidates joined by a bar, `-` for nothing."""
    text = " | ".join(sorted(answer.names)) or "-"
    return text + "?" * (bool(answer.names) and not answer.certain)


def answers(code: str, **options: object) -> list[str]:
    names = parsed(code, **options)
    return [shown(names.names_of(each)) for each in asked(names)]


SHAPES = {
    # Imports.
    "plain import": ("import torch_xla\nask(torch_xla.sync)", "torch_xla.sync"),
    "dotted import, dotted use": ("import a.b.c\nask(a.b.c.d)", "a.b.c.d"),
    "dotted import binds its root": ("import a.b.c\nask(a)", "a"),
    "aliased import": ("import a.b.c as xm\nask(xm.mark_step)", "a.b.c.mark_step"),
    "from import": ("from a.b import c\nask(c.d)", "a.b.c.d"),
    "aliased from import": ("from a.b import c as d\nask(d)", "a.b.c"),
    "two dotted imports of one root": ("import a.b\nimport a.c\nask(a.b.x)", "a.b.x"),
    "root and alias": ("import a\nimport a.b.c as xm\nask(xm.f)\nask(a.b.c.f)", "a.b.c.f", "a.b.c.f"),
    "several in one statement": ("import a, b as c\nask(a)\nask(c)", "a", "b"),
    "imported twice alike": ("import a as x\nimport a as x\nask(x)", "a"),
    "import in a function": ("def f():\n    import a as x\n    ask(x)", "a"),
    "import in one function, used in another": ("def f():\n    import a as x\ndef g():\n    ask(x)", "-"),
    "import under TYPE_CHECKING": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a as x\ndef f():\n    ask(x)",
        "a",
    ),
    "import in a class body": ("class C:\n    import a as x\n    ask(x.y)", "a.y"),
    "import after use in straight-line code": ("ask(x)\nimport a as x", "-"),
    "relative without a package": ("from .m import x\nask(x)", ".m.x"),
    "from the package itself": ("from . import x\nask(x.y)", ".x.y"),
    # No names.
    "through a call": ("import a\nask(a.f().g)", "-"),
    "through a subscript": ("import a\nask(a.f[0].g)", "-"),
    "a string": ("ask('a.b')", "-"),
    "a builtin": ("ask(print)", "builtins.print"),
    "unknown": ("ask(nowhere)", "-"),
    "None": ("ask(None)", "-"),
    # Several meanings.
    "import or None": (
        "try:\n    import a as x\nexcept ImportError:\n    x = None\nask(x.y)",
        "a.y?",
    ),
    "import or object": (
        "try:\n    from a import X\nexcept ImportError:\n    X = object\nask(X)",
        "a.X?",
    ),
    "import or a stub": (
        "try:\n    from a import X\nexcept ImportError:\n    class X: pass\nask(X)",
        "a.X?",
    ),
    "import or another": (
        "try:\n    import a as x\nexcept ImportError:\n    import b as x\nask(x)",
        "a | b?",
    ),
    "one in each arm": ("if c():\n    import a as x\nelse:\n    import b as x\nask(x)", "a | b?"),
    "the same in each arm": ("if c():\n    import a as x\nelse:\n    import a as x\nask(x)", "a"),
    "in one arm only": ("if c():\n    import a as x\nask(x)", "a"),
    "within its own arm": (
        "if c():\n    import a as x\n    ask(x)\nelse:\n    import b as x\n    ask(x)",
        "a",
        "b",
    ),
    "None before the try": (
        "x = None\ntry:\n    import a as x\nexcept ImportError:\n    pass\nask(x)",
        "a?",
    ),
    "handler that raises": (
        "try:\n    import a as x\nexcept ImportError:\n    x = None\n    raise\nask(x)",
        "a",
    ),
    "bound again below": ("import a as x\nask(x)\nx = 1\nask(x)", "a", "-"),
    "any of them from a nested scope": ("import a as x\nx = 1\ndef f():\n    ask(x)", "a?"),
    # Aliases by assignment.
    "function alias": ("import a\nf = a.b.f\nask(f)", "a.b.f"),
    "module alias": ("import a as x\ny = x\nz = y\nask(z.f)", "a.f"),
    "alias in a tuple": ("import a\nf, g = a.f, a.g\nask(g)", "a.g"),
    "alias by walrus": ("import a\nif (f := a.f):\n    ask(f)", "a.f"),
    "alias by choice": ("import a\nf = a.f if c() else a.g\nask(f)", "a.f | a.g?"),
    "alias or None": ("import a\nf = a.f if c() else None\nask(f)", "a.f?"),
    "alias of itself": ("import a\nx = a\nwhile c():\n    x = x.y\nask(x)", "a | a.y?"),
    "alias as a default": ("import a\ndef f(g=a.g):\n    ask(g)", "a.g?"),
    "import_module": ("import importlib\nx = importlib.import_module('a.b')\nask(x.f)", "a.b.f?"),
    "annotated alias": ("import a\nf: object = a.f\nask(f)", "a.f"),
    "annotation alone binds nothing": ("import a as x\nx: object\nask(x)", "a"),
    # Classes.
    "attribute of self": (
        "import a as x\nclass C:\n    def __init__(self):\n        self.x = x\n"
        "    def f(self):\n        ask(self.x.y)",
        "a.y",
    ),
    "attribute of self or None": (
        "import a as x\nclass C:\n    def __init__(self):\n        self.x = None\n"
        "    def g(self):\n        self.x = x\n    def f(self):\n        ask(self.x.y)",
        "a.y?",
    ),
    "class attribute": (
        "import a\nclass C:\n    x = a\n    def f(self):\n        ask(self.x)\nask(C.x)",
        "a",
        "a",
    ),
    "attribute from a base": (
        "import a\nclass B:\n    x = a\nclass C(B):\n    def f(self):\n        ask(self.x)",
        "a",
    ),
    "attribute a subclass overrides": (
        "import a, b\nclass B:\n    x = a\n    def f(self):\n        ask(self.x)\n"
        "class C(B):\n    x = b\nask(B.x)",
        "a | b?",
        "a",
    ),
    "attribute that depends on itself": (
        "class C:\n    def f(self):\n        self.x = self.x if self.x else self.x.x\n        ask(self.x)",
        "-",
    ),
    "static method has no self": (
        "import a\nclass C:\n    x = a\n    @staticmethod\n    def f(self):\n        ask(self.x)",
        "-",
    ),
    "star args are no self": ("import a\nclass C:\n    x = a\n    def f(*self):\n        ask(self.x)", "-"),
    "self in a nested function": (
        "import a\nclass C:\n    x = a\n    def f(self):\n        def g():\n            ask(self.x)",
        "a",
    ),
    "class scope is not seen from methods": ("class C:\n    import a\n    def f(self):\n        ask(a)", "-"),
    "class scope is not seen from its comprehensions": (
        "class C:\n    import a\n    b = [ask(a) for _ in ask(a)]",
        "a",
        "-",
    ),
    "class body before its own binding": (
        "import a as x\nclass C:\n    ask(x)\n    x = 1\n    ask(x)",
        "a",
        "-",
    ),
    "class body may not have bound it": (
        "import a as x\nclass C:\n    if c():\n        import b as x\n    ask(x)",
        "a | b?",
    ),
    # Shadows.
    "parameter": ("import a as x\ndef f(x):\n    ask(x)", "-"),
    "positional-only parameter": ("import a as x\ndef f(x, /):\n    ask(x)", "-"),
    "keyword-only parameter": ("import a as x\ndef f(*, x):\n    ask(x)", "-"),
    "star parameters": ("import a as x, a as y\ndef f(*x, **y):\n    ask(x)\n    ask(y)", "-", "-"),
    "lambda parameter": ("import a as x\nf = lambda x: ask(x)", "-"),
    "for target": ("import a as x\nfor x in y():\n    ask(x)", "-"),
    "after a for": ("import a as x\nfor x in y():\n    pass\nask(x)", "a?"),
    "with target": ("import a as x\nwith y() as x:\n    ask(x)", "-"),
    "except name": ("import a as x\ntry:\n    y()\nexcept E as x:\n    ask(x)", "-"),
    "except name is gone afterwards": (
        "import a as x\ntry:\n    y()\nexcept E as x:\n    pass\nask(x)",
        "a",
    ),
    "comprehension target": ("import a as x\n[ask(x) for x in y()]\nask(x)", "-", "a"),
    "first iterable is outside": ("import a as x\n[x for x in ask(x)]", "a"),
    "second iterable is inside": ("import a as x\n[1 for x in y() for z in ask(x)]", "-"),
    "walrus in a comprehension binds outside": (
        "import a as x\ndef f():\n    [(x := 1) for _ in y()]\n    ask(x)",
        "-",
    ),
    "match capture": (
        "import a as x\nmatch y():\n    case [x, *_]:\n        ask(x)\n    case _:\n        ask(x)",
        "-",
        "a?",
    ),
    "match class is a load": ("import a\nmatch y():\n    case a.C(z=1):\n        pass\nask(a.C)", "a.C"),
    "nested function": ("import a as x\ndef f():\n    def x(): pass\n    ask(x)", "-"),
    "local for the whole function": ("import a as x\ndef f():\n    ask(x)\n    x = 1", "-"),
    "type parameter": ("import a as T\ndef f[T](x):\n    ask(T)\nask(T)", "-", "a"),
    "class type parameter": ("import a as T\nclass C[T]:\n    def f(self):\n        ask(T)", "-"),
    # Who evaluates what.
    "default argument is outside": ("import a as x\ndef f(x=ask(x)): pass", "a"),
    "decorator is outside": ("import a as x\n@ask(x)\ndef x(): pass", "a"),
    "base class is outside": ("import a as x\nclass x(ask(x)): pass", "a"),
    "annotation of something bound below": ("def f(p: ask(X)): pass\nfrom a import X", "a.X"),
    # Ways through the code.
    "after return": ("import a as x\ndef f(y):\n    import b as y\n    return\n    ask(y)", "b"),
    "return in one arm": (
        "def f(c):\n    import a as x\n    if c:\n        x = 1\n        return x\n    ask(x)",
        "a",
    ),
    "continue in one arm": (
        "for i in r():\n    import a as x\n    if i:\n        x = 1\n        continue\n    ask(x)",
        "a",
    ),
    "around the loop": ("import a as x\nwhile c():\n    ask(x)\n    import b as x", "a | b?"),
    "break skips the else": (
        "import a as x\nfor i in r():\n    import b as x\n    break\nelse:\n    import c as x\nask(x)",
        "b | c?",
    ),
    "while True ends by break only": (
        "x = 1\nwhile True:\n    import a as x\n    if c():\n        break\nask(x)",
        "a",
    ),
    "finally after success": (
        "x = None\ntry:\n    import a as x\nfinally:\n    ask(x)\nask(x)",
        "a?",
        "a",
    ),
    "break through finally": (
        "x = 1\nfor i in r():\n    try:\n        import a as x\n        break\n    finally:\n        f()\n"
        "else:\n    import b as x\nask(x)",
        "a | b?",
    ),
    "try else": (
        "try:\n    import a as x\nexcept E:\n    import b as x\nelse:\n    ask(x)",
        "a",
    ),
    "suppressed": ("x = None\nwith suppress(ImportError):\n    import a as x\nask(x)", "a?"),
    "not suppressed": ("x = None\nwith lock:\n    import a as x\nask(x)", "a"),
    "except star": ("try:\n    import a as x\nexcept* E:\n    x = None\nask(x)", "a?"),
    "async": (
        "async def f():\n    async with y() as x:\n        import a as x\n    async for z in ask(x): pass",
        "a",
    ),
    "deleted": ("import a as x\ndel x\nask(x)", "-"),
    "maybe deleted": ("import a as x\nif c():\n    del x\nask(x)", "a"),
    "walrus that may be skipped": ("import a as x\nc() and (x := 1)\nask(x)", "a?"),
    # Global and nonlocal.
    "global": ("def f():\n    global x\n    import a as x\ndef g():\n    ask(x)\nask(x)", "a", "a"),
    "global reads past the function": (
        "import a as x\ndef f(x):\n    def g():\n        global x\n        ask(x)",
        "a",
    ),
    "nonlocal": (
        "def f():\n    import a as x\n    def g():\n        nonlocal x\n        import b as x\n    ask(x)",
        "a | b?",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(shape: str) -> None:
    code, *expected = SHAPES[shape]
    assert answers(code) == expected


def test_relative_imports_are_resolved() -> None:
    code = "from .m import x\nfrom .. import y\nfrom . import z\nask(x)\nask(y)\nask(z.w)"
    assert answers(code, module_name="a.b.c") == ["a.b.m.x", "a.y", "a.b.z.w"]
    assert answers(code, module_name="a.b", is_package=True) == ["a.b.m.x", "a.y", "a.b.z.w"]
    assert answers(code, module_name="c") == [".m.x", "..y", ".z.w"]


EXPORTS = {
    "p.device.xm": Resolved(frozenset({"torch_xla.core.xla_model"}), True),
    "p.compat.xm": Resolved(frozenset({"p.device.xm"}), True),
    "p.maybe.xm": Resolved(frozenset({"torch_xla.core.xla_model"}), False),
    "p.loop.a": Resolved(frozenset({"p.loop.b"}), True),
    "p.loop.b": Resolved(frozenset({"p.loop.a"}), True),
}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from p.device import xm\nask(xm.mark_step)", "torch_xla.core.xla_model.mark_step"),
        ("from p import device\nask(device.xm.mark_step)", "torch_xla.core.xla_model.mark_step"),
        ("import p.device\nask(p.device.xm.mark_step)", "torch_xla.core.xla_model.mark_step"),
        ("from .compat import xm\nask(xm.mark_step)", "torch_xla.core.xla_model.mark_step"),
        ("from p.device import *\nask(xm.mark_step)", "torch_xla.core.xla_model.mark_step"),
        ("from p.maybe import xm\nask(xm.f)", "torch_xla.core.xla_model.f?"),
        ("from p.device import other\nask(other)", "p.device.other"),
    ],
)
def test_names_handed_on_by_the_project(code: str, expected: str) -> None:
    assert answers(code, module_name="p.main", exports=EXPORTS.get) == [expected]


def test_modules_that_hand_on_to_each_other_come_to_an_end() -> None:
    assert len(answers("from p.loop import a\nask(a)", exports=EXPORTS.get)) == 1


def test_star_imports_are_listed_and_make_builtins_uncertain() -> None:
    names = parsed("from a import *\nfrom .b import *\nask(print)\nask(X)", module_name="p.m")
    assert [module for _, module in names.stars] == ["a", "p.b"]
    assert [shown(names.names_of(each)) for each in asked(names)] == ["builtins.print?", "-"]


def test_targets_and_import_nodes_have_no_meaning() -> None:
    names = parsed("import a.b as x\ny = x")
    (assign,) = names.module_scope.bindings["y"]
    assert isinstance(assign.node, cst.Name)
    assert names.names_of(assign.node) == Resolved()
    assert names.bindings_at(assign.node) == (assign,)
    (imported,) = names.imports
    assert isinstance(imported.node, cst.ImportAlias)
    assert names.names_of(cst.ensure_type(imported.node.name, cst.Attribute)) == Resolved()


def test_name_of_is_the_certain_name() -> None:
    names = parsed("import a as x\ntry:\n    import b as y\nexcept E:\n    y = None\nask(x)\nask(y)")
    assert [names.name_of(each) for each in asked(names)] == ["a", None]


BINDINGS = [
    ("x = v", Kind.ASSIGN, "v", ()),
    ("a = x = v", Kind.ASSIGN, "v", ()),
    ("x: T = v", Kind.ASSIGN, "v", ()),
    ("x: T", Kind.ANNOTATION_ONLY, "", ()),
    ("x += v", Kind.AUG_ASSIGN, "v", ()),
    ("a, x = v", Kind.ASSIGN, "v", (1,)),
    ("a, (b, x) = v", Kind.ASSIGN, "v", (1, 1)),
    ("a, *x, b = v", Kind.ASSIGN, "v", ("*",)),
    ("a, *b, x = v", Kind.ASSIGN, "v", (-1,)),
    ("for x in v: pass", Kind.FOR, "v", ("each",)),
    ("for a, x in v: pass", Kind.FOR, "v", ("each", 1)),
    ("with v as x: pass", Kind.WITH, "v", ()),
    ("with v as (a, x): pass", Kind.WITH, "v", (1,)),
    ("f(x := v)", Kind.WALRUS, "v", ()),
    ("try: pass\nexcept v as x: pass", Kind.EXCEPT, "v", ()),
    ("match v:\n    case x: pass", Kind.MATCH, "v", ()),
    ("match v:\n    case {'k': x}: pass", Kind.MATCH, "v", ("each",)),
    ("match v:\n    case C(k=x): pass", Kind.MATCH, "v", ("each",)),
    ("match v:\n    case {**x}: pass", Kind.MATCH, "v", ("each",)),
    ("match v:\n    case A() | B() as x: pass", Kind.MATCH, "v", ()),
    ("def x(): pass", Kind.FUNCTION, "", ()),
    ("class x: pass", Kind.CLASS, "", ()),
    ("type x = v", Kind.TYPE_ALIAS, "v", ()),
]


@pytest.mark.parametrize(("code", "kind", "value", "path"), BINDINGS, ids=[row[0] for row in BINDINGS])
def test_bindings_say_what_is_bound(code: str, kind: Kind, value: str, path: tuple[int | str, ...]) -> None:
    names = parsed(code)
    (binding,) = names.module_scope.bindings["x"]
    assert (binding.kind, binding.path) == (kind, path)
    assert (names.module.code_for_node(binding.value) if binding.value else "") == value
    assert binding.statement is names.module.body[0]


def test_parameters_have_defaults_and_annotations() -> None:
    names = parsed("def f(a, b: T = 1, /, *c, d=2, **e): pass")
    scope = names.scope_made_by(names.module.body[0])
    assert scope is not None
    found = [(name, bound.value, bound.annotation) for name, (bound,) in scope.bindings.items()]
    shape = [(name, value is not None, note is not None) for name, value, note in found]
    assert shape == [
        ("a", False, False),
        ("b", True, True),
        ("c", False, False),
        ("d", True, False),
        ("e", False, False),
    ]


def spelled(names: Names, binding: Binding) -> list[str]:
    """The statements that a binding's references stand in."""
    found = []
    for load in names.references(binding):
        statement = names.statement(load)
        assert statement is not None
        found.append(names.module.code_for_node(statement).strip())
    return found


def test_references_of_an_import() -> None:
    code = "import a as x\nf(x)\nx.y()\nx = 1\nf(x)\nimport b\n"
    names = parsed(code)
    assert spelled(names, names.imports[0]) == ["f(x)", "x.y()"]
    assert spelled(names, names.imports[1]) == []


def test_dotted_imports_of_one_root_share_their_references() -> None:
    names = parsed("import a.b\nimport a.c\nf(a.b)\nif c():\n    import a.d\ng(a.d)\n")
    assert [spelled(names, each) for each in names.imports] == [
        ["f(a.b)", "g(a.d)"],
        ["f(a.b)", "g(a.d)"],
        ["g(a.d)"],
    ]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("if c:\n    f(Q)\n", "f(Q)"),
        ("if c: f(Q)\n", "if c: f(Q)"),
        ("a(); f(Q)\n", "a(); f(Q)"),
        ("@Q\ndef f(): pass\n", "@Q\ndef f(): pass"),
        ("while Q: pass\n", "while Q: pass"),
        ("if a: pass\nelif Q: pass\n", "elif Q: pass"),
        ("x = lambda: Q\n", "x = lambda: Q"),
    ],
)
def test_statement_is_one_that_can_carry_a_comment(code: str, expected: str) -> None:
    names = parsed(code)
    (load,) = names.loads("Q")
    statement = names.statement(load)
    assert statement is not None
    text = names.module.code_for_node(statement).strip()
    assert text == (expected if not expected.startswith("elif") else expected[2:])


def test_scopes_of_nodes() -> None:
    names = parsed(
        "@D\ndef f(a: A = V) -> R:\n    return [E for _ in I if T]\nclass C(B, metaclass=M):\n    x = X"
    )
    kinds = {name: names.scope(load).kind.value for name in "DAVREITBMX" for load in names.loads(name)}
    module, comprehension = "module", "comprehension"
    assert kinds == {
        **dict.fromkeys("DAVRBM", module),
        **dict.fromkeys("ET", comprehension),
        "I": "function",
        "X": "class",
    }


def test_ancestors_lead_to_the_module() -> None:
    names = parsed("def f():\n    return g(h.i)")
    (load,) = names.loads("h")
    assert [type(each).__name__ for each in names.ancestors(load)] == [
        "Attribute",
        "Arg",
        "Call",
        "Return",
        "SimpleStatementLine",
        "IndentedBlock",
        "FunctionDef",
        "Module",
    ]
    assert names.parent(names.module) is None


FREE = """
import a as module_name
def f(parameter):
    global declared
    local = 1
    ask(0)
    def inner():
        inner_name = 2
class C:
    attribute = 1
print(unbound)
"""


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("module_name", False),
        ("parameter", False),
        ("declared", False),
        ("local", False),
        ("inner", False),
        ("unbound", False),
        ("print", False),
        ("inner_name", True),
        ("attribute", True),
        ("something_else", True),
    ],
)
def test_free_names(name: str, free: bool) -> None:
    names = parsed(FREE)
    assert names.is_free(name, asked(names)[0]) is free


def test_taken_names_are_those_of_all_scopes() -> None:
    names = parsed(FREE)
    assert {"inner_name", "attribute", "unbound", "declared", "parameter"} <= names.taken
    assert "a" not in names.taken


def test_lookup() -> None:
    names = parsed("import a\ndef f(b):\n    ask(0)\n    c = 1\nclass C:\n    d = 1\n")
    at = asked(names)[0]
    found = {name: names.lookup(name, at) for name in ("a", "b", "c", "d", "print")}
    assert {name: scope.kind if scope else None for name, scope in found.items()} == {
        "a": ScopeKind.MODULE,
        "b": ScopeKind.FUNCTION,
        "c": ScopeKind.FUNCTION,
        "d": None,
        "print": None,
    }


QUOTED = """
from typing import TYPE_CHECKING, Annotated, Literal, Optional, TypeVar, cast
import typing as t
if TYPE_CHECKING:
    from a import X
def f(p: "X", q: "Optional[X]", *, r: Optional["X"], s: Literal["X"]) -> "list[X.Y]": ...
u: Annotated[int, "X"] = 1
v: "X" = None
w = cast("X", v)
T = TypeVar("T", bound="X")
Alias = Optional["X"]
Spelled: t.TypeAlias = "X"
data["X"]
g("X")
n: "not a type"
"""


def test_strings_that_hold_types() -> None:
    found = list(parsed(QUOTED).annotation_strings())
    texts = [each.node.evaluated_value for each in found]
    assert texts == ["X", "Optional[X]", "X", "list[X.Y]", "X", "X", "X", "X", "X"]
    meanings = [sorted(name for _, each in one.names for name in each.names) for one in found]
    assert meanings[1] == ["a.X", "typing.Optional"]
    assert meanings[3] == ["a.X.Y", "builtins.list"]
    assert all("a.X" in each[0] for each in meanings)
    assert {bound.target for one in found for bound in one.bindings} == {"a.X", "typing.Optional"}


@pytest.mark.parametrize(
    ("code", "expected", "literal"),
    [
        ("__all__ = ['a', 'b']", ("a", "b"), True),
        ("__all__ = ('a',)\n__all__ += ['b']", ("a", "b"), True),
        ("__all__ = ['a'] + ['b']", ("a", "b"), True),
        ("__all__ = ['a']\n__all__.append('b')\n__all__.extend(['c'])", ("a", "b", "c"), True),
        ("__all__ = [n for n in dir()]", (), False),
        ("__all__ = ['a', *other]", ("a",), False),
        ("__all__ = ['a']\n__all__.remove('a')", ("a",), False),
        ("__all__ = ['a']\n__all__ += other.__all__", ("a",), False),
    ],
)
def test_dunder_all(code: str, expected: tuple[str, ...], literal: bool) -> None:
    found = parsed(code).dunder_all
    assert found is not None
    assert (found.names, found.literal) == (expected, literal)


def test_no_dunder_all() -> None:
    assert parsed("x = 1").dunder_all is None


def test_long_chains_do_not_exhaust_the_stack() -> None:
    chains = [
        "x = " + " + ".join(["a.b"] * 400),
        "x = a" + ".b" * 300,
        "x = a" + ".b()" * 250,
        "if a: pass\n" + "elif a: pass\n" * 300,
        "x = " + "f(" * 150 + "a" + ")" * 150,
    ]
    names = parsed("\n".join(["import a", *chains]))
    assert len(names.references(names.imports[0])) == 400 + 1 + 1 + 301 + 1


# Programs that run. Whatever a load really saw has to be among what we say may reach it.

LEAVES = ("x = {n}", "x = {n}", "see({n}, x)", "see({n}, x)", "boom()", "del x", "c() and (x := {n})")
LEAVING = ("return", "raise ValueError", "break", "continue")
BLOCKS = (
    "if c():\n{0}",
    "if c():\n{0}else:\n{1}",
    "for _ in r():\n{0}",
    "for x in r({n}):\n{0}else:\n{1}",
    "while c():\n{0}else:\n{1}",
    "while True:\n    if c():\n        break\n{0}",
    "try:\n{0}except ValueError:\n{1}",
    "try:\n{0}except NameError as e:\n{1}else:\n{2}",
    "try:\n{0}finally:\n{1}",
    "try:\n{0}except ValueError:\n{1}finally:\n{2}",
    "with suppress(ValueError):\n{0}",
    "with held() as x:\n{0}",
    "match r(0):\n    case []:\n{0:4}    case [x, *_] if c():\n{1:4}    case _:\n{2:4}",
)


class Block(str):
    """Statements that know how to be indented further."""

    def __format__(self, spec: str) -> str:
        return textwrap.indent(self, " " * int(spec or 0))


@st.composite
def blocks(draw: st.DrawFn, depth: int = 3, in_loop: bool = False, may_leave: bool = True) -> Block:
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        if depth and draw(st.booleans()):
            shape = draw(st.sampled_from(BLOCKS))
            loop = in_loop or shape.startswith(("for", "while"))
            # The last of three bodies may be a `finally`, and leaving one swallows our time limit.
            inner = [
                draw(blocks(depth - 1, loop and number == 0, may_leave and number < 1)) for number in range(3)
            ]
            lines.append(shape.format(*inner, n="N").rstrip())
        else:
            lines.append(draw(st.sampled_from(LEAVES)).format(n="N"))
    if may_leave and draw(st.integers(0, 4)) == 0:
        lines.append(draw(st.sampled_from(LEAVING if in_loop else LEAVING[:2])))
    return Block(textwrap.indent("\n".join(lines), "    ") + "\n")


@settings(max_examples=150, deadline=None, derandomize=True)
@given(body=blocks(), seed=st.integers(0, 1000))
def test_what_a_program_sees_may_reach_its_loads(body: str, seed: int) -> None:
    count = itertools.count(1)
    code = re.sub("N(?=[,)\\n])", lambda _: str(next(count)), "def program():\n" + body)
    try:
        compile(code, "program", "exec")
    except SyntaxError:
        assume(False)
    names = parsed(code)
    allowed: dict[int, set[int]] = {}
    for call in names.calls:
        if isinstance(call.func, cst.Name) and call.func.value == "see":
            number, load = (each.value for each in call.args)
            assert isinstance(number, cst.Integer) and isinstance(load, cst.Name)
            allowed[int(number.value)] = {numbered(each) for each in names.bindings_at(load)}
    seen: set[tuple[int, int]] = set()
    for attempt in range(8):
        run_program(code, random.Random(f"{seed} {attempt}"), seen)
    for at, value in sorted(seen):
        assert value in allowed[at], code


def numbered(binding: Binding) -> int:
    """The number that a binding of the program gives to `x`; those of with and match are 0."""
    value = binding.value
    if isinstance(value, cst.Integer):
        return int(value.value)
    if binding.kind is Kind.FOR and isinstance(value, cst.Call):
        number = value.args[0].value
        assert isinstance(number, cst.Integer)
        return int(number.value)
    return 0


def run_program(code: str, chance: random.Random, seen: set[tuple[int, int]]) -> None:
    """Run once with random decisions, noting what each load of `x` held."""
    steps = itertools.count()

    def decide() -> bool:
        if next(steps) > 200:
            raise TimeoutError
        return chance.random() < 0.5

    def repeat(number: int = 0) -> list[int]:
        decide()
        return [number] * chance.randrange(3)

    def boom() -> None:
        if decide():
            raise ValueError

    def see(at: int, value: int) -> None:
        seen.add((at, int(value)))

    @contextlib.contextmanager
    def held() -> Iterator[int]:
        yield 0

    space: dict[str, object] = {
        "c": decide,
        "r": repeat,
        "boom": boom,
        "see": see,
        "suppress": contextlib.suppress,
        "held": held,
    }
    exec(code, space)
    program = space["program"]
    assert callable(program)
    with contextlib.suppress(ValueError, NameError, TimeoutError):
        program()


# Real code. Ours is a second opinion on what LibCST and Python itself say about the same files.


def library_files(count: int, largest: int) -> list[Path]:
    """A fixed sample of the modules of the libraries in the dev extra."""
    found: list[Path] = []
    for library in ("accelerate", "diffusers", "peft", "torch", "transformers", "trl"):
        spec = importlib.util.find_spec(library)
        assert spec is not None and spec.origin is not None, library
        root = Path(spec.origin).parent
        files = sorted(each for each in root.rglob("*.py") if 500 < each.stat().st_size < largest)
        found += random.Random(library).sample(files, count)
    return found


def readable(path: Path) -> bytes | None:
    """The file's bytes, if this Python can compile it: some files are for newer ones."""
    raw = path.read_bytes()
    try:
        compile(raw, str(path), "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return raw


# From Python 3.12 on most comprehensions are part of the function around them.
INLINED = sys.version_info >= (3, 12)
SCOPE_NAMES = {
    "ListComp": "listcomp",
    "SetComp": "setcomp",
    "DictComp": "dictcomp",
    "GeneratorExp": "genexpr",
}


def place(scope: Scope | None) -> str:
    """Names of a scope and those around it, as symtable has them."""
    parts = []
    while scope is not None:
        node = scope.node
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            parts.append(node.name.value)
        elif scope.kind is ScopeKind.COMPREHENSION:
            parts.append(SCOPE_NAMES[type(node).__name__])
        else:
            parts.append({ScopeKind.MODULE: "top", ScopeKind.LAMBDA: "lambda"}[scope.kind])
        scope = scope.parent
    return "/".join(reversed(parts))


def test_scopes_are_those_of_python() -> None:
    compared = 0
    for path in library_files(25, 60_000):
        raw = readable(path)
        if raw is None:
            continue
        names = Names(cst.parse_module(raw))
        # symtable keeps neither the spelling of private names nor, in the module, names that
        # only a `global` declares.
        if any("__" in each[:2] and not each.endswith("__") for each in names.taken):
            continue
        scopes = [names.module_scope, *scopes_in(names)]
        hidden = {".0", "__class__", "__classdict__", "__conditional_annotations__"}
        if INLINED:
            for scope in scopes:
                if scope.kind is ScopeKind.COMPREHENSION:
                    hidden.update(scope.bindings)
        theirs: Counter[tuple[str, tuple[str, ...]]] = Counter()
        todo = [(symtable.symtable(raw.decode(), str(path), "exec"), "")]
        while todo:
            table, around = todo.pop()
            at = around + table.get_name()
            if table.get_type() not in ("module", "class", "function"):
                continue
            local = {each.get_name() for each in table.get_symbols() if each.is_local()}
            theirs[uninlined(at), tuple(sorted(local - hidden))] += 1
            todo.extend((child, f"{at}/") for child in table.get_children())
        ours: Counter[tuple[str, tuple[str, ...]]] = Counter()
        for scope in scopes:
            bound = {
                name
                for name, bindings in scope.bindings.items()
                if not bindings or any(each.frame is scope.frame for each in bindings)
            }
            ours[uninlined(place(scope)), tuple(sorted(bound - hidden))] += 1
        shown_places = [Counter({key: each[key] for key in each if key[0]}) for each in (ours, theirs)]
        assert shown_places[0] == shown_places[1], path
        compared += len(scopes)
    assert compared > 1000


def uninlined(at: str) -> str:
    """A place as this Python has it; empty for a comprehension that is no scope of its own."""
    if not INLINED:
        return at
    parts = at.split("/")
    if parts[-1] in ("listcomp", "setcomp", "dictcomp"):
        return ""
    return "/".join(part for part in parts if part not in ("listcomp", "setcomp", "dictcomp"))


def scopes_in(names: Names) -> list[Scope]:
    found: list[Scope] = []
    todo: list[cst.CSTNode] = [names.module]
    while todo:
        node = todo.pop()
        scope = names.scope_made_by(node)
        if scope is not None and scope is not names.module_scope:
            found.append(scope)
        todo.extend(node.children)
    return found


def test_imports_are_found_as_libcst_finds_them() -> None:
    """On the loads that only imports can reach, and on those that none can."""
    compared = 0
    for path in library_files(12, 20_000):
        raw = readable(path)
        if raw is None:
            continue
        module = cst.parse_module(raw)
        names = Names(module)
        scopes = MetadataWrapper(module, unsafe_skip_copy=True).resolve(ScopeProvider)
        for name in sorted(names.taken):
            for load in names.loads(name):
                chain: cst.BaseExpression = load
                around = names.parent(chain)
                while isinstance(around, cst.Attribute):
                    chain, around = around, names.parent(around)
                kinds = {each.kind for each in names.bindings_at(load)}
                if not kinds <= {Kind.IMPORT}:
                    continue
                scope = scopes[load]
                assert scope is not None
                theirs = {
                    each.name
                    for each in scope.get_qualified_names_for(chain)
                    if each.source is QualifiedNameSource.IMPORT
                }
                ours = set(names.names_of(chain).names)
                if not kinds:
                    ours = {each for each in ours if not each.startswith("builtins.")}
                assert ours == theirs, (path, module.code_for_node(chain))
                compared += 1
    assert compared > 2000


def test_every_name_is_known() -> None:
    """Each Name of the tree has a place, and each that Python loads is known as a load."""
    for path in library_files(6, 60_000):
        raw = readable(path)
        if raw is None:
            continue
        names = Names(cst.parse_module(raw))
        todo: list[cst.CSTNode] = list(names.module.body)
        while todo:
            node = todo.pop()
            if isinstance(node, cst.Name):
                assert names.parent(node) is not None, (path, node.value)
                assert names.scope(node) is not None
                if names.is_load(node):
                    names.bindings_at(node)
                    assert names.statement(node) is not None
            todo.extend(node.children)
