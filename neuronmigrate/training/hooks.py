"""Classes of a script that derive from the legacy trainer or its arguments, and the hooks they override.

The native signatures are those of Transformers 5.24's Trainer; the legacy ones are of `trainers.py` (0.0.1 to
0.3.0) and `trainers/transformers.py` (0.4.0 to 0.4.5) of optimum-neuron.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.edits import Statement
from neuronmigrate.names import dotted_name
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Site, Use
from neuronmigrate.training import losses, parsed
from neuronmigrate.training.fields import OWN_CLASS, Fate, rule
from neuronmigrate.training.kinds import ARGUMENTS, TRAINERS
from neuronmigrate.training.unit import Source, Unit, legacy_class


@dataclass(frozen=True)
class Hook:
    """A method of Trainer that scripts override, with the parameters it has natively."""

    parameters: tuple[str, ...]
    """After `self`, with their defaults."""
    todo: str = ""
    """What has to be looked at besides the signature."""


KEPT: Mapping[str, Hook] = {
    "compute_loss": Hook(("model", "inputs", "return_outputs=False", "num_items_in_batch=None")),
    "training_step": Hook(("model", "inputs", "num_items_in_batch=None")),
    "_maybe_log_save_evaluate": Hook(
        (
            "tr_loss",
            "grad_norm",
            "model",
            "trial",
            "epoch",
            "ignore_keys_for_eval",
            "start_time",
            "learning_rate=None",
        )
    ),
    "log": Hook(("logs", "start_time=None")),
    "create_optimizer": Hook(("model=None",)),
    "_get_train_sampler": Hook(
        ("train_dataset=None",),
        "with several processes its order was lost to another sampler; natively it counts",
    ),
    "get_batch_samples": Hook(("epoch_iterator", "num_batches", "device")),
    "_save_checkpoint": Hook(("model", "trial")),
}
"""Hooks that are still called."""

_CALLBACK = "use a `TrainerCallback` (`on_log`, `on_save`, `on_step_end`)"
GONE: Mapping[str, str] = {
    "_get_last_learning_rate": "the native hook is `_get_learning_rate`",
    "_inner_training_loop": "the native loop is another one: use `training_step` or callbacks",
    "_prepare_non_packed_dataloader": "the native hook is `_prepare_dataset`",
    "_prepare_packed_dataloader": "the native hook is `_prepare_dataset`",
    "_save_xla": "the native hook is `_save(output_dir, state_dict)`",
    "_train": "the native hook is `train`",
    "create_accelerator_and_postprocess": "it made a NeuronAccelerator; the native one makes an Accelerator",
    "is_logging_process": "use `self.is_world_process_zero()`",
    "maybe_log_train_step_metrics": _CALLBACK,
    "maybe_save_checkpoint": _CALLBACK,
    "num_tokens": "give `include_num_input_tokens_seen`",
    "prepare_args_for_precompilation": "nothing is compiled ahead natively",
    "prepare_for_precompilation": "nothing is compiled ahead natively",
    "report_and_save_summary_metrics": _CALLBACK,
    "set_initial_training_values": "its parameters are `(args, dataloader)` natively",
    "setup_training": "the native hook is `create_optimizer_and_scheduler`",
    "synchronize_hub_cache": "nothing is compiled ahead natively",
    "train_step": "the native hook is `training_step`, which calls `self.accelerator.backward(loss)`",
    "trigger_on_step_middle_for_neuron_cache_callback": "nothing is compiled ahead natively",
    "validate_args": "check the arguments before the trainer is made",
}
"""Hooks that the native Trainer never calls, and what to use."""

_NEEDLESS = frozenset(
    {
        "prepare_for_precompilation",
        "synchronize_hub_cache",
        "trigger_on_step_middle_for_neuron_cache_callback",
    }
)
"""Methods whose calls go."""
_STATE = {
    "dp_size": "use `self.args.world_size`, divided by the tensor parallel size",
    "mp_enabled": "use `self.is_tp_enabled`",
    "pp_rank": "there is no pipeline schedule natively",
    "pp_size": "there is no pipeline schedule natively",
    "tp_enabled": "ask the model's `tp_size`",
    "tp_size": "ask the model's `tp_size`",
    "trn_config": "ask the model's `config.distributed_config`",
}
"""Attributes of a trainer that are gone."""


def derive_trainer(unit: Unit, use: Use, native: str) -> None:
    """A class of the script that derives from a legacy trainer."""
    site, group = unit.site, unit.group
    owner = next(each for each in site.ancestors(use.chain) if isinstance(each, cst.ClassDef))
    group.rename(use, native)
    unit.say(use.chain, use.name, f"the class derives from {native.rpartition('.')[2]}")
    _hooks(unit, owner)


def derived_further(unit: Unit) -> None:
    """Answer for classes that derive from a trainer of this file."""
    for owner, name in unit.subclasses.items():
        direct = any(unit.site.name_of(base.value) in TRAINERS for base in owner.bases)
        if name in TRAINERS and not direct:
            _hooks(unit, owner)


def _hooks(unit: Unit, owner: cst.ClassDef) -> None:
    for method in owner.body.body:
        if isinstance(method, cst.FunctionDef):
            _method(unit, owner, method)
    _calls(unit, owner)


def _method(unit: Unit, owner: cst.ClassDef, method: cst.FunctionDef) -> None:
    site, group, name = unit.site, unit.group, method.name.value
    label = f"{owner.name.value}.{name}"
    if name in GONE:
        site.mark(method, label, f"the native Trainer never calls `{name}`", GONE[name])
        return
    hook = KEPT.get(name)
    if hook is None:
        return
    todo = [hook.todo] if hook.todo else []
    if name == "compute_loss":
        if not unit.before(OWN_CLASS) and unit.before("0.4.2"):
            todo.append(f"{unit.release} never called it; natively it is called")
        todo += _divide(unit, owner)
    wanted = _missing(method, hook)
    if wanted is None:
        site.mark(
            method,
            label,
            f"`{name}` is called with other arguments natively",
            f"its native parameters are `({', '.join(('self', *hook.parameters))})`",
        )
        return
    if wanted:
        new = method.params.with_changes(params=wanted)
        group.replace(method.params, new)
    if not wanted and not todo:
        return
    why = f"`{name}` takes what the native Trainer gives it" if wanted else f"`{name}` is still called"
    if todo:
        group.review(method.name, label, why, "; ".join(todo), numerics=Numerics.REORDERED)
    else:
        group.fixed(method.name, label, why)


def _divide(unit: Unit, owner: cst.ClassDef) -> list[str]:
    """Have the native Trainer divide a loss that a class computes itself by the number of micro-batches."""
    method = losses.own_loss(owner)
    if method is None or not losses.is_undivided(method) or not _may_accumulate(unit):
        return []
    if _has(owner, _SCALED):
        return []
    undivided = not unit.before("0.4.2")
    summed = undivided and unit.site.settings.exact
    # A class that made up for the sum would divide twice.
    own = summed or (undivided and losses.divides(method))
    first = next(each for each in owner.body.body if not _is_text(each))
    assert isinstance(first, Statement)  # there is the method at least
    unit.group.insert(first, unit.group.statements(f"{_SCALED} = {own}\n"))
    if summed:
        return [f"`{_SCALED} = True` keeps the gradients of micro-batches summed, as {unit.release} did"]
    if own:
        return [
            f"`{_SCALED} = True` leaves this loss as it is, which is divided here as {unit.release} did not"
        ]
    told = f"`{_SCALED} = False` has the Trainer divide this loss by the number of micro-batches"
    return [f"{told}, which {unit.release} did not" if undivided else told]


_SCALED = "loss_is_scaled_for_ga"
"""The attribute of Transformers' Trainer, from 5.19 on, for classes that compute their loss themselves."""


