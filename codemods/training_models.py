"""Training classes of models: `optimum.neuron.models.training.NeuronModelForCausalLM` and its siblings.

Natively Transformers' own classes are trained. The parallel settings that came second, or as `trn_config`,
go: a tensor parallel size arrives as `distributed_config`. The weights are loaded in the dtype that gives the
old arithmetic with the arguments of the trainer; without a word about it they were float32, whatever the
checkpoint says. `"flash_attention_2"` meant a kernel of the device, which is behind `"sdpa"` now. An object
of settings (`TrainingNeuronConfig`, `ModelParallelismPlugin`) goes with the last load or accelerator that
took it.

Marked are classes that derive from these, pipeline parallelism, and settings that go elsewhere.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.loads.arguments import Given, Load, Table, sorted_arguments, text_of, unread
from neuronmigrate.loads.family import is_annotation, is_base, is_isinstance
from neuronmigrate.names import Binding
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Site, Use
from neuronmigrate.training.kinds import MODELS
from neuronmigrate.training.parallel import CONFIG_FIELDS, CONFIGS, Parallel, split_by_config, split_of
from neuronmigrate.training.precision import weights_of
from neuronmigrate.training.unit import Unit, unit_of

codemod = Codemod(__name__)

WHY = "the native model is Transformers' own"


def _attention(site: Site, load: Load, given: Given) -> None:
    """The legacy kernel was called by the name of FlashAttention 2, which is a package for GPUs."""
    value = given.arg.value
    flash = [
        text
        for text in site.nodes(cst.SimpleString)
        if text.evaluated_value == "flash_attention_2" and (text is value or value in site.ancestors(text))
    ]
    if flash:
        new = value.visit(_Sdpa())
        assert isinstance(new, cst.BaseExpression)
        load.args.append(given.arg.with_changes(value=new))
        return
    load.args.append(given.arg)
    if not text_of(value):
        load.todo.append(f'where `{edits.short(value)}` is "flash_attention_2", give "sdpa"')


class _Sdpa(cst.CSTTransformer):
    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        if original_node.evaluated_value != "flash_attention_2":
            return updated_node
        return updated_node.with_changes(value=updated_node.value.replace("flash_attention_2", "sdpa"))


# optimum/neuron/models/training/modeling_utils.py and modeling_auto.py of 0.2.0 to 0.4.5.
TABLE = Table(
    kept=frozenset(
        {
            "cache_dir",
            "config",
            "force_download",
            "ignore_mismatched_sizes",
            "local_files_only",
            "revision",
            "subfolder",
            "token",
            "trust_remote_code",
            "use_safetensors",
            "weights_only",
        }
    ),
    renamed={"torch_dtype": "dtype", "use_auth_token": "token"},
    consumed=frozenset({"trn_config"}),
    # Without "sdpa" the formula is the same; natively it is the default.
    dropped=frozenset({"device_map", "low_cpu_mem_usage", "use_flash_attention_2"}),
    special={"attn_implementation": _attention},
    positional=("trn_config",),
    passes=True,
)
codemod.tables.append(TABLE)


@codemod.uses(MODELS)
def decide(site: Site, use: Use) -> None:
    """Load the native model, with the old dtype and share."""
    unit = unit_of(site, use)
    group = unit.group
    native = MODELS[use.claim]
    call = use.call
    if call is not None and use.method in ("", "from_config"):
        _from_config(unit, use, call)
    elif call is not None and use.method == "from_pretrained":
        _load(unit, use, call, native)
    elif is_annotation(site, use.chain) or is_isinstance(site, use.chain) or use.quoted:
        group.rename(use, native)
        unit.say(use.chain, use.name, WHY)
    else:
        what = "a class derives from it" if is_base(site, use.chain) else "it is handed on"
        site.mark(
            use.whole, use.name, what, f"use `{native}`, and take the parallel settings away from its loads"
        )


def _load(unit: Unit, use: Use, call: cst.Call, native: str) -> None:
    site, group = unit.site, unit.group
    load = sorted_arguments(site, use, call, native, TABLE)
    split = _split(unit, load, call)
    refused = load.refused or split.refused
    if refused:
        group.refuse(refused)
        unit.say(call, use.name, WHY)
        return
    unit.written.add(call)
    given = load.dtype
    weights = weights_of(unit, group, call, given, custom=True)
    dtype = weights.dtype if weights.dtype is not None else given
    if dtype is not None:
        _place_dtype(load, dtype)
    load.args += split.argument(site, group, f"{native}.from_pretrained")
    group.rename(use, native)
    new = edits.with_arguments(call, load.args)
    group.replace(call, new)
    written = {arg.keyword.value for arg in load.args if arg.keyword}
    site.keywords += [
        (f"{native}.from_pretrained", each) for each in ("attn_implementation", "dtype") if each in written
    ]
    todo = [*load.todo, *weights.todo, *split.todo, *unread(site, group, load, [load])]
    numerics = Numerics.SHARDING if split.size is not None else Numerics.REORDERED
    why = f"{WHY}, in the dtype that the old arithmetic needs"
    unit.say(call, use.name, why, todo, numerics=numerics)


def _place_dtype(load: Load, dtype: cst.BaseExpression) -> None:
    """Write the dtype where the old one stood, with the comments there, or last."""
    args = list(load.call.args)
    names = [arg.keyword.value if arg.keyword is not None else "" for arg in args]
    at = next((index for index, name in enumerate(names) if name in ("torch_dtype", "dtype")), None)
    if at is None:
        load.args.append(edits.keyword("dtype", dtype))
        return
    before = [each.comma for each in args[:at]]
    place = sum(any(each.comma is comma for comma in before) for each in load.args)
    load.args.insert(place, args[at].with_changes(keyword=cst.Name("dtype"), value=dtype))


def _split(unit: Unit, load: Load, call: cst.Call) -> Parallel:
    config = load.told.get("trn_config")
    if config is not None:
        load.keep(config)  # whoever made the settings answers for them
    return split_of(unit, call) if config is None else split_by_config(unit, config, call)


def _from_config(unit: Unit, use: Use, call: cst.Call) -> None:
    """A model with new weights: the second argument, or `trn_config`, are the parallel settings."""
    group = unit.group
    settings = next(
        (
            arg
            for index, arg in enumerate(call.args)
            if (arg.keyword is None and not arg.star and index == 1)
            or (arg.keyword is not None and arg.keyword.value == "trn_config")
        ),
        None,
    )
    if settings is not None:
        split = split_by_config(unit, settings.value, call)
        if split.size is not None or split.refused:
            group.refuse(
                split.refused
                or "a model with new weights cannot be split: save it once, and load it with "
                "`from_pretrained(..., "
                f"distributed_config=DistributedConfig(tp_size={edits.short(split.size or call)}))`"
            )
        group.replace(call, edits.without_arguments(call, [settings]))
    group.rename(use, MODELS[use.claim])
    unit.say(call, use.name, WHY, numerics=Numerics.REORDERED)


@codemod.uses(CONFIGS)
def decide_settings(site: Site, use: Use) -> None:
    """Parallel settings go once the loads and accelerators that take them say it themselves."""
    call = use.call
    advice = "say it at the load of the model: `distributed_config=DistributedConfig(tp_size=...)`"
    if call is None or use.method:
        if call is None and (is_annotation(site, use.chain) or is_isinstance(site, use.chain)):
            site.mark(use.chain, use.name, "a function takes these settings", advice)
            return
        site.mark(use.whole, use.name, "it is handed on", advice)
        return
    unit = unit_of(site, use)
    group = unit.group
    todo = _other_settings(call)
    assign = site.parent(call)
    readers = _readers(site, assign)
    if isinstance(assign, cst.Arg) and _is_settings(site, assign):
        pass  # it goes with the argument
    elif readers and all(_is_settings(site, site.parent(each)) for each in readers):
        assert isinstance(assign, cst.Assign)
        group.replace_statement(assign)
    else:
        site.mark(call, use.name, "these settings go where they cannot be followed", advice)
        return
    why = "the load of the model says itself how it is split"
    unit.say(call, use.name, why, todo)


def _other_settings(call: cst.Call) -> list[str]:
    told = {
        "checkpoint_dir": "`checkpoint_dir` went: give a native checkpoint to `trainer.train("
        "resume_from_checkpoint=...)`",
        "gradient_checkpointing": (
            "`gradient_checkpointing` went: give `activation_checkpointing=True` to the arguments of the "
            "trainer"
        ),
        "sequence_parallel_enabled": (
            "sequence parallelism has no native twin yet: activations take more memory"
        ),
    }
    given = {arg.keyword.value: edits.code_of(arg.value) for arg in call.args if arg.keyword is not None}
    return [told[name] for name in told if given.get(name, "None") not in ("None", "False")]


def _readers(site: Site, assign: cst.CSTNode | None) -> list[cst.BaseExpression]:
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return []
    target = assign.targets[0].target
    bindings: tuple[Binding, ...] = tuple(site.names.bound_by(target)) if isinstance(target, cst.Name) else ()
    return [each for binding in bindings for each in site.names.references(binding)]


def _is_settings(site: Site, arg: cst.CSTNode | None) -> bool:
    """Whether an argument gives the parallel settings to a legacy load or accelerator."""
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or not isinstance(arg, cst.Arg):
        return False
    name = site.name_of(call.func) or ""
    owner = name.rpartition(".")[0]
    if arg.keyword is not None:
        return arg.keyword.value in CONFIG_FIELDS
    return (owner in MODELS or name in MODELS) and arg in call.args[1:2]
