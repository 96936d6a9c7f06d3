"""`NeuronAccelerator`, its states, and the loops written around it.

Accelerate's own `Accelerator` runs on the native device, with the same `prepare`, `backward`, `accumulate`
and `gather`; it also divides the loss by the number of accumulation steps, as before. What differs is written
out: how the weights were cast for bfloat16, release by release; the settings of parallelism; flags of methods
that only the lazy device had. With several processes the legacy accelerator put a sampler of its own in the
place of the loader's, with seed 0 and, before 0.4.0, the same order in each epoch; Accelerate keeps the
loader's own sampler, which is said.

Marked are plugins that no release took, and attributes that Accelerate has no counterpart for.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Action, Call, Codemod, Rename
from neuronmigrate.flow import UseKind
from neuronmigrate.loads.arguments import Load, Table, only_binding, sorted_arguments, text_of, unread
from neuronmigrate.loads.family import is_annotation, is_base, is_isinstance
from neuronmigrate.moving import is_module
from neuronmigrate.names import dotted_name
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use
from neuronmigrate.training.parallel import split_by_config
from neuronmigrate.training.unit import Unit, unit_of

codemod = Codemod(__name__)

CLASSES = (
    "optimum.neuron.NeuronAccelerator",
    "optimum.neuron.accelerate.NeuronAccelerator",
    "optimum.neuron.accelerate.accelerator.NeuronAccelerator",
)
NATIVE = "accelerate.Accelerator"
OWN_PRECISION = "0.4.0"
"""The release from which `mixed_precision_config` decides, and `mixed_precision` is not read."""

_NO_PLUGIN = "was refused by the legacy accelerator: settle it by hand"

# optimum/neuron/accelerate/accelerator.py of 0.0.5 to 0.4.5, and the Accelerator of accelerate 0.20 to 1.8.
TABLE = Table(
    kept=frozenset(
        {
            "cpu",
            "device_placement",
            "gradient_accumulation_plugin",
            "gradient_accumulation_steps",
            "kwargs_handlers",
            "log_with",
            "project_config",
            "project_dir",
            "rng_types",
            "step_scheduler_with_optimizer",
        }
    ),
    renamed={"logging_dir": "project_dir"},
    consumed=frozenset(
        {
            "autocast_backend",
            "mixed_precision",
            "mixed_precision_config",
            "mp_plugin",
            "tp_plugin",
            "trn_config",
            "zero_1",
        }
    ),
    # Read by Accelerate's loaders, in whose place the legacy accelerator put its own.
    dropped=frozenset(
        {
            "dataloader_config",
            "dispatch_batches",
            "dynamo_backend",
            "dynamo_plugin",
            "even_batches",
            "split_batches",
            "use_seedable_sampler",
        }
    ),
    refused={
        name: f"`{name}=` {_NO_PLUGIN}"
        for name in (
            "deepspeed_plugin",
            "deepspeed_plugins",
            "fsdp_plugin",
            "megatron_lm_plugin",
            "torch_tp_plugin",
        )
    },
)
codemod.tables.append(TABLE)

LAZY_FLAGS = {
    "clip_grad_norm_": frozenset({"postpone_clipping_to_optimizer_step"}),
    "gather": frozenset({"out_of_graph", "sync"}),
    "gather_for_metrics": frozenset({"sync"}),
    "prepare_data_loader": frozenset({"batches_per_execution", "use_mp_device_loader"}),
}
"""Flags of methods that only the lazy device had."""
GONE = {
    "backward_for_xla_fsdp": "call `backward`",
    "clip_grad_norm_for_xla_fsdp": "call `clip_grad_norm_`",
    "mixed_precision_config": "read `accelerator.mixed_precision`",
    "patch_model_for_neuron": "drop it: nothing has to be patched",
    "prepare_model_for_xla_fsdp": "give `fsdp_plugin` to the Accelerator and call `prepare`",
    "save_state_for_mp": "call `save_state`",
    "save_state_for_tp": "call `save_state`",
    "save_state_for_xla_fsdp": "call `save_state`",
    "zero_1": "there is no ZeRO-1: `accelerator.is_fsdp2` tells whether the optimizer's state is sharded",
}
STATE_GONE = dict.fromkeys(
    ("mp_plugin", "tp_plugin", "trn_config"), "read the sizes of `accelerator.parallelism_config`"
)

ZERO = (
    "`zero_1` went: the optimizer's state is whole in each process now; "
    "`fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2, reshard_after_forward=False)` shards it"
)
ORDER = (
    "with several processes the data come in another order: the legacy sampler had seed 0 whatever was set"
)
FULL_BF16 = "the legacy accelerator cast the model to bfloat16"
CAST_BY_HAND = "cast the model to bfloat16 above `prepare`, as the legacy accelerator did"
WHY = "Accelerate runs on the native device itself"


@codemod.uses(CLASSES)
def decide(site: Site, use: Use) -> None:
    """Write Accelerate's own class, with the old settings in its words."""
    call = use.call
    if call is None or use.method:
        if (
            call is None
            and not use.method
            and (is_annotation(site, use.node) or is_isinstance(site, use.node))
        ):
            group = unit_of(site, use).group
            group.rename(use, NATIVE)
            group.fixed(use.chain, use.name, WHY)
            return
        what = "a class derives from it" if is_base(site, use.node) else "it is not called here"
        site.mark(use.chain, use.name, what, "use `accelerate.Accelerator`, and look at each override")
        return
    unit = unit_of(site, use)
    group = unit.group
    if any(arg.keyword is None and not arg.star for arg in call.args):
        group.refuse(
            "the accelerator is called with positional arguments, whose order has changed: name them"
        )
        unit.say(call, use.name, WHY)
        return
    load = sorted_arguments(site, use, call, NATIVE, TABLE)
    load.todo += [f"`{name}=` went: the legacy accelerator did not act on it" for name in _given(load)]
    _split(site, unit, load)
    cast = _precision(unit, load)
    follow = _Following(site, unit, load)
    follow.run()
    if cast:
        follow.cast()
    zero = load.values.get("zero_1")
    if zero is not None and edits.code_of(zero) != "False":
        load.todo.append(ZERO)
    load.todo.append(ORDER)
    if load.refused:
        group.refuse(load.refused)
    else:
        new = call.with_changes(func=group.ref(NATIVE, module_form=isinstance(use.node, cst.Attribute)))
        group.replace(call, edits.with_arguments(new, load.args))
        site.keywords += [(NATIVE, arg.keyword.value) for arg in load.args if arg.keyword is not None]
        load.todo += unread(site, group, load, [load])
    unit.say(call, use.name, WHY, load.todo, numerics=load.numerics)


