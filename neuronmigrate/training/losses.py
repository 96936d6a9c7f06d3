"""How the native Trainer divides the loss of a model over several micro-batches.

Transformers 5.24 (`trainer.py`: `training_step`, `_get_num_items_in_batch`) takes a loss for divided already
when the model's forward takes `**kwargs` and the batch has `labels`, as it hands `num_items_in_batch` on to
such a model. Every head of Transformers 5 takes `**kwargs`; those named here give a mean all the same, so
that gradients are larger by the number of micro-batches. With `average_tokens_across_devices` they are larger
by the number of processes as well (`compute_loss`). `trainer.model_accepts_loss_kwargs = False` ends both.

Up to Transformers 4.57 few heads took `**kwargs` (8 of 87 for the classification of sequences), so the
trainers of Optimum Neuron divided: `compute_loss` in `trainers/transformers.py` of 0.4.5; before 0.4.0
`training_step` of Transformers.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from neuronmigrate import catalogue, edits
from neuronmigrate.training.kinds import TRAINERS
from neuronmigrate.training.unit import Source, Training, Unit, local_class

MEAN_HEADS = (
    "ForAudioClassification",
    "ForAudioFrameClassification",
    "ForCTC",
    "ForImageClassification",
    "ForMaskedLM",
    "ForMultipleChoice",
    "ForNextSentencePrediction",
    "ForSemanticSegmentation",
    "ForSeq2SeqLM",
    "ForSequenceClassification",
    "ForSpeechSeq2Seq",
    "ForTokenClassification",
    "ForVideoClassification",
)
"""Ends of the names of classes whose loss is a mean: for an auto class of most models behind it."""
MEAN_MODELS = frozenset(
    f"{name}For{task}"
    for task, names in {
        "CausalLM": (
            "Bart BigBirdPegasus Blenderbot BlenderbotSmall CpmAnt MBart Marian Musicgen MusicgenMelody Mvp "
            "PLBart Pegasus ProphetNet TrOCR Whisper"
        ),
        "ConditionalGeneration": (
            "Bart BigBirdPegasus Blenderbot BlenderbotSmall FSMT LED LongT5 M2M100 MBart MT5 Mvp NllbMoe "
            "PLBart Pegasus PegasusX Pop2Piano ProphetNet Qwen2Audio Speech2Text SwitchTransformers T5 UMT5 "
            "Udop Whisper"
        ),
    }.items()
    for name in names.split()
) | {"MarianMTModel", "XLNetLMHeadModel", "XLMWithLMHeadModel", "FlaubertWithLMHeadModel"}
"""Other classes whose loss is a mean."""
COUNTED_MODELS = frozenset(
    f"{name}For{task}"
    for task, names in {
        "AudioClassification": "AST",
        "ImageClassification": "DeiT Dinov2 Dinov2WithRegisters IJepa Segformer Swin ViT ViTMSN",
        "MaskedLM": "Esmc EuroBert ModernBert NeoMME Ultrabert",
        "SequenceClassification": "Zamba2",
        "VideoClassification": "VideoMAE VideoPrism Vivit",
    }.items()
    for name in names.split()
)
"""Classes with such a name that divide by `num_items_in_batch`."""
_COUNTED_HEADS = ("ForCausalLM", "ForImageTextToText", "ForMultimodalLM", "LMHeadModel", "ForVision2Seq")
_NO_LABELS = ("ForQuestionAnswering",)
"""Their batches have no `labels`, so that the Trainer divides."""


class Scale(enum.Enum):
    """What a model's loss is divided by where the Trainer counts the items of a batch."""

    MEAN = "mean"
    """By its own batch alone."""
    SETTLED = "settled"
    """By the items of all micro-batches, or the Trainer divides it."""
    UNKNOWN = "unknown"


def scale_of(name: str) -> Scale:
    """What the loss of a class of Transformers is divided by."""
    if name in COUNTED_MODELS or name.endswith(_NO_LABELS):
        return Scale.SETTLED
    if name in MEAN_MODELS or name.endswith(MEAN_HEADS):
        return Scale.MEAN
    return Scale.SETTLED if name.endswith(_COUNTED_HEADS) else Scale.UNKNOWN


def loss_of(unit: Unit, training: Training) -> tuple[Scale, str]:
    """What the loss of the model that a trainer trains is divided by, and the class of the model."""
    found = {each for model in training.models for each in _losses(unit, model, 0)}
    if not found:
        return Scale.UNKNOWN, ""
    scales = {scale for scale, _ in found}
    # Of two models that a branch chooses from, a wrong division is that of the mean.
    scale = scales.pop() if len(scales) == 1 else Scale.UNKNOWN
    return scale, ", ".join(sorted({name for _, name in found if name}))


def _losses(unit: Unit, model: cst.BaseExpression, depth: int) -> Iterator[tuple[Scale, str]]:
    site = unit.site
    origins = site.flow.origin_of(model)
    for made in origins.producers:
        node = made.node
        if not isinstance(node, cst.Call) or depth > 4:
            yield Scale.UNKNOWN, ""
            continue
        owner = local_class(site, node.func)
        if owner is not None:
            yield _own_loss(owner), owner.name.value
            continue
        parts = made.name.split(".")
        if parts[-1] in ("get_peft_model", "prepare_model_for_kbit_training") and node.args:
            yield from _losses(unit, node.args[0].value, depth + 1)
            continue
        name = parts[-2] if parts[-1] in ("from_pretrained", "from_config") else parts[-1]
        known = made.name.startswith("transformers.") or catalogue.is_legacy(made.name)
        yield (scale_of(name), name) if known else (Scale.UNKNOWN, "")
    if not origins.producers:
        yield Scale.UNKNOWN, ""


