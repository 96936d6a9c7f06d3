"""Decoders that Optimum Neuron compiled, such as `NeuronModelForCausalLM` of inference.

Whether it was exported by `from_pretrained(..., export=True)` or by a configuration object and `export`,
the plain Transformers class loads the original checkpoint with `device_map="neuron"`; tensor parallelism
becomes a `DistributedConfig`, and shapes go. What the old class did by itself is written out: the dtype
it held its weights in, and from 0.2.0 on a generation configuration made from the model's own, without
which the checkpoint's `generation_config.json` would make `generate` sample. A static cache keeps the
shapes of decoding from changing. `generate` goes on taking its inputs from the CPU; batches are padded on
the left. Forward calls, the arguments of the old decoding loop, compiled folders of unknown origin and
architectures without a tensor-parallel plan are marked. The training class of the same name in
`optimum.neuron.models.training` is another one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.edits import Statement
from neuronmigrate.facts import Producer
from neuronmigrate.flow import UseKind
from neuronmigrate.loads.arguments import (
    COMPILER,
    EXPORT,
    FILES,
    FOLDERS,
    HUB,
    MODEL_ID,
    PLACES,
    RENAMED,
    SHAPES,
    Given,
    Load,
    Table,
    constant,
    drop_argument,
    instance_type,
    means_the_same,
    sorted_arguments,
    text_of,
)
from neuronmigrate.loads.family import GONE_ATTRIBUTES, Family
from neuronmigrate.loads.generate import (
    LENGTHS,
    LOW_LEVEL,
    Asked,
    asked,
    asked_by,
    cap,
    configuration_class,
    move_together,
    pad_left,
)
from neuronmigrate.loads.settings import write_setting
from neuronmigrate.loads.sources import Saved, is_export, settle_source
from neuronmigrate.loads.traced import output_attentions
from neuronmigrate.moving import Convention, Moved, model_of, move_call
from neuronmigrate.names import Binding, Kind, dotted_name
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

_INFERENCE = "optimum.neuron.models.inference"
_BACKENDS = (f"{_INFERENCE}.backend", f"{_INFERENCE}.nxd.backend")
_CAUSAL = "transformers.AutoModelForCausalLM"
_IMAGES = "transformers.AutoModelForImageTextToText"


def _decoder_classes() -> dict[str, str]:
    """Every import path of a decoder's class (optimum-neuron 0.0.8 to 0.4.5, and main of August 2026)."""
    found = {
        f"optimum.neuron.{module}NeuronModelForCausalLM": _CAUSAL
        for module in ("", "modeling.", "modeling_decoder.", "models.inference.modeling_utils.")
    }
    found |= {f"optimum.neuron.{module}NeuronDecoderModel": _CAUSAL for module in ("", "modeling_decoder.")}
    found |= {
        f"optimum.neuron.{module}NeuronModelForImageTextToText": _IMAGES
        for module in ("", "models.inference.modeling_utils.")
    }
    for backend in _BACKENDS:
        for module in ("decoder", "decoder.modeling_decoder"):
            for name in ("NxDDecoderModel", "NxDModelForCausalLM"):
                found[f"{backend}.modules.{module}.{name}"] = _CAUSAL
    for module in ("decoder", "decoder.modeling_decoder"):
        found[f"{_BACKENDS[0]}.modules.{module}.NxDDecoderModelForCausalLM"] = _CAUSAL
    for module in ("decoder", "decoder.vlm_decoder"):
        found[f"{_BACKENDS[0]}.modules.{module}.NxDModelForImageTextToText"] = _IMAGES
    families = {
        "gemma3": "Gemma3",
        "granite": "Granite",
        "llama": "Llama",
        "llama4": "Llama4",
        "mixtral": "Mixtral",
        "phi3": "Phi3",
        "qwen2": "Qwen2",
        "qwen3": "Qwen3",
        "qwen3_moe": "Qwen3Moe",
        "smollm3": "SmolLM3",
    }
    for module, name in families.items():
        found[f"{_INFERENCE}.{module}.modeling_{module}.{name}NxDModelForCausalLM"] = _CAUSAL
    for module, name in (("llama", "Llama"), ("mixtral", "Mixtral")):
        found[f"{_INFERENCE}.nxd.{module}.modeling_{module}.{name}NxDModelForCausalLM"] = _CAUSAL
    found[f"{_INFERENCE}.gemma3.Gemma3NxDModelForCausalLM"] = _CAUSAL
    for module, name in (("gemma3", "Gemma3"), ("smolvlm", "SmolVLM")):
        for path in (module, f"{module}.modeling_{module}"):
            found[f"{_INFERENCE}.{path}.{name}NxDModelForImageTextToText"] = _IMAGES
    return found


_EMBEDDERS = (
    "optimum.neuron.NeuronModelForEmbedding",
    f"{_INFERENCE}.modeling_utils.NeuronModelForEmbedding",
    f"{_BACKENDS[0]}.modules.decoder.NxDDecoderModelForEmbedding",
    f"{_BACKENDS[0]}.modules.decoder.NxDModelForEmbedding",
    f"{_BACKENDS[0]}.modules.decoder.modeling_decoder.NxDDecoderModelForEmbedding",
    f"{_BACKENDS[0]}.modules.decoder.modeling_decoder.NxDModelForEmbedding",
    f"{_INFERENCE}.qwen3.modeling_qwen3.Qwen3NxDModelForEmbedding",
)
EMBEDDINGS = dict.fromkeys(_EMBEDDERS, "transformers.AutoModel")
CONFIGS = frozenset(
    {
        "optimum.neuron.backends.hlo.config.NeuronConfig",
        "optimum.neuron.configuration_utils.NeuronConfig",
        f"{_INFERENCE}.hlo.backend.config.HloNeuronConfig",
        *(f"{backend}.config.NxDNeuronConfig" for backend in _BACKENDS),
    }
)
"""Classes of configuration objects for `export`."""
ASKS_CONFIG = "get_neuron_config"
"""The class method that makes one."""

