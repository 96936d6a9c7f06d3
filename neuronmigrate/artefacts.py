"""Compiled models of a project, and the checkpoints that they were made of.

The native device cannot read compiled files, so whoever loaded them has to load the original. Which one
that is, other files of the project may say: a script that exports and saves, an `optimum-cli export
neuron` line, a configuration that stands in the folder. All is read as text.
"""

from __future__ import annotations

import ast
import json
import keyword
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

COMMAND = re.compile(
    r"optimum-cli[\s\"',]+export[\s\"',]+neuronx?(?=[\s\"',\\])|-m[\s\"',]+optimum\.exporters\.neuron(?=[\s\"',\\])"
)
MARKERS = (b"optimum-cli", b"optimum.exporters.neuron")
"""What a file holds that runs the exporter."""
CONFIGURATIONS = ("neuron_config.json", "config.json", "model_index.json")


@dataclass(frozen=True)
class Artefact:
    """Compiled files, and what they were made of."""

    folder: str
    """Where they were put: a path as it is written, or the id of a repository."""
    checkpoint: str
    """Path or id of the original."""
    place: str
    """`path:line` that says so."""
    options: tuple[tuple[str, str], ...] = ()
    """What the exporter was told, as keywords of `from_pretrained` with the code of their values."""
    unseen: bool = False
    """Whether it was told more than can be read."""

    @property
    def revision(self) -> str:
        """The revision of the original, when it is said."""
        text = dict(self.options).get("revision", "''")
        value = ast.literal_eval(text)
        return value if isinstance(value, str) else ""


def same(one: str, other: str) -> bool:
    """Whether two texts name the same folder or repository."""
    return _normal(one) == _normal(other)


def _normal(path: str) -> str:
    return str(PurePosixPath(path)).removeprefix("./")


# Commands in scripts, images, notebooks and documentation.

_FLAGS = frozenset(
    {
        "disable_fallback",
        "disable_fast_relayout",
        "disable_neuron_cache",
        "disable_validation",
        "disable_weights_neff_inline",
        "dynamic_batch_size",
        "inline_weights_neff",
        "output_attentions",
        "output_hidden_states",
        "trust_remote_code",
    }
)
_MANY = frozenset(
    {
        "controlnet_ids",
        "ip_adapter_id",
        "ip_adapter_scale",
        "ip_adapter_subfolder",
        "ip_adapter_weight_name",
        "lora_adapter_names",
        "lora_model_ids",
        "lora_scales",
        "lora_weight_names",
    }
)
_VALUES = frozenset(
    {
        "atol",
        "audio_sequence_length",
        "auto_cast",
        "auto_cast_type",
        "batch_size",
        "cache_dir",
        "compiler_workdir",
        "feature_size",
        "height",
        "image_batch_size",
        "image_size",
        "instance_type",
        "library_name",
        "model",
        "nb_max_frames",
        "num_beams",
        "num_channels",
        "num_choices",
        "num_cores",
        "num_images_per_prompt",
        "optlevel",
        "patch_size",
        "sequence_length",
        "subfolder",
        "task",
        "tensor_parallel_size",
        "text_batch_size",
        "torch_dtype",
        "unet",
        "revision",
        "vae_scale_factor",
        "width",
    }
)
"""Options of `optimum-cli export neuron` that take one value (commands/export/neuronx.py, 0.0.2 to 0.4.5)."""
_STAYS_OPEN = re.compile(r"[$`*?{}()<>]")
"""What a word holds that is not known before it runs."""


def from_commands(path: str, raw: bytes) -> tuple[Artefact, ...]:
    """What the export commands in a file make; a command with a word that cannot be told makes nothing."""
    if not any(marker in raw for marker in MARKERS):
        return ()
    text = raw.decode("utf-8", "replace").replace("\r\n", "\n")
    if not path.endswith(".ipynb"):
        return tuple(_commands(path, text, text))
    cells = _cells(text)
    # A command in a cell reads the variables of the cells around it.
    around = "\n".join(cells)
    return tuple(
        made for index, cell in enumerate(cells) for made in _commands(f"{path}:cell {index}", cell, around)
    )


def _cells(text: str) -> list[str]:
    """The sources of a notebook's cells."""
    try:
        cells = json.loads(text).get("cells", ())
    except (ValueError, AttributeError, RecursionError):
        return []
    found = []
    for cell in cells if isinstance(cells, list) else ():
        source = cell.get("source", "") if isinstance(cell, dict) else ""
        if isinstance(source, list):
            source = "".join(part for part in source if isinstance(part, str))
        found.append(source if isinstance(source, str) else "")
    return found