def _is_text(line: cst.CSTNode) -> bool:
    """Whether a line of a class is its docstring."""
    expression = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    return isinstance(expression, cst.Expr) and isinstance(expression.value, cst.SimpleString)


def _has(owner: cst.ClassDef, name: str) -> bool:
    return any(
        isinstance(small, cst.Assign) and edits.code_of(small.targets[0].target) == name
        for line in owner.body.body
        for small in (line.body if isinstance(line, cst.SimpleStatementLine) else ())
    )


def _missing(method: cst.FunctionDef, hook: Hook) -> list[cst.Param] | None:
    """The parameters with those that are missing; empty where none is, None where they do not fit."""
    own = list(method.params.params[1:])
    if method.params.star_kwarg is not None or isinstance(method.params.star_arg, cst.Param):
        return []
    names = [each.name.value for each in own]
    native = [each.partition("=")[0] for each in hook.parameters]
    if len(own) >= len(native):
        return [] if all(each.default is not None for each in own[len(native) :]) else None
    # Those at the start have the places of the native ones, under whatever name; 0.0.28 alone had no
    # `return_outputs` before `num_items_in_batch`.
    moved = {name: own[index] for index, name in enumerate(names) if name in native[index + 1 :]}
    if len(moved) > 1 or (moved and names[-1] not in moved):
        return None
    result = [method.params.params[0]]
    for index, parameter in enumerate(hook.parameters):
        name, _, default = parameter.partition("=")
        if name in moved:
            result.append(moved[name])
        elif index < len(own) - len(moved):
            result.append(own[index])
        else:
            result.append(
                cst.Param(
                    cst.Name(name),
                    default=cst.parse_expression(default or "None"),
                    equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
                )
            )
    result = [each.with_changes(comma=cst.MaybeSentinel.DEFAULT) for each in result]
    seen_default = False
    for at, each in enumerate(result[1:], 1):
        if seen_default and each.default is None:
            # No parameter without a default may follow one that has it.
            result[at] = each.with_changes(
                default=cst.Name("None"),
                equal=cst.MaybeSentinel.DEFAULT
                if each.annotation
                else cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
            )
        seen_default = seen_default or each.default is not None
    return result


