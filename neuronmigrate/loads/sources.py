"""Which checkpoint a legacy load stands for: compiled files are nothing that the native device reads."""

from __future__ import annotations

import ast
import re

import libcst as cst
import libcst.matchers as m

from neuronmigrate import artefacts, edits
from neuronmigrate.artefacts import Artefact
from neuronmigrate.loads.arguments import (
    CAST,
    Given,
    Load,
    Table,
    constant,
    means_the_same,
    only_binding,
    sorted_arguments,
    take_apart,
    text_of,
)
from neuronmigrate.site import Group, Site


def _compiler_kwargs(site: Site, load: Load, given: Given) -> None:
    if not take_apart(site, load, given.seen):
        load.refuse("what the compiler was told cannot be seen from here")


_MAIN_EXPORTS = ("optimum.exporters.neuron.main_export", "optimum.exporters.neuron.__main__.main_export")
_MAIN_EXPORT = Table(
    consumed=CAST,
    special={"compiler_kwargs": _compiler_kwargs},
    positional=("output", "compiler_kwargs"),
    identifier="model_name_or_path",
    passes=True,
)


class Saved:
    """Folders that this file itself wrote with a model it exports, and the checkpoint behind them."""

    def __init__(self, site: Site, loads: list[Load]) -> None:
        self.site = site
        self.loads = loads
        self.written: list[tuple[cst.BaseExpression, Load]] = []
        self.beside: list[cst.BaseExpression] = []
        """Folders that something else is saved in, such as a tokenizer."""
        exported = {load.call: load for load in loads if is_export(load)}
        for call in site.nodes(cst.Call):
            func = call.func
            if not isinstance(func, cst.Attribute) or func.attr.value != "save_pretrained" or not call.args:
                continue
            made = self._just_made(func.value)
            origins = site.flow.origin_of(func.value)
            if made is None and origins.certain and len(origins.producers) == 1:
                made = origins.producers[0].node
            if isinstance(made, cst.Call) and made in exported:
                self.written.append((call.args[0].value, exported[made]))
            else:
                self.beside.append(call.args[0].value)
        for use in site.uses:
            if use.name in _MAIN_EXPORTS and use.call is not None:
                load = sorted_arguments(site, use, use.call, "", _MAIN_EXPORT)
                if not load.refused and "output" in load.told:
                    self.written.append((load.told["output"], load))

    def _just_made(self, model: cst.BaseExpression) -> cst.CSTNode | None:
        """What a name was given a few lines above in the same block, whatever it holds elsewhere."""
        line = self.site.statement(model)
        block = self.site.parent(line)
        body = list(block.body) if isinstance(block, (cst.IndentedBlock, cst.Module)) else []
        for above in reversed(body[: body.index(line)] if line in body else []):
            if not isinstance(above, cst.SimpleStatementLine):
                return None
            for small in above.body:
                if isinstance(small, cst.Assign) and any(
                    edits.code_of(each.target) == edits.code_of(model) for each in small.targets
                ):
                    return small.value
        return None

    def loads_into(self, folder: cst.BaseExpression) -> list[Load]:
        """The exports that were saved in a folder."""
        return [load for written, load in self.written if self._is_same(written, folder)]

    def is_read_at(self, call: cst.Call) -> cst.Arg | None:
        """The argument that names a folder of which this reads a tokenizer, processor or configuration."""
        name = (self.site.name_of(call.func) or "").split(".")
        given = edits.arguments(call, ("pretrained_model_name_or_path",)).by_name
        reads = len(name) > 2 and name[0] == "transformers" and name[-1] == "from_pretrained"
        return given.get("pretrained_model_name_or_path") if reads and _READ.search(name[-2]) else None

    def redirect(self, group: Group, load: Load) -> None:
        """Let what the legacy class saved beside the model be read from the original.

        `save_pretrained` saved the tokenizer and processors of the checkpoint as well, and so did the
        export on the command line; a native `save_pretrained` saves the model alone.
        """
        folders = [load.folder] if load.folder is not None else []
        folders += [folder for folder, made in self.written if made is load]
        made = self.source_of(folders[0]) if folders and load.artefact is None else None
        if not folders or any(self._is_same(each, folder) for each in self.beside for folder in folders):
            return
        moved = self.site.notes.setdefault("moved", set())
        for call in self.site.nodes(cst.Call):
            arg = self.is_read_at(call)
            if arg is None or arg in moved or not any(self._is_same(arg.value, each) for each in folders):
                continue
            moved.add(arg)
            original: cst.BaseExpression | None = None
            if load.artefact is not None:
                original = edits.string(load.artefact.checkpoint)
            elif made is not None and self._is_known_at(made, arg.value):
                original = made.values["model_id"].deep_clone()
            if original is None:
                line = self.site.positions.span(call).line
                load.todo.append(
                    f"line {line}: `{edits.short(call)}` reads what is not saved beside the model any more: "
                    "name the original"
                )
                continue
            group.replace(arg, arg.with_changes(value=original))
            self.site.notes.setdefault("removed", set()).add(arg)
            load.drop(arg.value)

    def _is_known_at(self, made: Load, folder: cst.BaseExpression) -> bool:
        """Whether the checkpoint of an export can be written where its folder is read."""
        source = made.values["model_id"]
        return edits.is_literal(source) or (
            edits.is_pure(source) and self._still_holds(source, made.call, folder)
        )

    def source_of(self, folder: cst.BaseExpression) -> Load | None:
        """The export whose checkpoint stands behind a folder, where that can be written at its load."""
        found = self.loads_into(folder)
        sources = {edits.code_of(load.values["model_id"]) for load in found if "model_id" in load.values}
        if len(sources) != 1:
            return None
        return found[0] if self._is_known_at(found[0], folder) else None

    def _still_holds(self, source: cst.BaseExpression, at: cst.Call, folder: cst.BaseExpression) -> bool:
        """Whether an expression for a checkpoint has the same value where its folder is read."""
        if not means_the_same(self.site, source, folder):
            return False
        if isinstance(source, cst.Name):
            return only_binding(self.site, source) is not None or self._same_function(at, folder)
        # What an attribute holds may change between two functions.
        return self._same_function(at, folder)

    def _same_function(self, one: cst.CSTNode, other: cst.CSTNode) -> bool:
        return self.site.names.function_of(one) is self.site.names.function_of(other)

    def _is_same(self, one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
        one, other = self._bare(one), self._bare(other)
        if isinstance(one, cst.SimpleString) and isinstance(other, cst.SimpleString):
            return artefacts.same(text_of(one), text_of(other))
        bound = self.site.names.bindings_at(one) if isinstance(one, cst.Name) else ()
        if isinstance(other, cst.Name) and bound and bound == self.site.names.bindings_at(other):
            return True
        texts = {path_text(self.site, one), path_text(self.site, other)}
        if len(texts) == 1 and texts != {""}:
            return True
        return (
            isinstance(one, cst.Attribute)
            and edits.is_pure(one)
            and edits.code_of(one) == edits.code_of(other)
            and means_the_same(self.site, one, other)
        )

    def _bare(self, folder: cst.BaseExpression) -> cst.BaseExpression:
        """A path as it is before it is made a string or a Path."""
        while (
            isinstance(folder, cst.Call)
            and self.site.name_of(folder.func) in ("builtins.str", "os.fspath", "pathlib.Path")
            and len(folder.args) == 1
        ):
            folder = folder.args[0].value
        return constant(self.site, folder)


_READ = re.compile(r"(Tokenizer|TokenizerFast|Processor|ProcessorFast|FeatureExtractor|Config)$")


def is_export(load: Load) -> bool:
    """Whether a load certainly starts from the original checkpoint."""
    return load.use.method == "export" or any(
        edits.code_of(load.values[name]) == "True"
        for name in ("export", "from_transformers")
        if name in load.values
    )


_COMPILED_ID = re.compile(r"(optimum|aws-neuron)/|.*-neuronx?$")


def settle_source(load: Load, saved: Saved) -> None:
    """Put the original in the place of compiled files, which the native device cannot read.

    It is looked for in this file, then in what the other files of the project say. A load is refused
    where its folder is written out and nothing or several things are said about it. Where the folder
    comes from outside, such as from a parameter or the environment, whoever gives it is told.
    """
    site = saved.site
    model = load.values.get("model_id")
    if load.refused:
        return
    if model is None:
        load.refuse("the checkpoint it loads cannot be seen from here")
        return
    if is_export(load):
        text = text_of(constant(site, model))
        if _COMPILED_ID.match(text):
            load.todo.append(f"`{text}` looks like a compiled repository: load the original checkpoint")
        return
    export = load.values.get("export") or load.values.get("from_transformers")
    if export is not None and not edits.is_literal(export):
        how = f"is decided at run time by `{edits.short(export)}`"
        if is_written_out(site, model):
            load.refuse(f"whether `{edits.short(model)}` is compiled {how}")
        else:
            load.todo.append(
                f"whether `{edits.short(model)}` names compiled files {how}: let it name the original"
            )
        return
    exported = saved.source_of(model)
    load.known = exported is not None
    text = path_text(site, model)
    if exported is not None:
        line = site.positions.span(exported.call).line
        _take_options(site, load, exported)
        _put_original(load, model, exported.values["model_id"].deep_clone(), f"line {line} compiled")
    elif text:
        _from_project(load, model, text, site.project.compiled(text, site.path))
    elif not is_written_out(site, model):
        load.todo.append(f"`{edits.short(model)}` named compiled files: let it name the original checkpoint")
    else:
        load.refuse(_compiled(model))


def path_text(site: Site, value: cst.BaseExpression) -> str:
    """The text of a path or id that is written out, also through names and `os.path.join`; else empty."""
    text = _text(site, value)
    origins = site.flow.origin_of(value)
    if not text and origins.certain and len(origins.producers) == 1:
        made = origins.producers[0].node
        text = _text(site, made) if isinstance(made, cst.BaseExpression) else ""
    return text


def _text(site: Site, value: cst.BaseExpression) -> str:
    names = {name.value: name for name in m.findall(value, m.Name()) if isinstance(name, cst.Name)}
    constants = {each: text_of(constant(site, name)) for each, name in names.items()}
    try:
        parsed = ast.parse(edits.code_of(value).strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return ""
    return artefacts.text_of(parsed, constants)


def _from_project(load: Load, model: cst.BaseExpression, text: str, said: tuple[Artefact, ...]) -> None:
    originals = {(each.checkpoint, each.revision) for each in said}
    if not originals:
        load.refuse(_compiled(model))
    elif len(originals) > 1:
        told = ", ".join(f"`{each.checkpoint}` ({each.place})" for each in said)
        load.refuse(f"which checkpoint `{text}` was compiled from is said in several ways: {told}")
    else:
        made = load.artefact = said[0]
        load.known = not made.unseen
        for name, code in made.options:
            if name in load.table.consumed and name not in ("export", "from_transformers"):
                load.values.setdefault(name, edits.expression(code))
        kind = dict(made.options).get("torch_dtype", "").strip("'\"").rpartition(".")[2]
        if load.dtype is None and kind in ("bfloat16", "float16", "float32"):
            load.cast = f"torch.{kind}"
        if made.unseen:
            load.todo.append(f"{made.place} gives the export options that cannot be read: check the dtype")
        _put_original(load, model, edits.string(made.checkpoint), f"{made.place} compiled")
        if made.revision and "revision" not in load.given:
            load.args.append(edits.keyword("revision", edits.string(made.revision)))
            load.given.add("revision")


def _take_options(site: Site, load: Load, exported: Load) -> None:
    """What the export said holds for whoever loads what it saved."""
    for name, value in exported.values.items():
        told = name in load.table.consumed and name not in ("export", "from_transformers")
        if told and edits.is_literal(value):
            load.values.setdefault(name, value.deep_clone())
        elif told and name not in load.values:
            load.known = False
    if load.dtype is None and exported.dtype is not None and means_the_same(site, exported.dtype, load.call):
        load.dtype = exported.dtype.deep_clone()


def _put_original(load: Load, model: cst.BaseExpression, original: cst.BaseExpression, by: str) -> None:
    folder = edits.short(model)
    if load.given & {"config", "revision", "subfolder"}:
        load.refuse(f"`{folder}` held what {by}, but what else is loaded with it may not fit the original")
        return
    if load.id_arg is not None:
        written = load.id_arg.with_changes(value=original)
        load.args = [written if arg is load.id_arg else arg for arg in load.args]
        load.id_arg = written
    load.drop(model)
    load.folder = model
    load.todo.append(f"`{folder}` held what {by}: the original is loaded instead")


def _compiled(model: cst.BaseExpression) -> str:
    return (
        f"without `export=True` it loads compiled files from `{edits.short(model)}`, made for legacy devices"
    )


_JOINS = frozenset({"builtins.str", "os.path.join", "pathlib.Path"})


def is_written_out(site: Site, value: cst.CSTNode) -> bool:
    """Whether the code itself says which folder it is, in whole or in part; else it is given from outside."""
    if isinstance(value, cst.Call):
        return site.name_of(value.func) in _JOINS and any(
            is_written_out(site, arg.value) for arg in value.args
        )
    if isinstance(value, (cst.Name, cst.Attribute, cst.Subscript)):
        producers = site.flow.origin_of(value).producers
        return any(
            each.node is not None and each.node is not value and is_written_out(site, each.node)
            for each in producers
        )
    return isinstance(value, (cst.BaseString, cst.BinaryOperation))
