"""What holds for every program, tried on programs made up of legacy and other statements.

Each program is run twice, as it is and rewritten, against stand-ins that accept everything: what it
does besides the legacy calls, and in which order, has to be the same. `EXAMPLES=2000` in the
environment makes a long sweep of it, which ends with the shortest program that fails.
"""

from __future__ import annotations

import ast
import builtins
import collections
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.plan import Result, State
from neuronmigrate.project import Project
from tests.bytes_cases import VARIANTS, split_lines

EXAMPLES = int(os.environ.get("EXAMPLES", "0"))
tried = settings(
    max_examples=EXAMPLES or 40,
    # Making a failing program shorter takes minutes; it is short enough to be read as it is.
    phases=list(Phase) if EXAMPLES else [Phase.explicit, Phase.generate],
    # The daily run tries the same programs each time; the nightly one looks for new ones.
    derandomize=not EXAMPLES,
    deadline=None,  # a machine that is busy is no failure
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

# The programs

NAMES = (
    "mark_step",
    "xla_device",
    "master_print",
    "rendezvous",
    "get_ordinal",
    "xrt_world_size",
    "is_master_ordinal",
)
MODULE = "torch_xla.core.xla_model"
DEPTH = 2
"""How deep blocks stand in blocks."""


@dataclass(frozen=True)
class Shape:
    """One way of importing what is used."""

    imports: tuple[str, ...]
    spelled: Mapping[str, str]
    """The expression that stands for each legacy name."""


def _through(prefix: str, *imports: str) -> Shape:
    return Shape(imports, {name: f"{prefix}.{name}" for name in NAMES})


SHAPES = (
    _through("xm", f"import {MODULE} as xm"),
    _through("model", "import os, " + MODULE + " as model"),
    _through("xm", "from torch_xla.core import xla_model as xm"),
    _through("xla_model", "from torch_xla.core import xla_model"),
    _through(MODULE, f"import {MODULE}"),
    _through("torch_xla.core.xla_model", "import torch_xla.core", f"import {MODULE}"),
    _through("xm", "try:", f"    import {MODULE} as xm", "except ImportError:", "    xm = None"),
    _through("xm", "if flag(0):", "    pass", f"import {MODULE} as xm  # the device"),
    _through("xm", "import os", 'os.environ["NEURON_CC_FLAGS"] = "-O1"', f"import {MODULE} as xm"),
    Shape((f"from {MODULE} import {', '.join(NAMES)}",), {name: name for name in NAMES}),
    Shape(
        (f"from {MODULE} import (", *(f"    {name} as {name}_,  # {name}" for name in NAMES), ")"),
        {name: f"{name}_" for name in NAMES},
    ),
)

LEGACY = (
    "{mark_step}()",
    "{mark_step}()",
    "device_{n} = {xla_device}()",
    "call({xla_device}())",
    "{master_print}('text', keep({n}), flush=True)",
    "{rendezvous}('tag {n}')",
    "rank_{n} = {get_ordinal}()",
    "call({xrt_world_size}())",
    "first_{n} = {is_master_ordinal}(local=False)",
    "assert {is_master_ordinal}()",
    "call({mark_step})",
    "step_{n} = {mark_step}; step_{n}()",
    "call(lambda: {mark_step}())",
    "text_{n} = f'device {{{xla_device}()}}'",
    'text_{n} = f"device {{{xla_device}()}}"',
    "devices_{n} = [{xla_device}() for _ in range(2)]",
    "call(lambda device={xla_device}(): device)",
    "started_{n} = time.time(); {mark_step}(); call(time.time() - started_{n})",
    "chosen_{n} = keep({n}) if {is_master_ordinal}() else None",
    "call(device={xla_device}(), first=keep({n}))",
    "keep({n}), {mark_step}()",
    "keep({n}); {mark_step}(); keep({n})",
    "model_{n} = Classifier.from_pretrained('folder', export=True, batch_size=1)",
    "call(Classifier.from_pretrained('folder', export=True, **shapes)(**inputs).logits.numpy())",
    "model_{n} = Classifier.from_pretrained('folder'); call(model_{n}(**inputs).logits)",
    "model_{n} = Classifier.from_pretrained('folder', export=True, **shapes)\n"
    "logits_{n} = model_{n}(**inputs).logits\n"
    "keep({n})\n"
    "call(logits_{n}.numpy().argmax(-1))",
    "def predict_{n}(model):\n"
    "    keep({n})\n"
    "    return model(**inputs)[0].argmax(-1).item()\n"
    "predict_{n}(Classifier.from_pretrained('folder', export=True, batch_size=1))",
)

OTHER = (
    "keep({n})",
    "keep_{n} = keep({n})",
    "keep_{n}: int = keep({n})",
    "keep_{n} = [\n    keep({n}),  # first\n]",
    "keep({n}); keep_{n} = {n}",
    'keep_{n} = """keep {n}\n  and this"""',
    "pass",
    "del_{n} = keep({n}); del del_{n}",
    "import math as keep_{n}",
)

TAKEN = (
    "dist = keep({n})",
    "torch = keep({n})",
    "os = keep({n})",
    "rank = device = keep({n})",
)
"""Other uses of the names that a rewrite would like to use."""

SIMPLE_HEADS = (
    "if flag({n}):",
    "while flag({n}):",
    "for i_{n} in range(keep(2)):",
    "with context({n}):",
    "with context({n}) as c_{n}, context({n}):",
)
LEGACY_HEADS = ("if {is_master_ordinal}():", "if flag({n}) and {is_master_ordinal}(local=False):")


@dataclass
class Writer:
    """Writes one program by drawing statement after statement."""

    draw: st.DrawFn
    shape: Shape
    legacy: bool
    count: Iterator[int] = field(default_factory=lambda: iter(range(1, 10_000)))

    def pick(self, templates: Sequence[str]) -> str:
        return self.fill(self.draw(st.sampled_from(templates)))

    def fill(self, template: str) -> str:
        return template.format(n=next(self.count), **self.shape.spelled)

    def small(self) -> str:
        """A simple statement, possibly over several lines."""
        if self.legacy and self.draw(st.booleans()):
            return self.pick(LEGACY)
        if self.legacy and self.draw(st.integers(0, 15)) == 0:
            return self.pick(TAKEN)
        return self.pick(OTHER)

    def head(self) -> str:
        heads = SIMPLE_HEADS + LEGACY_HEADS if self.legacy else SIMPLE_HEADS
        return self.pick(heads)

    def block(self, depth: int) -> list[str]:
        """A few statements, as lines at the margin."""
        lines: list[str] = []
        for _ in range(self.draw(st.integers(1, 2 if depth < DEPTH else 4))):
            lines += self.statement(depth)
        return lines

    def inner(self, depth: int) -> list[str]:
        return _indented(self.block(depth - 1))

    def statement(self, depth: int) -> list[str]:
        lines: list[str] = []
        if self.draw(st.integers(0, 4)) == 0:
            lines += self.draw(st.sampled_from(([""], ["# a note"], ["", "# a note", ""])))
        kinds = [self.simple, self.simple, self.one_line]
        if depth > 0:
            kinds += [self.compound, self.branches, self.attempt, self.function, self.class_, self.match]
        return lines + self.draw(st.sampled_from(kinds))(depth)

    def simple(self, depth: int) -> list[str]:
        lines = self.small().split("\n")
        if self.draw(st.integers(0, 5)) == 0:
            lines[-1] += "  # why"
        elif len(lines) == 1 and self.draw(st.integers(0, 15)) == 0:
            lines[0] += "  # neuronmigrate: ignore"
        return lines

    def one_line(self, depth: int) -> list[str]:
        body = "; ".join(small for _ in range(2) if "\n" not in (small := self.small())) or "pass"
        return [f"{self.head()} {body}"]

    def compound(self, depth: int) -> list[str]:
        lines = [self.head(), *self.inner(depth)]
        if lines[0].startswith(("if", "while", "for")) and self.draw(st.booleans()):
            lines += ["else:", *self.inner(depth)]
        return lines

    def branches(self, depth: int) -> list[str]:
        middle = [self.fill("elif flag({n}):"), *self.inner(depth)]
        return [self.fill("if flag({n}):"), *self.inner(depth), *middle, "else:", *self.inner(depth)]

    def attempt(self, depth: int) -> list[str]:
        lines = ["try:", *self.inner(depth), self.fill("    fail({n})")]
        lines += ["except ValueError:", *self.inner(depth)]
        if self.draw(st.booleans()):
            lines += ["else:", *self.inner(depth)]
        return lines + (["finally:", *self.inner(depth)] if self.draw(st.booleans()) else [])

    def function(self, depth: int) -> list[str]:
        name = self.fill("function_{n}")
        decorator = ["@call"] if self.draw(st.booleans()) else []
        coroutine = self.draw(st.integers(0, 3)) == 0
        head = f"{'async ' * coroutine}def {name}(first=keep(0), *, second=None):"
        use = f"finish({name}())" if coroutine else f"{name}()"
        return [*decorator, head, *self.inner(depth), "", use]

    def class_(self, depth: int) -> list[str]:
        name = self.fill("Class_{n}")
        method = ["    def run(self):", *_indented(self.inner(depth))]
        return [f"class {name}:", *self.inner(depth), "", *method, "", f"{name}().run()"]

    def match(self, depth: int) -> list[str]:
        subject = self.fill("match keep({n}):")
        cases = [self.fill("case {n}:"), *self.inner(depth), "case _:", *self.inner(depth)]
        return [subject, *_indented(cases)]


def _indented(lines: Sequence[str]) -> list[str]:
    """Indent each line, but not the inside of a string over several lines."""
    text, inside = [], False
    for line in lines:
        text.append(f"    {line}" if line and not inside else line)
        inside ^= line.count('"""') % 2 == 1
    return text


@st.composite
def programs(draw: st.DrawFn, *, legacy: bool = True) -> str:
    """A program that runs to its end against the stand-ins."""
    shape = draw(st.sampled_from(SHAPES)) if legacy else _through("xm", "import os")
    writer = Writer(draw, shape, legacy)
    head = ["from __future__ import annotations"] if draw(st.booleans()) else []
    if draw(st.booleans()):
        head = ['"""Trains."""', "", *head]
    imports = list(shape.imports)
    if legacy:
        imports += [
            "import time",
            "from optimum.neuron import NeuronModelForSequenceClassification as Classifier",
        ]
        imports += ["from transformers import AutoTokenizer", 'shapes = {"batch_size": 1}']
        imports += ["inputs = AutoTokenizer.from_pretrained('folder')('text', return_tensors='pt')"]
    body = writer.block(DEPTH)
    if legacy and draw(st.integers(0, 3)) == 0:
        body = ["def main():", *_indented(imports + body), "", "main()"]
    else:
        body = imports + body
    return "\n".join([*head, *body]) + draw(st.sampled_from(("\n", "", "\n\n")))


# Running them


class Anything:
    """Accepts every use, and is true, empty and equal to everything."""

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *args: object, **kwargs: object) -> Anything:
        return self

    def __getitem__(self, key: object) -> Anything:
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Anything]:
        return iter(())

    def __enter__(self) -> Anything:
        return self

    def __exit__(self, *error: object) -> None:
        return None


