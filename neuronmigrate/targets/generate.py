"""Makes the index of the target libraries out of the installed packages.

    python -m neuronmigrate.targets.generate [LIBRARY ...]

The packages' source is read, never imported: what comes out depends on their release alone, not on what
else is installed. Names are found as a type checker finds them, through `__all__`, star imports and the
imports under TYPE_CHECKING that stand for lazy modules.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Plan:
    """What of a library is described."""

    distribution: str
    left_out: tuple[str, ...] = ()
    """Modules that are not described; asked for, they are unknown rather than missing."""
    private: tuple[str, ...] = ()
    """Modules and packages with a leading underscore that are described all the same."""


LIBRARIES: dict[str, Plan] = {
    "accelerate": Plan("accelerate", ("accelerate.test_utils", "accelerate.commands")),
    "diffusers": Plan(
        "diffusers", ("diffusers.commands", "diffusers.experimental", "diffusers.utils.testing_utils")
    ),
    "peft": Plan("peft"),
    "sentence_transformers": Plan("sentence-transformers", ("sentence_transformers.cli",)),
    "torch": Plan(
        "torch",
        (
            "torch.ao",
            "torch.backends",
            "torch.contrib",
            "torch.cuda",
            "torch.distributed.elastic",
            "torch.distributed.rpc",
            "torch.export",
            "torch.func",
            "torch.fx",
            "torch.jit",
            "torch.mps",
            "torch.mtia",
            "torch.nested",
            "torch.onnx",
            "torch.package",
            "torch.quantization",
            "torch.utils.benchmark",
            "torch.utils.bottleneck",
            "torch.utils.jit",
            "torch.utils.viz",
            "torch.xpu",
        ),
        (
            "torch.distributed.algorithms._checkpoint",
            "torch.distributed.algorithms._checkpoint.checkpoint_wrapper",
            "torch.utils._pytree",
        ),
    ),
    "transformers": Plan(
        "transformers",
        (
            "transformers.cli",
            "transformers.integrations",
            "transformers.kernels",
            "transformers.models",
            "transformers.quantizers",
            "transformers.testing_utils",
        ),
    ),
    "trl": Plan("trl", ("trl.cli", "trl.scripts", "trl.skills")),
}
"""The libraries that rewritten code may use."""

EXTRA_STARS = {"torch": ("torch._C", "torch._C._VariableFunctions")}
"""Stub modules whose names a package takes over when it is imported."""

MODEL_BASES = {
    "modeling_": "transformers.modeling_utils.PreTrainedModel",
    "configuration_": "transformers.configuration_utils.PreTrainedConfig",
    "feature_extraction_": "transformers.feature_extraction_utils.FeatureExtractionMixin",
    "image_processing_": "transformers.image_processing_base.ImageProcessingMixin",
    "processing_": "transformers.processing_utils.ProcessorMixin",
    "tokenization_": "transformers.tokenization_utils_base.PreTrainedTokenizerBase",
    "video_processing_": "transformers.video_processing_utils.BaseVideoProcessor",
}
"""What the classes of a model's files are made from. Two thousand files are not worth describing."""

GENERATING = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ForSpeechSeq2Seq")
"""How the names of models end that can generate."""

KEPT_MODELS = ("transformers.models.auto",)


@dataclass
class Callable:
    """Names, `/name` if positional only, `*args`, `**kwargs`, `~name` for what is taken out of the latter."""

    parameters: list[str] = field(default_factory=list)

    def merge(self, other: Callable) -> None:
        """Take another overload in."""
        self.parameters += [name for name in other.parameters if name not in self.parameters]


@dataclass
class Class:
    """A class with what it says itself; the rest is with its bases."""

    bases: list[str] = field(default_factory=list)
    fields: list[str] | None = None
    """The parameters that a dataclass makes of its own fields."""
    methods: dict[str, Callable] = field(default_factory=dict)
    attributes: list[str] = field(default_factory=list)


@dataclass
class Module:
    """The names that a module binds."""

    name: str
    is_package: bool
    defined: dict[str, Callable | Class | None] = field(default_factory=dict)
    imported: dict[str, str] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    exported: list[str] | None = None


