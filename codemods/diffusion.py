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

from collections.abc import Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

import libcst as cst
from packaging.version import Version

from neuronmigrate import edits
from neuronmigrate.artefacts import Artefact
from neuronmigrate.codemod import Codemod
from neuronmigrate.edits import Statement
from neuronmigrate.loads.adapters import (
    IP_ADAPTER,
    Loader,
    components,
    dtype_of,
    is_lcm,
    items_of,
    loaders_of,
    lora_items,
)
from neuronmigrate.loads.arguments import (
    CAST,
    COMPILER,
    EXPORT,
    FILES,
    FOLDERS,
    HUB,
    PLACES,
    RENAMED,
    SHAPES,
    Given,
    Load,
    Table,
    constant,
    instance_type,
    text_of,
)
from neuronmigrate.loads.dtypes import settle_cast
from neuronmigrate.loads.family import GONE_ATTRIBUTES, Family, is_annotation, is_isinstance
from neuronmigrate.loads.pipeline_calls import ON_DEVICE, CallRewrite, Pipeline, Refused, names_in, value_at
from neuronmigrate.loads.sources import Saved, is_export, settle_source
from neuronmigrate.moving import Moved, model_of
from neuronmigrate.names import dotted_name
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)


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

_MOVING_METHODS = ("encode_image", "encode_prompt", "prepare_ip_adapter_image_embeds", "prepare_latents")
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
            f"`{given.name}={edits.short(value)}` put copies on several cores; a process drives one now"
        )


def _component(site: Site, load: Load, given: Given) -> None:
    load.args.append(given.arg)
    if edits.code_of(given.seen) != "None":
        load.todo.append(
            f"`{given.name}` has to be a module of Diffusers or Transformers, not a compiled one"
        )


def _subfolder(site: Site, load: Load, given: Given) -> None:
    load.drop(given.seen)
    if text_of(constant(site, given.seen)) or not isinstance(constant(site, given.seen), cst.SimpleString):
        load.refuse("pipelines of Diffusers are not loaded from a subfolder: give the folder itself")


_VAE = "the VAE is one module natively: pass `vae=` with an `AutoencoderKL`"
_PATHS = frozenset(
    f"{part}_path"
    for part in ("text_encoder", "text_encoder_2", "unet", "transformer", "vae_encoder", "vae_decoder")
) | {"controlnet_paths", "image_encoder_path"}
TABLE = Table(
    kept=(HUB - {"config", "subfolder"})
    | {"add_watermarker", "feature_extractor", "force_zeros_for_empty_prompt"}
    | {"requires_aesthetics_score", "scheduler", "tokenizer", "tokenizer_2"},
    renamed=RENAMED,
    consumed=EXPORT | CAST | {"dynamic_batch_size"},
    dropped=(COMPILER - {"dynamic_batch_size"})
    | PLACES
    | FILES
    | _PATHS
    | (SHAPES - {"height", "width", "sequence_length"})
    | {"dynamic_batching", "num_image_per_prompt", "num_images_per_prompt"}
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
        **{f"ip_adapter_{name}{plural}": _keep for name in IP_ADAPTER for plural in ("", "s")},
        **dict.fromkeys(("data_parallel_mode", "device_ids"), _placement),
        **dict.fromkeys(("controlnet", "image_encoder", "safety_checker"), _component),
        **dict.fromkeys(("text_encoder", "text_encoder_2", "transformer", "unet"), _component),
        "instance_type": instance_type,
        "subfolder": _subfolder,
    },
)


