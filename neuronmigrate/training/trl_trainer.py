"""The constructors of TRL's trainers: their parameters by release, and the data that they are given."""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.loads.arguments import Given, Load, Table
from neuronmigrate.site import Site
from neuronmigrate.training.fields import OWN_CLASS
from neuronmigrate.training.kinds import ARGUMENTS
from neuronmigrate.training.trl_fields import NEW_TRL
from neuronmigrate.training.unit import Training, Unit

SFT = "trl.SFTTrainer"
ORPO = "trl.experimental.orpo.ORPOTrainer"

LEADING = ("model", "args", "data_collator", "train_dataset", "eval_dataset")
# After the tokenizer, as NeuronSFTTrainer and NeuronORPOTrainer name them by release.
_SFT_OLD = (
    "model_init",
    "compute_metrics",
    "callbacks",
    "optimizers",
    "preprocess_logits_for_metrics",
    "peft_config",
    "formatting_func",
)
_SFT_OWN = (
    "callbacks",
    "optimizers",
    "optimizer_cls_and_kwargs",
    "tokenizer",
    "peft_config",
    "formatting_func",
)
_SFT_NEW = (
    "compute_loss_func",
    "compute_metrics",
    "callbacks",
    "optimizers",
    "optimizer_cls_and_kwargs",
    "preprocess_logits_for_metrics",
    "peft_config",
    "formatting_func",
)
_ORPO = (
    "model_init",
    "callbacks",
    "optimizers",
    "preprocess_logits_for_metrics",
    "peft_config",
    "compute_metrics",
)
_CONFIGURED = [
    "chars_per_token",
    "dataset_batch_size",
    "dataset_kwargs",
    "dataset_num_proc",
    "dataset_text_field",
    "eval_packing",
    "infinite",
    "max_seq_length",
    "model_init_kwargs",
    "neftune_noise_alpha",
    "num_of_sequences",
    "packing",
]
"""Arguments of trl 0.11's own SFTTrainer, which the legacy trainer never took."""


def _tokenizer(site: Site, load: Load, given: Given) -> None:
    load.values["tokenizer"] = given.seen
    load.args.append(given.arg.with_changes(keyword=cst.Name("processing_class")))


def _misspelt(site: Site, load: Load, given: Given) -> None:
    """`processsing_class` of 0.4.0 and 0.4.1 was never read; `tokenizer` was, or the model's own."""
    load.values["processsing_class"] = given.seen
    if "tokenizer" in load.told or any(
        arg.keyword is not None and arg.keyword.value == "tokenizer" for arg in load.call.args
    ):
        load.drop(given.seen)
        load.todo.append("`processsing_class` went: it was never read, `tokenizer` was")
        return
    load.args.append(given.arg.with_changes(keyword=cst.Name("processing_class")))
    load.todo.append("`processsing_class` was never read: the tokenizer came from the name of the model")


def _loss_function(site: Site, load: Load, given: Given) -> None:
    """`compute_loss_func` was taken from 0.4.2 on, and never read."""
    if site.settings.exact:
        load.drop(given.seen)
        load.todo.append("`compute_loss_func` went: it was never read, so that the loss was the usual one")
    else:
        load.args.append(given.arg)
        load.todo.append("`compute_loss_func` was never read, which was a fault: the loss is another one now")


def trainer_table(unit: Unit, native: str) -> Table:
    """What becomes of the arguments of one of TRL's trainers."""
    kept = {"callbacks", "compute_metrics", "optimizers", "peft_config", "preprocess_logits_for_metrics"}
    if native == ORPO:
        return Table(
            kept=frozenset({*kept, "model_init"}),
            special={"tokenizer": _tokenizer},
            leading=LEADING,
            positional=_ORPO,
            identifier="processing_class",
        )
    refused = {
        name: f"`{name}=` was no argument of the legacy trainer in any release: give it to SFTConfig"
        for name in _CONFIGURED
    }
    refused["model_init"] = "TRL's SFTTrainer takes no `model_init`: give it the model"
    positional: tuple[str, ...] = _SFT_OLD
    if not unit.before(NEW_TRL):
        positional = _SFT_NEW
    elif not unit.before(OWN_CLASS):
        positional = _SFT_OWN
    return Table(
        kept=frozenset({*kept, "formatting_func", "optimizer_cls_and_kwargs"}),
        refused=refused,
        special={
            "compute_loss_func": _loss_function,
            "processsing_class": _misspelt,
            "tokenizer": _tokenizer,
        },
        leading=LEADING,
        positional=positional,
        identifier="processing_class",
    )