DTYPES = {
    "bf16": "torch.bfloat16",
    "bfloat16": "torch.bfloat16",
    "f16": "torch.float16",
    "f32": "torch.float32",
    "float16": "torch.float16",
    "float32": "torch.float32",
    "fp16": "torch.float16",
    "fp32": "torch.float32",
}
"""Texts that named a dtype, in `auto_cast_type`, `amp`, `torch_dtype`."""

# Architectures that only the releases up to 0.1.0 knew, and those without a tensor-parallel plan in
# Transformers 5.24 (`base_model_tp_plan` of their configuration classes).
_EARLY = re.compile(r"(?i)(^|[/_-])(gpt-?2|distilgpt2|opt|bloomz?|mistral)\b")
_WITHOUT_PLAN = re.compile(r"(?i)(^|[/_-])(gpt-?2|distilgpt2|gpt-?neo(?!x)|opt|bloomz?)\b")
# In 0.2.0 these still ran on the older backend (models/inference/auto_models.py there).
_LATE = re.compile(r"(?i)(granite|phi-?3|qwen-?2)")


# Arguments.


def _load_weights(site: Site, load: Load, given: Given) -> None:
    load.drop(given.seen)
    if edits.code_of(constant(site, given.seen)) == "False":
        load.todo.append(
            "it only compiled, without weights: nothing is compiled now, so the load and what it saves can go"
        )


def _own_configuration(site: Site, load: Load, given: Given) -> None:
    """Drop the model's configuration, which told the shapes and nothing else."""
    made = given.seen.func if isinstance(given.seen, cst.Call) else None
    if made is not None and site.name_of(made) == "transformers.AutoConfig.from_pretrained":
        load.drop(given.seen)
    else:
        drop_argument(site, load, given)


def _attention(site: Site, load: Load, given: Given) -> None:
    if text_of(constant(site, given.seen)).startswith("flash"):
        drop_argument(site, load, given)
        load.todo.append("flash attention is a CUDA package natively; the attention of PyTorch is used")
    else:
        load.args.append(given.arg)


def _continuous(site: Site, load: Load, given: Given) -> None:
    load.drop(given.seen)
    if edits.code_of(constant(site, given.seen)) not in ("False", "None"):
        load.todo.append(
            "continuous batching is nothing that Transformers does: serve with vLLM if requests come and go"
        )


def _degree(site: Site, load: Load, given: Given) -> None:
    load.drop(given.seen)
    if edits.code_of(constant(site, given.seen)) not in ("1", "None"):
        what = "expert" if given.name == "ep_degree" else "pipeline"
        load.refuse(f"{what} parallelism, `{given.name}`, has another meaning natively")


def _written_on(site: Site, load: Load, given: Given) -> None:
    """Keep a value that the new load is written with, as it can be written there."""
    value = constant(site, given.seen)
    load.values[given.name] = value
    if edits.is_literal(value):
        load.drop(given.seen)
    elif not (_repeatable(site, value) and means_the_same(site, value, load.call)):
        load.refuse(f"`{given.name}={edits.short(value)}` is worked out elsewhere: give it a name first")


def _chip(site: Site, load: Load, given: Given) -> None:
    if edits.code_of(constant(site, given.seen)) != "None":
        instance_type(site, load, given)


def _configuration(site: Site, load: Load, given: Given) -> None:
    """Take the settings of a configuration object as if they were arguments of the load."""
    if edits.code_of(given.seen) == "None":
        return
    use, binding = _configured(site, given.seen)
    if use is None or use.call is None:
        load.refuse(f"what `neuron_config={edits.short(given.seen)}` holds cannot be seen from here")
        return
    asks = use.method == ASKS_CONFIG
    config = sorted_arguments(site, use, use.call, "", ASKED if asks else CONSTRUCTED)
    for arg in config.args:
        name = arg.keyword.value if arg.keyword is not None else ""
        if name == "revision" and name not in load.given:
            load.given.add(name)
            load.args.append(arg)
    load.values.update({name: each for name, each in config.values.items() if name not in MODEL_ID})
    for name in sorted((_CORES | _CAST) & config.values.keys()):
        each = config.values[name]
        if site.parent(each) is not None and not means_the_same(site, each, load.call):
            load.refuse(f"what `{name}={edits.short(each)}` means at the configuration is not so at the load")
    load.values["neuron_config"] = use.call
    load.dtype = load.dtype or config.dtype
    load.spread |= config.spread
    load.still_read |= config.still_read
    load.dropped += config.dropped
    if "model_id" in config.values:
        load.drop(config.values["model_id"])
    load.todo += config.todo
    if config.refused:
        load.refuse(config.refused)
    if binding is not None and isinstance(given.seen, cst.Name):
        load.spread[given.seen] = binding
        _readers(site, load, use)
    if not load.refused or binding is None:
        site.settled.add(use)


def _configured(site: Site, value: cst.BaseExpression) -> tuple[Use | None, Binding | None]:
    """The use that makes a configuration object, and the assignment through which it is read."""
    binding = None
    made: cst.BaseExpression | None = value
    if isinstance(value, cst.Name):
        bindings = site.names.bindings_at(value)
        binding = bindings[0] if len(bindings) == 1 else None
        if binding is None or binding.kind is not Kind.ASSIGN or binding.path:
            return None, None
        made = binding.value
        assign = site.parent(made) if made is not None else None
        if isinstance(assign, cst.Assign) and len(assign.targets) > 1:
            return None, None
    return next((each for each in site.uses if each.call is made and _makes_config(each)), None), binding


def _readers(site: Site, load: Load, use: Use) -> None:
    """Refuse a configuration object that is read where its settings are not known."""
    for reader in _read(site, load):
        parent = site.parent(reader)
        call = site.parent(parent) if isinstance(parent, cst.Arg) else None
        if isinstance(parent, cst.Attribute) and _setting(load, parent.attr.value) is not None:
            continue
        if isinstance(call, cst.Call) and any(
            each.call is call and _takes_config(each) for each in site.uses
        ):
            continue
        line = site.positions.span(reader).line
        load.refuse(f"`{edits.short(reader)}`, which holds its settings, is also read on line {line}")