class Pipelines(Family):
    """Pipelines: sizes move into calls, adapters into statements, and nothing else is moved."""

    makers = frozenset({"from_pipe", "from_pretrained"})
    handed_on = True
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
        self.still_read: WeakKeyDictionary[Load, set[str]] = WeakKeyDictionary()
        """Variables of a load that its calls read now."""

    # Loads.

    def settle(self, site: Site, load: Load, saved: Saved) -> None:
        if _differ(load):
            load.refuse("the classes that may be meant here are called in different ways")
        if load.use.method == "from_pipe":
            _settle_other(site, load, saved)
            if not load.refused:
                self._settle_calls(site, load)
            return
        settle_source(load, saved)
        if load.refused:
            return
        if not is_export(load):
            _take_over(site, load, saved)
        _settle_dtype(site, load)
        what = _kind(load)
        both = {**load.source.values, **load.values}
        names = [load.source.values.get("model_id"), both.get("unet_id")]
        told = load.artefact.checkpoint if load.artefact is not None else ""
        if what.guided and not is_lcm(site, names, told) and _is_unguided(site, both, load.todo):
            load.values["guidance_scale"] = cst.Float("1.0")
        _settle_parts(site, load)
        if what.checked and not load.given & {"safety_checker"} and site.settings.exact:
            load.given.add("safety_checker")
            load.args.append(edits.keyword("safety_checker", cst.Name("None")))
        elif what.checked and not load.given & {"safety_checker"}:
            load.todo.append(
                "a safety checker, never loaded before, runs now if the repository has one "
                "(`safety_checker=None` leaves it out)"
            )
        if self._loaders(site, load) and _place(site, load) is None:
            load.refuse("adapters are loaded by statements of their own: give the pipeline a name first")
        self._settle_calls(site, load)

    def _settle_calls(self, site: Site, load: Load) -> None:
        """Refuse a load by itself if one of its calls cannot be rewritten: others may share its shapes."""
        for use in site.flow.uses_of(load.call).uses:
            call, _ = self.called(site, use.node)
            if call is not None:
                try:
                    _rewrite_of(site, load, call).run()
                except Refused as refused:
                    load.refuse(f"`{edits.short(call, 40)}`: {refused}")

    def written(self, site: Site, group: Group, load: Load) -> cst.BaseExpression:
        parts = [] if load.use.method == "from_pipe" else components(site, group, load)
        args = [*load.args, *parts, edits.keyword("dtype", dtype_of(group, load))]
        self._let_go(site, load, parts)
        method = f"{load.native}.{load.use.method}"
        site.keywords += [(method, arg.keyword.value) for arg in args if arg.keyword]
        call = edits.with_arguments(load.call, args)
        if self._loaders(site, load) or load.use.method == "from_pipe":
            return call
        return edits.expression('{pipe}.to("neuron")', pipe=call)

    def _loaders(self, site: Site, load: Load) -> list[Loader]:
        return [] if load.use.method == "from_pipe" else loaders_of(site, load)

    def _let_go(self, site: Site, load: Load, parts: list[cst.Arg]) -> None:
        """Let the variables lose a reader that were read for what is written nowhere."""
        new: list[cst.CSTNode] = [*parts]
        for each in self._loaders(site, load):
            new += each.holes.values()
        kept = self.still_read.get(load, set()) | {name.value for node in new for name in names_in(node)}
        for value in [value for name, value in load.values.items() if TABLE.special.get(name) is _keep]:
            # What another place says, or was copied, stands nowhere in this file.
            here = [name for name in names_in(value) if site.parent(name) is not None]
            load.dropped += [name for name in here if name.value not in kept]

    def finish(self, site: Site, group: Group, load: Load) -> None:
        loaders, place = self._loaders(site, load), _place(site, load)
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

    def compiled(self, load: Load) -> tuple[str, ...]:
        """The part that runs at each step."""
        return (".transformer",) if _short(load).startswith(("Flux", "PixArt")) else (".unet",)

    def why(self, load: Load, calls: int) -> str:
        if load.use.method == "from_pipe":
            return f"{_short(load)} shares the components of the other pipeline, and keeps their dtype"
        why = f"{_short(load)} loads the original checkpoint, without an export, and moves to the device"
        return f"{why}; its calls say the size" if calls and load.source.values.get("height") else why

    def by_hand(self, load: Load) -> str:
        size = load.source.values.get("tensor_parallel_size")
        if size is not None and _short(load).startswith("Flux") and edits.code_of(size) not in _ONES:
            # `from_pretrained` shards as it reads, once there is a process group; processes that drew
            # different noise would compute with it (models/modeling_utils.py of Diffusers 0.42).
            return (
                "by hand: after `torch.distributed.init_process_group()`, pass `transformer="
                'FluxTransformer2DModel.from_pretrained(id, subfolder="transformer", dtype=torch.bfloat16, '
                f"parallel_config=TensorParallelConfig(tp_degree={edits.short(size)}))` to "
                f'`{_short(load)}.from_pretrained(id, dtype=torch.bfloat16).to("neuron")`, seed the '
                f"generator of each call, and start it with `torchrun --nproc-per-node {edits.short(size)}`"
            )
        return (
            f'by hand: `{_short(load)}.from_pretrained(original id, dtype=torch.bfloat16).to("neuron")`, '
            "and in its calls the size it was compiled for"
        )

    def advice(self, use: Use) -> str:
        native = self.classes[use.claim].rpartition(".")[2]
        return f'use `{native}`, move it with `.to("neuron")`, and pass the compiled size to its calls'

    def decide(self, site: Site, use: Use) -> None:
        if self.is_load(use) or not _as_type(site, use, self.classes[use.claim]):
            super().decide(site, use)

    def on_attribute(
        self, site: Site, group: Group | None, load: Load | None, node: cst.Attribute, todo: list[str]
    ) -> None:
        parent = site.parent(node)
        line = site.positions.span(node).line
        told = site.notes.setdefault("told", set())
        if node.attr.value == "to" and isinstance(parent, cst.Call):
            alone = site.alone(parent)
            if node in told:
                return
            told.add(node)
            if alone is not None and group is not None:
                group.replace_statement(alone)
                todo.append(f"line {line}: `{edits.short(parent)}`, which did nothing, is gone")
            else:
                site.mark(
                    parent,
                    "pipe.to",
                    f"`{edits.short(parent)}` did nothing before and moves the pipeline now",
                    'drop it: the pipeline is on the device by `.to("neuron")`',
                )
        elif node.attr.value in _MOVING_METHODS:
            todo.append(f"line {line}: `{edits.short(node)}` computes on the device: {ON_DEVICE}")
        elif node.attr.value in ("image_encoder", "text_encoder", "text_encoder_2", "transformer", "unet"):
            todo.append(f"line {line}: `{edits.short(node)}` is on the device, and wants its inputs there")
        else:
            super().on_attribute(site, group, load, node, todo)

    def on_argument(self, site: Site, group: Group, node: cst.BaseExpression, todo: list[str]) -> None:
        arg = site.parent(node)
        call = site.parent(arg) if isinstance(arg, cst.Arg) else None
        if not (isinstance(call, cst.Call) and self.is_maker(site.name_of(call.func) or "")):
            super().on_argument(site, group, node, todo)

    def _reached(self, site: Site, load: Load) -> set[object]:
        # What was compiled by another load is read where this one's pipeline is called.
        return super()._reached(site, load) | {load.call, load.source.call}

    # Calls.

    def on_call(self, site: Site, group: Group, load: Load, call: cst.Call, method: str) -> Moved:
        rewrite = _rewrite_of(site, load, call)
        try:
            rewrite.run()
        except Refused as refused:
            return Moved(str(refused))
        self.still_read.setdefault(load.source, set()).update(rewrite.read)
        text = edits.code_of(rewrite.result)
        before = self.written_calls.setdefault(site, {}).setdefault(call, text)
        if before != text:
            return Moved("pipelines that were compiled for other sizes are called here as well")
        moved = site.notes.setdefault("moved", set())
        if call not in moved:
            moved.add(call)
            site.notes.setdefault("removed", set()).update(rewrite.gone)
            for each in rewrite.gone:
                load.drop(each.value)
            if rewrite.changed:
                if self._calls_others(site, call):
                    line = site.positions.span(call).line
                    rewrite.todo.append(f"line {line}: what else is called here gets the compiled size too")
                group.replace(call, rewrite.result)
                site.keywords += [(f"{load.native}.__call__", name) for name in rewrite.keywords]
        return Moved(todo=tuple(rewrite.todo), why="the compiled size is written into its calls")

    def _calls_others(self, site: Site, call: cst.Call) -> bool:
        """Whether a call may be of something else than a legacy pipeline, such as one for another device."""
        return any(
            not self.is_maker(each.name)
            for each in site.flow.origin_of(model_of(call)).producers
            if not (isinstance(each.node, cst.BaseExpression) and edits.is_literal(each.node))
        )

    def on_call_elsewhere(self, site: Site, group: Group, call: cst.Call, name: str, method: str) -> Moved:
        told = [site.project.loads.get(place) for _, place, _ in self.loads_elsewhere(site, model_of(call))]
        values = _values_elsewhere(site, told[0]) if told and told[0] is not None else {}
        if "height" not in values or "width" not in values:
            return Moved(f"the size that the pipeline was compiled for is not known here: {_PASS_IT}")
        native = self.classes[name.rpartition(".")[0]]
        rewrite = CallRewrite(site, PIPELINES[native.rpartition(".")[2]], values, call, call)
        try:
            rewrite.run()
        except Refused as refused:
            return Moved(str(refused))
        if rewrite.changed:
            group.replace(call, rewrite.result)
            site.keywords += [(f"{native}.__call__", keyword) for keyword in rewrite.keywords]
        return Moved(todo=tuple(rewrite.todo), why="the compiled size is written into its calls")