def _given(load: Load) -> list[str]:
    return [name for name in load.told if name in TABLE.dropped and edits.code_of(load.told[name]) != "None"]


def _split(site: Site, unit: Unit, load: Load) -> None:
    """The settings of tensor parallelism, which the model's load has to be told as well."""
    config = next(
        (load.told[each] for each in ("trn_config", "mp_plugin", "tp_plugin") if each in load.told), None
    )
    if config is None:
        return
    load.keep(config)  # whoever made the settings answers for them
    split = split_by_config(unit, config, load.call)
    load.todo += split.todo
    if split.refused:
        load.refuse(split.refused)
    elif split.size is not None:
        value = unit.group.expression(
            "accelerate.ParallelismConfig(tp_size={size})", size=split.size.deep_clone()
        )
        site.keywords.append(("accelerate.ParallelismConfig", "tp_size"))
        load.args.append(edits.keyword("parallelism_config", value))
        load.todo.append(
            "the model has to be loaded with `distributed_config=DistributedConfig(tp_size=...)`, too"
        )
        load.numerics = Numerics.SHARDING


def _precision(unit: Unit, load: Load) -> bool:
    """Write the mixed precision; tells whether the model has to be cast to bfloat16."""
    given = load.values.get("mixed_precision")
    if unit.before(OWN_PRECISION):
        return _old_precision(unit, load, given)
    config = load.told.get("mixed_precision_config")
    mode = "NO" if config is None else _mode(unit.site, load, config)
    if config is None and given is not None and edits.code_of(given).strip("\"'") not in ("None", "no"):
        if unit.site.settings.exact:
            load.todo.append("`mixed_precision` went: the legacy accelerator did not read it")
        else:
            _write(load, "mixed_precision", given)
            load.todo.append(
                "`mixed_precision` acts now: the legacy accelerator did not read it, and computed in the "
                "dtype of the weights"
            )
            load.numerics = Numerics.DTYPE
        return False
    if not mode:
        load.refuse(f"the mixed precision `{edits.short(config or load.call)}` cannot be told from here")
    elif mode == "AUTOCAST_BF16":
        _write(load, "mixed_precision", edits.string("bf16"))
    return mode == "FULL_BF16"


def _old_precision(unit: Unit, load: Load, given: cst.BaseExpression | None) -> bool:
    """Before 0.4.0 bfloat16 meant bfloat16 weights, autocast aside before 0.1.0."""
    text = text_of(given) if given is not None else ""
    if given is None or text == "no" or edits.code_of(given) == "None":
        if text:
            _write(load, "mixed_precision", given or edits.string("no"))
        return False
    backend = load.values.get("autocast_backend")
    amp = backend is not None and "amp" in edits.code_of(backend).lower()
    if text != "bf16":
        _write(load, "mixed_precision", load.told["mixed_precision"])
        load.todo.append(
            'where it is "bf16", the weights were cast: cast the model to bfloat16 and give "no"'
        )
        return False
    if amp and unit.before("0.1.0"):
        _write(load, "mixed_precision", given)
        return False
    _write(load, "mixed_precision", edits.string("no"))
    return True


