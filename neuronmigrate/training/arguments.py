"""The legacy training arguments, written as native ones: fields, old defaults, and what was a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import edits, targets
from neuronmigrate.loads.arguments import Load, text_of
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Site, Use
from neuronmigrate.training import trl
from neuronmigrate.training.fields import OWN_CLASS, Default, rule
from neuronmigrate.training.kinds import ARGUMENTS, ArgumentsKind
from neuronmigrate.training.parallel import PIPELINES, is_one
from neuronmigrate.training.precision import precision_of
from neuronmigrate.training.unit import Source, Training, Unit, is_known, resumed

OFF = frozenset({"False", "None", "0", "0.0", '""', "''"})
"""Values with which a field does nothing."""


@dataclass(eq=False)
class Writing:
    """Arguments on their way into native words."""

    site: Site
    unit: Unit
    source: Source
    load: Load
    kind: ArgumentsKind
    taken: set[str] = field(default_factory=set)
    """The native keywords that are written."""

    def __post_init__(self) -> None:
        self.taken = {arg.keyword.value for arg in self.load.args if arg.keyword}
        if any(not arg.keyword and not arg.star for arg in self.load.args):
            self.taken.add("output_dir")

    @property
    def spread(self) -> bool:
        """Whether all fields of TrainingArguments come out of `**training_args.to_dict()`."""
        return any(arg.star for arg in self.load.args)

    @property
    def exact(self) -> bool:
        """Whether the twin of an old fault is asked for."""
        return self.site.settings.exact

    def value(self, name: str) -> cst.BaseExpression | None:
        """What a field is given, a constant looked up."""
        return self.load.values.get(name) or self.load.told.get(name)

    def code(self, name: str) -> str:
        """The code of what a field is given; empty when it is not."""
        value = self.value(name)
        return "" if value is None else edits.code_of(value)

    def text(self, name: str) -> str:
        """The text that a field is given; empty for anything else."""
        value = self.value(name)
        return "" if value is None else text_of(value)

    def is_on(self, name: str) -> bool:
        """Whether a field is given and may do something."""
        return self.code(name) not in {"", *OFF}

    def add(self, native: str, value: cst.BaseExpression | str) -> None:
        """Write a native argument, unless it is there."""
        if native in self.taken:
            return
        node = cst.parse_expression(value) if isinstance(value, str) else value
        self.taken.add(native)
        self.load.args.append(edits.keyword(native, node))

    def keep(self, name: str, native: str = "") -> None:
        """Write a field as it was given, perhaps under another name."""
        given = self.load.told.get(name)
        arg = next((each for each in self.load.call.args if each.value is given), None)
        native = native or name
        if given is None or native in self.taken:
            return
        self.taken.add(native)
        # With its own comma and comments, where it stands in the call itself.
        self.load.args.append(
            arg.with_changes(keyword=cst.Name(native)) if arg is not None else edits.keyword(native, given)
        )
        self.load.keep(given)

    def remove(self, native: str) -> None:
        """Take a native argument away, if it is there."""
        self.load.args = [arg for arg in self.load.args if not arg.keyword or arg.keyword.value != native]
        self.taken.discard(native)

    def replace(self, native: str, value: cst.BaseExpression | str) -> None:
        """Write a native argument in the place of the one that is there."""
        self.remove(native)
        self.add(native, value)

    def tell(self, todo: str, numerics: Numerics = Numerics.SAME) -> None:
        """Name something to look at."""
        self.load.todo.append(todo)
        if numerics is not Numerics.SAME:
            self.load.numerics = numerics


def write_arguments(unit: Unit, use: Use, source: Source) -> Load:
    """Sort the fields of a constructor's call and write those that the native class needs.

    What stands in the way is told in `Load.refused`.
    """
    load = unit.arguments_of(source)
    if load.refused:
        return load
    writing = Writing(unit.site, unit, source, load, ARGUMENTS[source.name])
    for name in load.told:
        found = rule(name, unit.release, writing.kind.fields)
        if found is not None and found.told and writing.is_on(name):
            writing.tell(found.told.format(name=name))
    for settle in (*SETTLERS, *trl.SETTLERS.get(writing.kind.native, ())):
        settle(writing)
    # In the order in which they were given; what is new follows.
    order = {native: index for index, native in enumerate(_given_order(writing))}
    load.args.sort(key=lambda arg: _rank(arg, order))
    write_defaults(writing)
    if not source.derived:
        unit.site.keywords += [(load.native, arg.keyword.value) for arg in load.args if arg.keyword]
    return load


def _rank(arg: cst.Arg, order: Mapping[str, int]) -> int:
    """Positional ones first, those of a dictionary after what was given by name."""
    if arg.keyword is not None:
        return order.get(arg.keyword.value, len(order))
    return len(order) + 1 if arg.star else -1


def _given_order(writing: Writing) -> Iterable[str]:
    for name in writing.load.told:
        found = rule(name, writing.unit.release, writing.kind.fields)
        yield found.native if found is not None and found.native else name


def old_defaults(unit: Unit, kind: ArgumentsKind) -> list[tuple[Default, str]]:
    """The defaults to be written out, with the code of their old values, for the release of a file."""
    from packaging.version import Version

    found = []
    for default in kind.defaults:
        began = [each for each in default.by_release if Version(each) <= Version(unit.release)]
        code = default.by_release[began[-1] if began else next(iter(default.by_release))]
        if code != default.native:
            found.append((default, code))
    return found


def assumed_defaults(unit: Unit) -> str:
    """What is said of defaults that are those of a release that nobody named; empty where one is known."""
    if not unit.assumed:
        return ""
    last = f", the last that has `{unit.evidence.name}`" if unit.evidence is not None else ""
    return (
        f"the defaults are those of optimum-neuron {unit.release}{last}, which is assumed: give the release "
        "that was used with `--from-version`"
    )


def write_defaults(writing: Writing) -> None:
    """Write out the old defaults that the native class has not; a class of the script has them itself."""
    if writing.source.derived:
        return
    inherited: frozenset[str] = frozenset()
    if writing.spread:
        # Arguments that were taken over have theirs written out where they are made.
        inherited = frozenset(targets.parameters(_taken_class(writing)) or ())
    for default, code in old_defaults(writing.unit, writing.kind):
        if default.name not in inherited:
            writing.add(default.name, code)
    todo = assumed_defaults(writing.unit)
    if todo:
        writing.tell(todo)


def _taken_class(writing: Writing) -> str:
    """The native class of the arguments whose dictionary is taken over."""
    for sources in writing.unit.taken_over(writing.load.call).values():
        for source in sources:
            return ARGUMENTS[source.name].native
    return "transformers.TrainingArguments"


# What a field meant is written elsewhere, or otherwise.


def _batches(writing: Writing) -> None:
    """Micro-batches: their gradients were summed, and the last incomplete update was left out."""
    name = "gradient_accumulation_steps"
    writing.keep(name)
    if writing.code(name) in ("", "1", "None"):
        return
    steps = edits.short(writing.value(name) or writing.load.call)
    unit = writing.unit
    if not unit.before("0.0.23") and unit.before("0.1.0"):
        models = "for every model" if unit.before("0.0.28") else "for models whose forward takes `**kwargs`"
        if writing.exact:
            number = f"({steps})" if not steps.isidentifier() and not steps.isdigit() else steps
            for field_name, default in (("max_grad_norm", "1.0"), ("adam_epsilon", "1e-8")):
                old = writing.code(field_name) or default
                writing.replace(field_name, f"{old} / {number}")
            writing.tell(
                f"{unit.release} summed the gradients of the {steps} micro-batches {models}: clipping and "
                "epsilon are divided to get its updates"
            )
        else:
            writing.tell(
                f"{unit.release} summed the gradients of the {steps} micro-batches {models}, which was a "
                f"fault; now they are averaged, so `max_grad_norm` cuts at gradients {steps} times larger"
            )
    if unit.before(OWN_CLASS):
        writing.tell(
            f"{unit.release} rounded the number of updates in an epoch down, natively it is rounded up: "
            f"where batches do not divide by {steps}, give `max_steps` to train as long as before"
        )


def _per_gpu(writing: Writing) -> None:
    """The old names won where they were given, and None is as good as nothing."""
    for name in ("train_batch_size", "eval_batch_size"):
        if writing.code(f"per_gpu_{name}") not in ("", "None"):
            native = f"per_device_{name}"
            writing.remove(native)
            writing.keep(f"per_gpu_{name}", native)


def _warm_up(writing: Writing) -> None:
    """`warmup_steps` above 0 won over `warmup_ratio`; natively a number below 1 is a ratio."""
    steps, ratio = writing.code("warmup_steps"), writing.code("warmup_ratio")
    if not writing.is_on("warmup_ratio"):
        writing.keep("warmup_steps")
        return
    number = writing.value("warmup_ratio")
    if isinstance(writing.value("warmup_steps"), cst.Integer) and steps != "0":
        writing.keep("warmup_steps")
        return
    if steps and steps not in OFF:
        both = edits.expression("{steps} if {steps} > 0 else 0", steps=writing.load.told["warmup_steps"])
        both = both.with_changes(orelse=writing.load.told["warmup_ratio"])
        writing.add("warmup_steps", both)
        writing.load.keep(both)
    else:
        writing.keep("warmup_ratio", "warmup_steps")
    if not isinstance(number, cst.Float) or float(number.value) >= 1:
        writing.tell(f"`warmup_steps={ratio}` is a ratio only below 1: natively 1.0 means one step")


def _optimizer(writing: Writing) -> None:
    """Optimizers that are gone, or are named otherwise."""
    if writing.is_on("adafactor"):
        writing.add("optim", '"adafactor"')
        return
    if writing.text("optim") in ("adamw_torch_xla", "adamw_hf", "adamw_apex_fused"):
        writing.add("optim", '"adamw_torch"')
        if writing.text("optim") != "adamw_torch_xla":
            writing.tell(
                f"the optimizer `{writing.text('optim')}` is gone: torch's own AdamW takes its place"
            )
    else:
        writing.keep("optim")
    if writing.unit.before(OWN_CLASS):
        writing.keep("optim_args")
    elif writing.is_on("optim_args"):
        writing.tell("`optim_args` went: 0.4.x never read it, natively it would act")


def _sampling(writing: Writing) -> None:
    if writing.is_on("group_by_length"):
        if writing.unit.before(OWN_CLASS):
            writing.add("train_sampling_strategy", '"group_by_length"')
            writing.tell(
                "with several processes `group_by_length` was not heeded; now it is", Numerics.RANDOM
            )
        else:
            writing.tell("`group_by_length` went: 0.4.x never read it, natively it would act")


def _metrics(writing: Writing) -> None:
    if writing.is_on("include_inputs_for_metrics"):
        writing.add("include_for_metrics", '["inputs"]')


def _smoothing(writing: Writing) -> None:
    name = "label_smoothing_factor"
    if writing.unit.before(OWN_CLASS) or not writing.is_on(name):
        writing.keep(name)
    elif writing.exact:
        writing.add(name, "0.0")
        writing.tell("0.4.x never smoothed the labels, so that the old loss is without")
    else:
        writing.keep(name)
        writing.tell("0.4.x never smoothed the labels, which was a fault: the loss is another one now")


def _averaging(writing: Writing) -> None:
    """0.4.x took it and never averaged over the processes."""
    name = "average_tokens_across_devices"
    if writing.unit.before(OWN_CLASS) or not writing.is_on(name):
        writing.keep(name)
    elif writing.exact:
        writing.add(name, "False")
        writing.tell(f"`{name}` is off: 0.4.x never averaged over the processes")
    else:
        writing.keep(name)
        writing.tell(f"`{name}` never averaged anything in 0.4.x, which was a fault; now it does")


def _levels(writing: Writing) -> None:
    if writing.text("log_level_replica") != "silent":
        writing.keep("log_level_replica")


def _strategies(writing: Writing) -> None:
    """`"epoch"` never fired in 0.4.x: the flag was set after the last look at it."""
    for name, what in (("save_strategy", "saved"), ("logging_strategy", "logged")):
        if writing.unit.before(OWN_CLASS) or writing.text(name) != "epoch":
            writing.keep(name)
        elif writing.exact:
            writing.add(name, '"no"')
            writing.tell(f'`{name}="epoch"` never {what} anything in 0.4.x, so that it is off')
        else:
            writing.keep(name)
            writing.tell(f'`{name}="epoch"` never {what} anything in 0.4.x, which was a fault; now it does')


def _seed(writing: Writing) -> None:
    """0.4.x never read it: the order and dropout followed the script's own `set_seed`."""
    own = _set_seed(writing.site)
    unread = not writing.unit.before(OWN_CLASS)
    if unread and own and own != (writing.code("seed") or "42") and own.isdigit():
        writing.add("seed", own)
        writing.tell(
            f"0.4.x never read `seed`, and the script sets {own}: the Trainer gets that, and sets it again",
            Numerics.RANDOM,
        )
        return
    writing.keep("seed")
    if unread and writing.code("seed"):
        writing.tell("0.4.x never read `seed`; natively the Trainer sets it", Numerics.RANDOM)