_PASS_IT = "pass it to this call, as `height=` and `width=`"


def _rewrite_of(site: Site, load: Load, call: cst.Call) -> CallRewrite:
    values = dict(load.source.values)
    values.pop("guidance_scale", None)
    if "guidance_scale" in load.values:
        values["guidance_scale"] = load.values["guidance_scale"]
    return CallRewrite(site, _kind(load), values, load.source.call, call)


def _values_elsewhere(site: Site, told: Artefact) -> dict[str, cst.BaseExpression]:
    """What a load of another module compiled, or what made the folder that it loads."""
    made = told
    options = dict(told.options)
    if options.get("export", options.get("from_transformers")) != "True":
        said = site.project.compiled(told.checkpoint, told.place) if told.checkpoint else ()
        if len(said) != 1:
            return {}
        made = said[0]
    if made.unseen:
        return {}
    values = {name: _said(code) for name, code in made.options}
    placed = {**values, **{name: _said(code) for name, code in told.options}}
    if not is_lcm(site, [values.get("unet_id")], made.checkpoint) and _is_unguided(site, placed, []):
        values["guidance_scale"] = cst.Float("1.0")
    return values


def _kind(load: Load) -> Pipeline:
    """What is particular about the class that loads, or about all that may be meant by a value."""
    kinds = [PIPELINES[use.claim.rpartition(".Neuron")[2]] for use in load.through or (load.use,)]
    leading = min(each.leading for each in kinds)
    return replace(kinds[0], leading=leading, checked=any(each.checked for each in kinds))