class Run:
    """What one run of a program did, call by call."""

    def __init__(self, source: bytes) -> None:
        self.log: list[tuple[str, object]] = []
        self.seen: collections.Counter[int] = collections.Counter()
        names = {name: getattr(self, name) for name in ("keep", "flag", "fail", "context", "finish", "call")}
        imports = vars(builtins) | {"__import__": self._import, "print": lambda *args, **kwargs: None}
        exec(compile(source, "program.py", "exec"), {"__builtins__": imports, "__name__": "program", **names})

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> object:
        if name.partition(".")[0] in ("torch", "torch_xla", "optimum", "transformers"):
            return Anything()
        return __import__(name, globals, locals, fromlist, level)

    def keep(self, value: int) -> int:
        self.log.append(("keep", value))
        return value

    def flag(self, number: int) -> bool:
        """True, true, false, and so on for each place, so that loops end."""
        self.log.append(("flag", number))
        self.seen[number] += 1
        return self.seen[number] % 3 > 0

    def fail(self, number: int) -> None:
        self.log.append(("fail", number))
        if number % 2:
            raise ValueError(number)

    def context(self, number: int) -> Anything:
        self.log.append(("context", number))
        return Anything()

    def finish(self, coroutine: types.CoroutineType[object, object, object]) -> None:
        try:
            coroutine.send(None)
        except StopIteration:
            return

    def call(self, value: Callable[..., object] | None = None, **kwargs: object) -> object:
        return value