def _read(site: Site, load: Load) -> list[cst.Name]:
    """Every place that reads the name of the configuration object."""
    call = load.values.get("neuron_config")
    for binding in load.spread.values():
        if call is not None and binding.value is call:
            return list(site.names.references(binding))
    return []


def _makes_config(use: Use) -> bool:
    if use.claim in CONFIGS:
        return not use.method
    return use.method == ASKS_CONFIG and (use.claim in CLASSES or use.claim in EMBEDDINGS)


def _takes_config(use: Use) -> bool:
    return use.method in ("export", "from_pretrained") and (use.claim in CLASSES or use.claim in EMBEDDINGS)


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SHAPES = frozenset({"batch_size", "n_positions", "sequence_length"})
_CORES = frozenset({"num_cores", "tensor_parallel_size", "tp_degree"})
_CAST = frozenset({"amp", "auto_cast_type"})
_KNOWN = frozenset({"prefill_chunk_size", "speculation_length"})

LOADED = Table(
    kept=HUB | {"output_hidden_states"},
    renamed=RENAMED,
    consumed=EXPORT | _SHAPES | _KNOWN | {"auto_cast_type", "num_cores", "tensor_parallel_size"},
    dropped=PLACES
    | FILES
    | (COMPILER - {"neuron_config"})
    | (SHAPES - _SHAPES)
    | {"auto_cast", "context_length_estimate"},
    folders=FOLDERS,
    special={
        "auto_cast_type": _written_on,
        "attn_implementation": _attention,
        "continuous_batching": _continuous,
        "instance_type": _chip,
        "load_weights": _load_weights,
        "neuron_config": _configuration,
        "num_cores": _written_on,
        "output_attentions": output_attentions,
        "tensor_parallel_size": _written_on,
        "use_flash_attention_2": drop_argument,
    },
)
"""`from_pretrained` and, with the configuration in second place, `export` from 0.4.0 on."""

ASKED = Table(
    kept=frozenset({"revision"}),
    renamed={"torch_dtype": "dtype"},
    consumed=_SHAPES | _KNOWN,
    dropped=frozenset({"token"}),
    special={
        "config": _own_configuration,
        "auto_cast_type": _written_on,
        "instance_type": _chip,
        "num_cores": _written_on,
        "tensor_parallel_size": _written_on,
    },
    positional=("config", "token", "revision"),
)
"""`get_neuron_config`."""

CONSTRUCTED = Table(
    renamed={"checkpoint_revision": "revision", "torch_dtype": "dtype"},
    consumed=_SHAPES | _KNOWN | {"on_device_sampling"},
    dropped=_words(
        """
        all_reduce_dtype allow_flash_attention async_mode attention_layout attn_kernel_enabled
        attn_output_transposed bf16_rms_norm capacity_factor cast_logits_dtype cc_pipeline_tiling_factor
        checkpoint_id collectives_layout compilation_worker_count compiler_type compiler_version config
        enable_bucketing flash_decoding_enabled fuse_qkv fused_qkv glu_mlp group_query_attention image_seq_len
        image_size is_chunked_prefill local_ranks_size log_softmax_scores logical_nc_config max_batch_size
        max_context_length max_num_images max_topk mlp_kernel_enabled mlp_kernel_fuse_residual_add
        n_active_tokens num_cores_per_group output_all_logits output_logits padding_side qk_layernorm
        qkv_kernel_enabled rpl_reduce_dtype sequence_parallel_enabled start_rank_id task use_2d_cache_ids
        vocab_parallel
        """
    ),
    special={
        "amp": _written_on,
        "auto_cast_type": _written_on,
        "continuous_batching": _continuous,
        "ep_degree": _degree,
        "pp_degree": _degree,
        "target": _chip,
        "tp_degree": _written_on,
    },
    positional=("checkpoint_revision",),
)
"""Constructors of configuration objects."""


# Releases.


@dataclass(frozen=True)
class Era:
    """The release that a load was written for, as far as it decides what is written."""

    release: tuple[int, ...]
    assumed: bool
    hlo: bool
    """Whether it ran on the older backend, which read the checkpoint's generation_config.json."""

    @property
    def name(self) -> str:
        """The release as text."""
        return ".".join(map(str, self.release))


def era_of(site: Site, load: Load) -> Era:
    """The release behind a load; a release that has not its spelling or its architecture is not assumed."""
    legacy = site.project.legacy_of(site.path)
    release: tuple[int, ...] = legacy.release.release
    name = _checkpoint(site, load)
    if _spelled(site, load) == "from_pretrained":
        release = min(release, (0, 3, 0))
    if legacy.assumed and _spelled(site, load) in ("compiled", "from_pretrained") and _EARLY.search(name):
        release = min(release, (0, 1, 0))
    late = release == (0, 2, 0) and bool(_LATE.search(name))
    config = _config_use(site, load)
    older = config is not None and ".hlo." in config.claim
    return Era(release, legacy.assumed, release < (0, 2, 0) or late or older)


def _checkpoint(site: Site, load: Load) -> str:
    """The id of the checkpoint, where it is written out."""
    if load.artefact is not None:
        return load.artefact.checkpoint
    return text_of(constant(site, load.values.get("model_id", load.call)))


def _config_use(site: Site, load: Load) -> Use | None:
    """The use that made the configuration object of a load."""
    call = load.values.get("neuron_config")
    return None if call is None else next((each for each in site.uses if each.call is call), None)


def _spelled(site: Site, load: Load) -> str:
    """How the settings were given: `from_pretrained`, `get_neuron_config`, `constructor` or `compiled`."""
    use = _config_use(site, load)
    if use is None:
        if load.use.method == "from_pretrained":
            return "from_pretrained" if is_export(load) else "compiled"
        return ASKS_CONFIG
    return ASKS_CONFIG if use.method == ASKS_CONFIG else "constructor"