def _calls(unit: Unit, owner: cst.ClassDef) -> None:
    """What the methods of a derived class call and read of the legacy one."""
    site, group = unit.site, unit.group
    inside = [node for node in site.nodes(cst.Attribute) if owner in site.ancestors(node)]
    own = {each.name.value for each in owner.body.body if isinstance(each, cst.FunctionDef)}
    stored = stores_tokenizer(site, owner)
    for node in inside:
        if dotted_name(node.value) != "self":
            continue
        name = node.attr.value
        call = site.parent(node)
        if name in _NEEDLESS and name not in own and isinstance(call, cst.Call) and call.func is node:
            alone = site.alone(call)
            if alone is not None:
                group.replace_statement(alone)
                group.fixed(call, f"self.{name}", "nothing is compiled ahead natively")
                continue
        if name in _STATE and not _is_stored(site, node) and name not in own:
            site.mark(node, f"self.{name}", f"the native Trainer has no `{name}`", _STATE[name])
        elif name == "tokenizer" and not stored and not _is_stored(site, node):
            group.replace(node, node.with_changes(attr=cst.Name("processing_class")))
            group.fixed(node, "self.tokenizer", "the native Trainer calls it `processing_class`")
    for call in site.nodes(cst.Call):
        if owner not in site.ancestors(call) or not isinstance(call.func, cst.Attribute):
            continue
        if not _is_super(site, call.func.value):
            continue
        if call.func.attr.value == "__init__":
            _super_init(unit, call)
        elif call.func.attr.value in ("compute_loss", "training_step"):
            _hand_on(unit, call, call.func.attr.value)


def callbacks(unit: Unit) -> None:
    """What callbacks are given as `tokenizer`, the native Trainer gives as `processing_class`."""
    site = unit.site
    for owner in site.nodes(cst.ClassDef):
        if not any(site.name_of(base.value) in _CALLBACKS for base in owner.bases):
            continue
        for method in owner.body.body:
            if not isinstance(method, cst.FunctionDef) or not method.name.value.startswith("on_"):
                continue
            if any(each.name.value == "tokenizer" for each in method.params.params):
                label = f"{owner.name.value}.{method.name.value}"
                todo = "the native Trainer gives it as `processing_class`"
                site.mark(method, label, "`tokenizer` is given no more", todo)
            given = method.params.star_kwarg
            if given is not None:
                _tokenizer_of(unit, method, given.name.value)


_CALLBACKS = ("transformers.TrainerCallback", "transformers.trainer_callback.TrainerCallback")


def _tokenizer_of(unit: Unit, method: cst.FunctionDef, given: str) -> None:
    """Read `kwargs["tokenizer"]` under the native name."""
    site = unit.site
    for text in site.nodes(cst.SimpleString):
        if text.evaluated_value != "tokenizer" or method not in site.ancestors(text):
            continue
        around = next((each for each in site.ancestors(text) if isinstance(each, cst.BaseExpression)), None)
        read = (isinstance(around, cst.Subscript) and dotted_name(around.value) == given) or (
            isinstance(around, cst.Call) and dotted_name(around.func) in (f"{given}.get", f"{given}.pop")
        )
        if read:
            unit.group.replace(text, edits.string("processing_class"))
            unit.say(text, "tokenizer", "the native Trainer gives it as `processing_class`")


def stores_tokenizer(site: Site, owner: cst.ClassDef) -> bool:
    """Whether a class has a `tokenizer` of its own, which it goes on reading."""
    return any(
        node.attr.value == "tokenizer"
        and dotted_name(node.value) == "self"
        and _is_stored(site, node)
        and owner in site.ancestors(node)
        for node in site.nodes(cst.Attribute)
    )


