"""Diffusion pipelines of Optimum Neuron, such as `NeuronStableDiffusionXLPipeline`.

The native device needs no export: the pipeline of Diffusers loads the original checkpoint, with a dtype,
and `.to("neuron")` places it. What was baked in at compile time is written where it belongs now. The size
of the images stands in the calls, which used to be overruled by the compiled size; the images of an
image-to-image call are brought to that size by the pipeline's own image processor; LoRA weights and
IP-adapters are loaded by statements before the pipeline moves; a U-Net or ControlNet of its own is loaded
with the pipeline. Prompts, PIL images and CPU generators stay as they are. A load of a compiled folder,
arguments that cannot be seen, and calls that the compiled size cannot be written into are marked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import libcst as cst
from packaging.version import Version

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.edits import Statement
from neuronmigrate.loads.arguments import (
    CAST,
    COMPILER,
    EXPORT,
    FOLDERS,
    HUB,
    PLACES,
    RENAMED,
    Given,
    Load,
    Table,
    constant,
    instance_type,
    only_binding,
    text_of,
    written_out,
)
from neuronmigrate.loads.dtypes import settle_cast
from neuronmigrate.loads.family import GONE_ATTRIBUTES, Family, is_annotation, is_isinstance
from neuronmigrate.loads.sources import Saved, is_export, settle_source
from neuronmigrate.moving import Moved, model_of
from neuronmigrate.names import dotted_name
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)


@dataclass(frozen=True)
class Pipeline:
    """What is particular about a pipeline class of Diffusers (0.42)."""

    leading: int
    """How many positional arguments of a call mean the same in every legacy release and natively."""
    image: int | None = None
    """The position of `image` where a call takes no size and the image decides about it."""
    guided: bool = False
    """Whether the legacy class decided by itself if classifier-free guidance runs."""
    checked: bool = False
    """Whether repositories may bring a safety checker, which legacy classes never loaded."""
    lora: bool = True
    controlnet: bool = False
    prompt_length: bool = False
    """Whether the compiled text length overruled `max_sequence_length`."""


# `Neuron...` and the pipeline that takes its place (optimum-neuron 0.0.8 to 0.4.5).
PIPELINES = {
    "FluxInpaintPipeline": Pipeline(2),
    "FluxKontextPipeline": Pipeline(2),
    "FluxPipeline": Pipeline(2),
    "LatentConsistencyModelPipeline": Pipeline(1, checked=True),
    "PixArtAlphaPipeline": Pipeline(3, lora=False, prompt_length=True),
    "PixArtSigmaPipeline": Pipeline(3, lora=False, prompt_length=True),
    "StableDiffusionControlNetPipeline": Pipeline(2, guided=True, checked=True, controlnet=True),
    "StableDiffusionImg2ImgPipeline": Pipeline(4, image=1, guided=True, checked=True),
    "StableDiffusionInpaintPipeline": Pipeline(3, guided=True, checked=True),
    "StableDiffusionInstructPix2PixPipeline": Pipeline(4, image=1, guided=True, checked=True),
    "StableDiffusionPipeline": Pipeline(1, guided=True, checked=True),
    "StableDiffusionXLControlNetPipeline": Pipeline(3, guided=True, controlnet=True),
    "StableDiffusionXLImg2ImgPipeline": Pipeline(4, image=2, guided=True),
    "StableDiffusionXLInpaintPipeline": Pipeline(4, guided=True),
    "StableDiffusionXLPipeline": Pipeline(2, guided=True),
}
MODULES = ("optimum.neuron", "optimum.neuron.modeling_diffusion")
CLASSES = {f"{module}.Neuron{name}": f"diffusers.{name}" for module in MODULES for name in PIPELINES}

# Parts and bases of the wrapper, and what an instance of them is natively.
PARTS = {
    "optimum.neuron.NeuronDiffusionPipelineBase": "diffusers.DiffusionPipeline",
    "optimum.neuron.NeuronStableDiffusionPipelineBase": "diffusers.DiffusionPipeline",
    **{
        f"optimum.neuron.modeling_diffusion.{name}": native
        for name, native in {
            "NeuronControlNetModel": "diffusers.ControlNetModel",
            "NeuronDiffusionPipelineBase": "diffusers.DiffusionPipeline",
            "NeuronModelImageEncoder": "transformers.PreTrainedModel",
            "NeuronModelTextEncoder": "transformers.PreTrainedModel",
            "NeuronModelTransformer": "diffusers.ModelMixin",
            "NeuronModelUnet": "diffusers.UNet2DConditionModel",
            "NeuronModelVae": "diffusers.AutoencoderKL",
            "NeuronModelVaeDecoder": "diffusers.AutoencoderKL",
            "NeuronModelVaeEncoder": "diffusers.AutoencoderKL",
            "NeuronMultiControlNetModel": "diffusers.MultiControlNetModel",
            "NeuronStableDiffusionPipelineBase": "diffusers.DiffusionPipeline",
            "NeuronStableDiffusionXLPipelineBase": "diffusers.DiffusionPipeline",
        }.items()
    },
}

# Keywords of a call that the compiled graph never got to see.
_UNSEEN = {
    "cross_attention_kwargs": "`cross_attention_kwargs` was ignored before, and left out now",
    "guess_mode": "`guess_mode` was ignored before, and left out now",
}
_CALLBACKS = "`callback` gets latents on the device; Diffusers wants `callback_on_step_end` instead"
_LATENTS = "`latents` have to be of the pipeline's dtype now: `.to(pipe.dtype)`"
_ON_DEVICE = "its tensors are on the device now: `.cpu()` before numpy, PIL or CPU tensors"
_MOVING_METHODS = ("encode_image", "encode_prompt", "prepare_ip_adapter_image_embeds", "prepare_latents")
_LCM = ("lcm", "latent-consistency")
_ONES = ("1", "None")


# Arguments.


def _keep(site: Site, load: Load, given: Given) -> None:
    """Keep a value for a place outside of the load: as it is written, wherever the names mean the same."""
    inline = edits.code_of(given.seen) == edits.code_of(given.arg.value)
    load.values[given.name] = given.seen if inline else given.arg.value


def _placement(site: Site, load: Load, given: Given) -> None:
    value = constant(site, given.seen)
    load.values[given.name] = value
    load.drop(given.seen)
    if edits.code_of(value) not in ("None", "'none'", '"none"', "[0]"):
        load.todo.append(
            f"`{given.name}={edits.short(value)}` put copies on several cores: one process drives one core now"
        )


def _component(site: Site, load: Load, given: Given) -> None:
    load.args.append(given.arg)
    if edits.code_of(given.seen) != "None":
        load.todo.append(f"`{given.name}` has to be a module of Diffusers or Transformers, not a compiled one")


def _subfolder(site: Site, load: Load, given: Given) -> None:
    load.drop(given.seen)
    if text_of(constant(site, given.seen)) or not isinstance(constant(site, given.seen), cst.SimpleString):
        load.refuse("pipelines of Diffusers are not loaded from a subfolder: give the folder itself")


_VAE = "the VAE is one module natively: pass `vae=` with an `AutoencoderKL`"
_IP_ADAPTER = ("id", "subfolder", "weight_name", "scale")
_FILES = frozenset(
    f"{part}_{what}"
    for part in ("text_encoder", "text_encoder_2", "unet", "transformer", "vae_encoder", "vae_decoder")
    for what in ("file_name", "path")
) | {"controlnet_file_name", "controlnet_paths", "image_encoder_file_name", "image_encoder_path"}
TABLE = Table(
    kept=(HUB - {"config", "subfolder"})
    | {"add_watermarker", "feature_extractor", "force_zeros_for_empty_prompt"}
    | {"requires_aesthetics_score", "scheduler", "tokenizer", "tokenizer_2"},
    renamed=RENAMED,
    consumed=EXPORT | CAST | {"dynamic_batch_size"},
    dropped=(COMPILER - {"dynamic_batch_size"})
    | PLACES
    | _FILES
    | {"batch_size", "num_image_per_prompt", "num_images_per_prompt"}
    | {"output_attentions", "output_hidden_states"},
    folders=FOLDERS,
    refused={
        "config": "a pipeline of Diffusers reads its own configuration",
        "vae_decoder": _VAE,
        "vae_encoder": _VAE,
    },
    special={
        **dict.fromkeys(("height", "width", "sequence_length", "tensor_parallel_size"), _keep),
        **dict.fromkeys(("unet_id", "controlnet_ids"), _keep),
        **dict.fromkeys(("lora_model_ids", "lora_weight_names", "lora_adapter_names", "lora_scales"), _keep),
        **{f"ip_adapter_{name}{plural}": _keep for name in _IP_ADAPTER for plural in ("", "s")},
        **dict.fromkeys(("data_parallel_mode", "device_ids"), _placement),
        **dict.fromkeys(("controlnet", "image_encoder", "safety_checker"), _component),
        **dict.fromkeys(("text_encoder", "text_encoder_2", "transformer", "unet"), _component),
        "instance_type": instance_type,
        "subfolder": _subfolder,
    },
)


class _Refused(Exception):
    """A call cannot be rewritten. Its text says why."""


class Pipelines(Family):
    """Pipelines: sizes move into calls, adapters into statements, and nothing else is moved."""

    base = "diffusers.DiffusionPipeline"
    lost_calls = "its calls need the compiled size, as `height=` and `width=`"
    gone: Mapping[str, str] = {
        **GONE_ATTRIBUTES,
        "configs": "each component has its own `config`",
        "data_parallel_mode": "one process drives one core",
        "dynamic_batch_size": "any number of prompts and images runs",
        "is_lcm": "look at the class of `pipe.scheduler`",
        "model_and_config_save_paths": "there is no folder of compiled files",
        "neuron_configs": "nothing is compiled, so there are no compiled shapes to read",
        "num_images_per_prompt": "any number of images runs",
        "vae_decoder": "the VAE is one module: `pipe.vae.decode(latents).sample`",
        "vae_encoder": "the VAE is one module: `pipe.vae.encode(image).latent_dist`",
    }

    def __init__(self, codemod: Codemod, classes: Mapping[str, str], table: Table) -> None:
        super().__init__(codemod, classes, table)
        self.written_calls: WeakKeyDictionary[Site, dict[cst.Call, str]] = WeakKeyDictionary()
        """Calls that are rewritten already, and what became of them, by file."""

    # Loads.

    def settle(self, site: Site, load: Load, saved: Saved) -> None:
        settle_source(load, saved)
        if load.refused:
            return
        if not is_export(load):
            _take_over(site, load, saved)
        _settle_dtype(site, load)
        _settle_guidance(site, load)
        _settle_parts(site, load)
        what = PIPELINES[_short(load)]
        if what.checked and not load.given & {"safety_checker"}:
            load.todo.append(
                "a safety checker, never loaded before, runs now if the repository has one "
                "(`safety_checker=None` leaves it out)"
            )
        if _loaders(site, load) and _place(site, load) is None:
            load.refuse("adapters are loaded by statements of their own: give the pipeline a name first")

    def written(self, site: Site, group: Group, load: Load) -> cst.BaseExpression:
        args = [*load.args, *_components(site, group, load), edits.keyword("dtype", _dtype(group, load))]
        site.keywords += [(f"{load.native}.from_pretrained", arg.keyword.value) for arg in args if arg.keyword]
        call = edits.with_arguments(load.call, args)
        if _loaders(site, load):
            return call
        return edits.expression('{pipe}.to("neuron")', pipe=call)

    def finish(self, site: Site, group: Group, load: Load) -> None:
        loaders, place = _loaders(site, load), _place(site, load)
        if not loaders or place is None:
            return
        pipe = group.fresh("pipe") if isinstance(place, cst.Return) else place
        new: list[Statement] = []
        for each in loaders:
            new += group.statements(each.template, pipe=pipe.deep_clone(), **each.holes)
            method = each.template.removeprefix("{pipe}.").partition("(")[0]
            site.keywords += [(f"{load.native}.{method}", keyword) for keyword in each.keywords]
        if isinstance(place, cst.Return):
            made = group.statements("{pipe} = {load}\n", pipe=pipe, load=load.call)
            back = group.statements('return {pipe}.to("neuron")\n', pipe=pipe.deep_clone())
            group.replace_statement(place, [*made, *new, *back])
            return
        new += group.statements('{pipe}.to("neuron")\n', pipe=pipe.deep_clone())
        small = next(each for each in site.ancestors(load.call) if isinstance(each, cst.BaseSmallStatement))
        line = site.statement(small)
        if isinstance(line, cst.SimpleStatementLine) and list(line.body) == [small]:
            group.insert(line, new, before=False)
        else:
            alone = small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
            group.replace_statement(small, [cst.SimpleStatementLine(body=[alone]), *new])

    def why(self, load: Load, calls: int) -> str:
        why = f"{_short(load)} loads the original checkpoint, without an export, and moves to the device"
        return f"{why}; its calls say the size" if calls and _source(load).values.get("height") else why

    def by_hand(self, load: Load) -> str:
        return (
            f'by hand: `{_short(load)}.from_pretrained(original id, dtype=torch.bfloat16).to("neuron")`, '
            "and in its calls the size it was compiled for"
        )

    def advice(self, use: Use) -> str:
        native = self.classes[use.claim].rpartition(".")[2]
        return f'use `{native}`, move it with `.to("neuron")`, and pass the compiled size to its calls'

    def decide(self, site: Site, use: Use) -> None:
        if self.is_load(use):
            super().decide(site, use)
        elif not _as_type(site, use, self.classes[use.claim]):
            super().decide(site, use)

    def on_attribute(self, site: Site, node: cst.Attribute, todo: list[str]) -> None:
        parent = site.parent(node)
        line = site.positions.span(node).line
        told = site.notes.setdefault("told", set())
        if node.attr.value == "to" and isinstance(parent, cst.Call):
            if node not in told:
                told.add(node)
                site.mark(
                    parent,
                    "pipe.to",
                    f"`{edits.short(parent)}` did nothing before and moves the pipeline now",
                    'drop it: the pipeline is on the device by `.to("neuron")`',
                )
        elif node.attr.value in _MOVING_METHODS:
            todo.append(f"line {line}: `{edits.short(node)}` computes on the device: {_ON_DEVICE}")
        elif node.attr.value in ("image_encoder", "text_encoder", "text_encoder_2", "transformer", "unet"):
            todo.append(f"line {line}: `{edits.short(node)}` is on the device, and wants its inputs there")
        else:
            super().on_attribute(site, node, todo)

    # Calls.

    def on_call(self, site: Site, group: Group, load: Load, call: cst.Call, method: str) -> Moved:
        rewrite = _CallRewrite(site, load, call)
        try:
            rewrite.run(group)
        except _Refused as refused:
            return Moved(str(refused))
        text = edits.code_of(rewrite.result)
        before = self.written_calls.setdefault(site, {}).setdefault(call, text)
        if before != text:
            return Moved("pipelines that were compiled for other sizes are called here as well")
        moved = site.notes.setdefault("moved", set())
        if call not in moved:
            moved.add(call)
            if rewrite.changed:
                group.replace(call, rewrite.result)
                site.keywords += [(f"{load.native}.__call__", name) for name in rewrite.keywords]
        return Moved(todo=tuple(rewrite.todo), why="the compiled size is written into its calls")

    def on_call_elsewhere(self, site: Site, group: Group, call: cst.Call, name: str, method: str) -> Moved:
        return Moved("the size that the pipeline was compiled for is not known here: pass it to this call")


def _short(load: Load) -> str:
    return load.native.rpartition(".")[2]


def _source(load: Load) -> Load:
    """The load whose arguments say what was compiled."""
    return load.compiled_by or load


def _take_over(site: Site, load: Load, saved: Saved) -> None:
    """Let a load of a folder that this file wrote mean what was exported into it."""
    model = load.values["model_id"]
    made = saved.loads_of(model)
    if len(made) != 1:
        load.refuse(f"what `{edits.short(model)}` was compiled for cannot be seen from here")
        return
    source = load.compiled_by = made[0]
    load.dtype = load.dtype or source.dtype
    for name in ("auto_cast", "auto_cast_type", "dtype"):
        if name in source.values:
            load.values.setdefault(name, source.values[name])
    for arg in source.args:
        if arg.keyword is None or arg.keyword.value in (*load.given, "pretrained_model_name_or_path"):
            continue
        if not edits.is_literal(arg.value):
            line = site.positions.span(source.call).line
            load.todo.append(f"`{edits.short(arg)}` of line {line} belongs here as well")
        else:
            load.args.append(arg.deep_clone())
            load.given.add(arg.keyword.value)


def _release(site: Site) -> Version:
    return site.project.legacy_of(site.path).release


def _settle_dtype(site: Site, load: Load) -> None:
    """Work out the dtype: of `torch_dtype`, else of `auto_cast`, by default bf16 matmuls from 0.0.10 on.

    (`_export` in modeling_diffusion.py of optimum-neuron; inference-by-release section 2.)
    """
    if load.dtype is not None:
        text = text_of(constant(site, load.values["dtype"]))
        if text == "auto":
            load.dtype, load.cast = None, "torch.bfloat16"
            load.todo.append('"auto" meant the dtype of each component; now all of them are bfloat16')
        elif text:
            # Diffusers takes no names: it would load float32 and only warn.
            load.dtype, load.cast = None, f"torch.{text}"
        return
    cast = load.values.get("auto_cast")
    if cast is None and _release(site) < Version("0.0.10"):
        return
    load.values.setdefault("auto_cast", edits.string("matmul"))
    unknown = [
        f"{name}={edits.short(load.values[name])}"
        for name in ("auto_cast", "auto_cast_type")
        if name in load.values and not edits.is_literal(load.values[name])
    ]
    if unknown:
        load.cast, load.numerics = "torch.bfloat16", Numerics.DTYPE
        load.todo.append(f"`{', '.join(unknown)}` was decided at run time; bfloat16 is written as the dtype")
        return
    settle_cast(site, load)


def _dtype(group: Group, load: Load) -> cst.BaseExpression:
    return load.dtype.deep_clone() if load.dtype is not None else group.expression(load.cast)


def _settle_guidance(site: Site, load: Load) -> None:
    """Work out whether classifier-free guidance never ran, whatever a call said.

    It ran if the batch was dynamic, or if the U-Net was on two cores (`do_classifier_free_guidance` in
    modeling_diffusion.py and pipelines/diffusers/*.py; inference-by-release section 0 F). From 0.3.0 on
    the mode that a user gave was not used.
    """
    if not PIPELINES[_short(load)].guided:
        return
    source = _source(load)
    release = _release(site)
    if edits.code_of(source.values.get("dynamic_batch_size") or cst.Name("False")) == "True":
        return
    mode = load.values.get("data_parallel_mode") or source.values.get("data_parallel_mode")
    ids = load.values.get("device_ids") or source.values.get("device_ids")
    if mode is not None and edits.code_of(mode) != "None":
        text = text_of(mode)
        off = text in ("none", "all") or not edits.is_literal(mode)
        if off and release >= Version("0.3.0"):
            if site.project.legacy_of(site.path).assumed:
                load.todo.append(
                    f"before release 0.3.0 `data_parallel_mode={edits.short(mode)}` turned guidance off: "
                    "`guidance_scale=1.0` in the calls if this was written for one of those"
                )
        elif text in ("none", "all"):
            load.values["guidance_scale"] = cst.Float("1.0")
        elif off:
            load.todo.append(
                f"where `{edits.short(mode)}` is none or all, guidance was off: `guidance_scale=1.0` then"
            )
    elif Version("0.0.9") <= release <= Version("0.0.14"):
        count = len(ids.elements) if isinstance(ids, (cst.List, cst.Tuple)) else None
        if (ids is None and release == Version("0.0.9")) or (count is not None and count != 2):
            load.values["guidance_scale"] = cst.Float("1.0")


def _settle_parts(site: Site, load: Load) -> None:
    """Refuse what was compiled in and has no place natively, or cannot be seen."""
    values, what, name = _source(load).values, PIPELINES[_short(load)], _short(load)
    size = values.get("tensor_parallel_size")
    if size is not None and edits.code_of(constant(site, size)) not in _ONES:
        load.refuse(
            f"`tensor_parallel_size={edits.short(size)}` needs a process for each core: load the transformer "
            "with `parallel_config=TensorParallelConfig(tp_degree=...)` under torchrun"
            if name.startswith("Flux")
            else f"{name} has no tensor-parallel plan natively, so `tensor_parallel_size` has no counterpart"
        )
    adapters = [each for each in values if each.startswith("lora_")]
    if "controlnet_ids" in values and not what.controlnet:
        load.refuse(f"{name} takes no ControlNet: load the ControlNet pipeline of the same family instead")
    for each in [*adapters, "controlnet_ids"]:
        if each in values and _items(site, values[each]) is None:
            load.refuse(f"whether `{each}={edits.short(values[each])}` is one or several cannot be seen from here")
    if not what.lora and adapters:
        load.refuse(f"{name} takes no LoRA weights natively")
    if "lora_model_ids" in values and "lora_weight_names" not in values:
        load.todo.append("LoRA weights were not loaded without `lora_weight_names`; now they are")


# What is loaded beside the pipeline.


@dataclass(frozen=True)
class _Loader:
    """A statement that loads or sets something in a pipeline: a template with its holes and keywords."""

    template: str
    holes: Mapping[str, cst.BaseExpression] = field(default_factory=dict)
    keywords: tuple[str, ...] = ()


def _items(site: Site, value: cst.BaseExpression) -> list[cst.BaseExpression] | None:
    """The items of a list that is written out, or the one thing; None when it cannot be told which."""
    seen = value
    if isinstance(value, cst.Name):
        binding = only_binding(site, value)
        if binding is None or binding.value is None:
            return None
        seen = binding.value
    if isinstance(seen, (cst.List, cst.Tuple)):
        items = [each.value for each in seen.elements if isinstance(each, cst.Element)]
        whole = len(items) == len(seen.elements)
        far = seen is not value and not all(edits.is_literal(each) for each in items)
        return items if whole and not far else None
    if isinstance(seen, (cst.SimpleString, cst.FormattedString, cst.Float, cst.Integer)):
        return [value]
    return None


def _loaders(site: Site, load: Load) -> list[_Loader]:
    """The statements that a pipeline needs after its load, in their order."""
    values = _source(load).values
    return [*_lora(site, values), *_ip_adapter(values), *_lcm_scheduler(site, load, values)]


def _lora(site: Site, values: Mapping[str, cst.BaseExpression]) -> Iterator[_Loader]:
    """LoRA weights, fused as `_load_lora_weights_to_pipeline` did (exporters/neuron/utils.py)."""
    given = {
        name: _items(site, values[f"lora_{name}"]) or []
        for name in ("model_ids", "weight_names", "adapter_names", "scales")
        if f"lora_{name}" in values
    }
    ids, scales = given.get("model_ids", []), given.get("scales", [])
    if not ids:
        return
    several = len(ids) > 1
    for number, each in enumerate(ids):
        holes = {"id": each.deep_clone()}
        template = "{pipe}.load_lora_weights({id}"
        keywords = [("weight_name", "weight_names"), ("adapter_name", "adapter_names")]
        for keyword, name in keywords[: 2 if several else 1]:
            if number < len(given.get(name, [])):
                holes[keyword] = given[name][number].deep_clone()
                template += f", {keyword}={{{keyword}}}"
        taken = tuple(name for name in holes if name != "id")
        yield _Loader(template + ")\n", holes, taken)
    if several and scales and "adapter_names" in given:
        names = cst.List([cst.Element(each.deep_clone()) for each in given["adapter_names"]])
        weights = cst.List([cst.Element(each.deep_clone()) for each in scales])
        yield _Loader(
            "{pipe}.set_adapters({names}, adapter_weights={weights})\n",
            {"names": names, "weights": weights},
            ("adapter_weights",),
        )
    if scales and not several:
        yield _Loader(
            "{pipe}.fuse_lora(lora_scale={scale})\n", {"scale": scales[0].deep_clone()}, ("lora_scale",)
        )
    else:
        yield _Loader("{pipe}.fuse_lora()\n")


def _ip_adapter(values: Mapping[str, cst.BaseExpression]) -> Iterator[_Loader]:
    given = {
        name: values.get(f"ip_adapter_{name}") or values.get(f"ip_adapter_{name}s") for name in _IP_ADAPTER
    }
    found = {name: value.deep_clone() for name, value in given.items() if value is not None}
    if "id" not in found:
        return
    holes = {"id": found["id"], "subfolder": found.get("subfolder", cst.Name("None"))}
    template = "{pipe}.load_ip_adapter({id}, subfolder={subfolder}"
    if "weight_name" in found:
        holes["weight_name"] = found["weight_name"]
        template += ", weight_name={weight_name}"
    yield _Loader(template + ")\n", holes, tuple(name for name in holes if name != "id"))
    if "scale" in found:
        yield _Loader("{pipe}.set_ip_adapter_scale({scale})\n", {"scale": found["scale"]})


def _lcm_scheduler(site: Site, load: Load, values: Mapping[str, cst.BaseExpression]) -> Iterator[_Loader]:
    """The scheduler that a U-Net of that kind got (`is_lcm` in modeling_diffusion.py)."""
    unet = values.get("unet_id")
    if unet is None:
        return
    if any(each in edits.code_of(constant(site, unet)).lower() for each in _LCM):
        template = "{pipe}.scheduler = diffusers.LCMScheduler.from_config({pipe}.scheduler.config)\n"
        yield _Loader(template)


def _components(site: Site, group: Group, load: Load) -> list[cst.Arg]:
    """The U-Net and the ControlNets, as arguments of the pipeline's load."""
    values = _source(load).values
    args = []

    def loaded(template: str, value: cst.BaseExpression) -> cst.BaseExpression:
        site.keywords.append((template, "dtype"))
        return group.expression(
            f"{template}({{id}}, dtype={{dtype}})", id=value.deep_clone(), dtype=_dtype(group, load)
        )

    if "unet_id" in values:
        args.append(
            edits.keyword("unet", loaded("diffusers.UNet2DConditionModel.from_pretrained", values["unet_id"]))
        )
    items = _items(site, values["controlnet_ids"]) if "controlnet_ids" in values else None
    if items:
        models = [loaded("diffusers.ControlNetModel.from_pretrained", each) for each in items]
        whole = models[0] if len(models) == 1 else cst.List([cst.Element(each) for each in models])
        args.append(edits.keyword("controlnet", whole))
    return args


def _place(site: Site, load: Load) -> cst.BaseExpression | cst.Return | None:
    """The name that a load gives its pipeline, or the `return` it stands in; None for any other place."""
    parent = site.parent(load.call)
    if isinstance(parent, cst.Return):
        return parent
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        target = parent.targets[0].target
        return target if dotted_name(target) else None
    if isinstance(parent, cst.AnnAssign):
        return parent.target if dotted_name(parent.target) else None
    return None


# Calls.


class _CallRewrite:
    """What becomes of one call of a pipeline."""

    def __init__(self, site: Site, load: Load, call: cst.Call) -> None:
        self.site = site
        self.load = load
        self.call = call
        self.what = PIPELINES[_short(load)]
        self.line = site.positions.span(call).line
        self.args = list(call.args)
        self.keywords: list[str] = []
        """Keywords that are put in."""
        self.todo: list[str] = []
        self.changed = False

    @property
    def result(self) -> cst.Call:
        return edits.with_arguments(self.call, self.args) if self.changed else self.call

    def run(self, group: Group) -> None:
        """Work out the new arguments. Raises _Refused."""
        self._check_positions()
        size = {name: self._compiled(name) for name in ("height", "width")}
        if self.what.image is None:
            for name, value in size.items():
                self._overrule(name, value, f"`{name}=` was ignored before, and the compiled one is written")
        else:
            self._resize(group, size)
        if self.what.prompt_length:
            length = "max_sequence_length"
            self._overrule(length, self._compiled("sequence_length"), f"`{length}=` was ignored before")
        self._guidance()
        self._leave_out()
        self._look()

    def _check_positions(self) -> None:
        count = 0
        for arg in self.args:
            if arg.star == "*":
                raise _Refused(f"its arguments come as `*{edits.short(arg.value)}`")
            count += not arg.star and arg.keyword is None
        if count > self.what.leading:
            raise _Refused("its positional arguments mean others natively: pass them by keyword")

    def _compiled(self, name: str) -> cst.BaseExpression | None:
        """What a shape was compiled as, as it can be written in this call. Raises _Refused."""
        source = _source(self.load)
        value = source.values.get(name)
        if value is None or edits.code_of(value) == "None":
            return None
        found = _value_at(self.site, value, source.call, self.call)
        if found is None:
            raise _Refused(f"the compiled `{name}={edits.short(value)}` is not known there: pass it to this call")
        return found

    def _overrule(self, name: str, value: cst.BaseExpression | None, said: str) -> None:
        """Let a call say a value that overruled what it said before."""
        if value is None:
            return
        given = self._keyword(name)
        if given is not None:
            if edits.code_of(given.value) != edits.code_of(value):
                self._replace(given, given.with_changes(value=value))
                self.todo.append(f"line {self.line}: {said}")
            return
        for arg in [arg for arg in self.args if arg.star == "**"]:
            known = written_out(self.site, arg.value)
            if known is not None and name not in known:
                continue
            if known is not None and edits.code_of(known[name]) == edits.code_of(value):
                return
            self._enter(arg, name, value)
            if known is not None:
                self.todo.append(f"line {self.line}: {said}")
            return
        self.args.append(edits.keyword(name, value))
        self.keywords.append(name)
        self.changed = True

    def _enter(self, arg: cst.Arg, name: str, value: cst.BaseExpression) -> None:
        """Let an entry of a dictionary that is spread have another value."""
        entry = cst.DictElement(edits.string(name), value)
        if isinstance(arg.value, cst.Dict):
            kept = [each for each in arg.value.elements if _key_of(each) != name]
            new = arg.value.with_changes(elements=[*kept, entry])
        else:
            new = cst.Dict([cst.StarredDictElement(arg.value), entry])
        self._replace(arg, arg.with_changes(value=new))

    def _keyword(self, name: str) -> cst.Arg | None:
        return next((arg for arg in self.args if arg.keyword and arg.keyword.value == name), None)

    def _replace(self, old: cst.Arg, new: cst.Arg) -> None:
        self.args[self.args.index(old)] = new
        self.changed = True

    def _drop(self, arg: cst.Arg) -> None:
        self.args.remove(arg)
        self.changed = True

    def _resize(self, group: Group, size: Mapping[str, cst.BaseExpression | None]) -> None:
        """Bring the image to the compiled size as the legacy class did: with the pipeline's own processor."""
        for name in size:
            given = self._keyword(name)
            if given is not None:
                self._drop(given)
                self.todo.append(f"line {self.line}: `{name}=` was ignored before, and no such pipeline takes it")
        height, width = size["height"], size["width"]
        if height is None or width is None:
            return
        image = self._keyword("image")
        plain = [arg for arg in self.args if not arg.star and arg.keyword is None]
        if image is None and self.what.image is not None and len(plain) > self.what.image:
            image = plain[self.what.image]
        if image is not None:
            self._replace(image, image.with_changes(value=self._resized(image.value, height, width)))
            return
        for arg in [arg for arg in self.args if arg.star == "**"]:
            known = written_out(self.site, arg.value)
            if known is None:
                raise _Refused(
                    f"whether `**{edits.short(arg.value)}` holds an image, which was resized, cannot be seen"
                )
            if "image" in known:
                read = cst.Subscript(arg.value, [cst.SubscriptElement(cst.Index(edits.string("image")))])
                inside = known["image"] if isinstance(arg.value, cst.Dict) else read
                self._enter(arg, "image", self._resized(inside, height, width))
                return

    def _resized(
        self, image: cst.BaseExpression, height: cst.BaseExpression, width: cst.BaseExpression
    ) -> cst.BaseExpression:
        if edits.is_literal(image) or self._has_size(image, height, width):
            return image
        pipe = model_of(self.call)
        if not dotted_name(pipe):
            raise _Refused("the pipeline has no name here of which its image processor could be asked")
        return edits.expression(
            "{pipe}.image_processor.preprocess({image}, height={height}, width={width})",
            pipe=pipe.deep_clone(),
            image=image,
            height=height,
            width=width,
        )

    def _has_size(
        self, image: cst.BaseExpression, height: cst.BaseExpression, width: cst.BaseExpression
    ) -> bool:
        """Whether an image was resized to the compiled size just before."""
        if isinstance(image, cst.Name):
            binding = only_binding(self.site, image)
            image = binding.value if binding is not None and binding.value is not None else image
        if not (
            isinstance(image, cst.Call)
            and isinstance(image.func, cst.Attribute)
            and image.func.attr.value == "resize"
            and image.args
        ):
            return False
        wanted = f"({edits.code_of(width)}, {edits.code_of(height)})"
        return edits.code_of(image.args[0].value) == wanted

    def _guidance(self) -> None:
        """Switch guidance off where it never ran."""
        value = self.load.values.get("guidance_scale")
        if value is None:
            return
        given = self._keyword("guidance_scale")
        number = given.value if given is not None else None
        if isinstance(number, (cst.Integer, cst.Float)) and float(number.value) <= 1:
            return
        self._overrule("guidance_scale", value, "`guidance_scale=` had no effect before, as it has none at 1.0")
        if given is None:
            self.todo.append(
                f"line {self.line}: no guidance ran before, on one core; `guidance_scale=1.0` keeps it off"
            )

    def _leave_out(self) -> None:
        for name, said in _UNSEEN.items():
            given = self._keyword(name)
            if given is None or edits.code_of(given.value) in ("None", "False"):
                continue
            if name == "guess_mode" and not self.what.controlnet:
                continue
            self._drop(given)
            self.load.drop(given.value)
            self.todo.append(f"line {self.line}: {said}")

    def _look(self) -> None:
        """Say what is not rewritten and means something else."""
        output = self._keyword("output_type")
        if output is not None and text_of(constant(self.site, output.value)) in ("pt", "latent"):
            self.todo.append(f"line {self.line}: {_ON_DEVICE}")
        if self._keyword("callback"):
            self.todo.append(f"line {self.line}: {_CALLBACKS}")
        if self._keyword("latents"):
            self.todo.append(f"line {self.line}: {_LATENTS}")


def _key_of(element: cst.BaseDictElement) -> str | None:
    key = element.key if isinstance(element, cst.DictElement) else None
    return text_of(key) if isinstance(key, cst.SimpleString) else None


def _value_at(
    site: Site, value: cst.BaseExpression, home: cst.Call, call: cst.Call
) -> cst.BaseExpression | None:
    """An expression that stands at a load, as it can be written at a call; None if it cannot."""
    if edits.is_literal(value):
        return value.deep_clone()
    names = [value] if isinstance(value, cst.Name) else list(_names(value))
    plain = edits.is_pure(value) or isinstance(value, cst.Subscript)
    if plain and all(_is_same(site, name, home, call) for name in names):
        return value.deep_clone()
    literal = constant(site, value)
    if edits.is_literal(literal):
        return literal.deep_clone()
    made = {edits.code_of(each.node): each.node for each in site.flow.origin_of(value).producers if each.node}
    if len(made) == 1 and site.flow.origin_of(value).certain:
        only = next(iter(made.values()))
        if isinstance(only, cst.Integer):
            return only.deep_clone()
    return None


def _names(value: cst.CSTNode) -> Iterator[cst.Name]:
    """The names that an expression reads."""
    if isinstance(value, cst.Name):
        yield value
    for child in [value.value] if isinstance(value, cst.Attribute) else value.children:
        yield from _names(child)


def _is_same(site: Site, name: cst.Name, home: cst.Call, call: cst.Call) -> bool:
    """Whether a name means the same at a load and at a call: one variable, bound once, or one instance."""
    here, there = site.names.lookup(name.value, home), site.names.lookup(name.value, call)
    if here is None or there is None:
        return here is there
    bindings = [scope.bindings.get(name.value, ()) for scope in (here, there)]
    if here is there:
        return len(bindings[0]) == 1
    owners = {site.names.instance_class(each) for found in bindings for each in found}
    return len(owners) == 1 and None not in owners


# Types.


def _as_type(site: Site, use: Use, native: str) -> bool:
    """Answer for a class that is used as a type; whether it is."""
    if is_annotation(site, use.chain):
        group = site.group(use)
        group.rename(use, native)
        group.fixed(use.chain, use.name, f"as a type it is a {native.rpartition('.')[2]}")
        return True
    if is_isinstance(site, use.chain):
        group = site.group(use)
        group.rename(use, native)
        group.review(
            use.chain,
            use.name,
            f"natively it is a {native.rpartition('.')[2]}",
            "check that the branch is meant for any such object",
        )
        return True
    return False


@codemod.uses(PARTS)
def decide_part(site: Site, use: Use) -> None:
    """Let parts of the wrapper stand for native ones as types; mark any other use."""
    if not _as_type(site, use, PARTS[use.claim]):
        native = PARTS[use.claim].rpartition(".")[2]
        site.mark(
            use.whole,
            use.name,
            "a part of the wrapper around compiled files, which is gone",
            f"the component of the native pipeline is a {native}",
        )


family = Pipelines(codemod, CLASSES, TABLE)
