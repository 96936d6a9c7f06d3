"""PEFT of Optimum Neuron: `get_peft_model`, `NeuronPeftModel`, and the layers that a LoraConfig names.

`optimum.neuron.peft` wrapped PEFT for models that were split over cores; natively PEFT's own names do, with
the same parameters. The training classes of Optimum Neuron fused `gate_proj` and `up_proj` into one layer,
and under some settings the three of attention, so a LoraConfig may name `gate_up_proj` or `qkv_proj`. The
native models have no such layers, and PEFT leaves out names that it does not find, in silence: the names of
the parts are written in their place.

Marked is a pattern or a dictionary that names a fused layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod, Rename
from neuronmigrate.loads.arguments import only_binding
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site

codemod = Codemod(__name__)

_SAME = "PEFT itself works on the native model, with the same parameters"

# optimum/neuron/peft of 0.2.1 to 0.4.5, optimum/neuron/utils/peft_utils.py of 0.0.24 to 0.2.0.
RENAMES = {
    "get_peft_model": "peft.get_peft_model",
    "peft.NeuronPeftModel": "peft.PeftModel",
    "peft.NeuronPeftModelForCausalLM": "peft.PeftModelForCausalLM",
    "peft.get_peft_model": "peft.get_peft_model",
    "peft.mapping.MODEL_TYPE_TO_PEFT_MODEL_MAPPING": "peft.MODEL_TYPE_TO_PEFT_MODEL_MAPPING",
    "peft.mapping.PEFT_TYPE_TO_TUNER_MAPPING": "peft.PEFT_TYPE_TO_TUNER_MAPPING",
    "peft.mapping.get_peft_model": "peft.get_peft_model",
    "peft.mapping_func.get_peft_model": "peft.get_peft_model",
    "peft.peft_model.NeuronPeftModel": "peft.PeftModel",
    "peft.peft_model.NeuronPeftModelForCausalLM": "peft.PeftModelForCausalLM",
    "peft.peft_model.get_peft_model_state_dict": "peft.get_peft_model_state_dict",
    "peft.tuners.NeuronLoraModel": "peft.LoraModel",
    "peft.tuners.lora.NeuronLoraModel": "peft.LoraModel",
    "peft.tuners.lora.model.NeuronLoraModel": "peft.LoraModel",
    "peft.utils.save_and_load.get_peft_model_state_dict": "peft.get_peft_model_state_dict",
    "utils.NeuronPeftModel": "peft.PeftModel",
    "utils.get_peft_model": "peft.get_peft_model",
    "utils.peft_utils.NeuronPeftModel": "peft.PeftModel",
    "utils.peft_utils.get_peft_model": "peft.get_peft_model",
    "utils.peft_utils.get_peft_model_state_dict": "peft.get_peft_model_state_dict",
}
for _old, _new in RENAMES.items():
    codemod.symbol(f"optimum.neuron.{_old}", Rename(_new), because=_SAME)

CUSTOM = "optimum.neuron.models.training."
"""The training classes that fuse layers; all other models were PEFT's own, names and all."""
PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "qkv_proj": ("q_proj", "k_proj", "v_proj")}
"""Layers of the training classes (Llama, Qwen3, Granite) and what they are made of natively."""
CONFIGS = frozenset(
    {
        "peft.AdaLoraConfig",
        "peft.LoraConfig",
        "peft.tuners.LoraConfig",
        "peft.tuners.lora.LoraConfig",
        "peft.tuners.lora.config.LoraConfig",
    }
)
_FUSED = re.compile("|".join(PARTS))
_WHY = "the native model has the parts of this layer, and PEFT leaves out names that it does not find"


@codemod.on(cst.Call)
def decide_config(site: Site, call: cst.Call) -> None:
    """Write the names of the parts where a LoraConfig of a fused model names the whole."""
    if site.name_of(call.func) not in CONFIGS or not any(use.name.startswith(CUSTOM) for use in site.uses):
        return
    for arg in call.args:
        if arg.keyword is None:
            continue
        holder: cst.BaseExpression = arg.value
        binding = only_binding(site, holder) if isinstance(holder, cst.Name) else None
        if binding is not None and binding.value is not None:
            holder = binding.value
        for text in _texts(holder):
            if _FUSED.search(str(text.evaluated_value)):
                _name_parts(site, holder, text)


def _texts(node: cst.CSTNode) -> Iterator[cst.SimpleString]:
    if isinstance(node, cst.SimpleString):
        yield node
    for child in node.children:
        yield from _texts(child)


def _name_parts(site: Site, holder: cst.BaseExpression, text: cst.SimpleString) -> None:
    answered = site.notes.setdefault(codemod.name, set())
    if text in answered:
        return
    answered.add(text)
    name = str(text.evaluated_value)
    parts = PARTS.get(name, ())
    element = site.parent(text)
    written = [edits.string(part) for part in parts]
    if written and isinstance(element, cst.Element) and element in getattr(holder, "elements", ()):
        assert isinstance(holder, (cst.List, cst.Set, cst.Tuple))
        others = {str(each.evaluated_value) for each in _texts(holder)}
        group = site.group()
        missing = [each for each in written if each.evaluated_value not in others]
        _expand(site, group, holder, element, missing)
    elif written and text is holder:
        group = site.group()
        group.replace(text, cst.List([cst.Element(each) for each in written]))
    else:
        parts_of = ", ".join(f"`{part}`" for fused in PARTS if fused in name for part in PARTS[fused])
        site.mark(text, name, _WHY, f"name {parts_of} instead")
        return
    todo = (
        "the parts get an adapter each, where the whole had one: another number of parameters, and other "
        "first values"
    )
    group.review(text, name, _WHY, todo, numerics=Numerics.RANDOM)


def _expand(
    site: Site,
    group: Group,
    holder: cst.List | cst.Set | cst.Tuple,
    element: cst.Element,
    missing: list[cst.SimpleString],
) -> None:
    """Put elements in the place of one, in the layout of the others."""
    if len(missing) == 1:
        group.replace(element.value, missing[0])
        return
    elements: list[cst.BaseElement] = []
    for each in holder.elements:
        if each is not element:
            elements.append(each)
        elif missing:
            comma = next(
                (other.comma for other in holder.elements if isinstance(other.comma, cst.Comma)), None
            )
            space = comma or cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            first = [cst.Element(value, comma=space) for value in missing[:-1]]
            elements += [*first, cst.Element(missing[-1], comma=element.comma)]
    group.replace(holder, holder.with_changes(elements=elements))
