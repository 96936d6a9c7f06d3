"""What a compiled model told of itself, written where the load says it."""

from __future__ import annotations

import libcst as cst

from neuronmigrate.loads.arguments import text_of
from neuronmigrate.names import dotted_name
from neuronmigrate.site import Group, Site


def asked_setting(site: Site, node: cst.Attribute) -> tuple[cst.BaseExpression, str]:
    """The whole of an expression such as `model.neuron_config.batch_size`, and the setting that it reads.

    `node` is the attribute of the model. The setting is empty where none is read.
    """
    parent = site.parent(node)
    name = node.attr.value
    if name in ("batch_size", "max_length"):
        return node, name
    if name == "neuron_config" and isinstance(parent, cst.Attribute):
        item = site.parent(parent)
        if parent.attr.value == "input_shapes" and isinstance(item, cst.Subscript):
            return item, _key(item)
        return parent, parent.attr.value
    if name == "config" and isinstance(parent, cst.Attribute) and parent.attr.value == "neuron":
        item = site.parent(parent)
        if isinstance(item, cst.Subscript):
            return item, _key(item)
        call = site.parent(item) if isinstance(item, cst.Attribute) and item.attr.value == "get" else None
        if isinstance(call, cst.Call) and call.func is item and call.args:
            return call, text_of(call.args[0].value)
        if isinstance(item, cst.Attribute):
            return item, item.attr.value
    return node, ""


def tokenizer_of(site: Site, whole: cst.BaseExpression) -> cst.BaseExpression | None:
    """The tokenizer that cuts texts to a setting: `tokenizer(text, truncation=True, max_length=...)`."""
    arg = site.parent(whole)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(arg, cst.Arg) or not isinstance(call, cst.Call) or not dotted_name(call.func):
        return None
    given = {each.keyword.value: each.value for each in call.args if each.keyword is not None}
    cuts = "truncation" in given and arg.keyword is not None and arg.keyword.value == "max_length"
    pads = "padding" in given and text_of(given["padding"]) == "max_length"
    return call.func if cuts and not pads else None


def _key(node: cst.Subscript) -> str:
    """The text that a subscript looks up; empty for what is no text."""
    index = node.slice[0].slice
    return text_of(index.value) if len(node.slice) == 1 and isinstance(index, cst.Index) else ""


def write_setting(site: Site, group: Group, old: cst.BaseExpression, value: cst.BaseExpression) -> None:
    """Write a setting where it was read; within a formatted string a number is a part of the text."""
    around = site.parent(old)
    if (
        isinstance(value, cst.Integer)
        and isinstance(around, cst.FormattedStringExpression)
        and around.conversion is None
        and around.format_spec is None
        and around.equal is None
    ):
        group.replace(around, cst.FormattedStringText(value.value))
    else:
        group.replace(old, value.deep_clone())