class Reader:
    """Reads the modules of one library when they are asked for."""

    def __init__(self, library: str) -> None:
        spec = importlib.util.find_spec(library)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"{library} is not installed")
        self.library = library
        self.root = Path(next(iter(spec.submodule_search_locations)))
        self._modules: dict[str, Module | None] = {}
        self._exports: dict[str, dict[str, None]] = {}

    def names(self, left_out: tuple[str, ...], private: tuple[str, ...]) -> Iterator[str]:
        """The modules that are to be described."""
        for path in sorted(self.root.rglob("*.py")):
            parts = list(path.relative_to(self.root).with_suffix("").parts)
            if parts[-1] == "__init__":
                parts.pop()
            name = ".".join([self.library, *parts])
            hidden = any(part.startswith(("_", "dummy_")) or part == "tests" for part in parts)
            kept = _below(name, KEPT_MODELS) or name in private
            if kept or not (hidden or _below(name, left_out)):
                yield name

    def module(self, name: str) -> Module | None:
        """A module of the library, or None when there is no source of it."""
        if name not in self._modules:
            self._modules[name] = None
            base = self.root.joinpath(*name.split(".")[1:])
            found = [
                (path, path.stem == "__init__")
                for path in (
                    base / "__init__.py",
                    base.with_name(f"{base.name}.py"),
                    base / "__init__.pyi",
                    base.with_name(f"{base.name}.pyi"),
                )
                if path.is_file()
            ]
            if found:
                module = Module(name, found[0][1])
                for path, is_package in found:
                    if not is_package and _is_model_file(name):
                        _exported_only(module, path)
                    else:
                        _Collector(module, stub=path.suffix == ".pyi").block(
                            ast.parse(path.read_bytes()).body
                        )
                module.stars += EXTRA_STARS.get(name, ())
                self._modules[name] = module
        return self._modules[name]

    def find(self, module: str, name: str, seen: frozenset[str] = frozenset()) -> str | None:
        """The qualified name of what a module's name stands for; in another library as it is imported."""
        here = self.module(module)
        key = f"{module}.{name}"
        if here is None or key in seen:
            return None
        if name in here.defined:
            return key
        if name in here.imported:
            target = here.imported[name]
            if not _below(target, (self.library,)):
                return target
            owner, _, last = target.rpartition(".")
            return self.find(owner, last, seen | {key}) or (
                target if self.module(target) is not None or owner == self.library else None
            )
        for star in here.stars:
            if name in self.exports(star):
                found = self.find(star, name, seen | {key})
                if found is not None:
                    return found
        return key if self.module(key) is not None else None

    def exports(self, module: str) -> dict[str, None]:
        """The names that a star import of a module takes, in order."""
        if module not in self._exports:
            self._exports[module] = {}  # for modules that import each other
            here = self.module(module)
            if here is not None and here.exported is not None:
                self._exports[module] = dict.fromkeys(here.exported)
            elif here is not None:
                names = [name for name in (*here.defined, *here.imported) if not name.startswith("_")]
                for star in here.stars:
                    names += self.exports(star)
                self._exports[module] = dict.fromkeys(names)
        return self._exports[module]

    def definition(self, qualified: str) -> Callable | Class | None:
        """What stands at a qualified name, when it is a function or a class."""
        owner, _, name = qualified.rpartition(".")
        module = self.module(owner)
        return module.defined.get(name) if module is not None else None

    def public(self, name: str) -> dict[str, str]:
        """The public names of a module with what they stand for."""
        module = self.module(name)
        assert module is not None
        names = [*self.exports(name), *module.defined]
        for star in module.stars if module.is_package else ():
            names += self.exports(star)
        if module.is_package:
            names += module.imported
        found = {}
        for each in sorted(set(names)):
            listed = module.exported is not None and each in module.exported
            if each.startswith("_") and each != "__version__" and not listed:
                continue
            target = self.find(name, each)
            if target is None:
                continue
            outside = not _below(target, (self.library,))
            if outside and not (module.exported and each in module.exported):
                continue
            if module.is_package or listed or each in module.defined:
                found[each] = target
        return found