def _commands(where: str, text: str, around: str) -> Iterator[Artefact]:
    for match in COMMAND.finditer(text):
        start = text.rfind("\n", 0, match.start()) + 1
        if text[start : match.start()].lstrip().startswith(("#", "//")):
            continue
        rest = text[match.end() :]
        words = _listed(rest) if "," in match.group() else _words(rest, text[start : match.start()])
        told = _options([_known(word, around) for word in words])
        if told is not None:
            model, output, options, unseen = told
            line = text.count("\n", 0, match.start()) + 1
            yield Artefact(output, model, f"{where}:{line}", tuple(options.items()), unseen)


def _words(rest: str, before: str) -> list[str]:
    """The words of a command line behind the name of the command; `before` stands in front of it."""
    rest = re.sub(r"\\\s*\n", " ", rest).partition("\n")[0].replace("\\n", " ")
    for quote in "\"'":
        if before.count(quote) % 2:
            rest = rest.partition(quote)[0]
    lexer = shlex.shlex(rest, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        for word in lexer:
            if word.startswith("#") or set(word) <= set(";&|<>"):
                break
            words.append(word)
    except ValueError:
        return []
    return words


_ITEM = re.compile(
    r"\s*(?:[rf]?(?P<quote>[\"'])(?P<text>(?:(?!(?P=quote)).)*)(?P=quote)|(?P<other>[^,\]]*))\s*"
)


def _listed(rest: str) -> list[str]:
    """The items of a list of words behind the name of the command; code in braces for one that is no text."""
    words: list[str] = []
    at = rest.find(",") if re.match(r"[\"']\s*,", rest) else len(rest)
    while at < len(rest) and rest[at] == ",":
        match = _ITEM.match(rest, at + 1)
        assert match is not None, "every part of it may be empty"
        other = (match["other"] or "").strip()
        if match["text"] is not None or other:
            words.append(match["text"] if match["other"] is None else f"{{{other}}}")
        at = match.end()
    return words if rest[at : at + 1] == "]" else []


_VARIABLE = re.compile(
    r"\$\{(?P<shell>\w+)\}|\$\((?P<make>\w+)\)|\$(?P<plain>[A-Za-z_]\w*)|(?<!\$)\{(?P<python>\w+)\}"
)


def _known(word: str, around: str) -> str | None:
    """A word with the variables of its file put in; None when it is not known before it runs."""

    def value(match: re.Match[str]) -> str:
        name = next(filter(None, match.groups()))
        lines = re.findall(
            rf"^.*(?<![\w$.-]){name}(?:[ \t]*[:?+]?=(?!=)|(?<=ENV {name})[ \t]).*$", around, re.M
        )
        given = _ASSIGNED.fullmatch(lines[0]) if len(lines) == 1 else None
        return given["value"] if given is not None and given["name"] == name else match.group()

    word = _VARIABLE.sub(value, word)
    return None if _STAYS_OPEN.search(word) else word


_ASSIGNED = re.compile(
    r"\s*(?:-\s+)?(?:(?:export|readonly|local|ENV)\s+)?(?P<name>\w+)\s*(?::?=|\s)\s*"
    r"(?P<quote>[\"']?)(?P<value>[^\s\"'$`{}()]+)(?P=quote)\s*(?:#.*|\\)?"
)


def exported_by(words: Sequence[str]) -> tuple[str, str, str] | None:
    """What the words behind `optimum-cli export neuron` export, where to, and of which revision.

    None where a word is no option of that command, or more than a checkpoint makes the output.
    """
    told = _options(words)
    if told is None or told[3] or told[2].keys() & (_MANY | {"subfolder", "unet"}):
        return None
    model, output, options, _ = told
    revision = ast.literal_eval(options.get("revision", "''"))
    return model, output, revision if isinstance(revision, str) else ""


def _options(words: Sequence[str | None]) -> tuple[str, str, dict[str, str], bool] | None:
    """The model, the output and the other options; None when a word that matters is not known."""
    options: dict[str, str] = {}
    outputs: list[str | None] = []
    model: str | None = None
    unseen = False
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word is None or not word.startswith("-"):
            outputs.append(word)
            continue
        flag, given, value = word.partition("=")
        name = "model" if flag == "-m" else flag.lstrip("-").replace("-", "_")
        if name in _FLAGS or re.fullmatch(r"-O[123]", flag):
            options[name] = "True"
        elif name in _MANY:
            found: list[str | None] = []
            while at < len(words) and not (words[at] or "").startswith("-"):
                found.append(words[at])
                at += 1
            unseen = unseen or not all(found)
            codes = [each if re.fullmatch(r"\d+(\.\d+)?", each) else repr(each) for each in found if each]
            options[name] = codes[0] if len(codes) == 1 else f"[{', '.join(codes)}]"
        elif name in _VALUES:
            after = value if given else words[at] if at < len(words) else None
            at += not given
            if name == "model":
                model = after
            elif after is None:
                unseen = True
            else:
                options[name] = after if re.fullmatch(r"\d+", after) else repr(after)
        else:
            return None
    if model is None or len(outputs) != 1 or outputs[0] is None:
        return None
    return model, outputs[0], options, unseen


# Scripts that export and save.


def from_script(path: str, raw: bytes) -> tuple[Artefact, ...]:
    """What a script exports and saves under a name that is written out in it."""
    if not any(name in raw for name in (b"save_pretrained", b"push_to_hub", b"main_export")):
        return ()
    tree = _parsed(raw)
    return tuple(_Script(path, tree).found()) if tree is not None else ()


def loads_of(path: str, raw: bytes) -> tuple[Artefact, ...]:
    """What the loads of a script are told, whatever becomes of what they load: the folder is empty."""
    tree = _parsed(raw)
    return tuple(_Script(path, tree).loads()) if tree is not None else ()


def _parsed(raw: bytes) -> ast.Module | None:
    try:
        return ast.parse(raw)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def text_of(node: ast.expr, constants: Mapping[str, str], unknown: str = "") -> str:
    """The text of a path that is written out, with `os.path.join` and the like; empty for any other.

    With `unknown` what is known at run time alone stands as that, such as `*`.
    """
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else unknown
    if isinstance(node, (ast.Name, ast.Attribute)):
        return constants.get(ast.unparse(node), unknown)
    parts: list[str] = []
    if isinstance(node, ast.Call) and not node.keywords:
        called = ast.unparse(node.func)
        if called not in ("os.path.join", "Path", "pathlib.Path", "str", "join"):
            return _by_default(called, node, constants, unknown) if unknown else ""
        parts = [text_of(each, constants, unknown) for each in node.args]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Add)):
        parts = [text_of(node.left, constants, unknown), text_of(node.right, constants, unknown)]
        if isinstance(node.op, ast.Add):
            return "".join(parts) if all(parts) else ""
    elif isinstance(node, ast.JoinedStr):
        parts = [
            text_of(each.value if isinstance(each, ast.FormattedValue) else each, constants, unknown)
            for each in node.values
        ]
        return "".join(parts) if all(parts) else ""
    return str(PurePosixPath(*parts)) if parts and all(parts) else unknown