def _settle_dtype(site: Site, load: Load, era: Era) -> None:
    """Work out the dtype: the one that was named, else the one of the release (inference-by-release 2)."""
    named, load.cast = load.cast, ""
    if load.dtype is not None:
        found = DTYPES.get(text_of(constant(site, load.dtype)))
        if found is not None:
            load.drop(load.dtype)
            load.dtype, load.cast = None, found
        return
    cast = load.values.get("auto_cast_type") or load.values.get("amp")
    if cast is not None and edits.code_of(cast) != "None":
        load.cast = DTYPES.get(text_of(cast), "")
        if load.cast:
            return
        if edits.is_literal(cast):
            load.refuse(f"`auto_cast_type={edits.short(cast)}` names no dtype")
        return
    spelled = _spelled(site, load)
    if load.artefact is not None and "torch_dtype" in dict(load.artefact.options):
        load.cast = named
    elif spelled == "compiled":
        load.dtype = edits.string("auto")
        load.todo.append("which dtype it was compiled in is not said here: it is the checkpoint's own now")
        if "revision" in load.given and load.artefact is None:
            load.todo.append("`revision` names one of the compiled files: give that of the original, or none")
    elif spelled == "constructor":
        load.cast = "torch.bfloat16"
    elif spelled == "from_pretrained":
        load.cast = "torch.float32" if era.release < (0, 2, 0) else "torch.bfloat16"
    elif era.release < (0, 4, 1):
        load.cast = "torch.float32"
    else:
        load.dtype = edits.string("auto")


def _depends_on_release(site: Site, load: Load) -> bool:
    """Whether anything was written that another release would have written otherwise."""
    if _spelled(site, load) in ("compiled", "from_pretrained"):
        return True
    named = "dtype" in load.values or "auto_cast_type" in load.values or "amp" in load.values
    return not named and _spelled(site, load) == ASKS_CONFIG


def _read_on(load: Load, value: cst.BaseExpression) -> None:
    """Take note that an argument which goes is still read somewhere."""
    names = {each.value for each in _names_in(value)}
    load.dropped = [each for each in load.dropped if each.value not in names]


def _names_in(node: cst.CSTNode) -> list[cst.Name]:
    inner = [node.value] if isinstance(node, cst.Attribute) else node.children
    return [node] if isinstance(node, cst.Name) else [name for each in inner for name in _names_in(each)]


def _setting(load: Load, name: str) -> cst.BaseExpression | None:
    """What a configuration object or a compiled model told of itself, where the load says it."""
    aliases = {
        "max_batch_size": ("batch_size",),
        "max_context_length": ("sequence_length", "n_positions"),
        "max_length": ("sequence_length", "n_positions"),
        "num_cores": ("num_cores", "tensor_parallel_size", "tp_degree"),
        "sequence_length": ("sequence_length", "n_positions"),
        "tensor_parallel_size": ("num_cores", "tensor_parallel_size", "tp_degree"),
        "tp_degree": ("num_cores", "tensor_parallel_size", "tp_degree"),
    }
    for each in aliases.get(name, (name,)):
        if each in _SHAPES | _CORES and each in load.values:
            value = load.values[each]
            return value if edits.code_of(value) != "None" else None
    said = is_export(load) or "neuron_config" in load.values
    return cst.Integer("1") if said and name in ("batch_size", "max_batch_size") else None


# Families.


_GONE = {
    **GONE_ATTRIBUTES,
    "batch_size": "any batch size runs",
    "continuous_batching": "serve with vLLM where requests come and go",
    "max_length": "the configuration says how long a text may be: `model.config.max_position_embeddings`",
}
_OWN_LOOP = dict.fromkeys(
    (
        "generate_tokens",
        "get_cache_ids",
        "get_start_ids",
        "prefill_chunk",
        "prepare_inputs_for_decode",
        "prepare_inputs_for_prefill",
    ),
    "it belongs to the old decoding loop: call `generate`",
)