def _set_seed(site: Site) -> str | None:
    """The code of the seed that a script sets itself."""
    for call in site.nodes(cst.Call):
        name = site.name_of(call.func) or ""
        if name.rpartition(".")[2] in ("set_seed", "manual_seed") and len(call.args) == 1:
            return edits.code_of(call.args[0].value)
    return None


def _trained(writing: Writing) -> list[Training]:
    """The trainers of this file that get these arguments."""
    own = (writing.source.call, writing.source.parsed)
    return [
        each
        for each in writing.unit.trainings
        if any((source.call, source.parsed) == own for source in each.sources)
    ]


def _parallelism(writing: Writing) -> None:
    """Sizes leave the arguments; the load of the model that is trained gets the tensor parallel one."""
    pipeline = writing.value("pipeline_parallel_size")
    if isinstance(pipeline, cst.Integer) and not is_one(pipeline):
        writing.load.refuse(PIPELINES)
    elif not is_one(pipeline):
        writing.tell(f"`pipeline_parallel_size` went: {PIPELINES}")
    if writing.is_on("zero_1"):
        writing.tell(
            "`zero_1` went: each process holds the whole state of the optimizer; where memory is short give "
            '`fsdp=True, fsdp_config={"version": 2, "reshard_after_forward": False}`'
        )
    size = writing.value("tensor_parallel_size")
    if is_one(size):
        return
    turned_off = writing.code("disable_sequence_parallel") == "True" or (
        writing.code("sequence_parallel_enabled") == "False"
    )
    if not turned_off:
        writing.tell("sequence parallelism has no native twin yet: activations take more memory")
    assert size is not None
    known = [load for each in _trained(writing) for load in each.loads if is_known(writing.site, load)]
    if not known:
        writing.tell(
            f"the load of the model that is trained is not known: give its `from_pretrained` "
            f"`distributed_config=DistributedConfig(tp_size={edits.short(size)})`"
        )