class _Collector:
    """Takes in the statements of a module, whatever `if` or `try` they stand in."""

    def __init__(self, module: Module, *, stub: bool) -> None:
        self.module = module
        self.stub = stub
        parts = module.name.split(".")
        self.package = parts if module.is_package else parts[:-1]

    def block(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        module = self.module
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = _callable(node)
            old = module.defined.get(node.name)
            if isinstance(old, Callable):
                old.merge(function)
            else:
                module.defined[node.name] = function
        elif isinstance(node, ast.ClassDef):
            found = self._class(node)
            before = module.defined.get(node.name)
            if not (isinstance(before, Class) and len(before.methods) > len(found.methods)):
                module.defined[node.name] = found
        elif isinstance(node, ast.Import):
            for alias in node.names:
                module.imported.setdefault(
                    alias.asname or alias.name.partition(".")[0],
                    alias.name if alias.asname else alias.name.partition(".")[0],
                )
        elif isinstance(node, ast.ImportFrom):
            if not self.stub:
                self._import_from(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            self._assign(node)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function_node = node.value.func
            if (
                isinstance(function_node, ast.Attribute)
                and isinstance(function_node.value, ast.Name)
                and function_node.value.id == "__all__"
            ):
                for argument in node.value.args:
                    self._export(argument)
        else:
            for name in ("body", "orelse", "finalbody"):
                self.block(getattr(node, name, ()))
            for handler in getattr(node, "handlers", ()):
                self.block(handler.body)

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            package = self.package[: len(self.package) - node.level + 1]
            base = ".".join([*package, base]).rstrip(".")
        if "dummy_" in base:
            return
        for alias in node.names:
            if alias.name == "*":
                self.module.stars.append(base)
            else:
                self.module.imported[alias.asname or alias.name] = f"{base}.{alias.name}"

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        if self.stub and not isinstance(node, ast.AnnAssign):
            return  # type variables and aliases, which are there for type checkers alone
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            for name in ast.walk(target):
                if not isinstance(name, ast.Name) or not isinstance(name.ctx, ast.Store):
                    continue
                if name.id == "__all__":
                    if node.value is not None:
                        self._export(node.value)
                    continue
                # An alias of a class keeps what the class has.
                value = node.value
                if isinstance(node, ast.Assign) and isinstance(value, ast.Name) and target is name:
                    self.module.imported.setdefault(name.id, f"{self.module.name}.{value.id}")
                elif name.id not in self.module.defined:
                    self.module.defined[name.id] = None

    def _export(self, value: ast.expr) -> None:
        names = [
            part.value
            for part in ast.walk(value)
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        ]
        # `__all__ = something.__all__ + [...]` is not spelled out: then every public name counts.
        if names or (isinstance(value, (ast.List, ast.Tuple)) and not value.elts):
            self.module.exported = [*(self.module.exported or []), *names]

    def _class(self, node: ast.ClassDef) -> Class:
        found = Class(bases=[self._qualified(base) for base in node.bases])
        data = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        fields: list[str] = []
        for statement in _flat(node.body):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                decorators = [ast.unparse(decorator) for decorator in statement.decorator_list]
                if statement.name.startswith("_") and statement.name not in {
                    "__init__",
                    "__call__",
                    "__new__",
                }:
                    continue
                if any(
                    text in {"property", "cached_property"} or text.endswith(".setter") for text in decorators
                ):
                    found.attributes.append(statement.name)
                    continue
                method = _callable(statement, bound="staticmethod" not in decorators)
                if statement.name in found.methods:
                    found.methods[statement.name].merge(method)
                else:
                    found.methods[statement.name] = method
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                name = statement.target.id
                if name.startswith("_"):
                    continue
                found.attributes.append(name)
                text = ast.unparse(statement.annotation)
                if "ClassVar" not in text and "init=False" not in (
                    ast.unparse(statement.value) if statement.value else ""
                ):
                    fields.append(name)
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name) and not target.id.startswith("_"):
                        found.attributes.append(target.id)
            elif isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
                found.attributes.append(statement.name)
        if data:
            found.fields = fields
        found.attributes = sorted(set(found.attributes) - set(found.methods))
        return found

    def _qualified(self, base: ast.expr) -> str:
        if isinstance(base, ast.Subscript):
            base = base.value
        text = ast.unparse(base)
        head, dot, rest = text.partition(".")
        if head in self.module.imported:
            return self.module.imported[head] + dot + rest
        return text if dot else f"{self.module.name}.{text}"


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try)):
            yield from _flat(node.body)
            yield from _flat(node.orelse)
        else:
            yield node


def _callable(node: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool = False) -> Callable:
    arguments = node.args
    names = [f"/{argument.arg}" for argument in arguments.posonlyargs]
    names += [argument.arg for argument in arguments.args]
    if bound and names:
        names = names[1:]
    if arguments.vararg:
        names.append(f"*{arguments.vararg.arg}")
    names += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg:
        names += [f"~{name}" for name in _taken_out(node, arguments.kwarg.arg)]
        names.append(f"**{arguments.kwarg.arg}")
    return Callable(names)


