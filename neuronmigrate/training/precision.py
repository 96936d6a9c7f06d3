"""What `bf16` did, release by release, and in which dtype the weights are to be loaded for the same.

The facts are from `accelerate/accelerator.py`, `accelerate/state.py`, `training_args.py` of optimum-neuron at
0.0.28, 0.1.0, 0.3.0, 0.4.0 and 0.4.5. Transformers 5 loads a checkpoint in its own dtype, where older
releases loaded float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import edits, effects
from neuronmigrate.loads.arguments import means_the_same, only_binding, text_of
from neuronmigrate.site import Group
from neuronmigrate.training.fields import OWN_CLASS
from neuronmigrate.training.kinds import PLAIN_ARGUMENTS
from neuronmigrate.training.parallel import lazy_load_around
from neuronmigrate.training.unit import Source, Training, Unit

_OFF = ("False", "None", "0")


@dataclass
class Precision:
    """What the arguments say about bfloat16."""

    asked: cst.BaseExpression | None = None
    """What `bf16` is given; None for nothing, so off."""
    parsed: bool = False
    """Whether a parser fills it, so that only the running program knows."""
    autocast: bool = True
    """Whether `bf16` keeps its name: float32 weights under autocast. Else the weights were bfloat16."""
    todo: list[str] = field(default_factory=list)

    @property
    def on(self) -> bool:
        """Whether it is certainly on."""
        return self.asked is not None and edits.code_of(self.asked) == "True"

    @property
    def off(self) -> bool:
        """Whether it is certainly off."""
        return not self.parsed and (self.asked is None or edits.code_of(self.asked) in _OFF)


def precision_of(unit: Unit, source: Source) -> Precision:
    """What an object of training arguments says about bfloat16."""
    values: dict[str, cst.BaseExpression] = {}
    if source.call is not None:
        load = unit.arguments_of(source)
        values = {**load.told, **load.values}
    found = Precision(values.get("bf16"), parsed=source.call is None)

    def said(name: str) -> str:
        return edits.code_of(values[name]) if name in values else ""

    stochastic = said("stochastic_rounding_enabled") not in _OFF
    if unit.before("0.1.0"):
        amp = "half_precision_backend" in values and text_of(values["half_precision_backend"]) == "amp"
        found.autocast = amp
        return found
    if unit.before(OWN_CLASS):
        found.autocast = False
    else:
        masters = "False" not in (said("zero_1"), said("optimizer_use_master_weights"))
        found.autocast = masters or said("use_autocast") == "True"
        if found.off and said("zero_1") != "False" and not found.parsed:
            found.todo.append(
                "without `bf16` ZeRO-1 of 0.4.x kept the optimizer in bfloat16, which was a fault; now it is "
                "float32"
            )
    if not found.off and not found.autocast and stochastic:
        found.todo.append(
            "the weights were rounded stochastically: set NEURON_RT_STOCHASTIC_ROUNDING_EN=1 for that"
        )
    return found


@dataclass
class Weights:
    """The dtype in which a model is to be loaded."""

    dtype: cst.BaseExpression | None = None
    """None to leave what is there."""
    todo: list[str] = field(default_factory=list)
    keeps: bool = False
    """Whether the dtype that was given is a part of the new one."""


FLOAT32 = ("float32", "torch.float32", "torch.float")


def weights_of(
    unit: Unit, group: Group, load: cst.Call, given: cst.BaseExpression | None, *, custom: bool = False
) -> Weights:
    """The dtype that the model of a load is to get, for the trainer that trains it.

    `given` is what the load says itself. `custom` tells a model class of Optimum Neuron's own, which 0.2.0 to
    0.3.0 never cast.
    """
    site = unit.site
    training = unit.training_of(load)
    bound = only_binding(site, given) if isinstance(given, cst.Name) else None
    told = bound.value if bound is not None and bound.value is not None else given
    name = None if told is None else site.name_of(told) or text_of(told)
    plain = Weights(None if given is not None else group.expression("torch.float32"))
    never_cast = custom and not unit.before("0.2.0") and unit.before(OWN_CLASS)
    if training is None or never_cast:
        return plain
    by_flag = isinstance(told, cst.IfExp) and "bf16" in edits.code_of(told.test)
    half = by_flag or name in ("torch.bfloat16", "bfloat16")
    if not training.sources:
        said = _plain_bf16(unit, training)
        if said in _OFF:
            return plain
        if said == "True" and unit.before(OWN_CLASS) and not half:
            plain.todo.append(
                "`bf16=True` made the weights bfloat16; natively it is autocast over float32 weights: for "
                "the former give `dtype=torch.bfloat16` here and leave `bf16` out"
            )
            return plain
        if training.args is not None and unit.before(OWN_CLASS) and not half:
            plain.todo.append(
                f"what `{edits.short(training.args)}` says of `bf16` is not seen here: where it is on, the "
                "weights were bfloat16: load them so, with `dtype=torch.bfloat16`"
            )
        return plain
    found = precision_of(unit, training.sources[0])
    if found.off:
        return plain
    if found.autocast:
        if given is None or name in FLOAT32 or training.peft:
            return plain
        if by_flag or not found.parsed:
            return Weights(
                group.expression("torch.float32"),
                [
                    "the optimizer kept float32 copies of the weights, so they are loaded in float32, not as "
                    f"`{edits.short(given)}`: in bfloat16 small updates would be lost"
                ],
            )
        plain.todo.append(
            "with `--bf16` the optimizer kept float32 copies of the weights: load them in float32 then, or "
            "small updates are lost"
        )
        return plain
    if half:
        return Weights()
    weights = "`bf16` made the weights bfloat16, as they are loaded now"
    if found.on:
        return Weights(group.expression("torch.bfloat16"), [weights])
    asked, known = found.asked, False
    if asked is None:
        near = _holder_near(unit, load)
        holder = near if near is not None else training.args
        if holder is not None:
            asked = cst.Attribute(holder.deep_clone(), cst.Name("bf16"))
            known = near is not None or means_the_same(site, holder, load)
    else:
        known = edits.is_pure(asked) and means_the_same(site, asked, load)
    if asked is None or not known:
        plain.todo.append("with `bf16` the weights were bfloat16: load them so, with `dtype=torch.bfloat16`")
        return plain
    dtype = group.expression(
        "torch.bfloat16 if {asked} else {given}",
        asked=asked.deep_clone(),
        given=given if given is not None else group.expression("torch.float32"),
    )
    return Weights(dtype, [weights], keeps=given is not None)


def _plain_bf16(unit: Unit, training: Training) -> str:
    """The code of what arguments that were Transformers' own say of `bf16`; empty where that is not seen."""
    if training.args is None:
        return "False"
    made = unit.site.flow.origin_of(training.args).producers
    if len(made) != 1 or made[0].name not in PLAIN_ARGUMENTS or not isinstance(made[0].node, cst.Call):
        return ""
    args = made[0].node.args
    given = next((arg.value for arg in args if arg.keyword is not None and arg.keyword.value == "bf16"), None)
    if given is None:
        return "" if any(arg.star for arg in args) else "False"
    return edits.code_of(given)


def _holder_near(unit: Unit, load: cst.Call) -> cst.BaseExpression | None:
    """The arguments that the block around a load reads its tensor parallel size of."""
    lazy = lazy_load_around(unit.site, load)
    for arg in lazy.args if lazy is not None else ():
        if isinstance(arg.value, cst.Attribute) and unit.sources(arg.value.value):
            return arg.value.value
    return None


def drop_dtype(unit: Unit, given: cst.BaseExpression) -> None:
    """Take away what only the dtype of a load was for, when another one is written there."""
    site = unit.site
    bound = only_binding(site, given) if isinstance(given, cst.Name) else None
    assign = site.parent(bound.value) if bound is not None and bound.value is not None else None
    if (
        bound is not None
        and bound.value is not None
        and isinstance(assign, cst.Assign)
        and list(site.names.references(bound)) == [given]
        and effects.is_harmless(bound.value, site.name_of)
        and not site.project.imported_elsewhere(site.path, bound.name)
    ):
        unit.group.replace_statement(assign)
    effects.forget(site, given)