def migrated(raw: bytes) -> Result:
    return migrate("program.py", raw, Project.empty(), Settings())


def rewritten(result: Result) -> bytes:
    return result.before if result.after is None else result.after


def stands_in(lines: Sequence[bytes], raw: bytes) -> bool:
    """Whether a file has these lines, byte for byte and in this order."""
    rest = iter(split_lines(raw))
    return all(line in rest for line in lines)


def kept_lines(raw: bytes) -> list[bytes]:
    """Lines of statements that no rule is about, or that ask to be left alone."""
    legacy = re.compile(rb"xm\.|model\.|Classifier|_model|" + "|".join(NAMES).encode())
    return [
        line
        for line in split_lines(raw)
        if (b"keep" in line and not legacy.search(line)) or b"neuronmigrate: ignore" in line
    ]


@tried
@given(programs())
def test_a_rewritten_program_does_the_same(program: str) -> None:
    result = migrated(program.encode())
    assert result.problems == ()
    after = rewritten(result)
    ast.parse(after)
    assert Run(after).log == Run(program.encode()).log
    assert stands_in(kept_lines(program.encode()), after)

    assert not result.changed or result.findings
    lines = program.split("\n")
    for finding in result.findings:
        assert 1 <= finding.place.line <= len(lines)
        assert finding.place.column <= len(lines[finding.place.line - 1]) + 1
        assert finding.why

    again = migrated(after)
    assert again.after is None
    assert again.problems == ()
    assert not [finding for finding in again.findings if finding.state in (State.FIXED, State.REVIEW)]