def _differ(load: Load) -> bool:
    """Whether classes that may be meant by a value are called in different ways."""
    kinds = [PIPELINES[use.claim.rpartition(".Neuron")[2]] for use in load.through]
    return len({replace(each, leading=0, checked=False) for each in kinds}) > 1


def _short(load: Load) -> str:
    return load.native.rpartition(".")[2]


def _settle_other(site: Site, load: Load, saved: Saved) -> None:
    """Work out which pipeline another one is made of: what that one was compiled for holds here too.

    Without a dtype, `from_pipe` of Diffusers 0.42 would cast all shared components to float32.
    """
    if load.refused:
        return
    other = load.values.get("model_id")
    origins = site.flow.origin_of(other) if other is not None else None
    made = [each.node for each in origins.producers] if origins is not None and origins.certain else []
    found = [each for each in saved.loads if [each.call] == made]
    if not found or found[0].refused:
        load.refuse("what the other pipeline was compiled for cannot be seen from here")
        return
    source = found[0].source
    load.compiled_by = source
    load.dtype, load.cast = found[0].dtype, found[0].cast
    if "guidance_scale" in found[0].values:
        load.values["guidance_scale"] = found[0].values["guidance_scale"]


def _take_over(site: Site, load: Load, saved: Saved) -> None:
    """Let a load of compiled files mean what was exported into them, by this file or another place."""
    folder = load.values["model_id"]
    if load.artefact is not None:
        if load.artefact.unseen:
            load.refuse(f"what {load.artefact.place} compiled cannot be read as a whole")
        for name, code in load.artefact.options:
            told = "unet_id" if name == "unet" else name
            if TABLE.special.get(told) is _keep:
                load.values.setdefault(told, _said(code))
        return
    made = saved.loads_into(folder)
    if not made:
        if "height" not in load.values or "width" not in load.values:
            load.todo.append("its calls need the size it was compiled for, as `height=` and `width=`")
        if _kind(load).controlnet:
            load.refuse(f"which ControlNets are compiled in `{edits.short(folder)}` cannot be seen from here")
        return
    if len(made) > 1:
        load.refuse(f"`{edits.short(folder)}` is compiled in several ways in this file")
        return
    source = load.compiled_by = made[0]
    if source.refused:
        line = site.positions.span(source.call).line
        load.refuse(f"what line {line} compiled into `{edits.short(folder)}` cannot be seen as a whole")
        return
    if load.dtype is None and "dtype" in source.values:
        load.dtype = value_at(site, source.values["dtype"], source.call, load.call)
        if load.dtype is None:
            load.refuse(f"the dtype `{edits.short(source.values['dtype'])}` is not known here")
            return
    if "dtype" in source.values:
        load.values.setdefault("dtype", source.values["dtype"])
    for name in ("auto_cast", "auto_cast_type"):
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


