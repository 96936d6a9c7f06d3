"""Fields of TRL's configurations whose meaning moved between trl 0.11.4, 0.24 and 1.16.

The facts are from `trainers/sft_trainer.py` of optimum-neuron 0.4.1 and 0.4.5, `trainers.py` of 0.3.0, and
`trl/trainer/sft_trainer.py` and `trl/experimental/orpo/orpo_trainer.py` of trl 1.16.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from neuronmigrate import edits
from neuronmigrate.loads.arguments import written_out
from neuronmigrate.plan import Numerics
from neuronmigrate.training.trl_fields import NEW_TRL

if TYPE_CHECKING:
    from neuronmigrate.training.arguments import Writing

SFT = "trl.SFTConfig"
ORPO = "trl.experimental.orpo.ORPOConfig"


def _length(writing: Writing) -> None:
    """`max_seq_length` of trl 0.11 is `max_length`; the config of 0.4.2 and later has no such field."""
    if writing.value("max_seq_length") is None:
        if writing.unit.before(NEW_TRL) and "max_length" not in writing.taken and not writing.spread:
            writing.tell("the length was the tokenizer's `model_max_length` where that is below 1024")
        return
    if writing.code("max_seq_length") == "None":
        return
    writing.keep("max_seq_length", "max_length")
    if not writing.unit.before(NEW_TRL):
        writing.tell(f"NeuronSFTConfig of {writing.unit.release} has no `max_seq_length` and refused it")


def _packing(writing: Writing) -> None:
    """Rows of exactly the length, whose tokens saw the documents before: `wrapped` natively."""
    writing.keep("packing")
    old = writing.unit.before(NEW_TRL)
    if writing.code("packing") in ("", "False", "None"):
        if not writing.spread or writing.code("packing") or not old:
            _tell_padding(writing, old)
        return
    if writing.value("packing_strategy") is not None and old:
        writing.keep("packing_strategy")
    else:
        writing.add("packing_strategy", '"wrapped"')
    if old:
        writing.tell(
            "the old packing shuffled its buffers and dropped the tail of each: there is one short row "
            "more now",
            Numerics.RANDOM,
        )
    else:
        writing.tell(
            "packed rows were one document after the other under full attention, padded to `max_length`; "
            "`wrapped` comes nearest, `bfd` would keep documents apart in rows of changing length",
            Numerics.RANDOM,
        )


def _tell_padding(writing: Writing, old: bool) -> None:
    if old:
        writing.tell(
            "each text ends with the end token now, and that token is learnt where it is also the "
            "padding token; "
            "rows are padded to a multiple of 128 on the device: give `pad_to_multiple_of=max_length` "
            "for one shape"
        )
    else:
        writing.tell(
            "padding counted in the loss, which was a fault, so that the loss in the log is another one; "
            "rows are "
            "padded to a multiple of 128 on the device: give `pad_to_multiple_of=max_length` for one shape"
        )


def _text(writing: Writing) -> None:
    """Which text of a row is learnt."""
    writing.keep("dataset_text_field")
    if not writing.unit.before(NEW_TRL):
        writing.keep("completion_only_loss")


def _assistant(writing: Writing) -> None:
    if writing.value("assistant_only_loss") is None:
        return
    writing.keep("assistant_only_loss")
    if writing.is_on("assistant_only_loss"):
        writing.tell(
            "the old collator did not pad the mask of the assistant's tokens to `max_length`: check what "
            "is learnt"
        )


def _loss_type(writing: Writing) -> None:
    name = "loss_type"
    if writing.value(name) is None:
        return
    if writing.text(name) == "nll":
        writing.keep(name)
    elif writing.exact:
        writing.tell(f"`{name}` went: it was never read, so that the loss was the usual one")
    else:
        writing.keep(name)
        writing.tell(f"`{name}` was never read, which was a fault: the loss is another one now")


def _dataset_kwargs(writing: Writing) -> None:
    """Only `skip_prepare_dataset` is left of them."""
    name = "dataset_kwargs"
    value = writing.load.told.get(name)
    if value is None:
        return
    entries = written_out(writing.site, value)
    gone = [] if entries is None else [key for key in entries if key != "skip_prepare_dataset"]
    if entries is None:
        writing.keep(name)
        writing.tell(f"of `{name}` only `skip_prepare_dataset` is read natively")
        return
    if not gone:
        writing.keep(name)
        return
    if "skip_prepare_dataset" in entries:
        kept = entries["skip_prepare_dataset"]
        writing.add(name, edits.expression('{{"skip_prepare_dataset": {value}}}', value=kept.deep_clone()))
    if "add_special_tokens" in entries and edits.code_of(entries["add_special_tokens"]) == "False":
        writing.tell(
            "`add_special_tokens=False` went: a chat template adds none natively either, but texts get "
            "those of "
            "the tokenizer"
        )
    if "append_concat_token" in entries and edits.code_of(entries["append_concat_token"]) != "True":
        writing.tell("`append_concat_token` went: natively each text ends with the end token")


def _model_init(writing: Writing) -> None:
    """How a model is loaded that the trainer gets by its name."""
    name = "model_init_kwargs"
    value = writing.load.told.get(name)
    if value is None:
        return
    writing.keep(name)
    if edits.code_of(value) == "None":
        return
    entries = written_out(writing.site, value)
    if entries is None or "torch_dtype" in entries:
        writing.tell(f"`torch_dtype` in `{name}` is called `dtype`")


def _orpo_lengths(writing: Writing) -> None:
    """The prompt was cut first, to 128 tokens where nothing else was said."""
    given = writing.load.told.get("max_prompt_length")
    length = "128" if given is None or edits.code_of(given) == "None" else edits.short(given)
    if not writing.spread:
        end = "first" if writing.text("truncation_mode") == "keep_start" else "last"
        writing.tell(
            f"prompts were cut to their {end} {length} tokens; natively only the answers are cut: cut "
            "long prompts "
            "in the dataset"
        )
    padding = writing.code("label_pad_token_id")
    if padding not in ("", "-100"):
        writing.load.refuse(f"`label_pad_token_id={padding}` has no native counterpart: it is always -100")


SETTLERS: dict[str, tuple[Callable[[Writing], None], ...]] = {
    SFT: (_length, _packing, _text, _assistant, _loss_type, _dataset_kwargs, _model_init),
    ORPO: (_orpo_lengths, _model_init),
}
"""What writes the fields of a configuration whose meaning moved, by the native class."""