@tried
@given(programs(), st.sampled_from(("crlf", "cr", "bom")))
def test_bytes_do_not_decide(program: str, variant: str) -> None:
    """The result of a program in other bytes is the result, in those bytes."""
    encode = VARIANTS[variant]
    plain = rewritten(migrated(program.encode())).decode()
    other = migrated(encode(program))
    assert other.problems == ()
    assert rewritten(other) == encode(plain)


@tried
@given(programs(), st.sampled_from(sorted(VARIANTS.keys() - {"deep-blocks", "huge-line", "long-file"})))
def test_every_way_of_writing_is_kept(program: str, variant: str) -> None:
    raw = VARIANTS[variant](program.rstrip("\n") + "\n")
    result = migrated(raw)
    after = rewritten(result)
    assert result.problems == ()
    ast.parse(after)
    assert stands_in(kept_lines(raw), after)
    assert migrated(after).after is None


MENTIONS = (
    "",
    "# import torch_xla\n",
    "note = 'as torch_xla and optimum.neuron did'\n",
    "neuron = 'neuron'\n",
)


@tried
@given(programs(legacy=False), st.sampled_from(MENTIONS))
def test_no_hit_no_write(program: str, mention: str) -> None:
    raw = (program.rstrip("\n") + "\n" + mention).encode()
    Run(raw)
    result = migrated(raw)
    assert result.after is None
    assert result.problems == ()
    assert not [finding for finding in result.findings if finding.state is not State.NOTE]


@pytest.mark.nightly
def test_many_more_programs() -> None:
    """The same properties on programs that no run has seen before."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env={**os.environ, "EXAMPLES": "500"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
