"""Each proof catches the fault it is there for, and lets sound edits pass."""

from __future__ import annotations

import importlib.util
import random
import symtable
import sys
from pathlib import Path

import pytest

from neuronmigrate import proof
from neuronmigrate.proof import Emitted, Sides
from neuronmigrate.scan import Scan, Scanner

LATIN = "# -*- coding: latin-1 -*-\nname = 'caf\xe9'\nprint(name)\n".encode("latin-1")


def faults(before: str, after: str, python: tuple[int, int] = (3, 10)) -> str:
    return "\n".join(proof.prove(before.encode(), after.encode(), python=python, edited=[(1, 999)]))


SOUND = {
    "a rename": ("import a\na.f()\n", "import b\nb.f()\n"),
    "an import that goes with its use": ("import a\nimport b\na.f()\nb.g()\n", "import b\nb.g()\n"),
    "unbound before": ("print(nowhere)\n", "import os\nprint(nowhere, os.sep)\n"),
    "unused before": ("import a\nimport b\nb.f()\n", "import a\nimport c\nc.f()\n"),
    "kept for its side effect": (
        "import torch_neuronx\nx = 1\nprint(x)\n",
        "import torch_neuronx\nprint(1)\n",
    ),
    "re-exported by __all__": (
        "from a import B\n__all__ = ['B']\n",
        "from c import D as B\n__all__ = ['B']\n",
    ),
    "re-exported by its own name": ("from a import B as B\n", "from c import B as B\n"),
    "used in a quoted annotation": (
        "from a import B\ndef f(x: 'list[B]') -> None: ...\n",
        "from c import D\ndef f(x: 'list[D]') -> None: ...\n",
    ),
    "bound in both arms": (
        "if c():\n    import a as m\nelse:\n    import b as m\ndef c(): ...\nm.f()\n",
        "if c():\n    import d as m\nelse:\n    import b as m\ndef c(): ...\nm.f()\n",
    ),
    "bound in one arm, the other leaves": (
        "try:\n    import a\nexcept ImportError:\n    raise SystemExit\na.f()\n",
        "try:\n    import b\nexcept ImportError:\n    raise SystemExit\nb.f()\n",
    ),
    "used before the assignment, but later in time": (
        "import a\ndef f():\n    return LATER\nLATER = a.x()\n",
        "import b\ndef f():\n    return LATER\nLATER = b.x()\n",
    ),
    "a global set in a function": (
        "def f():\n    global device\n    device = 1\ndef g():\n    return device\n",
        "def f():\n    global device\n    device = 2\ndef g():\n    return device\n",
    ),
    "read in the second round of a loop": (
        "for i in range(3):\n    if i:\n        print(last)\n    last = i\n",
        "for i in range(4):\n    if i:\n        print(last)\n    last = i\n",
    ),
    "a name of a comprehension": (
        "print([x for x in range(3)])\n",
        "print({x: y for x in [1] for y in [x]})\n",
    ),
    "a class that reads the module": (
        "import a\nclass C(a.B):\n    x = a.y\n    z = x\n",
        "import b\nclass C(b.B):\n    x = b.y\n    z = x\n",
    ),
    "walrus": ("if (n := len('a')) > 1:\n    print(n)\n", "if (n := len('b')) > 1:\n    print(n)\n"),
    "match": (
        "import a\nmatch a.x:\n    case [p, *q]:\n        p(q)\n    case {'k': v, **r}:\n        v(r)\n",
        "import b\nmatch b.x:\n    case [p, *q]:\n        p(q)\n    case {'k': v, **r}:\n        v(r)\n",
    ),
    "does not compile, as before": ("import a\nreturn a\n", "import b\nreturn b\n".replace("b", "a")),
    "a new helper that is used": ("import a\na.f()\n", "def helper():\n    return 1\nhelper()\n"),
    "value read by reflection only": (
        "def f():\n    x = 1\n    print(x)\n    return eval('x')\n",
        "def f():\n    x = 1\n    return eval('x')\n",
    ),
    "loop that only ends by break": (
        "import a\nwhile True:\n    x = a.f()\n    if x:\n        break\nprint(x)\n",
        "import b\nwhile True:\n    x = b.f()\n    if x:\n        break\nprint(x)\n",
    ),
}