def _write(load: Load, name: str, value: cst.BaseExpression) -> None:
    load.args.append(edits.keyword(name, value))
    load.keep(value)


def _mode(site: Site, load: Load, config: cst.BaseExpression) -> str:
    """The mode of a MixedPrecisionConfig, by name; empty when it cannot be told."""
    if isinstance(config, cst.SimpleString):
        return text_of(config)
    if edits.code_of(config) == "None":
        return "NO"
    made = site.flow.origin_of(config)
    if len(made.producers) != 1:
        return ""
    node = made.producers[0].node
    last = made.producers[0].name.rpartition(".")[2]
    if isinstance(node, cst.SimpleString):
        return text_of(node)
    if isinstance(node, cst.Call) and last == "MixedPrecisionConfig":
        given = edits.arguments(node, ("mode", "stochastic_rounding", "optimizer_use_master_weights"))
        inner = given.value("mode")
        if inner is None or given.spread:
            return ""
        mode = _mode(site, load, inner)
        masters = given.value("optimizer_use_master_weights")
        zero = load.values.get("zero_1")
        if mode == "FULL_BF16" and _is_true(masters) and _is_true(zero):
            # Weights in bfloat16 whose optimizer works on float32 copies: autocast over float32 weights.
            load.todo.append("load the model in float32: the optimizer kept float32 copies of the weights")
            mode = "AUTOCAST_BF16"
        site.settled.update(each for each in site.uses if node in (each.whole, *site.ancestors(each.node)))
        _take_away(site, load, config)
        return mode
    named = node if isinstance(node, cst.Attribute) else config
    site.settled.update(each for each in site.uses if each.chain is named)
    mode = dotted_name(named).rpartition(".")[2]
    return mode if mode in ("AUTOCAST_BF16", "FULL_BF16", "NO") else ""


def _is_true(value: cst.BaseExpression | None) -> bool:
    return value is not None and edits.code_of(value) == "True"


def _take_away(site: Site, load: Load, config: cst.BaseExpression) -> None:
    """Remove the assignment of an object that only this accelerator was given."""
    binding = only_binding(site, config) if isinstance(config, cst.Name) else None
    if binding is None or binding.value is None or list(site.names.references(binding)) != [config]:
        return
    assign = site.parent(binding.value)
    if isinstance(assign, cst.Assign):
        unit_of(site).group.replace_statement(assign)
        load.keep(config)