_ENVIRONMENT = ("environ.get", "getenv", "os.environ.get", "os.getenv")


def _by_default(called: str, call: ast.Call, constants: Mapping[str, str], unknown: str) -> str:
    """What a variable of the environment is when nobody sets it."""
    if called in _ENVIRONMENT and len(call.args) == 2:
        return text_of(call.args[1], constants, unknown)
    return unknown


def alike(one: str, other: str) -> bool:
    """Whether two paths, with `*` for what is not known of them, may name the same file.

    They have to agree in what is known, and something has to be known of the file's name.
    """
    pairs = list(zip(reversed(PurePosixPath(one).parts), reversed(PurePosixPath(other).parts), strict=False))
    if not pairs or any(len(each.strip("*")) < 2 for each in pairs[0]):
        return False
    return all(a == b or fnmatchcase(a, b) or fnmatchcase(b, a) for a, b in pairs)


class _Source:
    """One script, and the names in it that are bound once."""

    def __init__(
        self, path: str, tree: ast.Module, others: Mapping[str, str] | None = None, unknown: str = ""
    ) -> None:
        """`others` are constants of other modules, by their qualified names."""
        self.path = path
        self.tree = tree
        self.unknown = unknown
        self.imported: dict[str, str] = {}
        """What each imported name stands for."""
        stores: Counter[str] = Counter()
        values: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                module = f"{node.module or ''}." if isinstance(node, ast.ImportFrom) else ""
                if isinstance(node, ast.ImportFrom) and node.level:
                    continue  # what it stands for depends on the package
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    local = alias.asname or (alias.name if module else root)
                    self.imported[local] = f"{module}{alias.name}" if module or alias.asname else root
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        values[target.id] = node.value
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stores[node.id] += 1
            elif isinstance(node, ast.arg):
                stores[node.arg] += 1
        self.once = {name: value for name, value in values.items() if stores[name] == 1}
        self.constants: dict[str, str] = {}
        for qualified, text in (others or {}).items():
            module, _, constant = qualified.rpartition(".")
            for local, target in self.imported.items():
                if target == qualified:
                    self.constants[local] = text
                elif target == module:
                    self.constants[f"{local}.{constant}"] = text
        for _ in range(3):  # constants that are made of constants
            if unknown:
                self.constants.update(_options_of(tree, self.constants))
            for name, value in self.once.items():
                text = text_of(value, self.constants, unknown)
                if text and text != unknown:
                    self.constants[name] = text

    def qualified(self, node: ast.expr) -> str:
        """The name that a dotted chain stands for if it begins with an import; else empty."""
        first, dot, rest = ast.unparse(node).partition(".")
        return f"{self.imported[first]}{dot}{rest}" if first in self.imported else ""