def _own_loss(owner: cst.ClassDef) -> Scale:
    """Of a model of the script: the Trainer divides unless its forward takes `**kwargs`."""
    for method in owner.body.body:
        if isinstance(method, cst.FunctionDef) and method.name.value == "forward":
            if method.params.star_kwarg is None:
                return Scale.SETTLED
            return Scale.SETTLED if _names_items(method) else Scale.MEAN
    return Scale.UNKNOWN


def own_loss(owner: cst.ClassDef) -> cst.FunctionDef | None:
    """The `compute_loss` of a trainer's class, where it does not leave the loss to the native one."""
    for method in owner.body.body:
        if isinstance(method, cst.FunctionDef) and method.name.value == "compute_loss":
            return None if _hands_up(method.body) else method
    return None


def is_undivided(method: cst.FunctionDef) -> bool:
    """Whether a `compute_loss` gives a loss that is not divided by the number of items."""
    return not _names_items(method.body)


def divides(method: cst.FunctionDef) -> bool:
    """Whether a method divides by a number as it is written, or by that of the micro-batches."""
    for each in m.findall(method.body, m.BinaryOperation() | m.AugAssign()):
        divisor: cst.BaseExpression | None = None
        if isinstance(each, cst.BinaryOperation) and isinstance(each.operator, cst.Divide):
            divisor = each.right
        elif isinstance(each, cst.AugAssign) and isinstance(each.operator, cst.DivideAssign):
            divisor = each.value
        named = divisor.attr if isinstance(divisor, cst.Attribute) else divisor
        if isinstance(divisor, cst.Integer | cst.Float):
            return True
        if isinstance(named, cst.Name) and named.value == "gradient_accumulation_steps":
            return True
    return False


def leaves_loss(unit: Unit, training: Training) -> bool:
    """Whether a trainer's loss is certainly that of its model, and its class reads no number of items."""
    if not training.derived:
        return True
    if training.owner is None:
        name = unit.site.name_of(training.call.func) or ""
        return not unit.site.project.facts_of(unit.site.path).defines(name, "compute_loss")
    owner: cst.ClassDef | None = training.owner
    seen = set[cst.ClassDef]()
    while owner is not None and owner not in seen:
        seen.add(owner)
        if own_loss(owner) is not None or _reads_items(owner):
            return False
        if any(unit.site.name_of(base.value) in TRAINERS for base in owner.bases):
            return True
        bases = (local_class(unit.site, base.value) for base in owner.bases)
        owner = next((base for base in bases if base is not None), None)
    return False


def _reads_items(owner: cst.ClassDef) -> bool:
    """Whether a class calculates with the number of items."""
    return any(_names_items(each) for each in m.findall(owner, m.BinaryOperation()))


def _names_items(node: cst.CSTNode) -> bool:
    """Whether code names the number of items, as a variable or as a key."""
    return bool(m.findall(node, m.Name("num_items_in_batch"))) or any(
        isinstance(text, cst.SimpleString) and text.evaluated_value == "num_items_in_batch"
        for text in m.findall(node, m.SimpleString())
    )


def _hands_up(node: cst.CSTNode) -> bool:
    """Whether code calls the `compute_loss` of the class above."""
    above = m.Attribute(m.Call(m.Name("super")), m.Name("compute_loss"))
    return bool(m.findall(node, above))


def may_be_summed(unit: Unit, training: Training) -> bool:
    """Whether a trainer may go several micro-batches before it updates, or average over its processes."""
    if training.args is None:
        return False
    if not training.sources:
        return _native_may(unit, training)
    return any(_may(unit, source) for source in training.sources) or _assigned(unit, training)


FIELDS = ("gradient_accumulation_steps", "average_tokens_across_devices")
_OFF = ("1", "None", "False")


def _may(unit: Unit, source: Source) -> bool:
    if source.call is None:
        return True
    if source.derived:
        own = unit.fields_of(source.owner) if source.owner is not None else frozenset(FIELDS)
        if not own.isdisjoint(FIELDS):
            return True
    told = (unit.told(source, name) for name in FIELDS)
    return any(value is not None and edits.code_of(value) not in _OFF for value in told)


def _native_may(unit: Unit, training: Training) -> bool:
    """The same of arguments that are Transformers' own, or that are not seen."""
    assert training.args is not None
    for made in unit.site.flow.origin_of(training.args).producers:
        if not isinstance(made.node, cst.Call) or not made.name.endswith("TrainingArguments"):
            return True
        given = {arg.keyword.value: arg.value for arg in made.node.args if arg.keyword is not None}
        # Natively the average is taken where nothing is said.
        said = [edits.code_of(given[name]) if name in given else "" for name in FIELDS]
        if any(arg.star for arg in made.node.args) or said[0] not in ("", *_OFF) or said[1] != "False":
            return True
    return not unit.site.flow.origin_of(training.args).producers or _assigned(unit, training)


def _assigned(unit: Unit, training: Training) -> bool:
    """Whether a file sets one of the fields of a trainer's arguments after they are made."""
    for each in unit.site.nodes(cst.AssignTarget):
        target = each.target
        if isinstance(target, cst.Attribute) and target.attr.value in FIELDS:
            made = unit.sources(target.value)
            if not made or any(source in training.sources for source in made):
                return True
    return False