def _taken_out(node: ast.AST, keywords: str) -> list[str]:
    """The keys that a function takes out of its `**kwargs` by name."""
    found = []
    for part in ast.walk(node):
        if (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr in {"pop", "get"}
            and isinstance(part.func.value, ast.Name)
            and part.func.value.id == keywords
            and part.args
            and isinstance(part.args[0], ast.Constant)
            and isinstance(part.args[0].value, str)
            and part.args[0].value.isidentifier()
            and not part.args[0].value.startswith("_")
        ):
            found.append(part.args[0].value)
    return list(dict.fromkeys(found))


def _below(name: str, roots: tuple[str, ...]) -> bool:
    return any(name == root or name.startswith(f"{root}.") for root in roots)


def installed(library: str) -> str:
    """The release that is installed, without a local part such as `+cpu`. Raises PackageNotFoundError."""
    return importlib.metadata.version(LIBRARIES[library].distribution).partition("+")[0]


def describe(library: str) -> str:
    """The index of an installed library as the text of its file. Raises ModuleNotFoundError without it."""
    plan = LIBRARIES[library]
    reader = Reader(library)
    modules: dict[str, str] = {}
    wanted: list[str] = []
    for name in reader.names(plan.left_out, plan.private):
        public = reader.public(name)
        words = []
        for each, target in public.items():
            words.append(each if target == f"{name}.{each}" else f"{each}={_short(target, library)}")
            wanted.append(target)
        modules[name] = " ".join(words)
    definitions: dict[str, object] = {}
    while wanted:
        target = wanted.pop()
        if target in definitions or not _below(target, (library,)):
            continue
        guessed = _model_base(target)
        if guessed is not None:
            bases = [guessed]
            if target.endswith(GENERATING) and guessed == MODEL_BASES["modeling_"]:
                bases.append("transformers.generation.utils.GenerationMixin")
            definitions[target] = {"b": bases}
            wanted += bases
            continue
        found = reader.definition(target)
        if isinstance(found, Callable):
            definitions[target] = " ".join(found.parameters)
        elif isinstance(found, Class):
            bases = [_resolved(reader, base) for base in found.bases]
            definitions[target] = _packed(found, bases)
            wanted += bases
    lines = [
        f'"version": {json.dumps(installed(library))}',
        f'"left_out": {json.dumps(list(plan.left_out))}',
        '"modules": {\n' + _lines(modules) + "\n}",
        '"definitions": {\n' + _lines(definitions) + "\n}",
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _resolved(reader: Reader, base: str) -> str:
    owner, _, name = base.rpartition(".")
    if not _below(base, (reader.library,)):
        return base
    return reader.find(owner, name) or base


def _packed(found: Class, bases: list[str]) -> dict[str, object]:
    packed: dict[str, object] = {}
    kept = [base for base in bases if base.rpartition(".")[2] not in {"object", "Generic", "ABC", "Protocol"}]
    if kept:
        packed["b"] = kept
    if found.fields is not None:
        packed["f"] = " ".join(found.fields)
    if found.methods:
        packed["m"] = {name: " ".join(method.parameters) for name, method in found.methods.items()}
    if found.attributes:
        packed["a"] = " ".join(found.attributes)
    return packed


def _model_base(target: str) -> str | None:
    """The base of a class from a model's own file, told by the name of the file."""
    parts = target.split(".")
    if parts[:2] != ["transformers", "models"] or _below(target, KEPT_MODELS) or len(parts) < 5:
        return None
    if not parts[-1][:1].isupper() or parts[-1].endswith(("Output", "OutputWithPast")):
        return None
    return next((base for prefix, base in MODEL_BASES.items() if parts[3].startswith(prefix)), None)


def _is_model_file(name: str) -> bool:
    return name.startswith("transformers.models.") and not _below(name, KEPT_MODELS)


def _exported_only(module: Module, path: Path) -> None:
    """Take in nothing but `__all__`: all that is needed of two thousand files."""
    match = _ALL.search(path.read_text("utf-8"))
    module.exported = list(ast.literal_eval(match["names"])) if match else []
    module.defined.update(dict.fromkeys(module.exported))


_ALL = re.compile(r"^__all__ = (?P<names>\[.*?\])", re.DOTALL | re.MULTILINE)


def _short(target: str, library: str) -> str:
    return target.removeprefix(library) if target.startswith(f"{library}.") else target


def _lines(table: dict[str, str] | dict[str, object]) -> str:
    return ",\n".join(f"{json.dumps(key)}: {json.dumps(table[key])}" for key in sorted(table))


def main(arguments: list[str]) -> None:
    """Write the index of the given libraries, or of all."""
    for library in arguments or LIBRARIES:
        (HERE / f"{library}.json").write_text(describe(library), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
