"""Which checkpoint a legacy load stands for: compiled files are nothing that the native device reads."""

from __future__ import annotations

import re

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.loads.arguments import Load, constant, means_the_same, only_binding, text_of
from neuronmigrate.site import Site


class Saved:
    """Folders that this file itself wrote with a model it exports, and the checkpoint behind them."""

    def __init__(self, site: Site, loads: list[Load]) -> None:
        self.site = site
        self.written: list[tuple[cst.BaseExpression, Load]] = []
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

    def source_of(self, folder: cst.BaseExpression) -> tuple[cst.BaseExpression, Load] | None:
        """The checkpoint that was exported into a folder, and the load that did it."""
        found = [load for written, load in self.written if self._is_same(written, folder)]
        sources = {edits.code_of(load.values["model_id"]) for load in found if "model_id" in load.values}
        if len(sources) != 1:
            return None
        source = found[0].values["model_id"]
        if not edits.is_literal(source) and not (
            edits.is_pure(source) and self._still_holds(source, found[0].call, folder)
        ):
            return None
        return source.deep_clone(), found[0]

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
            left, right = one.evaluated_value, other.evaluated_value
            return isinstance(left, str) and isinstance(right, str) and left.rstrip("/") == right.rstrip("/")
        if isinstance(one, cst.Name) and isinstance(other, cst.Name):
            return self.site.names.bindings_at(one) == self.site.names.bindings_at(other) != ()
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


def is_export(load: Load) -> bool:
    """Whether a load certainly starts from the original checkpoint."""
    return load.use.method == "export" or any(
        edits.code_of(load.values[name]) == "True"
        for name in ("export", "from_transformers")
        if name in load.values
    )


_COMPILED_ID = re.compile(r"(optimum|aws-neuron)/|.*-neuronx?$")


def settle_source(load: Load, saved: Saved) -> None:
    """Refuse a load of compiled files, which the native device cannot read, or put the original back."""
    model = load.values.get("model_id")
    if load.refused:
        return
    if model is None:
        load.refused = "the checkpoint it loads cannot be seen from here"
        return
    if is_export(load):
        text = text_of(constant(saved.site, model))
        if _COMPILED_ID.match(text):
            load.todo.append(f"`{text}` looks like a compiled repository: load the original checkpoint")
        return
    export = load.values.get("export") or load.values.get("from_transformers")
    if export is not None and not edits.is_literal(export):
        load.refused = (
            f"whether `{edits.short(model)}` is compiled is decided at run time by `{edits.short(export)}`"
        )
        return
    source = saved.source_of(model)
    if source is None or load.given & {"config", "revision", "subfolder"}:
        folder = edits.short(model)
        load.refused = (
            f"without `export=True` it loads compiled files from `{folder}`, made for legacy devices"
        )
        return
    original, exported = source
    load.inherit(exported)
    line = saved.site.positions.span(exported.call).line
    load.args = [arg.with_changes(value=original) if _is_model_id(arg) else arg for arg in load.args]
    load.drop(model)
    load.todo.append(f"`{edits.short(model)}` held what line {line} compiled: the original is loaded instead")


def _is_model_id(arg: cst.Arg) -> bool:
    return arg.keyword is None or arg.keyword.value == "pretrained_model_name_or_path"