def _precision(writing: Writing) -> None:
    """What `bf16` meant; the dtype of the weights is written where the model is loaded."""
    if writing.spread:
        return
    found = precision_of(writing.unit, writing.source)
    if found.autocast:
        writing.keep("bf16")
    todos = list(found.todo)
    if not found.off and not found.autocast and not any(each.loads for each in _trained(writing)):
        but = "" if writing.unit.before("0.2.0") else ", but not those of optimum.neuron.models.training"
        own = but if writing.unit.before(OWN_CLASS) else ""
        todos.insert(
            0,
            f"`bf16={writing.code('bf16')}` went: it made the weights bfloat16{own}: give the load of the "
            "model that is trained `dtype=torch.bfloat16`",
        )
    for todo in todos:
        writing.tell(todo, Numerics.DTYPE)


def _resuming(writing: Writing) -> None:
    """0.1.0 to 0.3.0 resumed inside an epoch at its first batch."""
    unit = writing.unit
    if writing.exact and not unit.before("0.1.0") and unit.before(OWN_CLASS):
        trained = [each for each in unit.trainings if writing.source in each.sources]
        if any(resumed(unit, each) is not None for each in trained):
            writing.add("ignore_data_skip", "True")


def _trackers(writing: Writing) -> None:
    """None meant all that are installed."""
    if writing.code("report_to") == "None":
        writing.add("report_to", '"all"')
    else:
        writing.keep("report_to")


def _owner(writing: Writing) -> None:
    if writing.is_on("push_to_hub_organization"):
        writing.tell(
            "`push_to_hub_organization` went: give `hub_model_id` with the organization in front of the name"
        )


SETTLERS: tuple[Callable[[Writing], None], ...] = (
    _batches,
    _per_gpu,
    _warm_up,
    _optimizer,
    _sampling,
    _metrics,
    _smoothing,
    _averaging,
    _levels,
    _strategies,
    _seed,
    _parallelism,
    _precision,
    _trackers,
    _resuming,
    _owner,
)
"""What writes the fields whose meaning moved; a codemod with more fields adds its own."""
