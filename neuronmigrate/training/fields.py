"""What becomes of the fields of the legacy training arguments, release by release.

The sources are `optimum/neuron/training_args.py` (0.0.5 to 0.3.0) and `trainers/training_args.py` (0.4.0 to
0.4.5) of optimum-neuron, the `TrainingArguments` of the Transformers release that each of the former
inherited from, and those of Transformers 5.24.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

OWN_CLASS = "0.4.0"
"""The release from which NeuronTrainingArguments is a class of its own, no subclass of TrainingArguments."""


class Fate(enum.Enum):
    """What happens to a field that is given."""

    KEPT = "kept"
    RENAMED = "renamed"
    DROPPED = "dropped"
    """It goes. What a person has to know of that is told as a review."""
    SETTLED = "settled"
    """It goes, and neuronmigrate.training.arguments writes its meaning elsewhere."""
    REFUSED = "refused"


@dataclass(frozen=True)
class Field:
    """What becomes of a field that is given."""

    fate: Fate
    native: str = ""
    """The native keyword, for a field that has another one."""
    told: str = ""
    """What a person has to look at, or why it cannot be rewritten; empty when nothing is lost."""
    since: str = "0.0.1"
    """The release from which this holds; of several for one field, the last that began."""


@dataclass(frozen=True)
class Default:
    """A default that the legacy class had and the native one has not."""

    name: str
    """The native keyword."""
    kind: str
    """Its type as an annotation, for the class of arguments that a parser fills."""
    by_release: Mapping[str, str]
    """The code of the old default, by the release that began it, oldest first."""
    native: str
    """The code of the native default."""


def _kept(words: str) -> dict[str, tuple[Field, ...]]:
    return {word: (Field(Fate.KEPT),) for word in words.split()}


def _dropped(words: str, told: str = "") -> dict[str, tuple[Field, ...]]:
    return {word: (Field(Fate.DROPPED, told=told),) for word in words.split()}


def _settled(words: str) -> dict[str, tuple[Field, ...]]:
    return {word: (Field(Fate.SETTLED),) for word in words.split()}


def _renamed(**names: str) -> dict[str, tuple[Field, ...]]:
    return {old: (Field(Fate.RENAMED, native=new),) for old, new in names.items()}


def _inert(name: str, told: str) -> dict[str, tuple[Field, ...]]:
    """A field that was honoured up to 0.3.0, and from 0.4.0 on was refused or accepted and never read."""
    return {name: (Field(Fate.KEPT), Field(Fate.DROPPED, told=told, since=OWN_CLASS))}


_NEVER_READ = "`{name}` went: 0.4.x took it and never read it, natively it would act"
_METRICS = "the throughput metrics in the log went; `include_num_input_tokens_seen` counts tokens natively"

FIELDS: Mapping[str, tuple[Field, ...]] = {
    **_kept(
        """
        adam_beta1 adam_beta2 adam_epsilon auto_find_batch_size
        batch_eval_metrics bf16_full_eval data_seed dataloader_drop_last dataloader_num_workers
        dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend
        ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_timeout debug disable_tqdm
        do_eval do_predict do_train eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start
        eval_steps eval_strategy eval_use_gather_object full_determinism generation_config
        generation_max_length generation_num_beams hub_always_push hub_model_id hub_private_repo hub_revision
        hub_strategy hub_token include_for_metrics include_num_input_tokens_seen label_names learning_rate
        length_column_name local_rank log_level log_on_each_node logging_first_step logging_nan_inf_filter
        logging_steps lr_scheduler_kwargs lr_scheduler_type max_grad_norm max_steps num_train_epochs
        optim_target_modules per_device_eval_batch_size per_device_train_batch_size predict_with_generate
        prediction_loss_only remove_unused_columns restore_callback_states_from_checkpoint run_name
        save_on_each_node save_only_model save_steps save_total_limit skip_memory_metrics
        sortish_sampler tf32 torch_empty_cache_steps use_cpu weight_decay
        """
    ),
    **_renamed(
        evaluation_strategy="eval_strategy",
        gradient_checkpointing="activation_checkpointing",
        gradient_checkpointing_kwargs="activation_checkpointing_kwargs",
        no_cuda="use_cpu",
        push_to_hub_model_id="hub_model_id",
        push_to_hub_token="hub_token",
        torchdynamo="torch_compile_backend",
        xpu_backend="ddp_backend",
    ),
    **_inert("greater_is_better", _NEVER_READ),
    **_inert("ignore_data_skip", _NEVER_READ),
    **_inert("load_best_model_at_end", _NEVER_READ),
    **_inert("metric_for_best_model", _NEVER_READ),
    **_inert("neftune_noise_alpha", "`neftune_noise_alpha` went: 0.4.x never added the noise"),
    **_inert("push_to_hub", "`push_to_hub` went: 0.4.x never uploaded, natively the script would begin to"),
    **_dropped(
        """
        async_save disable_embedding_parallelization dataloader_prefetch_size fp16_backend fp16_opt_level
        fuse_qkv jit_mode_eval kv_size_multiplier mp_parameters neuron_cc_optlevel num_local_ranks_per_step
        num_ranks_per_loading_step optimizer_save_master_weights_in_ckpt past_index ray_scope save_safetensors
        skip_cache_push tpu_metrics_debug tpu_num_cores use_ipex use_legacy_prediction_loop use_mps_device
        use_xser _n_gpu default_optim framework include_tokens_per_second
        """
    ),
    **_dropped("overwrite_output_dir"),
    **_dropped(
        "accelerator_config dispatch_batches split_batches",
        "`{name}` went: it never reached the accelerator, natively it would act",
    ),
    **_dropped(
        "enable_efficiency_metrics enable_mfu_metrics enable_throughput_metrics metrics_window_size", _METRICS
    ),
    **_dropped(
        "logging_dir", "`logging_dir` went: set TENSORBOARD_LOGGING_DIR to choose where TensorBoard writes"
    ),
    **_dropped("fp16", "`fp16` went: the Neuron device has no float16 training, in no release"),
    **_dropped(
        "resume_from_checkpoint",
        "`resume_from_checkpoint` went: the native Trainer does not read the field; give it to `train()`",
    ),
    **_dropped("use_liger_kernel", "`use_liger_kernel` went: its kernels are for GPUs"),
    **_settled(
        """
        adafactor average_tokens_across_devices bf16 disable_sequence_parallel
        gradient_accumulation_steps group_by_length
        half_precision_backend include_inputs_for_metrics label_smoothing_factor
        log_level_replica logging_strategy optim optim_args optimizer_use_fp32_grad_acc
        optimizer_use_master_weights pipeline_parallel_num_microbatches pipeline_parallel_size
        push_to_hub_organization recompute_causal_mask report_to save_strategy seed sequence_parallel_enabled
        stochastic_rounding_enabled tensor_parallel_size tp_size use_autocast warmup_ratio warmup_steps zero_1
        """
    ),
    **{
        f"per_gpu_{name}": (Field(Fate.SETTLED, native=f"per_device_{name}"),)
        for name in ("eval_batch_size", "train_batch_size")
    },
    **{
        name: (Field(Fate.REFUSED, told=f"`{name}` was never tried on the Neuron device: settle it by hand"),)
        for name in ("deepspeed", "torch_compile", "torch_compile_backend", "torch_compile_mode")
    },
    **{
        name: (
            Field(
                Fate.REFUSED,
                told=f"`{name}` was refused by every release; natively FSDP is `fsdp=True` and `fsdp_config`",
            ),
        )
        for name in (
            "fsdp",
            "fsdp_config",
            "fsdp_min_num_params",
            "fsdp_transformer_layer_cls_to_wrap",
            "sharded_ddp",
        )
    },
    **_dropped("fp16_full_eval", "`fp16_full_eval` went: the Neuron device has no float16 training"),
}
"""By legacy keyword, oldest rule first."""

DEFAULTS = (
    Default("per_device_train_batch_size", "int", {"0.0.1": "8", OWN_CLASS: "1"}, "8"),
    Default("per_device_eval_batch_size", "int", {"0.0.1": "8", OWN_CLASS: "1"}, "8"),
    Default("optim", "str", {"0.0.1": '"adamw_torch"'}, '"adamw_torch_fused"'),
    Default("report_to", "str", {"0.0.1": '"all"'}, '"none"'),
    Default("log_level", "str", {"0.0.1": '"passive"', OWN_CLASS: '"info"'}, '"passive"'),
    Default(
        "logging_nan_inf_filter", "bool", {"0.0.1": "False", "0.3.0": "True", OWN_CLASS: "False"}, "True"
    ),
    Default("average_tokens_across_devices", "bool", {"0.0.1": "False"}, "True"),
)
"""Where the defaults of the legacy arguments and of `TrainingArguments` differ."""

GONE_FLAGS = tuple(
    sorted(name for name, rules in FIELDS.items() if rules[-1].fate in (Fate.DROPPED, Fate.SETTLED))
)


def rule(name: str, release: str, fields: Mapping[str, tuple[Field, ...]] = FIELDS) -> Field | None:
    """What becomes of a field that was written for a release; None for a name that was never a field."""
    from packaging.version import Version

    rules = fields.get(name)
    if rules is None:
        return None
    began = [each for each in rules if Version(each.since) <= Version(release)]
    return began[-1] if began else rules[0]