class _Compiled(Family):
    """What decoders and embedding models share: how they are configured, loaded and placed."""

    makers = frozenset({"export", "from_pretrained"})
    gone = _GONE

    def read(self, site: Site, use: Use, call: cst.Call) -> Load:
        return sorted_arguments(site, use, call, self.classes[use.claim], _table_of(site, use, call))

    def settle(self, site: Site, load: Load, saved: Saved) -> None:
        done = site.notes.setdefault("settled loads", set())
        if load.call in done:
            return  # as the export behind a folder
        done.add(load.call)
        folder = load.values.get("model_id")
        export = saved.source_of(folder) if folder is not None and not is_export(load) else None
        settle_source(load, saved)
        if not load.refused and export is not None:
            self.settle(site, export, saved)
            _as_exported(site, load, export)
        if not load.refused and not self.can_place(site, load):
            load.refuse("it is loaded inside an expression: give the model a name first")
        if not load.refused:
            era = era_of(site, load)
            if export is None:
                _settle_dtype(site, load, era)
            self._settle_cores(site, load, era)
            if era.assumed and _depends_on_release(site, load):
                load.todo.append(self.assumed(era))
            elif _spelled(site, load) == "from_pretrained" and _pinned_later(site):
                load.todo.append(
                    "from 0.4.0 on, `from_pretrained` no longer exported: it is read as of 0.3.0"
                )

    def can_place(self, site: Site, load: Load) -> bool:
        """Whether what belongs to a load can be written where it stands."""
        return True

    def assumed(self, era: Era) -> str:
        """What was taken from a release that no file names."""
        return f"no file says which release it was written for: the dtype is that of {era.name}"

    def _settle_cores(self, site: Site, load: Load, era: Era) -> None:
        cores = _cores(load)
        if cores is None:
            if _spelled(site, load) != "constructor":
                old = "2 cores by default" if era.release < (0, 0, 18) else "all cores by default"
                if _spelled(site, load) == "compiled":
                    old = "as many cores as it was compiled for"
                load.todo.append(
                    f"it was spread over {old} and is on one device now; for several: "
                    "`distributed_config=DistributedConfig(tp_size=N)` instead of `device_map`, with torchrun"
                )
            return
        if edits.code_of(cores) == "1":
            return
        name = _checkpoint(site, load)
        if _WITHOUT_PLAN.search(name):
            load.refuse(
                f"`{name}` was spread over several cores, and has no tensor-parallel plan in Transformers"
            )
        else:
            load.numerics = Numerics.SHARDING
            said = edits.code_of(cores) if isinstance(cores, cst.Integer) else "N"
            load.todo.append(
                f"start it with `torchrun --nproc-per-node {said}`: each process runs the whole script, so "
                "let one of them print and write"
            )

    def written(self, site: Site, group: Group, load: Load) -> cst.BaseExpression:
        args = list(load.args)
        args.append(edits.keyword("dtype", _dtype(group, load)))
        cores = _cores(load)
        if cores is None or edits.code_of(cores) == "1":
            args.append(edits.keyword("device_map", edits.string("neuron")))
        else:
            if not isinstance(cores, cst.Integer):
                place = group.expression(
                    '"neuron" if {cores} in (None, 1) else None', cores=cores.deep_clone()
                )
                args.append(edits.keyword("device_map", place))
            several = group.expression(
                "transformers.distributed.DistributedConfig(tp_size={cores})", cores=cores.deep_clone()
            )
            args.append(edits.keyword("distributed_config", several))
        site.keywords += [
            (f"{load.native}.from_pretrained", arg.keyword.value) for arg in args if arg.keyword
        ]
        call = edits.with_arguments(load.call, args)
        if load.use.method == "export":
            func = load.call.func
            assert isinstance(func, cst.Attribute)
            call = call.with_changes(func=func.with_changes(attr=cst.Name("from_pretrained")))
        return call

    def finish(self, site: Site, group: Group, load: Load) -> None:
        done = site.notes.setdefault("configurations", set())
        use = _config_use(site, load)
        config = use.call if use is not None else None
        if use is None or config is None or config in done:
            return
        done.add(config)
        for reader in _read(site, load):
            parent = site.parent(reader)
            value = _setting(load, parent.attr.value) if isinstance(parent, cst.Attribute) else None
            if value is not None and isinstance(parent, cst.BaseExpression):
                _read_on(load, value)
                write_setting(site, group, parent, value)
                load.spread[reader] = load.spread[next(iter(_mine(load, config)))]
        group.fixed(config, use.name, "its settings are written where the model is loaded")

    def decide(self, site: Site, use: Use) -> None:
        if _makes_config(use):
            self._decide_loads(site)
            if use not in site.settled:
                site.mark(
                    use.whole,
                    use.name,
                    "the load that takes this configuration cannot be rewritten, or is not in sight",
                    "its settings become arguments of `from_pretrained`: `dtype`, `distributed_config`",
                )
        elif use.claim in CONFIGS:
            site.mark(
                use.whole,
                use.name,
                "nothing is compiled, so there is no configuration of it",
                "give its settings to `from_pretrained`: `dtype`, `distributed_config`",
            )
        else:
            super().decide(site, use)

    def setting(self, site: Site, load: Load, name: str) -> cst.BaseExpression | None:
        return _setting(load, name)

    def by_hand(self, load: Load) -> str:
        name = load.native.rpartition(".")[2]
        return f'by hand: `{name}.from_pretrained(original id, dtype="auto", device_map="neuron")`'

    def on_attribute(
        self, site: Site, group: Group | None, load: Load | None, node: cst.Attribute, todo: list[str]
    ) -> None:
        around = site.parent(node)
        if node.attr.value in ("eval", "train") and isinstance(around, cst.Call):
            return
        super().on_attribute(site, group, load, node, todo)


def _repeatable(site: Site, node: cst.BaseExpression) -> bool:
    """Whether an expression can be written twice: it gives the same each time, and acts on nothing."""
    if isinstance(node, cst.Call):
        name = site.name_of(node.func)
        return name in _READERS and all(_repeatable(site, arg.value) for arg in node.args)
    if isinstance(node, cst.Subscript):
        keys = [each.slice.value for each in node.slice if isinstance(each.slice, cst.Index)]
        return len(keys) == len(node.slice) and all(_repeatable(site, each) for each in [node.value, *keys])
    return edits.is_pure(node)


_READERS = frozenset({"builtins.int", "builtins.str", "os.environ.get", "os.getenv"})


def _mine(load: Load, config: cst.Call) -> list[cst.Name]:
    return [name for name, binding in load.spread.items() if binding.value is config]


def _table_of(site: Site, use: Use, call: cst.Call) -> Table:
    """The table of a load: up to 0.3.0 `export` took the model's configuration before the other one."""
    if use.method != "export":
        return LOADED
    order = ["neuron_config", "config", "token", "revision", "load_weights"]
    given = [arg.value for arg in call.args[1:3] if not arg.keyword and not arg.star]
    seen = [_configured(site, value)[0] is not None for value in given]
    early = site.project.legacy_of(site.path).release.release < (0, 4, 0)
    if seen[1:] == [True] or (early and seen[:1] == [False]):
        order[:2] = ["config", "neuron_config"]
    return Table(
        LOADED.kept,
        LOADED.renamed,
        LOADED.consumed,
        LOADED.dropped,
        LOADED.folders,
        LOADED.refused,
        LOADED.special,
        tuple(order),
    )


def _as_exported(site: Site, load: Load, export: Load) -> None:
    """Load what was saved in a folder as the export that wrote it did."""
    if export.refused:
        load.refuse(f"it was compiled on line {site.positions.span(export.call).line}: {export.refused}")
        return
    kept = {name: value for name, value in export.values.items() if name not in ("model_id", "dtype")}
    load.values = {**kept, "model_id": export.values["model_id"]}
    load.dtype, load.cast, load.numerics = export.dtype, export.cast, export.numerics
    if load.dtype is not None:
        load.dtype = load.dtype.deep_clone()
    for value in (load.dtype, _cores(load), load.values.get("auto_cast_type")):
        if (
            value is not None
            and site.parent(value) is not None
            and not means_the_same(site, value, load.call)
        ):
            load.refuse(f"what `{edits.short(value)}` means where the folder is written is not so here")


