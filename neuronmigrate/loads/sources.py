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
            origins = site.flow.origin_of(func.value)
            if origins.certain and len(origins.producers) == 1:
                made = origins.producers[0].node
                if isinstance(made, cst.Call) and made in exported:
                    self.written.append((call.args[0].value, exported[made]))

    def loads_into(self, folder: cst.BaseExpression) -> list[Load]:
        """The exports that were saved in a folder."""
        return [load for written, load in self.written if self._is_same(written, folder)]

    def source_of(self, folder: cst.BaseExpression) -> tuple[cst.BaseExpression, int] | None:
        """The checkpoint that was exported into a folder, and the line that did it."""
        found = self.loads_into(folder)
        sources = {edits.code_of(load.values["model_id"]) for load in found if "model_id" in load.values}
        if len(sources) != 1:
            return None
        source = found[0].values["model_id"]
        if not edits.is_literal(source) and not (
            isinstance(source, cst.Name)
            and only_binding(self.site, source)
            and means_the_same(self.site, source, folder)
        ):
            return None
        return source.deep_clone(), self.site.positions.span(found[0].call).line

    def _is_same(self, one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
        if isinstance(one, cst.SimpleString) and isinstance(other, cst.SimpleString):
            left, right = one.evaluated_value, other.evaluated_value
            return isinstance(left, str) and isinstance(right, str) and left.rstrip("/") == right.rstrip("/")
        if isinstance(one, cst.Name) and isinstance(other, cst.Name):
            return self.site.names.bindings_at(one) == self.site.names.bindings_at(other) != ()
        return False


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
    original, line = source
    load.args = [arg.with_changes(value=original) if _is_model_id(arg) else arg for arg in load.args]
    load.drop(model)
    load.todo.append(f"`{edits.short(model)}` held what line {line} compiled: the original is loaded instead")


def _is_model_id(arg: cst.Arg) -> bool:
    return arg.keyword is None or arg.keyword.value == "pretrained_model_name_or_path"