def settle(unit: Unit, training: Training, load: Load, native: str) -> list[str]:
    """What is left of a constructor once its arguments are sorted; tells what is to be looked at."""
    todo: list[str] = []
    if training.args is None:
        load.refuse("it is made without `args`, whose defaults TRL has otherwise: give it a configuration")
    if isinstance(training.model, cst.SimpleString) and native == ORPO:
        todo.append(
            'a model that is given by name was loaded in float32: give `model_init_kwargs={"dtype": '
            '"float32"}`'
        )
    own = training.sources[-1:]
    if native == SFT and unit.before(NEW_TRL):
        if any(not ARGUMENTS[each.name].native.startswith("trl.") for each in own):
            todo.append(
                "SFTTrainer makes an SFTConfig of these arguments, with TRL's defaults for its own fields: "
                "each text ends with the end token now, rows are padded to a multiple of 128 on the device, "
                "and of rows with a prompt only the completion is learnt: give it an SFTConfig for others"
            )
        todo += _format(unit, training, load)
    return todo


def _format(unit: Unit, training: Training, load: Load) -> list[str]:
    """Without packing `formatting_func` got a batch and gave a list; natively a row, and it gives a text."""
    given = next((arg for arg in load.args if arg.keyword and arg.keyword.value == "formatting_func"), None)
    if given is None or edits.code_of(given.value) == "None":
        return []
    if _is_on(unit, training, "dataset_text_field"):
        if _packing(unit, training) == "False":
            load.args.remove(given)
            load.drop(given.value)
            return ["`formatting_func` went: beside `dataset_text_field` it was not called"]
        return ["beside `formatting_func` `dataset_text_field` names another text: drop it"]
    packing = _packing(unit, training)
    if packing == "True":
        return []
    if packing != "False":
        return [
            "without packing `formatting_func` got a batch: now it gets one row, and has to give one text"
        ]
    data = [arg for arg in load.args if _is_data(load, arg)]
    if not data or any(not edits.is_pure(arg.value) or isinstance(arg.value, cst.Dict) for arg in data):
        load.refuse(
            "`formatting_func` gets a batch and gives a list of texts, which trl 1.16 does not take: map "
            "it over the "
            'dataset, as `dataset.map(lambda rows: {"text": formatting_func(rows)}, batched=True)`'
        )
        return []
    for arg in data:
        if edits.code_of(arg.value) == "None":
            continue
        mapped = unit.group.expression(
            '{data}.map(lambda rows: {{"text": {format}(rows)}}, batched=True, '
            "remove_columns={again}.column_names)",
            data=arg.value.deep_clone(),
            format=given.value.deep_clone(),
            again=arg.value.deep_clone(),
        )
        load.args[load.args.index(arg)] = arg.with_changes(value=mapped)
    load.args.remove(given)
    return ["`formatting_func`, which got a batch, is mapped over the dataset"]


def _is_data(load: Load, arg: cst.Arg) -> bool:
    if arg.keyword is not None:
        return arg.keyword.value in ("train_dataset", "eval_dataset")
    return arg in load.call.args[3:5]


def _packing(unit: Unit, training: Training) -> str:
    """The code of `packing`; empty when only the running program knows."""
    for source in training.sources:
        if ARGUMENTS[source.name].native != "trl.SFTConfig":
            continue
        if source.call is None:
            return ""
        read = unit.arguments_of(source)
        value = read.values.get("packing") or read.told.get("packing")
        code = "False" if value is None else edits.code_of(value)
        return code if code in ("True", "False") else ""
    return "False" if training.sources else ""


def _is_on(unit: Unit, training: Training, name: str) -> bool:
    return any(
        (value := unit.told(source, name)) is not None and edits.code_of(value) != "None"
        for source in training.sources
    )