def _pinned_later(site: Site) -> bool:
    legacy = site.project.legacy_of(site.path)
    return not legacy.assumed and legacy.release.release >= (0, 4, 0)


def _cores(load: Load) -> cst.BaseExpression | None:
    """On how many cores the model ran; None where the load does not say it."""
    found = [load.values[name] for name in sorted(_CORES) if name in load.values]
    return found[0] if found and edits.code_of(found[0]) != "None" else None


def _dtype(group: Group, load: Load) -> cst.BaseExpression:
    if load.dtype is not None:
        return load.dtype
    if load.cast:
        return group.expression(load.cast)
    kind = load.values.get("auto_cast_type") or load.values["amp"]
    known = '{{"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}}[{kind}]'
    return group.expression(known, kind=kind.deep_clone())


# A prompt as a whole (0.2.0 to 0.4.3, where `logits` are a field of the output).
PREFILL = Convention(positional=("input_ids",), last=True)


class Decoders(_Compiled):
    """Models that generate."""

    methods = frozenset({"generate", "reset_generation"})
    gone = _GONE | _OWN_LOOP
    lost_calls = "look at its calls of `generate`"

    def compile(self, site: Site, group: Group, load: Load) -> None:
        """Nothing: with a static cache `generate` compiles by itself (transformers, generation/utils.py)."""

    def assumed(self, era: Era) -> str:
        said = f"no file says which release it was written for: dtype and decoding are those of {era.name}"
        if era.release == (0, 3, 0):
            said += ", while up to 0.1.0 weights were float32 and generation_config.json was read"
        return said

    def can_place(self, site: Site, load: Load) -> bool:
        return _target(site, load.call)[0] is not None or _statement_of(site, load.call) is not None

    def place(self, site: Site, group: Group, load: Load, new: cst.BaseExpression) -> None:
        """Write the load, and after it what the old class did with the generation configuration."""
        target, small = _target(site, load.call)
        if target is not None and small is not None:
            group.replace(load.call, new)
            lines = self._after(site, group, load, target)
            line = site.parent(small)
            if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1:
                group.insert(line, lines, before=False)
            else:
                group.replace_statement(small, [cst.SimpleStatementLine([small]), *lines])
            return
        small = _statement_of(site, load.call)
        assert small is not None
        # One name will do for all: each is read in the statement that follows, and nowhere else.
        names = site.notes.setdefault("decoder", set())
        if not names:
            names.add(group.fresh("decoder"))
        name = next(iter(names))
        assert isinstance(name, cst.Name)
        lines = group.statements("{name} = {new}\n", name=cst.Name(name.value), new=new)
        lines += self._after(site, group, load, cst.Name(name.value))
        group.replace(load.call, cst.Name(name.value))
        group.replace_statement(small, [*lines, cst.SimpleStatementLine([small])])

    def _after(self, site: Site, group: Group, load: Load, model: cst.BaseExpression) -> list[Statement]:
        lines = []
        if not era_of(site, load).hlo:
            config = configuration_class(site)
            lines += group.statements(
                f"{{model}}.generation_config = {config}.from_model_config({{model}}.config)\n",
                model=model.deep_clone(),
            )
        lines += group.statements(
            '{model}.generation_config.cache_implementation = "static"\n', model=model.deep_clone()
        )
        chunk = load.values.get("prefill_chunk_size")
        if chunk is not None and edits.code_of(chunk) not in ("None", "0"):
            _read_on(load, chunk)
            lines += group.statements(
                "{model}.generation_config.prefill_chunk_size = {chunk}\n",
                model=model.deep_clone(),
                chunk=chunk.deep_clone(),
            )
        return lines

    def why(self, load: Load, calls: int) -> str:
        native = load.native.rpartition(".")[2]
        return f"{native} loads the original checkpoint, without an export, and decodes as the old class did"

    def on_call(self, site: Site, group: Group, load: Load, call: cst.Call, method: str) -> Moved:
        seen = site.notes.setdefault("moved", set())
        if call in seen:
            return Moved()
        moved = self._on_forward(site, group, load, call) if not method else None
        if moved is not None:
            return moved
        seen.add(call)
        if method == "reset_generation":
            return self._reset(site, group, call)
        if not method:
            site.mark(
                call,
                "model.forward",
                "a forward call gave the last token alone, or tokens; natively it gives the logits of all",
                "use `generate`, or move its inputs to `model.device` under `torch.no_grad()` and read "
                "`logits[:, -1]`",
            )
            return Moved()
        asks = asked(site, call.args)
        return Moved(todo=tuple(self._on_generate(site, group, load, call, asks)))

    def _on_forward(self, site: Site, group: Group, load: Load, call: cst.Call) -> Moved | None:
        """Move the one forward call that reads a whole prompt, and pick the logits of its last token.

        None where it is a step of a loop, which filled the compiled cache, or has arguments of that loop.
        """
        calls = [self.called(site, use.node) for use in site.flow.uses_of(load.call).uses]
        if sum(found is not None and not named for found, named in calls) > 1:
            return None
        for around in site.ancestors(call):
            if isinstance(around, (cst.For, cst.While, cst.BaseComp)):
                return None
            if isinstance(around, cst.FunctionDef):
                break
        names = [arg.keyword.value if arg.keyword is not None else "" for arg in call.args]
        if names[:1] == [""] and not call.args[0].star:
            names[0] = "input_ids"
        if set(names) != {"input_ids", "position_ids"}:
            return None
        moved = move_call(site, group, call, PREFILL, as_float32=True)
        if moved.refused:
            return None
        todo = f"line {site.positions.span(call).line}: the last token is that of prompts padded on the left"
        return replace(moved, todo=(*moved.todo, todo))

    def _reset(self, site: Site, group: Group, call: cst.Call) -> Moved:
        alone = site.alone(call)
        if alone is None:
            site.mark(
                call,
                "model.reset_generation",
                "`reset_generation` is gone",
                "drop it: `generate` keeps nothing between calls",
            )
        else:
            group.replace_statement(alone)
        return Moved(why="`generate` keeps nothing between calls, so there is nothing to reset")

    def _on_generate(self, site: Site, group: Group, load: Load, call: cst.CSTNode, asks: Asked) -> list[str]:
        """What is to be said of a call of `generate`; what can be written is."""
        low = sorted(LOW_LEVEL & asks.settings.keys())
        if low:
            site.mark(
                call,
                "model.generate",
                f"`{low[0]}` belongs to the old decoding loop",
                LOW_LEVEL[low[0]],
            )
            return []
        era = era_of(site, load)
        ignored = _ignored_processors(site, load, era, asks)
        if isinstance(call, cst.Call):
            gone = [asks.direct[name] for name in ignored if name in asks.direct and site.settings.exact]
            ignored = [name for name in ignored if asks.direct.get(name) not in gone]
            site.notes.setdefault("removed", set()).update(gone)
            for arg in gone:
                load.drop(arg.value)
            args = [*(arg for arg in call.args if arg not in gone), *_speculated(site, load, asks)]
            if args != list(call.args):
                group.replace(call, edits.with_arguments(call, args))
            if era.hlo and era.release >= (0, 0, 18) and asks.samples() and site.settings.exact:
                group.insert(site.statement(call), group.statements("torch.manual_seed(0)\n"))
        todo = _on_processors(ignored)
        if asks.samples():
            load.numerics = Numerics.RANDOM
            todo.append(_on_sampling(era))
        move_together(group, asks)
        if era.hlo:
            limit = load.values.get("sequence_length") or load.values.get("n_positions")
            if limit is not None and not edits.is_literal(limit) and not means_the_same(site, limit, call):
                limit = None
            todo += cap(site, group, asks, limit)
            if limit is not None:
                _read_on(load, limit)
        line = site.positions.span(call).line
        return [*(f"line {line}: {each}" for each in todo), *pad_left(site, group, asks)]

    def on_call_elsewhere(self, site: Site, group: Group, call: cst.Call, name: str, method: str) -> Moved:
        if method == "reset_generation":
            return self._reset(site, group, call)
        if not method:
            return Moved(
                "a forward call gave the last token alone, or tokens; natively it gives the logits of all"
            )
        asks = asked(site, call.args)
        low = sorted(LOW_LEVEL & asks.settings.keys())
        if low:
            return Moved(f"`{low[0]}` belongs to the old decoding loop")
        todo = pad_left(site, group, asks)
        if site.project.legacy_of(site.path).release.release < (0, 2, 0):
            todo += cap(site, group, asks, None)
            if LENGTHS & asks.settings.keys():
                todo.append("generation ended at the `sequence_length` that was compiled in, prompt included")
        if asks.samples():
            todo.append("sampling draws other random numbers than before")
        if asks.processors():
            todo.append(f"`{asks.processors()[0]}` may have been ignored before and acts now")
        return Moved(todo=tuple(todo), why="`generate` takes its inputs from the CPU")

    def on_attribute(
        self, site: Site, group: Group | None, load: Load | None, node: cst.Attribute, todo: list[str]
    ) -> None:
        if node.attr.value == "generate":
            if group is not None and load is not None:
                self._handed_on(site, group, load, node, todo)
            return
        super().on_attribute(site, group, load, node, todo)

    def on_argument(self, site: Site, group: Group, node: cst.BaseExpression, todo: list[str]) -> None:
        arg = site.parent(node)
        name = arg.keyword.value if isinstance(arg, cst.Arg) and arg.keyword is not None else ""
        call = site.parent(arg) if isinstance(arg, cst.Arg) else None
        if name == "assistant_model":
            return
        if isinstance(call, cst.Call) and isinstance(call.func, cst.Name):
            made = [each.node for each in site.names.bindings_at(call.func)]
            if any(isinstance(each, cst.ClassDef) for each in made):
                # Inputs of `generate` stay where they are, so a call that is not seen runs as well.
                line = site.positions.span(call).line
                todo.append(f"line {line}: `{call.func.value}` keeps the model; {self.lost_calls} there")
                return
        super().on_argument(site, group, node, todo)

    def _handed_on(self, site: Site, group: Group, load: Load, node: cst.Attribute, todo: list[str]) -> None:
        """Answer for `generate` as a value: the target of a thread, or of an executor."""
        arg = site.parent(node)
        call = site.parent(arg) if isinstance(arg, cst.Arg) else None
        seen = site.notes.setdefault("moved", set())
        if not isinstance(call, cst.Call) or call in seen:
            return
        seen.add(call)
        given = next((each for each in call.args if each.keyword and each.keyword.value == "kwargs"), None)
        if given is not None:
            asks = asked_by(site, given.value)
        else:
            asks = asked(site, [each for each in call.args if each is not arg])
        todo += self._on_generate(site, group, load, call, asks)


