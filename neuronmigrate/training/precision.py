"""What `bf16` did, release by release, and in which dtype the weights are to be loaded for the same.

The facts are from `accelerate/accelerator.py`, `accelerate/state.py`, `training_args.py` of optimum-neuron at
0.0.28, 0.1.0, 0.3.0, 0.4.0 and 0.4.5. Transformers 5 loads a checkpoint in its own dtype, where older releases
loaded float32.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.loads.arguments import means_the_same, text_of
from neuronmigrate.site import Group
from neuronmigrate.training.fields import OWN_CLASS
from neuronmigrate.training.unit import Source, Unit

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


FLOAT32 = ("torch.float32", "torch.float")


def weights_of(
    unit: Unit, group: Group, load: cst.Call, given: cst.BaseExpression | None, *, custom: bool = False
) -> Weights:
    """The dtype that the model of a load is to get, for the trainer that trains it.

    `given` is what the load says itself. `custom` tells a model class of Optimum Neuron's own, which 0.2.0 to
    0.3.0 never cast.
    """
    site = unit.site
    training = unit.training_of(load)
    name = None if given is None else site.name_of(given) or text_of(given)
    float32 = name in (*FLOAT32, "float32")
    plain = Weights(None if given is not None else group.expression("torch.float32"))
    if (
        training is None
        or not training.sources
        or (custom and not unit.before("0.2.0") and unit.before(OWN_CLASS))
    ):
        return plain
    found = precision_of(unit, training.sources[0])
    if found.off:
        return plain
    if found.autocast:
        if given is None or float32 or training.peft:
            return plain
        if found.parsed and not isinstance(given, cst.IfExp) and name == "auto":
            return plain
        return Weights(
            group.expression("torch.float32"),
            [
                f"the optimizer kept float32 copies of the weights, so they are loaded in float32 and not as "
                f"`{edits.short(given)}`; in bfloat16 small updates would be lost"
            ],
        )
    if found.on:
        if name in ("torch.bfloat16", "bfloat16"):
            return Weights()
        return Weights(group.expression("torch.bfloat16"), ["`bf16` made the weights bfloat16, as now here"])
    asked = found.asked
    if asked is None and training.args is not None:
        asked = cst.Attribute(training.args.deep_clone(), cst.Name("bf16"))
        known = means_the_same(site, training.args, load)
    else:
        known = asked is not None and edits.is_pure(asked) and means_the_same(site, asked, load)
    if isinstance(given, cst.IfExp):
        return Weights()
    if known and asked is not None:
        return Weights(
            group.expression("torch.bfloat16 if {asked} else torch.float32", asked=asked.deep_clone()),
            ["`bf16` made the weights bfloat16, as now here"],
        )
    todo = "with `bf16` the weights were bfloat16: load them so, with `dtype=torch.bfloat16`"
    return Weights(plain.dtype, [todo])