@pytest.mark.parametrize("case", SOUND)
def test_sound_edits_are_proven(case: str) -> None:
    before, after = SOUND[case]
    assert faults(before, after) == ""


SEEDED = {
    "syntax": ("x = 1\nprint(x)\n", "x = pass\nprint(x)\n", "does not compile"),
    "return outside a function": ("def f():\n    return 1\n", "return 1\n", "does not compile"),
    "import gone": ("import a\na.f()\n", "a.f()\n", "`a` is not bound by anything"),
    "import gone, use in a function": (
        "import a\ndef f():\n    a.f()\n",
        "def f():\n    a.f()\n",
        "`a` in f is not bound by anything",
    ),
    "import gone, use in a method": (
        "import a\nclass C:\n    def f(self):\n        return lambda: a.f()\n",
        "class C:\n    def f(self):\n        return lambda: a.f()\n",
        "`a` in C.f.<lambda> is not bound",
    ),
    "import gone, use in a comprehension": (
        "import a\nx = [a.f(i) for i in range(3)]\nprint(x)\n",
        "x = [a.f(i) for i in range(3)]\nprint(x)\n",
        "`a` is not bound",
    ),
    "import gone, use in an f-string": (
        "import a\nprint(f'{a.x}')\n",
        "print(f'{a.x}')\n",
        "`a` is not bound",
    ),
    "import gone, use in a quoted annotation": (
        "from a import B\ndef f(x: 'B'): ...\n",
        "def f(x: 'B'): ...\n",
        "`B` is not bound",
    ),
    "import gone, listed in __all__": (
        "from a import B\n__all__ = ['B']\n",
        "__all__ = ['B']\n",
        "`B` is listed in __all__",
    ),
    "import gone, use as a decorator": (
        "import a\n@a.d\ndef f(): ...\n",
        "@a.d\ndef f(): ...\n",
        "`a` is not bound",
    ),
    "star import gone": ("from a import *\nf()\n", "f()\n", "`f` is not bound by anything"),
    "used before the import": (
        "import a\na.f()\n",
        "a.f()\nimport a\n",
        "line 1: `a` is used before it is bound",
    ),
    "used before the assignment": (
        "d = 1\nprint(d)\n",
        "print(d)\nd = 1\n",
        "`d` is used before it is bound",
    ),
    "local used before its assignment": (
        "def f():\n    d = 1\n    print(d)\n    return d\n",
        "def f():\n    print(d)\n    d = 1\n    return d\n",
        "`d` in f is used before it is bound",
    ),
    "default argument before the import": (
        "import a\ndef f(x=a.y): ...\n",
        "def f(x=a.y): ...\nimport a\n",
        "`a` is used before it is bound",
    ),
    "one arm lost it": (
        "import c\nif c.x:\n    import a as m\nelse:\n    import b as m\nm.f()\n",
        "import c\nif c.x:\n    import a as m\nelse:\n    pass\nm.f()\n",
        "`m` is bound on some paths only",
    ),
    "one arm lost it, use in a function": (
        "try:\n    import a as m\nexcept ImportError:\n    m = None\ndef f():\n    m.f()\n",
        "try:\n    import a as m\nexcept ImportError:\n    pass\ndef f():\n    m.f()\n",
        "`m` in f is bound on some paths only",
    ),
    "a match arm lost it": (
        "import c\nmatch c.x:\n    case 1:\n        m = 1\n    case _:\n        m = 2\nprint(m)\n",
        "import c\nmatch c.x:\n    case 1:\n        m = 1\n    case _:\n        pass\nprint(m)\n",
        "`m` is bound on some paths only",
    ),
    "import moved into a function": (
        "import a\ndef f():\n    a.f()\ndef g():\n    a.g()\n",
        "def f():\n    import a\n    a.f()\ndef g():\n    a.g()\n",
        "`a` in g is not bound by anything",
    ),
    "shadowed by a later local": (
        "import a\ndef f():\n    a.f()\n    b = 1\n    return b\n",
        "import a\ndef f():\n    a.f()\n    a = 1\n    return a\n",
        "`a` in f is used before it is bound",
    ),
    "class name is not seen from a method": (
        "import a\nclass C:\n    def f(self):\n        return a\n",
        "class C:\n    import a\n    def f(self):\n        return a\n",
        "`a` in C.f is not bound",
    ),
    "deleted too early": (
        "import a\na.f()\ndel a\n",
        "import a\ndel a\na.f()\n",
        "`a` is bound on some paths only",
    ),
    "import left behind": ("import a\na.f()\n", "import a\nprint()\n", "import of `a` is used by nothing"),
    "import put in for nothing": ("print()\n", "import a\nprint()\n", "import of `a` is used by nothing"),
    "import left behind in a function": (
        "def f():\n    import a\n    a.f()\n",
        "def f():\n    import a\n    print()\n",
        "import of `a` in f is used by nothing",
    ),
    "value left behind": (
        "def f(m):\n    args = {'a': 1}\n    return m(**args)\n",
        "def f(m):\n    args = {'a': 1}\n    return m()\n",
        "`args` in f is set but nothing reads it",
    ),
    "value left behind in a script": (
        "n = 1\nprint(n)\n",
        "n = 1\nprint()\n",
        "`n` is set but nothing reads it",
    ),
    "value that is only added to": (
        "def f():\n    n = 1\n    n += 1\n    return n\n",
        "def f():\n    n = 1\n    n += 1\n    return 2\n",
        "`n` in f is set but nothing reads it",
    ),
    "helper for nothing": (
        "print()\n",
        "def helper():\n    return 1\nprint()\n",
        "`helper` was put in and nothing uses it",
    ),
    "one import twice": (
        "from a import T\nfrom b import N\nT(N())\n",
        "from a import T\nfrom b import T, N\nT(N())\n",
        "`T` is imported twice",
    ),
}