def _speculated(site: Site, load: Load, asks: Asked) -> list[cst.Arg]:
    """How many tokens an assistant proposes, which was compiled in."""
    length = load.values.get("speculation_length")
    if "assistant_model" not in asks.direct or not isinstance(length, cst.Integer) or length.value == "0":
        return []
    if "num_assistant_tokens" in asks.settings:
        return []
    site.keywords.append(("transformers.AutoModelForCausalLM.generate", "num_assistant_tokens"))
    return [edits.keyword("num_assistant_tokens", length.deep_clone())]


def _ignored_processors(site: Site, load: Load, era: Era, asks: Asked) -> list[str]:
    """The keywords of logits processors that sampling on the device left out."""
    if era.hlo:
        return []
    given = load.values.get("on_device_sampling")
    on_device = edits.code_of(given) == "True" if given is not None else _spelled(site, load) != "constructor"
    return asks.processors() if on_device else []


def _on_processors(names: list[str]) -> list[str]:
    """Say which logits processors act now."""
    if not names:
        return []
    said = ", ".join(f"`{name}`" for name in names)
    was, act = ("was", "acts") if len(names) == 1 else ("were", "act")
    return [
        f"{said} {was} ignored by sampling on the device and {act} now; without it the old text comes back"
    ]


def _on_sampling(era: Era) -> str:
    if not era.hlo:
        return (
            "sampling drew on the device, without torch's seed, from 256 tokens at most; now it is torch's "
            "own, and `top_p` keeps one token more"
        )
    if era.release < (0, 0, 18):
        return "sampling draws other random numbers than before"
    return (
        "sampling started from seed 0 at each call; for texts that repeat, call `torch.manual_seed(0)` before"
    )