class _Following:
    """Goes after an accelerator, and answers for what its loop asks of it."""

    def __init__(self, site: Site, unit: Unit, load: Load) -> None:
        self.site = site
        self.unit = unit
        self.group: Group = unit.group
        self.load = load
        self.prepares: list[cst.Call] = []
        self.autocasts = False

    def run(self) -> None:
        found = self.site.flow.uses_of(self.load.call)
        for use in found.uses:
            parent = self.site.parent(use.node)
            if use.kind is UseKind.ATTRIBUTE and isinstance(parent, cst.Attribute):
                self._attribute(parent)
        # Before 0.4.0 the model was prepared by Accelerate itself.
        if self._is_autocast() and not self.autocasts and not self.unit.before(OWN_PRECISION):
            self.load.todo.append(
                "`forward` of a prepared model runs under autocast by itself now; before, only what stood "
                "under `accelerator.autocast()` did"
            )
            self.load.numerics = Numerics.DTYPE
        if found.lost:
            line = self.site.positions.span(found.lost[0][0]).line
            self.load.todo.append(f"line {line}: the accelerator goes where it cannot be followed")

    def _is_autocast(self) -> bool:
        return any(
            arg.keyword is not None
            and arg.keyword.value == "mixed_precision"
            and text_of(arg.value) == "bf16"
            for arg in self.load.args
        )

    def _attribute(self, node: cst.Attribute) -> None:
        name = node.attr.value
        around = self.site.parent(node)
        if name in GONE:
            self.site.mark(node, f"{NATIVE}.{name}", f"`{name}` is gone", GONE[name])
        elif name == "state" and isinstance(around, cst.Attribute) and around.attr.value in STATE_GONE:
            gone = around.attr.value
            self.site.mark(around, f"{NATIVE}.state.{gone}", f"`state.{gone}` is gone", STATE_GONE[gone])
        elif isinstance(around, cst.Call) and around.func is node:
            self.autocasts = self.autocasts or name == "autocast"
            if name in ("prepare", "prepare_model"):
                self.prepares.append(around)
            flags = LAZY_FLAGS.get(name, frozenset())
            going = [arg for arg in around.args if arg.keyword is not None and arg.keyword.value in flags]
            if going:
                self.group.replace(around, edits.without_arguments(around, going))
                shown = ", ".join(f"`{arg.keyword.value}`" for arg in going if arg.keyword is not None)
                self.group.fixed(around, f"{NATIVE}.{name}", f"only the lazy device had {shown}")

    def cast(self) -> None:
        """Cast the model to bfloat16 above where it is prepared."""
        self.load.numerics = Numerics.DTYPE
        for prepare in self.prepares:
            models = [arg.value for arg in prepare.args if arg.keyword is None and self._is_model(arg.value)]
            line = self.site.statement(prepare)
            if len(models) != 1 or not isinstance(line, cst.SimpleStatementLine):
                continue
            cast = self.group.statements("{model}.to(torch.bfloat16)", model=models[0].deep_clone())
            self.group.insert(line, cast)
            self.load.todo.append(f"{FULL_BF16}, which is written out")
            return
        self.load.todo.append(CAST_BY_HAND)

    def _is_model(self, value: cst.BaseExpression) -> bool:
        if not isinstance(value, cst.Name):
            return False
        made = self.site.flow.origin_of(value).producers
        return bool(made) and all(
            each.name.rpartition(".")[2] in ("from_config", "from_pretrained", "get_peft_model")
            or each.name.startswith("torch.nn.")
            or (isinstance(each.node, cst.ClassDef) and is_module(self.site, each.node))
            or (isinstance(each.node, cst.Call) and self._makes_module(each.node))
            for each in made
        )

    def _makes_module(self, call: cst.Call) -> bool:
        if not isinstance(call.func, cst.Name):
            return False
        owners = [each.node for each in self.site.names.bindings_at(call.func)]
        return any(isinstance(each, cst.ClassDef) and is_module(self.site, each) for each in owners)


_STATE = "Accelerate's own state knows the native device"
_OBJECTS = {
    "broadcast_object": (
        Call("accelerate.utils.broadcast_object_list([{obj}])[0]", args=("obj",), dropped=("fixed_size",)),
        "Accelerate sends a list of objects from the first process",
    ),
    "gather_object": (
        Call("accelerate.utils.gather_object([{obj}])", args=("obj",), dropped=("fixed_size",)),
        "Accelerate joins the lists of all processes, so the object is put into one",
    ),
}
ROWS: dict[str, tuple[Action, str]] = {
    **{
        f"optimum.neuron{module}.{name}": (Rename(new), _STATE)
        for module in ("", ".accelerate", ".accelerate.state")
        for name, new in {
            "NeuronAcceleratorState": "accelerate.state.AcceleratorState",
            "NeuronPartialState": "accelerate.PartialState",
        }.items()
    },
    **{
        f"optimum.neuron.accelerate.{name}": (Rename(f"accelerate.{new}"), "Accelerate's own does the same")
        for name, new in {
            "optimizer.NeuronAcceleratedOptimizer": "optimizer.AcceleratedOptimizer",
            "scheduler.NeuronAcceleratedScheduler": "scheduler.AcceleratedScheduler",
        }.items()
    },
    **{
        f"optimum.neuron.accelerate.utils{module}.{name}": row
        for module in ("", ".operations")
        for name, row in _OBJECTS.items()
    },
}
for _old, (_action, _why) in sorted(ROWS.items(), key=lambda row: row[0]):
    codemod.symbol(_old, _action, because=_why)

DISTRIBUTED_TYPES = (
    "optimum.neuron.accelerate.NeuronDistributedType",
    "optimum.neuron.accelerate.utils.NeuronDistributedType",
    "optimum.neuron.accelerate.utils.dataclasses.NeuronDistributedType",
)
MEMBERS = {"NO": "NO", "XLA": "MULTI_NEURON", "TPU": "MULTI_NEURON"}


@codemod.uses(DISTRIBUTED_TYPES)
def decide_type(site: Site, use: Use) -> None:
    """Write the member of Accelerate's own type."""
    member = MEMBERS.get(use.method)
    if use.method and member is None:
        todo = "ask `accelerator.parallelism_config` whether the model is split"
        site.mark(use.chain, use.name, f"Accelerate has no type `{use.method}`", todo)
        return
    group = site.group(use)
    if member is None:
        group.rename(use, "accelerate.DistributedType")
    else:
        group.replace(use.chain, group.expression(f"accelerate.DistributedType.{member}"))
    group.fixed(use.chain, use.name, "Accelerate's own type knows the native device")
