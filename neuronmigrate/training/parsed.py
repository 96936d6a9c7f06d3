"""Training arguments that a parser fills from the command line.

`HfArgumentParser((ScriptArguments, NeuronTrainingArguments))` takes its defaults from the class, so a class
with the old ones is written: a dataclass that derives from the native one. It also has the legacy settings
that the file still reads, such as `tensor_parallel_size`, so that launch lines may go on giving them.
"""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.edits import Statement
from neuronmigrate.launches import Launch
from neuronmigrate.loads.arguments import Load
from neuronmigrate.site import Use
from neuronmigrate.training.arguments import assumed_defaults, old_defaults
from neuronmigrate.training.fields import OWN_CLASS, Fate, rule
from neuronmigrate.training.kinds import ARGUMENTS, ArgumentsKind
from neuronmigrate.training.parallel import CONFIG_FIELDS, lazy_load_of
from neuronmigrate.training.unit import Source, Unit, reads_of

STAYING = {
    "evaluation_strategy": ("str", '"no"'),
    "half_precision_backend": ("str", '"xla"'),
    "logging_dir": ("str | None", "None"),
    "overwrite_output_dir": ("bool", "False"),
    "pipeline_parallel_size": ("int", "1"),
    "tensor_parallel_size": ("int", "1"),
    "use_autocast": ("bool", "False"),
    "zero_1": ("bool", "False"),
}
"""Legacy settings that scripts read themselves, with their types and defaults: they stay as fields."""


STILL_FLAGS = frozenset(
    {
        "average_tokens_across_devices",
        "bf16",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "gradient_checkpointing_kwargs",
        "label_smoothing_factor",
        "log_level_replica",
        "logging_strategy",
        "optim",
        "optim_args",
        "report_to",
        "resume_from_checkpoint",
        "save_strategy",
        "seed",
        "warmup_steps",
    }
)
"""Flags that the native parser knows as well, whatever becomes of the field in code."""
COMMON_FLAGS = (
    "zero_1",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "overwrite_output_dir",
    "logging_dir",
    "warmup_ratio",
    "evaluation_strategy",
    "half_precision_backend",
    "use_autocast",
)
"""Flags that launch lines give most, of those that are gone."""


_READING_FILES = ("parse_dict", "parse_json_file", "parse_yaml_file")
"""Methods of a parser that take settings from elsewhere than the command line, and refuse unknown ones."""


def staying(unit: Unit, of: Source) -> dict[str, tuple[str, str]]:
    """The legacy settings that are read of the arguments a parser fills."""
    found = {}
    for name, typed in STAYING.items():
        for node, sources in reads_of(unit.site, unit, name):
            # What a block of `lazy_load_for_parallelism` read goes with it; the tensor parallel size moves.
            goes = name != "tensor_parallel_size" and lazy_load_of(unit.site, node) is not None
            if not goes and of.parsed in [each.parsed for each in sources]:
                found[name] = typed
    if any(
        of.parsed in [each.parsed for each in sources]
        for name in CONFIG_FIELDS
        for _, sources in reads_of(unit.site, unit, name)
    ):
        found["tensor_parallel_size"] = STAYING["tensor_parallel_size"]
    elsewhere = _read_elsewhere(unit)
    found.update({name: typed for name, typed in STAYING.items() if name in elsewhere})
    if not elsewhere.isdisjoint(CONFIG_FIELDS):
        found["tensor_parallel_size"] = STAYING["tensor_parallel_size"]
    if "zero_1" in found and not unit.before(OWN_CLASS):
        found["zero_1"] = ("bool", "True")
    return found


def _read_elsewhere(unit: Unit) -> frozenset[str]:
    """The attributes that are read in the modules of the project which this file takes something from."""
    site = unit.site
    taken = {binding.target for binding in site.names.imports}
    return frozenset[str]().union(
        *(
            facts.attributes
            for name, facts in site.project.facts_of(site.path).modules.items()
            if name != site.project.module_name(site.path)
            and any(each == name or each.startswith(f"{name}.") for each in taken)
        )
    )


def without_staying(unit: Unit, load: Load) -> list[cst.Arg]:
    """The arguments of a call without the fields that only the script's own class has.

    `**training_args.to_dict()` brings them in where a parser filled a class that keeps some.
    """
    args = []
    taken = unit.taken_over(load.call)
    for arg in load.args:
        names = [
            name
            for source in taken.get(arg, ())
            if source.parsed is not None
            for name in staying(unit, source)
        ]
        if names:
            left_out = [edits.string(name) for name in dict.fromkeys(names)]
            one = len(left_out) == 1
            kept = unit.group.expression(
                "{{key: value for key, value in {fields}.items() if key "
                + ("!= {names}}}" if one else "not in {names}}}"),
                fields=arg.value.deep_clone(),
                names=left_out[0] if one else cst.Tuple([cst.Element(name) for name in left_out]),
            )
            arg = arg.with_changes(value=kept)
        args.append(arg)
    return args


def write_class(unit: Unit, source: Source) -> cst.Name:
    """A dataclass with the old defaults, above its first use."""
    kind = ARGUMENTS[source.name]
    lines = [f"{default.name}: {default.kind} = {code}" for default, code in old_defaults(unit, kind)]
    lines += [f"{name}: {typed} = {code}" for name, (typed, code) in staying(unit, source).items()]
    body = "\n".join(f"    {line}" for line in lines)
    code = (
        "@dataclasses.dataclass\n"
        f"class {{name}}({kind.native}):\n"
        f'    """The arguments of a training run, with the defaults of optimum-neuron {unit.release}."""\n\n'
        f"{body}\n"
    )
    return unit.group.helper(_class_name(kind), code)


