"""What becomes of the fields of `NeuronSFTConfig` and `NeuronORPOConfig`, besides those of all arguments.

Both derived from NeuronTrainingArguments first, so that its defaults held and not TRL's. The sources are
`optimum/neuron/utils/trl_utils.py` (0.0.25 to 0.3.0) and `trainers/sft_config.py` (0.4.0 to 0.4.5) of
optimum-neuron, `trl/trainer/sft_config.py` and `orpo_config.py` of trl 0.11.4 (up to 0.4.1) and 0.24.0 (from
0.4.2), and those of trl 1.16.
"""

from __future__ import annotations

from collections.abc import Mapping

from neuronmigrate.training.fields import DEFAULTS, FIELDS, OWN_CLASS, Default, Fate, Field

NEW_TRL = "0.4.2"
"""The release from which trl 0.24 is used; trl 0.11.4 before."""

_INERT = "`{name}` went: 0.4.x took it for NeuronSFTConfig and never read it, natively it would act"
_UNREAD = """
    auto_find_batch_size batch_eval_metrics bf16_full_eval data_seed dataloader_persistent_workers
    dataloader_pin_memory ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters
    ddp_timeout debug do_predict eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start
    eval_use_gather_object full_determinism hub_always_push hub_model_id hub_private_repo hub_revision
    hub_strategy hub_token include_for_metrics include_num_input_tokens_seen length_column_name local_rank
    log_on_each_node optim_target_modules prediction_loss_only save_on_each_node skip_memory_metrics tf32
    torch_empty_cache_steps use_cpu
"""
"""Fields of TrainingArguments that NeuronTrainingArguments of 0.4.x has not, and SFTConfig brought in."""
_COMPILING = "deepspeed fsdp fsdp_config torch_compile torch_compile_backend torch_compile_mode"


def _until_own_class(name: str) -> tuple[Field, ...]:
    return (*FIELDS[name], Field(Fate.DROPPED, told=_INERT, since=OWN_CLASS))


def _each(words: str, *rules: Field) -> dict[str, tuple[Field, ...]]:
    return dict.fromkeys(words.split(), rules)


SFT_FIELDS: Mapping[str, tuple[Field, ...]] = {
    **FIELDS,
    **{name: _until_own_class(name) for name in f"{_UNREAD} {_COMPILING}".split()},
    "max_seq_length": (Field(Fate.SETTLED, native="max_length"),),
    **_each(
        """
        activation_offloading chat_template_path dataset_num_proc eos_token eval_packing max_length
        pad_to_multiple_of pad_token
        """,
        Field(Fate.KEPT),
    ),
    **_each(
        """
        assistant_only_loss completion_only_loss dataset_kwargs dataset_text_field loss_type model_init_kwargs
        packing packing_strategy
        """,
        Field(Fate.SETTLED),
    ),
    **_each("chars_per_token dataset_batch_size num_of_sequences use_liger", Field(Fate.DROPPED)),
    "padding_free": (
        Field(Fate.DROPPED, told="`padding_free` went: the legacy trainer forced it to be False"),
    ),
}
"""By legacy keyword, oldest rule first."""

_TRL_DEFAULTS = (
    Default("logging_steps", "float", {"0.0.1": "500"}, "10"),
    Default("bf16", "bool", {"0.0.1": "False"}, "None"),
    Default("activation_checkpointing", "bool", {"0.0.1": "False"}, "True"),
)

SFT_DEFAULTS = (
    *DEFAULTS,
    Default("learning_rate", "float", {"0.0.1": "5e-5"}, "2e-5"),
    *_TRL_DEFAULTS,
    # Both parts of a row were learnt; natively a row with a prompt has its prompt masked.
    Default("completion_only_loss", "bool | None", {"0.0.1": "False", NEW_TRL: "None"}, "None"),
)
"""Where the defaults of NeuronSFTConfig and of trl 1.16's SFTConfig differ."""

ORPO_FIELDS: Mapping[str, tuple[Field, ...]] = {
    **FIELDS,
    **_each(
        "beta dataset_num_proc disable_dropout generate_during_eval is_encoder_decoder max_completion_length "
        "max_length padding_value",
        Field(Fate.KEPT),
    ),
    **_each("max_prompt_length model_init_kwargs truncation_mode", Field(Fate.SETTLED)),
    "label_pad_token_id": (Field(Fate.SETTLED),),
    "remove_unused_columns": (Field(Fate.DROPPED),),  # both trainers make it False
}
"""By legacy keyword, oldest rule first."""

ORPO_DEFAULTS = (
    *DEFAULTS,
    Default("learning_rate", "float", {"0.0.1": "5e-5"}, "1e-6"),
    *_TRL_DEFAULTS,
    Default("max_length", "int", {"0.0.1": "512"}, "1024"),
)
"""Where the defaults of NeuronORPOConfig, with trl 0.11.4's trainer, and of trl 1.16's ORPOConfig differ."""