@pytest.mark.parametrize("case", SEEDED)
def test_seeded_faults_are_caught(case: str) -> None:
    before, after, message = SEEDED[case]
    assert message in faults(before, after)
    assert faults(before, before) == ""


def test_leftovers_are_data() -> None:
    sides = Sides(
        b"import a\ndef f(m):\n    o = 1\n    m(o, a)\n", b"import a\ndef f(m):\n    o = 1\n    m()\n"
    )
    assert [(item.scope, item.name, item.line, item.kind) for item in proof.leftovers(sides)] == [
        ("<module>", "a", 1, "import"),
        ("f", "o", 3, "value"),
    ]


def test_a_name_may_be_kept_without_a_reader() -> None:
    before, after = b"n = 1\nprint(n)\n", b"n = 1\nprint()\n"
    assert proof.prove(before, after, edited=[(2, 2)], kept=["n"]) == ()
    assert proof.prove(before, after, edited=[(2, 2)]) != ()


@pytest.mark.parametrize(
    ("added", "python", "message"),
    [
        ("match x:\n    case 1:\n        pass\n", (3, 9), "not Python 3.9"),
        ("match x:\n    case 1:\n        pass\n", (3, 10), ""),
        ("print(lambda a, /: a)\n", (3, 7), "not Python 3.7"),
        ("print(lambda a, /: a)\n", (3, 8), ""),
        (
            "print(f'{x['a']}')\n",
            (3, 11),
            "does not compile" if sys.version_info < (3, 12) else "the same quote",
        ),
    ],
)
def test_the_oldest_python_of_the_project_counts(added: str, python: tuple[int, int], message: str) -> None:
    found = faults("x = 1\nprint(x)\n", f"x = 1\nprint(x)\n{added}", python)
    assert (message in found) if message else (found == "")


