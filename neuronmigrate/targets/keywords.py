"""Keywords of callables that swallow any: by hand, from the releases that the index describes.

Each list says where its words come from. `REFUSED` are words of the legacy classes that must never reach
a native call: Transformers raises on them, Diffusers ignores them in silence.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Open:
    """A callable that takes any keyword, and those it really knows."""

    owner: str
    """The class that has it; its subclasses have it too."""
    method: str
    """Name of the method; empty for the callable itself."""
    source: str
    keywords: frozenset[str]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_HUB = "cache_dir force_download local_files_only proxies revision subfolder token "
_MODEL = _words(
    _HUB
    + """
    adapter_kwargs attn_implementation code_revision config device_map device_mesh
    distributed_config dtype experts_implementation generation_config gguf_file ignore_mismatched_sizes
    key_mapping max_memory offload_buffers offload_folder output_loading_info quantization_config
    state_dict torch_dtype tp_plan tp_size trust_remote_code use_kernels use_safetensors variant
    weights_only
    id2label label2id num_labels output_attentions output_hidden_states problem_type return_dict
    """
)

_GENERATE = _words(
    """
    assistant_model attention_mask bad_words_ids cache_implementation compile_config
    custom_generate decoder_attention_mask decoder_input_ids do_sample
    early_stopping encoder_outputs eos_token_id exponential_decay_length_penalty
    forced_bos_token_id forced_eos_token_id generation_config input_features
    input_ids inputs inputs_embeds length_penalty logits_processor max_length
    max_new_tokens max_time min_length min_new_tokens min_p negative_prompt_ids
    no_repeat_ngram_size num_assistant_tokens num_beams num_return_sequences
    output_attentions output_hidden_states output_logits output_scores pad_token_id
    past_key_values pixel_values prefix_allowed_tokens_fn prompt_lookup_num_tokens
    renormalize_logits repetition_penalty return_dict_in_generate sequence_bias
    stop_strings stopping_criteria streamer suppress_tokens temperature tokenizer
    top_k top_p typical_p use_cache use_model_defaults
    """
)

OPEN: tuple[Open, ...] = (
    Open(
        "transformers.modeling_utils.PreTrainedModel",
        "from_pretrained",
        "PreTrainedModel.from_pretrained in Transformers 5.24 with what it hands on, and fields of every "
        "configuration, which are set on it",
        _MODEL,
    ),
    Open(
        "transformers.models.auto.auto_factory._BaseAutoModelClass",
        "from_pretrained",
        "as PreTrainedModel.from_pretrained; the auto classes of Transformers 5.24 hand everything on",
        _MODEL,
    ),
    Open(
        "transformers.models.auto.auto_factory._BaseAutoModelClass",
        "from_config",
        "_BaseAutoModelClass.from_config in Transformers 5.24",
        _words("attn_implementation code_revision config dtype trust_remote_code"),
    ),
    Open(
        "transformers.models.auto.tokenization_auto.AutoTokenizer",
        "from_pretrained",
        "docstring of AutoTokenizer.from_pretrained in Transformers 5.24",
        _words(_HUB + "config padding_side tokenizer_type trust_remote_code truncation_side use_fast"),
    ),
    Open(
        "transformers.tokenization_utils_base.PreTrainedTokenizerBase",
        "from_pretrained",
        "PreTrainedTokenizerBase.from_pretrained in Transformers 5.24 and its __init__, which gets the rest",
        _words(_HUB + "padding_side trust_remote_code truncation_side"),
    ),
    Open(
        "transformers.processing_utils.ProcessorMixin",
        "from_pretrained",
        "ProcessorMixin.from_pretrained in Transformers 5.24, which hands the rest to the tokenizer",
        _words(_HUB + "padding_side trust_remote_code"),
    ),
    Open(
        "transformers.models.auto.configuration_auto.AutoConfig",
        "from_pretrained",
        "docstring of AutoConfig.from_pretrained in Transformers 5.24",
        _words(_HUB + "return_unused_kwargs trust_remote_code"),
    ),
    Open(
        "transformers.models.auto.processing_auto.AutoProcessor",
        "from_pretrained",
        "docstring of AutoProcessor.from_pretrained in Transformers 5.24, and what it hands to the tokenizer",
        _words(_HUB + "padding_side return_unused_kwargs trust_remote_code"),
    ),
    Open(
        "transformers.models.auto.image_processing_auto.AutoImageProcessor",
        "from_pretrained",
        "docstring of AutoImageProcessor.from_pretrained in Transformers 5.24",
        _words(_HUB + "image_processor_filename return_unused_kwargs trust_remote_code use_fast"),
    ),
    Open(
        "transformers.models.auto.feature_extraction_auto.AutoFeatureExtractor",
        "from_pretrained",
        "docstring of AutoFeatureExtractor.from_pretrained in Transformers 5.24",
        _words(_HUB + "return_unused_kwargs trust_remote_code"),
    ),
    Open(
        "transformers.configuration_utils.PreTrainedConfig",
        "from_pretrained",
        "docstring of PreTrainedConfig.from_pretrained in Transformers 5.24",
        _words(_HUB + "return_unused_kwargs"),
    ),
    Open(
        "transformers.generation.utils.GenerationMixin",
        "generate",
        "GenerationMixin.generate and fields of GenerationConfig in Transformers 5.24; tensors by the names "
        "that the models' forward methods have",
        _GENERATE,
    ),
    Open(
        "transformers.models.auto.auto_factory._BaseAutoModelClass",
        "generate",
        "as GenerationMixin.generate: the auto classes make models that have it",
        _GENERATE,
    ),
    Open(
        "transformers.generation.configuration_utils.GenerationConfig",
        "",
        "attributes that GenerationConfig.__init__ takes out of its keywords in Transformers 5.24",
        _words(
            """
            bad_words_ids bos_token_id cache_implementation compile_config do_sample
            early_stopping eos_token_id length_penalty max_length max_new_tokens min_length
            min_new_tokens no_repeat_ngram_size num_beams num_return_sequences
            output_attentions output_hidden_states output_scores pad_token_id
            repetition_penalty return_dict_in_generate temperature top_k top_p use_cache
            """
        ),
    ),
    Open(
        "transformers.pipelines.pipeline",
        "",
        "Pipeline.__init__ in Transformers 5.24, to which pipeline() hands what it does not know, and "
        "fields of GenerationConfig, which a pipeline that generates keeps for its calls",
        _words(
            "batch_size binary_output do_sample max_new_tokens num_workers return_all_scores top_k truncation"
        ),
    ),
    Open(
        "diffusers.pipelines.pipeline_utils.DiffusionPipeline",
        "from_pretrained",
        "DiffusionPipeline.from_pretrained in Diffusers 0.42, and the components of its pipelines",
        _words(
            _HUB
            + """
            custom_pipeline custom_revision device_map dtype low_cpu_mem_usage max_memory
            mirror offload_folder quantization_config torch_dtype trust_remote_code
            use_safetensors variant controlnet feature_extractor image_encoder
            requires_safety_checker safety_checker scheduler text_encoder text_encoder_2
            tokenizer tokenizer_2 transformer unet vae
            add_watermarker force_zeros_for_empty_prompt requires_aesthetics_score
            """
        ),
    ),
    Open(
        "diffusers.loaders.lora_base.LoraBaseMixin",
        "load_lora_weights",
        "lora_state_dict of the pipelines in loaders/lora_pipeline.py of Diffusers 0.42, to which "
        "load_lora_weights hands what it does not know",
        _words(_HUB + "adapter_name hotswap low_cpu_mem_usage use_safetensors weight_name"),
    ),
    Open(
        "diffusers.models.modeling_utils.ModelMixin",
        "from_pretrained",
        "ModelMixin.from_pretrained in Diffusers 0.42",
        _words(
            _HUB + "device_map dtype low_cpu_mem_usage max_memory output_loading_info quantization_config "
            "torch_dtype use_safetensors variant"
        ),
    ),
    Open(
        "peft.peft_model.PeftModel",
        "from_pretrained",
        "docstring of PeftModel.from_pretrained in PEFT 0.21",
        _words("revision subfolder token torch_device"),
    ),
)
"""Callables with keywords of their own, subclasses included."""

REFUSED = _words(
    """
    auto_cast auto_cast_type batch_size compiler_args compiler_workdir data_parallel_mode device_ids
    disable_neuron_cache dynamic_batch_size export file_name from_transformers height image_size
    inline_weights_to_neff input_shapes instance_type lora_adapter_names lora_model_ids lora_scales
    lora_weight_names neuron_config num_channels num_choices num_cores num_images_per_prompt optlevel
    sequence_length task tensor_parallel_size trn_config use_auth_token use_flash_attention_2 width
    """
)
"""Words of the legacy `from_pretrained` that no native one knows."""


def known(lineage: Iterable[str], method: str, keyword: str) -> bool | None:
    """What the lists say about a keyword of a class, or a function, and its bases; None for nothing."""
    for owner in lineage:
        for each in OPEN:
            if each.owner == owner and each.method == method:
                if keyword in each.keywords:
                    return True
                if method == "from_pretrained" and keyword in REFUSED:
                    return False
    return None