def _target(site: Site, call: cst.Call) -> tuple[cst.BaseExpression | None, cst.BaseSmallStatement | None]:
    """The name or attribute that a load is assigned to, and the statement that does it."""
    parent = site.parent(call)
    if isinstance(parent, cst.AnnAssign) and parent.value is call and dotted_name(parent.target):
        return parent.target, parent
    if isinstance(parent, cst.Assign):
        named = [each.target for each in parent.targets if dotted_name(each.target)]
        return (named[0], parent) if named else (None, None)
    if isinstance(parent, cst.Element):
        row = site.parent(parent)
        assign = site.parent(row) if isinstance(row, cst.Tuple) else None
        if isinstance(assign, cst.Assign) and isinstance(row, cst.Tuple) and len(assign.targets) == 1:
            target = assign.targets[0].target
            index = row.elements.index(parent)
            if isinstance(target, cst.Tuple) and len(target.elements) == len(row.elements):
                each = target.elements[index].value
                if isinstance(target.elements[index], cst.Element) and dotted_name(each):
                    return each, assign
    return None, None


def _statement_of(site: Site, call: cst.Call) -> cst.BaseSmallStatement | None:
    """The small statement that runs a load whenever it runs itself; None if there is none."""
    for around in site.ancestors(call):
        if isinstance(around, cst.BaseSmallStatement):
            return around
        if isinstance(around, _CONDITIONAL):
            return None
    return None


_CONDITIONAL = (
    cst.Await,
    cst.BaseComp,
    cst.BaseCompoundStatement,
    cst.BooleanOperation,
    cst.IfExp,
    cst.Lambda,
)
"""What does not run an expression below it exactly once, where a statement could be put before it."""


class Embeddings(_Compiled):
    """Models that give the hidden state of the last token (modeling_decoder.py of 0.4.5)."""

    suits_both = False
    suits_pipelines = False

    def why(self, load: Load, calls: int) -> str:
        why = "AutoModel loads the original checkpoint, without an export"
        return f"{why}; the last token is picked at its calls" if calls else why

    def written(self, site: Site, group: Group, load: Load) -> cst.BaseExpression:
        model = super().written(site, group, load)
        if not self._is_shared(site, load):
            return model
        load.todo.append("it is a function of the inputs, as its calls may be those of something else")
        helper = group.helper("last_token_states", _LAST_TOKEN)
        return group.expression("functools.partial({helper}, {model})", helper=helper, model=model)

    def on_call(self, site: Site, group: Group, load: Load, call: cst.Call, method: str) -> Moved:
        if self._is_shared(site, load):
            return Moved(why="the state of the last token is picked by what it calls")
        return self._pick(site, group, call)

    def _is_shared(self, site: Site, load: Load) -> bool:
        """Whether a call may be of something else, and the object is called and nothing more."""
        certain = True
        for use in site.flow.uses_of(load.call).uses:
            call, _ = self.called(site, use.node)
            if call is None and use.kind not in (UseKind.BOUND, UseKind.DISCARDED, UseKind.HANDED_ON):
                return False
            if call is not None:
                if model_of(call) is not call.func:
                    return False
                makers = site.flow.origin_of(model_of(call))
                certain = certain and makers.certain and all(map(self._made, makers.producers))
        return not certain

    def _made(self, producer: Producer) -> bool:
        return self.is_maker(producer.name)

    def on_call_elsewhere(self, site: Site, group: Group, call: cst.Call, name: str, method: str) -> Moved:
        return self._pick(site, group, call)

    def _pick(self, site: Site, group: Group, call: cst.Call) -> Moved:
        seen = site.notes.setdefault("moved", set())
        if call in seen:
            return Moved()
        seen.add(call)
        makers = site.flow.origin_of(model_of(call))
        if not makers.certain or not all(map(self._made, makers.producers)):
            return Moved("it may call something else than this model as well")
        for arg in call.args:
            name = arg.keyword.value if arg.keyword is not None else ""
            if arg.star == "*" or (name and name not in ("attention_mask", "input_ids")):
                return Moved(f"`{edits.short(arg)}` is nothing that picks the last token")
        if not any(each.star for each in call.args) and len(call.args) < 2:
            return Moved("the mask is missing, which says where each text ends")
        helper = group.helper("last_token_states", _LAST_TOKEN)
        first = cst.Arg(model_of(call))
        group.replace(call, edits.with_arguments(call.with_changes(func=helper), [first, *call.args]))
        return Moved(why="the state of the last token is picked")


_LAST_TOKEN = '''\
def {name}(model, input_ids, attention_mask):
    """Give the hidden state of each text's last token on the CPU, of shape (batch, 1, hidden)."""
    device = model.device
    with torch.no_grad():
        states = model(
            input_ids=input_ids.to(device), attention_mask=attention_mask.to(device)
        ).last_hidden_state.cpu()
    last = attention_mask.cpu().sum(1) - 1
    return states[torch.arange(len(states)), last].unsqueeze(1)
'''

CLASSES = _decoder_classes()
decoders = Decoders(codemod, CLASSES, LOADED)
embeddings = Embeddings(codemod, EMBEDDINGS, LOADED)
codemod.uses(CONFIGS)(decoders.decide)
codemod.tables += [ASKED, CONSTRUCTED]