FSTRINGS = [
    ("f'{x}'", ""),
    ("f'{x[\"a\"]}'", ""),
    ("f'{x['a']}'", "the same quote"),
    ('f"{torch.device("neuron")}"', "the same quote"),
    ('f"""{x["a"]}"""', ""),
    ('f"""{x or ""}"""', ""),
    ("f'''{x['''a''']}'''", "the same quote"),
    ("f'{\"\\n\".join(x)}'", "a backslash"),
    ("f'{x}\\n'", ""),
    ("f'{x:\\n}'", ""),
    ("rf'\\{x}'", ""),
    ("f'{x\n}'", "a line break"),
    ("f'''{x\n}'''", ""),
    ("f'''{x # why\n}'''", "a comment"),
    ("f'{\"#\"}'", ""),
    ("f'{{x['", ""),
    ("f'{x!r:>{width}}'", ""),
    ("f'{x:{\"a\"}}'", ""),
    ("f'{x:{'a'}}'", "the same quote"),
    ("f'{f\"{x}\"}'", ""),
    ("f'{f'{x}'}'", "the same quote"),
    ("f'{f\"{x['a']}\"}'", "the same quote"),
    ("f'{a != b}'", ""),
    ("f'{(lambda a: a)(1)}'", ""),
    ("f'{x[1:2]}'", ""),
    ("'{x['  # f'{x['a']}'", ""),
    ("'a' f'{x}' '{' \"'\"", ""),
    ("'''it's''' f'{x}'", ""),
    ("b'x' if a else f'{x['a']}'", "the same quote"),
    ("a if a else'z{'", ""),
]


@pytest.mark.parametrize(("text", "reason"), FSTRINGS)
def test_fstrings_of_old_pythons(text: str, reason: str) -> None:
    found = list(proof.old_fstring_faults(f"y = 1\nz = {text}\n"))
    assert [why for _, _, why in found][:1] == ([reason] if reason else [])
    assert all(line >= 2 for line, _, _ in found)


# PEP 701 lets Python 3.12 read every f-string, so that from then on nothing here can be compared with it.
before_pep_701 = pytest.mark.skipif(sys.version_info >= (3, 12), reason="PEP 701: this Python refuses none")


@before_pep_701
@pytest.mark.parametrize(("text", "reason"), FSTRINGS)
def test_fstring_rules_are_those_of_an_old_python(text: str, reason: str) -> None:
    try:
        compile(text, "x", "eval")
    except SyntaxError:
        assert reason
    else:
        assert not reason


@before_pep_701
def test_real_files_hold_no_fstring_that_this_python_cannot_read() -> None:
    for path in real_files(150):
        assert list(proof.old_fstring_faults(proof.decode(path.read_bytes()))) == [], path