def _said(code: str) -> cst.BaseExpression:
    """A value that another place says, in the quotes that are written here."""
    value = edits.expression(code)
    if isinstance(value, (cst.List, cst.Tuple)):
        items = [cst.Element(_said(edits.code_of(each.value))) for each in value.elements]
        return cst.List(items)
    return edits.string(text_of(value)) if isinstance(value, cst.SimpleString) else value


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


def _is_unguided(site: Site, values: Mapping[str, cst.BaseExpression], todo: list[str]) -> bool:
    """Whether classifier-free guidance never ran, whatever a call said.

    It ran if the batch was dynamic, or if the U-Net was on two cores (`do_classifier_free_guidance` in
    modeling_diffusion.py and pipelines/diffusers/*.py; inference-by-release section 0 F). From 0.3.0 on
    the mode that a user gave was not used.
    """
    release = _release(site)
    if "dynamic_batch_size" in values and edits.code_of(values["dynamic_batch_size"]) == "True":
        return False
    mode, ids = values.get("data_parallel_mode"), values.get("device_ids")
    if mode is not None and edits.code_of(mode) != "None":
        if edits.is_literal(mode) and text_of(mode) not in ("none", "all"):
            return False
        if release >= Version("0.3.0"):
            if site.project.legacy_of(site.path).assumed:
                todo.append(
                    f"before release 0.3.0 `data_parallel_mode={edits.short(mode)}` turned guidance off: "
                    "`guidance_scale=1.0` in the calls if this was written for one of those"
                )
            return False
        if not edits.is_literal(mode):
            todo.append(
                f"where `{edits.short(mode)}` is none or all, guidance was off: `guidance_scale=1.0` then"
            )
        return edits.is_literal(mode)
    if Version("0.0.9") <= release <= Version("0.0.14"):
        if ids is None:
            return release == Version("0.0.9")
        return isinstance(ids, (cst.List, cst.Tuple)) and len(ids.elements) != 2
    return False


def _settle_parts(site: Site, load: Load) -> None:
    """Refuse what was compiled in and has no place natively, or cannot be seen."""
    values, what, name = load.source.values, _kind(load), _short(load)
    size = values.get("tensor_parallel_size")
    if size is not None and edits.code_of(constant(site, size)) not in _ONES:
        load.refuse(
            f"`tensor_parallel_size={edits.short(size)}` is a process for each core now"
            if name.startswith("Flux")
            else f"{name} has no tensor-parallel plan natively, so `tensor_parallel_size` has no counterpart"
        )
    adapters = [each for each in values if each.startswith("lora_")]
    if "controlnet_ids" in values and not what.controlnet:
        load.refuse(f"{name} takes no ControlNet: load the ControlNet pipeline of the same family instead")
    if lora_items(site, values) is None:
        load.refuse("whether one LoRA or several are fused cannot be seen from here")
    nets = values.get("controlnet_ids")
    if nets is not None and items_of(site, nets) is None:
        load.refuse(f"whether `{edits.short(nets)}` is one ControlNet or several cannot be seen from here")
    if not what.lora and adapters:
        load.refuse(f"{name} takes no LoRA weights natively")
    if "lora_model_ids" in values and "lora_weight_names" not in values:
        load.todo.append("LoRA weights were not loaded without `lora_weight_names`; now they are")


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


# Types.


def _as_type(site: Site, use: Use, native: str) -> bool:
    """Answer for a class that is used as a type; whether it is."""
    if is_annotation(site, use.chain):
        group = site.group(use)
        group.rename(use, native)
        group.fixed(use.chain, use.name, f"as a type it stands for {native.rpartition('.')[2]}")
        return True
    if is_isinstance(site, use.chain):
        group = site.group(use)
        group.rename(use, native)
        group.review(
            use.chain,
            use.name,
            f"natively it is of the class {native.rpartition('.')[2]}",
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
