"""Encoders that Optimum Neuron traced, such as `NeuronModelForSequenceClassification`.

The native device needs no export: the plain Transformers class loads the original checkpoint with
`device_map="neuron"`, and shapes and compiler options go. What the old class did by itself is written
out: it held float32 weights whatever the checkpoint holds, so `dtype` is written; it took and gave CPU
tensors without gradient, so inputs are moved, calls run under `torch.no_grad()` and outputs come back.
Tokenizer calls stay, since the old class cut its padding back. A load of a compiled folder, arguments
that cannot be seen, and calls that cannot be followed are marked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.flow import UseKind
from neuronmigrate.moving import move_forward
from neuronmigrate.names import Kind
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

# Legacy class and the class that loads the same checkpoint (optimum-neuron 0.0.5 to 0.4.5).
CLASSES = {
    "optimum.neuron.NeuronModelForSequenceClassification": "transformers.AutoModelForSequenceClassification",
    "optimum.neuron.modeling.NeuronModelForSequenceClassification": (
        "transformers.AutoModelForSequenceClassification"
    ),
}

# Arguments of `from_pretrained` by what becomes of them.
KEPT = frozenset(
    {
        "cache_dir",
        "config",
        "force_download",
        "local_files_only",
        "output_hidden_states",
        "revision",
        "subfolder",
        "token",
        "trust_remote_code",
    }
)
RENAMED = {"use_auth_token": "token"}
MODEL_ID = ("model_id", "model_name_or_path", "pretrained_model_name_or_path")
CONSUMED = frozenset({"export", "from_transformers", "auto_cast", "auto_cast_type", "torch_dtype", "dtype"})
DROPPED = frozenset(
    {
        "audio_sequence_length",
        "batch_size",
        "compiler_workdir",
        "configs",
        "device",
        "device_id",
        "device_map",
        "disable_fallback",
        "disable_fast_relayout",
        "disable_neuron_cache",
        "dynamic_batch_size",
        "feature_size",
        "file_name",
        "float_dtype",
        "height",
        "image_batch_size",
        "image_size",
        "inline_weights_to_neff",
        "int_dtype",
        "library_name",
        "low_cpu_mem_usage",
        "model_save_dir",
        "nb_max_frames",
        "neuron_config",
        "num_channels",
        "num_choices",
        "optlevel",
        "patch_size",
        "preprocessors",
        "sequence_length",
        "task",
        "text_batch_size",
        "width",
    }
)
# `auto_cast_type` and the weights' dtype that comes nearest.
CAST_TYPES = {
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp32": "torch.float32",
    "tf32": "torch.float32",
}
GONE_ATTRIBUTES = {
    "neuron_config": "nothing is compiled, so there are no compiled shapes to read",
    "input_static_shapes": "nothing is compiled, so there are no compiled shapes to read",
    "model_save_dir": "there is no folder of compiled files",
    "preprocessors": "load the tokenizer with `AutoTokenizer.from_pretrained`",
    "replace_weights": "weights are ordinary parameters: use `load_state_dict`",
    "push_to_hub": "it uploaded compiled files; native `push_to_hub(repo_id)` uploads the weights",
}


@dataclass
class Load:
    """The arguments of one `from_pretrained`, sorted by what becomes of them."""

    args: list[cst.Arg] = field(default_factory=list)
    values: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """The values of the arguments that are consumed."""
    spreads: list[tuple[cst.Arg, cst.Assign | None]] = field(default_factory=list)
    """Spread dictionaries that were resolved, and the assignment that made each."""
    dropped: list[cst.Name] = field(default_factory=list)
    """Variables that were read for arguments that go."""
    todo: list[str] = field(default_factory=list)
    refused: str = ""


@codemod.uses(CLASSES)
def decide(site: Site, use: Use) -> None:
    """Answer each use of a traced class by what is done with it."""
    if use.method == "from_pretrained" and use.call is not None:
        _load(site, use, use.call)
    elif _is_annotation(site, use.chain):
        group = site.group(use)
        group.rename(use, "transformers.PreTrainedModel")
        group.fixed(use.chain, use.name, "as a type it is any Transformers model")
    elif _is_isinstance(site, use.chain):
        group = site.group(use)
        group.rename(use, "transformers.PreTrainedModel")
        group.review(
            use.chain,
            use.name,
            "every native model is a PreTrainedModel, and Auto classes have no instances",
            "check that the branch is meant for any Transformers model",
        )
    else:
        what = "is subclassed here" if _is_base(site, use.chain) else "is handed on as a value here"
        site.mark(
            use.whole,
            use.name,
            f"the class {what}, so its calls cannot be followed",
            f'use `{CLASSES[use.claim].rpartition(".")[2]}` with `device_map="neuron"`, move inputs to '
            "`model.device` and outputs back with `.cpu()`",
        )


def _load(site: Site, use: Use, call: cst.Call) -> None:
    load = _sorted_arguments(site, call)
    refused = load.refused or _compiled(load)
    dtype, numerics, cast = _dtype(load)
    if not refused and not dtype:
        refused = cast
    if refused:
        site.mark(call, use.name, refused, _by_hand(use))
        return
    native = CLASSES[use.claim]
    group = site.group(use)
    todo = list(load.todo)
    calls = _follow(site, group, call, dtype == "torch.bfloat16", todo)
    if group.refused:
        site.mark(call, use.name, group.refused, _by_hand(use))
        return
    args = list(load.args)
    value = load.values.get("torch_dtype") or load.values.get("dtype")
    args.append(edits.keyword("dtype", value if value is not None else group.expression(dtype)))
    args.append(edits.keyword("device_map", edits.string("neuron")))
    site.keywords += [(f"{native}.from_pretrained", arg.keyword.value) for arg in args if arg.keyword]
    new_call = edits.with_arguments(call, args)
    function = use.chain
    assert isinstance(function, cst.Attribute)
    group.replace(call, new_call)
    group.rename(use, native)
    for _, assign in load.spreads:
        if assign is not None:
            group.replace_statement(assign)
    todo += _unread(site, group, load.dropped)
    why = f"{native.rpartition('.')[2]} loads the original checkpoint onto the device, without an export"
    if cast:
        todo.append(cast)
    if calls:
        why += f"; {calls}"
    if todo:
        group.review(call, use.name, why, "; ".join(dict.fromkeys(todo)), numerics=numerics)
    else:
        group.fixed(call, use.name, why, numerics=numerics)


def _by_hand(use: Use) -> str:
    native = CLASSES[use.claim].rpartition(".")[2]
    return f'by hand: `{native}.from_pretrained(original id, dtype=torch.float32, device_map="neuron")`'


# Arguments.


def _sorted_arguments(site: Site, call: cst.Call) -> Load:
    load = Load()
    for index, arg in enumerate(call.args):
        if arg.star == "*":
            load.refused = f"the arguments `*{edits.short(arg.value)}` cannot be seen from here"
        elif arg.star == "**":
            _spread(site, load, call, arg)
        elif arg.keyword is None:
            if index == 0:
                load.values["model_id"] = arg.value
                load.args.append(arg)
            elif index == 1:
                _argument(load, "config", arg)
            else:
                load.refused = "it is called with three or more positional arguments"
        else:
            _argument(load, arg.keyword.value, arg)
    return load


def _argument(load: Load, name: str, arg: cst.Arg) -> None:
    if name in MODEL_ID:
        load.values["model_id"] = arg.value
        load.args.append(arg.with_changes(keyword=cst.Name("pretrained_model_name_or_path")))
    elif name in RENAMED:
        load.args.append(arg.with_changes(keyword=cst.Name(RENAMED[name])))
    elif name in KEPT:
        load.args.append(arg if arg.keyword else edits.keyword(name, arg.value))
    elif name in CONSUMED:
        load.values[name] = arg.value
    elif name == "tensor_parallel_size":
        if edits.code_of(arg.value) != "1":
            load.refused = (
                "encoders have no tensor-parallel plan natively, so `tensor_parallel_size` has no counterpart"
            )
    elif name == "output_attentions":
        load.args.append(arg)
        load.todo.append('attention weights need `attn_implementation="eager"` natively')
    elif name == "instance_type":
        load.todo.append(
            f"it was built for {edits.short(arg.value)}: the native device is Trainium 2 and 3 alone"
        )
    elif name in DROPPED:
        if isinstance(arg.value, cst.Name):
            load.dropped.append(arg.value)
        if not edits.is_pure(arg.value) and not isinstance(arg.value, cst.Subscript):
            load.todo.append(f"`{name}={edits.short(arg.value)}` went, and what it called no longer runs")
    else:
        load.refused = f"`{name}=` is no argument that any release of optimum-neuron documents"


def _spread(site: Site, load: Load, call: cst.Call, arg: cst.Arg) -> None:
    """Take a `**` apart when it is certain which dictionary it is."""
    literal, assign = _dictionary(site, arg.value)
    if literal is None:
        load.refused = f"what `**{edits.short(arg.value)}` holds cannot be seen from here"
        return
    for name, value in literal.items():
        moved = name not in DROPPED
        _argument(load, name, edits.keyword(name, value.deep_clone() if moved else value))
    only_reader = assign is not None and isinstance(arg.value, cst.Name) and _only_reader(site, arg.value)
    load.spreads.append((arg, assign if only_reader else None))
    if not only_reader:
        # The dictionary stays, and goes on reading its variables.
        load.dropped = [each for each in load.dropped if each not in literal.values()]
    if assign is not None and not only_reader and isinstance(arg.value, cst.Name):
        site.kept_names.add(arg.value.value)


def _dictionary(
    site: Site, value: cst.BaseExpression
) -> tuple[dict[str, cst.BaseExpression] | None, cst.Assign | None]:
    """The keys and values of a dictionary literal, and the assignment of its name."""
    if isinstance(value, cst.Dict) or _is_dict_call(site, value):
        return _items(value), None
    if not isinstance(value, cst.Name):
        return None, None
    bindings = site.names.bindings_at(value)
    if len(bindings) != 1 or bindings[0].value is None or bindings[0].path:
        return None, None
    source = bindings[0].value
    if not (isinstance(source, cst.Dict) or _is_dict_call(site, source)):
        return None, None
    if any(_changes(site, reader) for reader in site.names.references(bindings[0])):
        return None, None
    parent = site.parent(source)
    return _items(source), parent if isinstance(parent, cst.Assign) and len(parent.targets) == 1 else None


def _is_dict_call(site: Site, value: cst.BaseExpression) -> bool:
    return isinstance(value, cst.Call) and site.name_of(value.func) == "builtins.dict"


def _items(value: cst.BaseExpression) -> dict[str, cst.BaseExpression] | None:
    found: dict[str, cst.BaseExpression] = {}
    if isinstance(value, cst.Dict):
        for element in value.elements:
            if not isinstance(element, cst.DictElement) or not isinstance(element.key, cst.SimpleString):
                return None
            key = element.key.evaluated_value
            if not isinstance(key, str):
                return None
            found[key] = element.value
    elif isinstance(value, cst.Call):
        for arg in value.args:
            if arg.star or arg.keyword is None:
                return None
            found[arg.keyword.value] = arg.value
    return found


def _changes(site: Site, reader: cst.Name) -> bool:
    """Whether a use of a dictionary may change what it holds."""
    parent = site.parent(reader)
    if isinstance(parent, cst.Attribute):
        return parent.attr.value in ("clear", "pop", "popitem", "setdefault", "update")
    if isinstance(parent, cst.Subscript):
        around = site.parent(parent)
        return isinstance(around, (cst.AssignTarget, cst.AugAssign, cst.Del))
    if isinstance(parent, (cst.AssignTarget, cst.Assign, cst.Return, cst.Element)):
        return True
    return isinstance(parent, cst.Arg) and not parent.star


def _only_reader(site: Site, reader: cst.Name) -> bool:
    binding = site.names.bindings_at(reader)[0]
    at_top = binding.scope is site.names.module_scope
    if at_top and site.project.imported_elsewhere(site.path, binding.name):
        return False
    return list(site.names.references(binding)) == [reader]


def _unread(site: Site, group: Group, dropped: list[cst.Name]) -> list[str]:
    """Take away variables that only the dropped arguments read; says which are left without a reader."""
    left = []
    for name in dict.fromkeys(each.value for each in dropped):
        readers = {each for each in dropped if each.value == name}
        bindings = {binding for reader in readers for binding in site.names.bindings_at(reader)}
        for binding in bindings:
            assign = site.parent(binding.value) if binding.value is not None else None
            rest = [each for each in site.names.references(binding) if each not in readers]
            at_top = binding.scope is site.names.module_scope
            if rest or binding.kind is not Kind.ASSIGN:
                continue
            simple = isinstance(assign, cst.Assign) and len(assign.targets) == 1 and not binding.path
            elsewhere = at_top and site.project.imported_elsewhere(site.path, name)
            if simple and not elsewhere and edits.is_literal(binding.value or cst.Name(name)):
                assert isinstance(assign, cst.Assign)
                group.replace_statement(assign)
            elif not elsewhere:
                site.kept_names.add(name)
                left.append(f"`{name}` was only read for an argument that went")
    return left


def _compiled(load: Load) -> str:
    """Why this is, or may be, a load of compiled files, which the native device cannot read."""
    model = load.values.get("model_id")
    if model is None:
        return "the checkpoint it loads cannot be seen from here"
    export = load.values.get("export") or load.values.get("from_transformers")
    if export is not None and edits.code_of(export) == "True":
        return ""
    if export is not None and not edits.is_literal(export):
        return f"whether `{edits.short(model)}` is compiled is decided at run time by `{edits.short(export)}`"
    return (
        f"without `export=True` it loads compiled files from `{edits.short(model)}`, made for legacy devices"
    )


def _dtype(load: Load) -> tuple[str, Numerics, str]:
    """The dtype of the weights, what it does to the numbers, and what to look at or why it is unknown."""
    cast = load.values.get("auto_cast")
    kind = load.values.get("auto_cast_type")
    if cast is None or edits.code_of(cast) in ("None", '"none"', "'none'"):
        return "torch.float32", Numerics.SAME, ""
    text = edits.code_of(cast).strip("\"'")
    if text not in ("matmul", "all", "matmult"):
        return "", Numerics.SAME, f"`auto_cast={edits.short(cast)}` is not known before it runs"
    name = "bf16" if kind is None else edits.code_of(kind).strip("\"'")
    if name not in CAST_TYPES:
        return "", Numerics.SAME, f"`auto_cast_type={edits.short(kind or cast)}` is not known before it runs"
    dtype = CAST_TYPES[name]
    if dtype == "torch.float32":
        return dtype, Numerics.DTYPE, f"the compiler cast {text} operations to {name}; now they are float32"
    short = dtype.rpartition(".")[2]
    return (
        dtype,
        Numerics.DTYPE,
        f"the compiler cast {text} operations to {name} on float32 weights; now all weights are {short}",
    )


# Call sites.


@codemod.once
def decide_elsewhere(site: Site) -> None:
    """Rewrite the calls of a model that another module of the project loads."""
    if not site.project.modules:
        return
    for call in site.names.calls:
        origins = site.flow.origin_of(call.func)
        loads = [
            each for each in origins.producers if each.called and each.node is None and _is_load(each.name)
        ]
        if not loads:
            continue
        name = loads[0].name
        if not origins.certain or len(loads) < len(origins.producers):
            site.mark(
                call,
                name,
                f"it may call the model that is loaded at {loads[0].place}, and may call something else",
                "if it does, move its inputs to the device and call it under `torch.no_grad()`",
            )
            continue
        group = site.group()
        # The dtype is written in the other module; float32 stays what it is under `.float()`.
        moved = move_forward(site, group, call, bfloat16=True)
        if moved.refused:
            group.refuse(moved.refused)
        why = f"the model of {loads[0].place} is on the device: inputs are moved and outputs brought back"
        if moved.todo:
            group.review(call, name, why, "; ".join(moved.todo))
        else:
            group.fixed(call, name, why)


def _is_load(name: str) -> bool:
    return name.removesuffix(".from_pretrained") in CLASSES and name.endswith(".from_pretrained")


def _follow(site: Site, group: Group, call: cst.Call, bfloat16: bool, todo: list[str]) -> str:
    """Rewrite every place where the loaded model goes; says what was done in a few words."""
    found = site.flow.uses_of(call)
    moved = 0
    for use in found.uses:
        parent = site.parent(use.node)
        line = site.positions.span(use.node).line
        if use.kind is UseKind.CALLED and isinstance(parent, cst.Call):
            answer = move_forward(site, group, parent, bfloat16=bfloat16)
            if answer.refused:
                group.refuse(f"line {line}: {answer.refused}")
            todo.extend(answer.todo)
            if _expects_a_refusal(site, parent):
                todo.append(
                    f"line {line}: inputs longer than the compiled length raised ValueError; now they run"
                )
            moved += 1
        elif use.kind is UseKind.ATTRIBUTE and isinstance(parent, cst.Attribute):
            _attribute(site, group, parent, todo)
        elif use.kind is UseKind.ARGUMENT:
            _argument_use(site, group, use.node, todo)
        elif use.kind in (UseKind.BOUND, UseKind.DISCARDED, UseKind.COMPARED, UseKind.RETURNED):
            continue  # what is returned is followed, or told as lost
        elif use.kind is UseKind.HANDED_ON:
            continue  # the other module finds it again, and answers for its calls
        else:
            todo.append(f"line {line}: the model goes where it cannot be followed; move inputs of its calls")
    for node, why in found.lost:
        line = site.positions.span(node).line
        todo.append(f"line {line}: {why}; move inputs of its calls to `model.device`")
    return "inputs are moved and outputs brought back at its calls" if moved else ""


def _expects_a_refusal(site: Site, call: cst.Call) -> bool:
    for around in site.ancestors(call):
        if isinstance(around, cst.FunctionDef):
            return False
        if isinstance(around, cst.Try):
            return any(
                handler.type is not None and "ValueError" in edits.code_of(handler.type)
                for handler in around.handlers
            )
    return False


def _attribute(site: Site, group: Group, node: cst.Attribute, todo: list[str]) -> None:
    name = node.attr.value
    line = site.positions.span(node).line
    parent = site.parent(node)
    if name in GONE_ATTRIBUTES:
        site.mark(node, f"model.{name}", f"`{name}` is gone", GONE_ATTRIBUTES[name])
    elif name == "config" and isinstance(parent, cst.Attribute) and parent.attr.value == "neuron":
        site.mark(parent, "model.config.neuron", "`config.neuron` is gone", GONE_ATTRIBUTES["neuron_config"])
    elif name == "save_pretrained":
        todo.append(f"line {line}: `save_pretrained` now writes the weights, not a compiled model")
    elif name in ("to", "cpu", "cuda") and isinstance(parent, cst.Call):
        site.mark(
            parent,
            f"model.{name}",
            f"`{edits.short(parent)}` moved nothing before and moves the model away from the device now",
            'drop it: `device_map="neuron"` places the model',
        )


def _argument_use(site: Site, group: Group, node: cst.BaseExpression, todo: list[str]) -> None:
    arg = site.parent(node)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    line = site.positions.span(node).line
    if not isinstance(call, cst.Call):
        todo.append(f"line {line}: the model goes where it cannot be followed; move inputs of its calls")
        return
    name = site.name_of(call.func)
    if name == "transformers.pipeline" or name == "transformers.pipelines.pipeline":
        given = {each.keyword.value for each in call.args if each.keyword}
        if not given & {"device", "device_map"}:
            args = [*call.args, edits.keyword("device", edits.string("neuron"))]
            group.replace(call, edits.with_arguments(call, args))
            return
        todo.append(f'line {line}: the pipeline moves the model, unless it is told `device="neuron"`')
    elif name in ("builtins.print", "builtins.type", "builtins.id", "builtins.isinstance", "builtins.repr"):
        return
    else:
        todo.append(
            f"line {line}: `{edits.short(call.func)}` gets the model; inputs of calls there have to be moved"
        )


# What else a class is used for.


def _is_annotation(site: Site, node: cst.CSTNode) -> bool:
    for around in site.ancestors(node):
        if isinstance(around, cst.Annotation):
            return True
        if isinstance(around, (cst.Call, cst.BaseSmallStatement)):
            return False
    return False


def _is_isinstance(site: Site, node: cst.CSTNode) -> bool:
    for around in site.ancestors(node):
        if isinstance(around, cst.Call):
            return site.name_of(around.func) in ("builtins.isinstance", "builtins.issubclass")
        if isinstance(around, cst.BaseSmallStatement):
            return False
    return False


def _is_base(site: Site, node: cst.CSTNode) -> bool:
    arg = site.parent(node)
    return isinstance(arg, cst.Arg) and isinstance(site.parent(arg), cst.ClassDef)