def _class_name(kind: ArgumentsKind) -> str:
    """The name of the class that is written, if it is free."""
    short = kind.native.rpartition(".")[2]
    return f"{short.removesuffix('Config')}Arguments" if short.endswith("Config") else f"Script{short}"


def field_lines(unit: Unit, source: Source, present: frozenset[str]) -> list[Statement]:
    """The old defaults as fields for a class that has some of its own."""
    kind = ARGUMENTS[source.name]
    fields = {default.name: (default.kind, code) for default, code in old_defaults(unit, kind)}
    fields.update(staying(unit, source))
    lines = [f"{name}: {typed} = {code}" for name, (typed, code) in fields.items() if name not in present]
    return unit.group.statements("\n".join(lines) + "\n") if lines else []


def flags_gone(unit: Unit, source: Source) -> list[str]:
    """What is said of launch lines: the flags that are gone, and those that are called otherwise."""
    kind = ARGUMENTS[source.name]
    kept = staying(unit, source)
    gone = [
        f"`--{name}`"
        for name in COMMON_FLAGS
        if name not in kept
        and (found := rule(name, unit.release, kind.fields)) is not None
        and found.fate is not Fate.KEPT
    ]
    todo = launches_told(unit, kept, kind)
    if todo is None:
        shown = ", ".join(gone)
        todo = [f"launch lines must not give flags that are gone, such as {shown}: the parser stops at them"]
    if any(node.attr.value in _READING_FILES for node in unit.site.nodes(cst.Attribute)):
        shown = gone[0].strip("`-")
        todo.append(f"settings that are parsed from elsewhere must not have what is gone, such as `{shown}`")
    todo += _faults(unit)
    assumed = assumed_defaults(unit)
    return [*todo, assumed] if assumed else todo


_UNREAD_FLAGS = {
    "average_tokens_across_devices": "never averaged anything",
    "label_smoothing_factor": "never smoothed the labels",
}
"""Flags that 0.4.x took and did not heed, and what it did not do."""


def _faults(unit: Unit) -> list[str]:
    """What the release did otherwise with flags that stay."""
    launches = unit.site.project.launches_of(unit.site.path)
    given = {flag for launch in launches for flag in launch.flags}
    if not unit.before(OWN_CLASS):
        return [
            f"`--{flag}`: 0.4.x {what}, which was a fault; now it does"
            for flag, what in _UNREAD_FLAGS.items()
            if flag in given
        ]
    name = "gradient_accumulation_steps"
    if launches and name not in given:
        return []
    above = f"with `--{name}` above 1, {unit.release}"
    todo = [f"{above} rounded the number of updates in an epoch down, natively it is rounded up"]
    if not unit.before("0.0.23") and unit.before("0.1.0"):
        models = "" if unit.before("0.0.28") else ", for models whose forward takes `**kwargs`"
        todo.append(
            f"{above} summed the gradients of the micro-batches{models}, which was a fault; now they are "
            "averaged, so `max_grad_norm` cuts at larger gradients"
        )
    return todo


def launches_told(unit: Unit, kept: Collection[str], kind: ArgumentsKind) -> list[str] | None:
    """What is said of each line that starts the script; None where no line is seen."""
    site = unit.site
    launches = site.project.launches_of(site.path)
    todo = []
    for launch in launches:
        changes = _values_told(unit, launch)
        for flag in launch.flags:
            name = flag.removeprefix("no_") if flag.removeprefix("no_") in kind.fields else flag
            found = rule(name, unit.release, kind.fields)
            if found is None or flag in kept or name in STILL_FLAGS or found.fate is Fate.KEPT:
                continue
            if name == "warmup_ratio" and "warmup_steps" in launch.flags:
                changes.append("`--warmup_ratio` is gone: beside `--warmup_steps` it did nothing")
                continue
            native = _NATIVE_FLAGS.get(name, found.native)
            if name == "group_by_length" and not unit.before(OWN_CLASS):
                native = ""  # never heeded
            if native and native != name:
                changes.append(f"`--{flag}` is `--{native}`")
            else:
                changes.append(f"`--{flag}` is gone")
        if changes:
            todo.append(f"{launch.place}: {', '.join(changes)}")
    return todo if launches else None


_NATIVE_FLAGS = {
    "adafactor": "optim adafactor",
    "group_by_length": "train_sampling_strategy group_by_length",
    "include_inputs_for_metrics": "include_for_metrics inputs",
    "warmup_ratio": "warmup_steps",
}
"""What says the same on a native command line, where the field has no native name of its own."""
_GONE_OPTIMIZERS = ("adamw_apex_fused", "adamw_hf", "adamw_torch_xla")


def _values_told(unit: Unit, launch: Launch) -> list[str]:
    """What is said of flags that stay, whose values are gone or act otherwise."""
    given = dict(zip(launch.flags, launch.values, strict=False))
    told = []
    if given.get("optim") in _GONE_OPTIMIZERS:
        told.append(f"`--optim {given['optim']}` is `--optim adamw_torch`")
    if given.get("log_level_replica") == "silent":
        told.append("`--log_level_replica silent` is gone: leave it out")
    if not unit.before(OWN_CLASS):
        for name, what in (("save_strategy", "saved"), ("logging_strategy", "logged")):
            if given.get(name) == "epoch":
                told.append(f"`--{name} epoch` acts now: 0.4.x never {what} anything")
    return told


def source_of(unit: Unit, use: Use, klass: cst.BaseExpression) -> Source:
    """The source of what a parser makes of a legacy class."""
    return Source(use.claim, parsed=klass)