UNTOUCHED = {
    "nothing changed": (b"a\nb\n", b"a\nb\n", [], [], ""),
    "an edited line": (b"a\nb\nc\n", b"a\nX\nY\nc\n", [(2, 2)], [], ""),
    "an edited line that goes": (b"a\nb\nc\n", b"a\nc\n", [(2, 2)], [], ""),
    "a line put in": (b"a\nb\n", b"a\nX\nb\n", [], [2], ""),
    "a line put in at the top": (b"a\nb\n", b"X\na\nb\n", [], [1], ""),
    "a line put in at the end": (b"a\nb\n", b"a\nb\nX\n", [], [3], ""),
    "a line changed beside": (b"a\nb\nc\n", b"a\nX\nd\n", [(2, 2)], [], "line 3"),
    "a line lost": (b"a\nb\nc\nd\n", b"X\nb\nd\n", [(1, 1)], [], "line 3"),
    "a line put in elsewhere": (b"a\nb\nc\n", b"a\nb\nX\nc\n", [], [2], "line 3"),
    "a line put in at the end unasked": (b"a\nb\n", b"a\nb\nX\n", [(1, 1)], [], "line 2"),
    "lines swapped": (b"a\nb\nc\n", b"X\nc\nb\n", [(1, 1)], [], "line"),
    "trailing blank lost": (b"a \nb\n", b"a\nX\n", [(2, 2)], [], "line 1"),
    "CR only": (b"a\rb\rc\r", b"a\rX\rc\r", [(2, 2)], [], ""),
    "CR became CRLF": (b"a\rb\rc\r", b"a\r\nX\rc\r", [(2, 2)], [], "line 1"),
    "CRLF became LF": (b"a\r\nb\r\nc\r\n", b"a\nX\nc\n", [(2, 2)], [], "line 1"),
    "form feed is no line end": (b"a\x0cb\nc\n\x1cd\n", b"a\x0cb\nX\n\x1cd\n", [(2, 2)], [], ""),
    "form feed lost": (b"a\n\x0c\nc\n", b"a\n\nX\n", [(3, 3)], [], "line 2"),
    "BOM lost": (b"\xef\xbb\xbfa\nb\n", b"a\nX\n", [(2, 2)], [], "line 1"),
    "no last newline": (b"a\nb", b"X\nb", [(1, 1)], [], ""),
    "last newline added": (b"a\nb", b"X\nb\n", [(1, 1)], [], "line 2"),
    "the same line twice": (b"a\nx\na\ny\n", b"a\nX\na\ny\n", [(2, 2)], [], ""),
    "empty": (b"", b"X\n", [], [1], ""),
}


@pytest.mark.parametrize("case", UNTOUCHED)
def test_untouched_lines(case: str) -> None:
    before, after, edited, inserted, message = UNTOUCHED[case]
    found = proof.untouched(before, after, edited, inserted)
    assert (message in found[0]) if message else (found == [])


@pytest.mark.parametrize(
    ("before", "after", "ok"),
    [
        (b"a\nb\n", b"a\nX\nb\nY\n", True),
        (b"a\nb\n", b"b\na\n", False),
        (b"a\nb\n", b"a\n", False),
        (b"a\r\nb\r\n", b"a\r\nb\n", False),
    ],
)
def test_untouched_without_places(before: bytes, after: bytes, ok: bool) -> None:
    assert (proof.untouched(before, after, []) == []) is ok


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (b"a = 1\n", b"\xef\xbb\xbfa = 1\n", "encoding"),
        (LATIN, LATIN.replace(b"latin-1", b"utf-8"), "encoding"),
        (LATIN, LATIN.replace(b"print", b"repr"), ""),
        (b"a\r\nb\r\n", b"a\r\nb\n", "line ends"),
        (b"a\rb\r", b"a\rb\r\n", "line ends"),
        (b"a\r\nb\n", b"a\nb\r\n", ""),
        (b"a\nb", b"a\nb\n", "at the end"),
        (b"a\nb\n", b"a\nb", "at the end"),
    ],
)
def test_layout(before: bytes, after: bytes, message: str) -> None:
    found = proof.layout(before, after)
    assert (message in " ".join(found)) if message else (found == [])


def test_latin_1_and_bom_and_bare_returns_are_read() -> None:
    for raw in (LATIN, b"\xef\xbb\xbf" + "name = 'é'\nprint(name)\n".encode(), LATIN.replace(b"\n", b"\r")):
        assert proof.prove(raw, raw) == ()


def test_what_this_python_cannot_read_is_said_so() -> None:
    found = proof.prove(b"x = (\n", b"x = 1\n")
    assert len(found) == 1
    assert "cannot read the original: line" in found[0]