ARGUMENTS = frozenset({"FLAGS", "args", "cli_args", "flags", "opt", "options", "opts", "parser_args"})
"""Names that what a parser read is mostly given, where a function gets it."""


def _options_of(tree: ast.Module, constants: Mapping[str, str]) -> dict[str, str]:
    """The defaults of command line options, such as `args.output`."""
    holders = set(ARGUMENTS)
    defaults: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Attribute) and called.attr in ("parse_args", "parse_known_args"):
                targets = [
                    each.elts[0] if isinstance(each, ast.Tuple) and each.elts else each
                    for each in node.targets
                ]
                holders.update(each.id for each in targets if isinstance(each, ast.Name))
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "add_argument"
        ):
            told = {each.arg: text_of(each.value, constants) for each in node.keywords if each.arg}
            flags = [text_of(each, {}) for each in node.args]
            flags = [each for each in flags if each.startswith("--")] or flags
            name = told.get("dest") or (flags[0].lstrip("-").replace("-", "_") if flags else "")
            if name and told.get("default"):
                defaults[name] = told["default"]
    return {f"{holder}.{name}": text for holder in holders for name, text in defaults.items()}


def constants_of(module: str, raw: bytes) -> dict[str, str]:
    """The paths and names at the top of a module, by their qualified names."""
    tree = _parsed(raw)
    if tree is None:
        return {}
    top = {
        target.id
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    known = _Source("", tree, unknown=UNKNOWN).constants
    return {f"{module}.{name}": text for name, text in known.items() if name in top}


UNKNOWN = "*"
"""What stands in a path for what is known at run time alone."""


class Paths(_Source):
    """What the paths of one script are, as far as it says."""

    @classmethod
    def of(cls, path: str, code: str, others: Mapping[str, str]) -> Paths:
        """The paths of a script that parses."""
        return cls(path, ast.parse(code), others, UNKNOWN)


class _Script(_Source):
    """The exports of one script, and what it saves them as."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        super().__init__(path, tree)
        self.legacy = {
            local: full
            for local, full in self.imported.items()
            if full == "optimum" or full.startswith(("optimum.neuron", "optimum.exporters.neuron"))
        }

    def found(self) -> Iterator[Artefact]:
        if not self.legacy:
            return
        scopes: list[ast.AST] = [self.tree]
        scopes += [
            node for node in ast.walk(self.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        attributes = {target: made for target, made in self._made(ast.walk(self.tree)) if "." in target}
        for scope in scopes:
            exported: dict[str, list[Artefact]] = {}
            for target, made in self._made(_own(scope)):
                exported.setdefault(target, []).append(made)
            for target, made in attributes.items():
                exported.setdefault(target, [made])
            for node in _own(scope):
                if isinstance(node, ast.Call):
                    yield from self._saved(node, exported)

    def loads(self) -> Iterator[Artefact]:
        """Each call of `from_pretrained`, by its place."""
        for node in ast.walk(self.tree) if self.legacy else ():
            if isinstance(node, ast.Call) and self._qualified(node.func).endswith(".from_pretrained"):
                options, unseen = self._keywords(node)
                model = text_of(node.args[0], self.constants) if node.args else ""
                yield Artefact("", model, f"{self.path}:{node.lineno}", tuple(options.items()), unseen)

    def _made(self, nodes: Iterable[ast.AST]) -> Iterator[tuple[str, Artefact]]:
        """What is exported, with the name that holds it."""
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made = self._export(node.value)
                if made is not None:
                    yield from ((ast.unparse(target), made) for target in node.targets)

    def _export(self, call: ast.Call) -> Artefact | None:
        """What a call exports, without the folder."""
        name = self._qualified(call.func)
        method = name.rpartition(".")[2]
        if name.startswith("optimum.neuron") and method in ("from_pretrained", "export", "pipeline"):
            options, unseen = self._keywords(call)
            flag = options.get("export") or options.get("from_transformers")
            if flag != "True" and method != "export":
                return None
            place = 1 if method == "pipeline" else 0
            return self._artefact(call, place, ("model_id", "model"), "", options, unseen)
        return None

    def _saved(self, call: ast.Call, exported: Mapping[str, list[Artefact]]) -> Iterator[Artefact]:
        func = call.func
        if self._qualified(func).startswith("optimum.exporters.neuron") and ast.unparse(func).endswith(
            "main_export"
        ):
            options, unseen = self._keywords(call)
            given = {each.arg: each.value for each in call.keywords}
            output = given.get("output") or (call.args[1] if len(call.args) > 1 else None)
            folder = text_of(output, self.constants) if output is not None else ""
            made = self._artefact(call, 0, ("model_name_or_path",), folder, options, unseen)
            if made is not None and folder:
                yield made
        elif isinstance(func, ast.Attribute) and func.attr in ("save_pretrained", "push_to_hub"):
            given = {each.arg: each.value for each in call.keywords}
            hub = func.attr == "push_to_hub"
            where = given.get("repository_id") if hub else given.get("save_directory")
            if where is None and len(call.args) > hub:
                where = call.args[int(hub)]
            folder = text_of(where, self.constants) if where is not None else ""
            holder = ast.unparse(func.value)
            # The model of a pipeline, unless it is an attribute of its own.
            holder = holder if holder in exported else holder.removesuffix(".model")
            direct = self._export(func.value) if isinstance(func.value, ast.Call) else None
            for made in [direct] if direct else exported.get(holder, ()):
                if folder:
                    yield replace(made, folder=folder)

    def _artefact(
        self,
        call: ast.Call,
        position: int,
        keywords: tuple[str, ...],
        folder: str,
        options: dict[str, str],
        unseen: bool,
    ) -> Artefact | None:
        given = {each.arg: each.value for each in call.keywords}
        model = next((given[name] for name in keywords if name in given), None)
        if model is None and len(call.args) > position:
            model = call.args[position]
        text = text_of(model, self.constants) if model is not None else ""
        if not text:
            return None
        return Artefact(folder, text, f"{self.path}:{call.lineno}", tuple(options.items()), unseen)

    def _keywords(self, call: ast.Call) -> tuple[dict[str, str], bool]:
        """The keywords whose values are literals, and whether there may be more."""
        options: dict[str, str] = {}
        unseen = False
        todo = [(each.arg, each.value) for each in call.keywords]
        while todo:
            name, value = todo.pop(0)
            if isinstance(value, ast.Name) and value.id in self.once:
                value = self.once[value.id]
            if name is None or name in ("compiler_kwargs", "compiler_args", "input_shapes"):
                inner = _entries(value)
                unseen = unseen or inner is None
                todo += inner or []
            elif _is_literal(value) or (name == "torch_dtype" and isinstance(value, ast.Attribute)):
                options[name] = ast.unparse(value)
        return options, unseen

    def _qualified(self, node: ast.expr) -> str:
        first, dot, rest = ast.unparse(node).partition(".")
        return f"{self.legacy[first]}{dot}{rest}" if first in self.legacy else ""


def _is_literal(value: ast.expr) -> bool:
    if isinstance(value, (ast.List, ast.Tuple)):
        return all(isinstance(each, ast.Constant) for each in value.elts)
    return isinstance(value, ast.Constant)


def _entries(value: ast.expr) -> list[tuple[str | None, ast.expr]] | None:
    """The keys and values of a dictionary that is written out."""
    if isinstance(value, ast.Dict):
        keys = [key.value if isinstance(key, ast.Constant) else None for key in value.keys]
        if all(isinstance(key, str) for key in keys):
            return [(str(key), each) for key, each in zip(keys, value.values, strict=True)]
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "dict" and not value.args:
        return [(each.arg, each.value) for each in value.keywords]
    return None


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of the functions in it."""
    todo = list(ast.iter_child_nodes(scope))
    while todo:
        node = todo.pop(0)
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            todo[:0] = ast.iter_child_nodes(node)


# Scripts that trace and save.

_TRACES = frozenset({"torch_neuronx.trace", "torch_neuronx.xla_impl.trace.trace"})
# Packages of which a model can be built anywhere.
_BUILDERS = ("diffusers.", "sentence_transformers.", "torch.", "transformers.")


def may_trace(raw: bytes) -> bool:
    """Whether a script may save a traced model."""
    return b"torch_neuronx" in raw and b"save" in raw


def from_traces(
    path: str, raw: bytes, others: Mapping[str, str], module: str, modules: Collection[str]
) -> tuple[Artefact, ...]:
    """The files that a script saves a traced model as; the checkpoint is the code that builds the model.

    `unseen` says that the code leans on more than can be had elsewhere: local names of the script. In a
    path `*` stands for what is not known of it. `others` are constants of other modules, `module` and
    `modules` the names of this one and of all of the project.
    """
    tree = _parsed(raw)
    if tree is None:
        return ()
    tracer = _Tracer(path, tree, others, UNKNOWN)
    tracer.builders = (*_BUILDERS, *(f"{each}." for each in modules))
    tracer.own = {name: f"{module}.{name}" for name in _importable(tree) if _is_module(module)}
    return tuple(tracer.found())


def _is_module(name: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in name.split("."))


_QUIET = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def _importable(tree: ast.Module) -> set[str]:
    """The functions and classes of a script that does nothing when it is imported."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif not _is_quiet(node):
            return set()
    return found


def _is_quiet(node: ast.stmt) -> bool:
    """Whether a statement at the top of a module does no work."""
    if isinstance(node, ast.If):
        return "__name__" in ast.unparse(node.test)
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)]
        return all(ast.unparse(each.func) in _PLAIN for each in calls)
    return isinstance(node, _QUIET) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


_PLAIN = frozenset({*_ENVIRONMENT, "Path", "int", "logging.getLogger", "os.path.join", "pathlib.Path", "str"})
"""Calls at the top of a module that do no work."""


# What names were given, and what names meant there.
_Given = dict[str, tuple[ast.expr, "_Given"]]


class _Tracer(_Source):
    """The traces of one script, and what it saves them as."""

    builders: tuple[str, ...] = _BUILDERS
    """What the names of things begin with that other scripts can import."""
    own: Mapping[str, str] = {}
    """The functions and classes of this script that others can import."""

    def found(self) -> Iterator[Artefact]:
        scopes: list[ast.AST] = [self.tree]
        scopes += [
            node for node in ast.walk(self.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        ]
        for scope in scopes:
            given: _Given = {}
            # In the order of the text: a name that is used again stands for what it was given last.
            for node in sorted(_own(scope), key=_where):
                if isinstance(node, ast.Call):
                    yield from self.saved(node, given)
                elif isinstance(node, ast.Assign):
                    given = {**given, **{ast.unparse(each): (node.value, given) for each in node.targets}}

    def saved(self, call: ast.Call, given: _Given) -> Iterator[Artefact]:
        """What a call saves, if that is a trace."""
        func = call.func
        if self.qualified(func) == "torch.jit.save" and len(call.args) == 2:
            model, path = call.args
        elif isinstance(func, ast.Attribute) and func.attr == "save" and len(call.args) == 1:
            model, path = func.value, call.args[0]
        else:
            return
        known = dict(self.constants)
        for name, (value, _) in given.items():
            text = text_of(value, known, UNKNOWN)
            if text != UNKNOWN:
                known[name] = text
        folder = text_of(path, known, UNKNOWN)
        made, given = given.get(ast.unparse(model), (model, given))
        if not isinstance(made, ast.Call) or self.qualified(made.func) not in _TRACES:
            return
        keywords = {each.arg: each.value for each in made.keywords}
        traced = made.args[0] if made.args else keywords.get("func")
        if traced is None:
            return
        code, whole = self.built(traced, given)
        yield Artefact(folder, code, f"{self.path}:{made.lineno}", unseen=not whole)

    def built(self, model: ast.expr, given: _Given) -> tuple[str, bool]:
        """The code that builds a model, and whether it can be run anywhere."""
        while True:
            if isinstance(model, ast.Name) and model.id in given:
                model, given = given[model.id]
            elif isinstance(model, ast.Call) and self.qualified(model.func) == "copy.deepcopy" and model.args:
                model = model.args[0]
            elif (
                isinstance(model, ast.Call)
                and isinstance(model.func, ast.Attribute)
                and model.func.attr in ("eval", "float", "cpu")
            ):
                model = model.func.value
            else:
                break
        if isinstance(model, ast.Call):
            name = self.qualified(model.func) or self.own.get(ast.unparse(model.func), "")
            parts = [*model.args, *(each.value for each in model.keywords)]
            texts = [self.elsewhere(each) for each in parts]
            names = ["", *[""] * len(model.args), *(each.arg or "**" for each in model.keywords)][1:]
            if name.startswith(self.builders) and all(texts) and "**" not in names:
                words = [f"{key}={text}" if key else text for key, text in zip(names, texts, strict=True)]
                return f"{name}({', '.join(words)})", True
        return ast.unparse(model), False

    def elsewhere(self, value: ast.expr) -> str:
        """An argument as another file can write it; empty for what only this one knows."""
        if _is_literal(value):
            return ast.unparse(value)
        name = self.qualified(value)
        if name.startswith(self.builders[len(_BUILDERS) :]):
            return name
        known = text_of(value, self.constants, UNKNOWN)
        return "" if UNKNOWN in known else repr(known)


def _where(node: ast.AST) -> tuple[int, int]:
    # What is assigned is given where the statement ends.
    line = getattr(node, "end_lineno", None) or 0
    return line, getattr(node, "end_col_offset", 0)


# Configurations that stand with the compiled files.


def from_configurations(root: Path, path: str, raw: bytes) -> tuple[Artefact, ...]:
    """What the folders say that a script names, where they stand in the project."""
    tree = _parsed(raw)
    if tree is None:
        return ()
    texts = {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _may_be_folder(node.value)
    }
    found: list[Artefact] = []
    for text in sorted(texts):
        for base in dict.fromkeys((root, (root / path).parent)):
            try:
                told = [each for each in map(base.joinpath(text).joinpath, CONFIGURATIONS) if each.is_file()]
                found += [made for file in told for made in _configured(root, text, file)]
            except (OSError, ValueError):
                continue
    return tuple(dict.fromkeys(found))


def _may_be_folder(text: str) -> bool:
    plain = 0 < len(text) < 200 and re.fullmatch(r"[\w./@+=~ -]+", text) is not None
    return plain and not text.startswith(("/", "~")) and ".." not in text and text.strip("./ ") != ""


def _configured(root: Path, folder: str, file: Path) -> Iterator[Artefact]:
    """The checkpoint that a configuration of compiled files names.

    Decoders store `checkpoint_id` (config.json up to 0.1.0, then neuron_config.json); older Transformers
    wrote where a configuration was loaded from as `_name_or_path`. In a folder of ordinary weights that is
    what they were trained from, and says nothing.
    """
    data = _json(file)
    if file.name == "neuron_config.json":
        inside = data
    else:
        compiled = data.get("neuron")
        inside = compiled if isinstance(compiled, dict) else {}
        parts = [_json(file.parent / part / "config.json") for part in ("transformer", "unet")]
        if not any(key.startswith("neuron") for each in (data, *parts) for key in each):
            return
    checkpoint = inside.get("checkpoint_id") or data.get("_name_or_path")
    if not isinstance(checkpoint, str) or not checkpoint or same(checkpoint, folder):
        return
    options = {}
    known = {**inside, "revision": inside.get("checkpoint_revision")}
    for name in sorted(_VALUES & known.keys()):
        value = known[name]
        if isinstance(value, (int, str)) and not isinstance(value, bool):
            options[name] = repr(value)
    try:
        place = file.relative_to(root).as_posix()
    except ValueError:
        place = str(file)
    yield Artefact(folder, checkpoint, place, tuple(options.items()))


def _json(file: Path) -> dict[str, object]:
    """What a file holds; empty when it is missing or holds something else."""
    try:
        data = json.loads(file.read_bytes()) if file.is_file() else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