def _is_stored(site: Site, node: cst.Attribute) -> bool:
    return isinstance(site.parent(node), (cst.AssignTarget, cst.AnnAssign))


def _is_super(site: Site, value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and site.name_of(value.func) == "builtins.super"


def _super_init(unit: Unit, call: cst.Call) -> None:
    args = [
        arg.with_changes(keyword=cst.Name("processing_class"))
        if arg.keyword is not None and arg.keyword.value == "tokenizer"
        else arg
        for arg in call.args
    ]
    if args != list(call.args):
        unit.group.replace(call, edits.with_arguments(call, args))
        unit.say(call, "tokenizer", "the native Trainer calls it `processing_class`")


def _hand_on(unit: Unit, call: cst.Call, name: str) -> None:
    """Hand the number of items, which the native loss divides by, on to the base."""
    function = unit.site.names.function_of(call)
    around = function.node if function is not None else None
    if not isinstance(around, cst.FunctionDef) or around.name.value != name:
        return
    given = [arg.keyword.value for arg in call.args if arg.keyword is not None]
    at_most = len(KEPT[name].parameters) - 1
    if any(arg.star for arg in call.args) or "num_items_in_batch" in given or len(call.args) > at_most:
        return
    names = [each.name.value for each in around.params.params]
    if "num_items_in_batch" not in names and around.params.star_kwarg is not None:
        value = edits.expression(
            '{more}.get("num_items_in_batch")', more=cst.Name(around.params.star_kwarg.name.value)
        )
    else:
        value = cst.Name("num_items_in_batch")
    args = [*call.args, edits.keyword("num_items_in_batch", value)]
    unit.group.replace(call, edits.with_arguments(call, args))


def _may_accumulate(unit: Unit) -> bool:
    """Whether a trainer of this file may go several micro-batches before it updates."""
    for training in unit.trainings:
        for source in training.sources:
            value = unit.told(source, "gradient_accumulation_steps")
            if source.call is None or (value is not None and edits.code_of(value) not in ("1", "None")):
                return True
    return not unit.trainings


def derive_arguments(unit: Unit, use: Use, native: str) -> None:
    """A class of the script that derives from legacy training arguments: the old defaults become fields."""
    site, group = unit.site, unit.group
    owner = next(each for each in site.ancestors(use.chain) if isinstance(each, cst.ClassDef))
    source = Source(use.claim, parsed=_given_to_a_parser(unit, owner), owner=owner, derived=True)
    group.rename(use, native)
    present = unit.fields_of(owner)
    for name in present:
        found = rule(name, unit.release, ARGUMENTS[use.claim].fields)
        if found is not None and found.fate is Fate.RENAMED:
            group.refuse(f"the field `{name}` is called `{found.native}` natively")
    body = [line for line in owner.body.body if isinstance(line, cst.SimpleStatementLine)]
    lines = parsed.field_lines(unit, source, present)
    if not body:
        group.refuse("the class has no fields of its own to put the old defaults before")
    elif lines:
        first = body[0]
        group.insert(first, lines, before=not _is_text(first))
    short = native.rpartition(".")[2]
    unit.say(
        use.chain,
        use.name,
        f"the class derives from {short} and keeps the old defaults",
        parsed.flags_gone(unit, source),
    )


def _given_to_a_parser(unit: Unit, owner: cst.ClassDef) -> cst.BaseExpression | None:
    """The place where a class of this file is given to a parser."""
    for node in unit.site.nodes(cst.Attribute):
        for source in unit.sources(node.value) if node.attr.value in parsed.STAYING else ():
            if source.owner is owner:
                return source.parsed
    return None


def constructed_arguments(unit: Unit, construct: Callable[[Unit, Use, Source], None]) -> None:
    """Answer for constructors of the script's own classes of arguments, and for Transformers' own."""
    for source in dict.fromkeys(source for each in unit.trainings for source in each.sources):
        if source.plain and source.call is not None:
            name = unit.site.name_of(source.call.func) or source.name
            construct(unit, replace(unit.use_of(source.name, source.call), name=name), source)
    for call in unit.site.nodes(cst.Call):
        name, owner, derived = legacy_class(unit.site, unit.subclasses, call.func)
        if derived and name in ARGUMENTS and ARGUMENTS[name].native.startswith("transformers."):
            construct(unit, unit.use_of(name, call), Source(name, call=call, owner=owner, derived=True))