@pytest.mark.parametrize(
    ("emitted", "message"),
    [
        (Emitted(imports=("torch.device", "os.environ", "contextlib.nullcontext")), ""),
        (Emitted(imports=("torch.devise",)), "`torch.devise` was put in and does not exist"),
        (Emitted(imports=("unheard_of.thing",)), "not known to exist"),
        (Emitted(imports=("torch.neuron.nobody_knows",)), "not known to exist"),
        (Emitted(imports=("torch.neuron.synchronize", "transformers.Trainer")), ""),
        (Emitted(imports=("project.helpers.pad",)), ""),
        (
            Emitted(
                imports=("transformers.AutoModel",),
                keywords=(("transformers.AutoModel.from_pretrained", "device_map"),),
            ),
            "",
        ),
        (
            Emitted(keywords=(("transformers.AutoModel.from_pretrained", "export"),)),
            "`export=` was put into a call of `transformers.AutoModel.from_pretrained`",
        ),
        (
            Emitted(keywords=(("torch.zeros_like", "devise"),)),
            "`devise=` was put into a call of `torch.zeros_like`",
        ),
        (Emitted(keywords=(("project.helpers.pad", "size"),)), ""),
        (Emitted(keywords=(("transformers.AutoModelForCausalLM.generate", "max_new_tokens"),)), ""),
        (Emitted(keywords=(("transformers.AutoModel.from_pretrained", "nobody"),)), "not known to take it"),
    ],
)
def test_emitted_names_and_keywords_exist(emitted: Emitted, message: str) -> None:
    source = b"import project.helpers\nproject.helpers.go()\n"
    found = "\n".join(proof.prove(source, source, emitted=emitted))
    assert (message in found) if message else (found == "")


# Real files


def real_files(count: int) -> list[Path]:
    """The same sample of files of an installed library each time."""
    files: list[Path] = []
    for library in ("accelerate", "peft", "libcst", "hypothesis", "packaging"):
        spec = importlib.util.find_spec(library)
        if spec is None or spec.origin is None:
            continue
        files += sorted(Path(spec.origin).parent.rglob("*.py"))
    random.Random(7).shuffle(files)
    return files[:count]


def test_real_files_are_proven_against_themselves() -> None:
    for path in real_files(60):
        raw = path.read_bytes()
        assert proof.prove(raw, raw, inserted=()) == (), path


def test_local_names_are_those_that_the_compiler_sees() -> None:
    import ast

    checked = 0
    for path in real_files(120):
        text = proof.decode(path.read_bytes())
        scan = Scanner().scan(ast.parse(text), text)
        wanted: dict[str, set[str]] = {}
        _locals_of(symtable.symtable(text, str(path), "exec"), "", wanted)
        for scope, names in wanted.items():
            assert names == {name for name in _bound_in(scan, scope) if not name.startswith("__")}, (
                path,
                scope,
            )
            checked += 1
    assert checked > 500


def _bound_in(scan: Scan, scope: str) -> set[str]:
    return {name for where, name in scan.bound if where == scope}


def _locals_of(table: symtable.SymbolTable, path: str, found: dict[str, set[str]]) -> None:
    if table.get_type() == "function" and path and not path.endswith("<lambda>"):
        found.setdefault(path, set()).update(
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_local()
            and (
                symbol.is_assigned() or symbol.is_parameter() or symbol.is_imported() or symbol.is_namespace()
            )
            and "__" not in symbol.get_name()
        )
    for child in table.get_children():
        name = {"lambda": "<lambda>"}.get(child.get_name(), child.get_name())
        if name in {"listcomp", "setcomp", "dictcomp", "genexpr"}:
            # The scan keeps comprehensions inside the scope they stand in.
            for inner in child.get_children():
                _locals_of(inner, f"{path}.{inner.get_name()}".lstrip("."), {})
            continue
        _locals_of(child, f"{path}.{name}".lstrip("."), found)
