"""Encoders that Optimum Neuron traced, such as `NeuronModelForSequenceClassification`.

The native device needs no export: the plain Transformers class loads the original checkpoint with
`device_map="neuron"`, and shapes and compiler options go. What the old class did by itself is written
out: it held float32 weights whatever the checkpoint holds, so `dtype` is written; it took and gave CPU
tensors without gradient, so inputs are moved, calls run under `torch.no_grad()` and outputs come back.
Tokenizer calls stay, since the old class cut its padding back. A load of a compiled folder, arguments
that cannot be seen, and calls that cannot be followed are marked.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst
import libcst.matchers as m

from neuronmigrate import edits, effects
from neuronmigrate.codemod import Codemod
from neuronmigrate.flow import UseKind
from neuronmigrate.moving import model_of, move_forward
from neuronmigrate.names import Binding, Kind, dotted_name
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)
ItemT = TypeVar("ItemT")

# `NeuronModelFor...` and the class that loads the same checkpoint (optimum-neuron 0.0.5 to 0.4.5). All of
# these cut their outputs back to the shape of their inputs, so that padding never showed.
TASKS = {
    "FeatureExtraction": "AutoModel",
    "MaskedLM": "AutoModelForMaskedLM",
    "MultipleChoice": "AutoModelForMultipleChoice",
    "QuestionAnswering": "AutoModelForQuestionAnswering",
    "SequenceClassification": "AutoModelForSequenceClassification",
    "TokenClassification": "AutoModelForTokenClassification",
}
CLASSES = {
    f"{module}.NeuronModelFor{task}": f"transformers.{native}"
    for module in ("optimum.neuron", "optimum.neuron.modeling")
    for task, native in TASKS.items()
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
RENAMED = {"use_auth_token": "token", "torch_dtype": "dtype"}
MODEL_ID = ("model_id", "model_name_or_path", "pretrained_model_name_or_path")
CONSUMED = frozenset({"export", "from_transformers", "auto_cast", "auto_cast_type"})
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
        "width",
    }
)
# Those of them that name a folder the export wrote to.
FOLDERS = frozenset({"compiler_workdir", "model_save_dir"})
# `auto_cast_type` and the weights' dtype that comes nearest.
CAST_TYPES = {
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp32": "torch.float32",
    "mixed": "torch.float32",
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


@dataclass(eq=False)
class Load:
    """One `from_pretrained`: its arguments, sorted by what becomes of them."""

    use: Use
    call: cst.Call
    args: list[cst.Arg] = field(default_factory=list)
    values: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """The values of the arguments that are consumed."""
    spread: dict[cst.Name, Binding] = field(default_factory=dict)
    """Where dictionaries that were taken apart are read, and what bound them."""
    still_read: set[Binding] = field(default_factory=set)
    """Dictionaries of which a value is read as before."""
    dropped: list[cst.Name] = field(default_factory=list)
    """Names that are read in arguments that go."""
    given: set[str] = field(default_factory=set)
    """Native keywords that are taken."""
    todo: list[str] = field(default_factory=list)
    refused: str = ""
    dtype: cst.BaseExpression | None = None
    """The dtype that was asked for; None for `cast`."""
    cast: str = "torch.float32"
    """The dtype that comes nearest to what the compiler made of the model."""
    numerics: Numerics = Numerics.SAME

    def drop(self, value: cst.BaseExpression) -> None:
        """Take note that an expression goes, and what it read loses a reader."""
        self.dropped += [name for name in m.findall(value, m.Name()) if isinstance(name, cst.Name)]

    @property
    def as_float32(self) -> bool:
        """Whether outputs, which were float32 tensors, have to be made so."""
        return self.dtype is None and self.cast != "torch.float32"

    @property
    def native(self) -> str:
        return CLASSES[self.use.claim]

    @property
    def by_hand(self) -> str:
        name = self.native.rpartition(".")[2]
        return f'by hand: `{name}.from_pretrained(original id, dtype=torch.float32, device_map="neuron")`'


@codemod.uses(CLASSES)
def decide(site: Site, use: Use) -> None:
    """Answer each use of a traced class by what is done with it."""
    if _is_load_call(use):
        _decide_loads(site)
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


def _is_load_call(use: Use) -> bool:
    return use.method == "from_pretrained" and use.call is not None and not use.ambiguous and not use.stored


def _decide_loads(site: Site) -> None:
    """Decide on all loads of the file at once: those whose models meet at a call go together."""
    loads = []
    for use in site.uses:
        if use.claim in CLASSES and _is_load_call(use):
            assert use.call is not None
            site.settled.add(use)
            loads.append(_sorted_arguments(site, use, use.call))
    saved = _Saved(site, loads)
    for load in loads:
        _settle_source(load, saved)
        _settle_dtype(site, load)
    stay = {load.call for load in loads if load.refused}
    for load in loads:
        if load.refused:
            site.mark(load.call, load.use.name, load.refused, load.by_hand)
    for members in _clusters([(_reached(site, load), load) for load in loads if not load.refused]):
        _rewrite(site, members, stay)


def _clusters(items: list[tuple[set[object], ItemT]]) -> list[list[ItemT]]:
    """Items in groups of those that share something, in their order."""
    clusters: list[tuple[set[object], list[int]]] = []
    for number, (keys, _) in enumerate(items):
        shared, members = set(keys), [number]
        apart = []
        for others, numbers in clusters:
            if others & shared:
                shared |= others
                members += numbers
            else:
                apart.append((others, numbers))
        clusters = [*apart, (shared, members)]
    return [[items[number][1] for number in sorted(members)] for _, members in clusters]


def _reached(site: Site, load: Load) -> set[object]:
    """What the rewrite of a load may touch: dictionaries, variables, calls."""
    reached: set[object] = set(load.spread.values())
    for name in load.dropped:
        reached.update(site.names.bindings_at(name))
    for use in site.flow.uses_of(load.call).uses:
        parent = site.parent(use.node)
        around = site.parent(parent) if parent is not None else None
        called = parent if isinstance(parent, cst.Call) else around
        if isinstance(called, cst.Call):
            reached.add(called)
            if model_of(called) is use.node:
                reached |= _reached_by_call(site, called)
    return reached


def _reached_by_call(site: Site, call: cst.Call) -> set[object]:
    """What the rewrite of a call of a model may touch: its statement, and where its output is read."""
    reached: set[object] = {each for each in site.ancestors(call) if isinstance(each, cst.BaseSmallStatement)}
    reached.update(each.node for each in site.flow.uses_of(call).uses)
    return reached


def _rewrite(site: Site, loads: list[Load], stay: set[cst.Call]) -> None:
    group = site.group(loads[0].use)
    # A call that two models share is rewritten for the first of them: for one whose outputs were float32.
    calls = {
        load: _follow(site, group, load, stay) for load in sorted(loads, key=lambda each: not each.as_float32)
    }
    if group.refused:
        for load in loads:
            site.mark(load.call, load.use.name, group.refused, load.by_hand)
        return
    for load in loads:
        # Each name comes in where the legacy import stands that this load uses.
        group.anchor = load.use.binding
        group.uncertain = not load.use.certain
        args = list(load.args)
        args.append(edits.keyword("dtype", load.dtype or group.expression(load.cast)))
        args.append(edits.keyword("device_map", edits.string("neuron")))
        site.keywords += [
            (f"{load.native}.from_pretrained", arg.keyword.value) for arg in args if arg.keyword
        ]
        group.replace(load.call, edits.with_arguments(load.call, args))
        group.rename(load.use, load.native)
        load.todo += _unread(site, group, load, loads)
        native = load.native.rpartition(".")[2]
        why = f"{native} loads the original checkpoint onto the device, without an export"
        if calls[load]:
            why += f"; {calls[load]}"
        if load.todo:
            todo = "; ".join(dict.fromkeys(load.todo))
            group.review(load.call, load.use.name, why, todo, numerics=load.numerics)
        else:
            group.fixed(load.call, load.use.name, why, numerics=load.numerics)


# Arguments.


def _sorted_arguments(site: Site, use: Use, call: cst.Call) -> Load:
    load = Load(use, call)
    for index, arg in enumerate(call.args):
        if arg.star == "*":
            load.refused = f"the arguments `*{edits.short(arg.value)}` cannot be seen from here"
        elif arg.star == "**":
            _spread(site, load, arg.value)
        elif arg.keyword is not None:
            _argument(site, load, arg.keyword.value, arg)
        elif index == 0:
            load.given.add("pretrained_model_name_or_path")
            load.values["model_id"] = arg.value
            load.args.append(arg)
        elif index == 1:
            _argument(site, load, "config", edits.keyword("config", arg.value))
        else:
            load.refused = "it is called with three or more positional arguments"
    return load


def _argument(
    site: Site, load: Load, name: str, arg: cst.Arg, seen: cst.BaseExpression | None = None
) -> None:
    """Sort one argument; `seen` is the expression in the file that it stands for, if not its own."""
    seen = seen or arg.value
    native = "pretrained_model_name_or_path" if name in MODEL_ID else RENAMED.get(name, name)
    if native in load.given:
        load.refused = f"`{native}` is given twice"
    load.given.add(native)
    if name in MODEL_ID:
        load.values["model_id"] = seen
        load.args.append(arg.with_changes(keyword=cst.Name(native)))
    elif native == "dtype":
        load.values["dtype"] = seen
        load.dtype = arg.value
    elif name in RENAMED:
        load.args.append(arg.with_changes(keyword=cst.Name(native)))
    elif name in KEPT:
        load.args.append(arg)
    elif name in CONSUMED:
        load.values[name] = _constant(site, seen)
        load.drop(seen)
    elif name == "tensor_parallel_size":
        load.drop(seen)
        if edits.code_of(_constant(site, seen)) != "1":
            load.refused = (
                "encoders have no tensor-parallel plan natively, so `tensor_parallel_size` has no counterpart"
            )
    elif name in ("image_batch_size", "text_batch_size"):
        load.refused = f"`{name}` is for models of text and images, whose outputs this class named otherwise"
    elif name == "output_attentions":
        load.args.append(arg)
        load.todo.append('attention weights need `attn_implementation="eager"` natively')
    elif name == "instance_type":
        load.drop(seen)
        built = edits.short(_constant(site, seen))
        load.todo.append(f"it was built for {built}: the native device is Trainium 2 and 3 alone")
    elif name in DROPPED:
        load.drop(seen)
        if name in FOLDERS and edits.code_of(_constant(site, seen)) != "None":
            load.todo.append(f"no compiled files are written to `{edits.short(arg.value)}` any more")
        if isinstance(arg.value, cst.Attribute) and _is_last_reader(site, arg.value):
            load.todo.append(f"`{edits.short(arg.value)}` was only read for an argument that went")
        elif not edits.is_pure(arg.value) and not isinstance(arg.value, cst.Subscript):
            load.todo.append(f"`{name}={edits.short(arg.value)}` went, and what it called no longer runs")
    else:
        load.refused = f"`{name}=` is no argument that any release of optimum-neuron documents"


def _is_last_reader(site: Site, node: cst.Attribute) -> bool:
    """Whether an attribute such as `args.batch_size` is written nowhere else in this file."""
    text = edits.code_of(node)
    return not any(each is not node and edits.code_of(each) == text for each in site.nodes(cst.Attribute))


def _text(value: cst.BaseExpression) -> str:
    """The text of a string literal; empty for everything else."""
    text = value.evaluated_value if isinstance(value, cst.SimpleString) else ""
    return text if isinstance(text, str) else ""


def _constant(site: Site, value: cst.BaseExpression) -> cst.BaseExpression:
    """What a name stands for that is bound once, to a literal; else the expression itself."""
    if isinstance(value, cst.Name) and not edits.is_literal(value):
        binding = _only_binding(site, value)
        if binding is not None and binding.value is not None and edits.is_literal(binding.value):
            return binding.value
    return value


# Dictionaries that are spread.


@dataclass
class _Entry:
    """One key of a dictionary."""

    value: cst.BaseExpression
    through: cst.BaseExpression | None = None
    """The named dictionary that holds it; None when it is written in the call itself."""
    binding: Binding | None = None


def _spread(site: Site, load: Load, value: cst.BaseExpression) -> None:
    """Take a `**` apart when it is certain what is in it."""
    entries = _entries(site, load, value, None, None)
    if entries is None:
        load.refused = f"what `**{edits.short(value)}` holds cannot be seen from here"
        return
    for name, entry in entries.items():
        given = entry.value
        goes = name in DROPPED or name in CONSUMED
        if entry.through is not None and not goes:
            inline = edits.is_literal(given) or (
                edits.is_pure(given) and _means_the_same(site, given, load.call)
            )
            if inline:
                given = given.deep_clone()
            else:
                key = cst.SubscriptElement(cst.Index(edits.string(name)))
                given = cst.Subscript(entry.through.deep_clone(), [key])
                if entry.binding is not None:
                    load.still_read.add(entry.binding)
        _argument(site, load, name, edits.keyword(name, given), entry.value)


def _entries(
    site: Site,
    load: Load,
    value: cst.BaseExpression,
    through: cst.BaseExpression | None,
    binding: Binding | None,
) -> dict[str, _Entry] | None:
    """The keys and values of a dictionary; None when they cannot be told."""
    parts: list[dict[str, _Entry] | None] = []
    if isinstance(value, cst.Dict):
        for element in value.elements:
            if isinstance(element, cst.DictElement):
                key = element.key.evaluated_value if isinstance(element.key, cst.SimpleString) else None
                parts.append({key: _Entry(element.value, through, binding)} if isinstance(key, str) else None)
            else:
                parts.append(_entries(site, load, element.value, through, binding))
    elif isinstance(value, cst.Call) and site.name_of(value.func) == "builtins.dict":
        for arg in value.args:
            if arg.keyword is not None:
                parts.append({arg.keyword.value: _Entry(arg.value, through, binding)})
            else:
                parts.append(None if arg.star == "*" else _entries(site, load, arg.value, through, binding))
    elif isinstance(value, cst.BinaryOperation) and isinstance(value.operator, cst.BitOr):
        parts = [_entries(site, load, each, through, binding) for each in (value.left, value.right)]
    elif isinstance(value, cst.Name):
        bound = _only_binding(site, value)
        if bound is None or bound.value is None or value in load.spread:
            return None
        if not all(_leaves_alone(site, each) for each in site.names.references(bound)):
            return None
        load.spread[value] = bound
        parts.append(_entries(site, load, bound.value, value, bound))
    elif isinstance(value, cst.Attribute):
        constant = _class_constant(site, value)
        if _is_last_reader(site, value):
            load.todo.append(f"`{edits.short(value)}` was only read for these arguments")
        parts.append(None if constant is None else _entries(site, load, constant, value, None))
    else:
        return None
    found: dict[str, _Entry] = {}
    for part in parts:
        if part is None:
            return None
        found.update(part)
    return found


def _only_binding(site: Site, name: cst.Name) -> Binding | None:
    """The assignment of a name that is bound once and for all."""
    scope = site.names.lookup(name.value, name)
    bindings = scope.bindings.get(name.value, ()) if scope is not None else ()
    if len(bindings) != 1 or bindings[0].kind is not Kind.ASSIGN or bindings[0].path:
        return None
    parent = site.parent(bindings[0].value) if bindings[0].value is not None else None
    single = isinstance(parent, cst.AnnAssign) or (
        isinstance(parent, cst.Assign) and len(parent.targets) == 1
    )
    return bindings[0] if single else None


def _class_constant(site: Site, node: cst.Attribute) -> cst.BaseExpression | None:
    """The value of `self.SHAPES` when the class body gives it one and nothing else does."""
    if not isinstance(node.value, cst.Name):
        return None
    owners = {site.names.instance_class(each) or each.node for each in site.names.bindings_at(node.value)}
    if len(owners) != 1:
        return None
    owner = owners.pop()
    if not isinstance(owner, cst.ClassDef) or site.project.imported_elsewhere(site.path, owner.name.value):
        return None
    stores = site.names.class_attribute(owner, node.attr.value, subclasses=True)
    if len(stores) != 1 or not isinstance(stores[0], Binding) or stores[0].kind is not Kind.ASSIGN:
        return None
    loads = site.flow.attribute_loads(owner, node.attr.value)
    if stores[0].path or not all(_leaves_alone(site, each) for each in loads):
        return None
    return stores[0].value


def _means_the_same(site: Site, value: cst.BaseExpression, at: cst.CSTNode) -> bool:
    """Whether the names in an expression mean at another place what they mean where it stands."""
    todo: list[cst.CSTNode] = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, cst.Name):
            scope = site.names.lookup(part.value, part)
            if scope is not site.names.lookup(part.value, at):
                return False
            if scope is not None and len(scope.bindings.get(part.value, ())) != 1:
                return False
        todo.extend([part.value] if isinstance(part, cst.Attribute) else part.children)
    return True


_READING = frozenset({"copy", "get", "items", "keys", "values"})
_PRINTERS = frozenset(
    {"builtins.dict", "builtins.len", "builtins.list", "builtins.print", "builtins.repr", "builtins.sorted"}
    | {"builtins.str", "json.dumps", "pprint.pprint"}
)


def _leaves_alone(site: Site, reader: cst.BaseExpression) -> bool:
    """Whether a use of a dictionary only reads it."""
    parent = site.parent(reader)
    if isinstance(parent, cst.Attribute):
        return parent.attr.value in _READING
    if isinstance(parent, cst.Subscript) and parent.value is reader:
        return not isinstance(site.parent(parent), (cst.AssignTarget, cst.AugAssign, cst.Del, cst.AnnAssign))
    if isinstance(parent, cst.Arg):
        call = site.parent(parent)
        return bool(parent.star) or (isinstance(call, cst.Call) and site.name_of(call.func) in _PRINTERS)
    return isinstance(
        parent,
        (
            cst.BinaryOperation,
            cst.CompFor,
            cst.ComparisonTarget,
            cst.Comparison,
            cst.For,
            cst.FormattedStringExpression,
            cst.StarredDictElement,
        ),
    )


def _unread(site: Site, group: Group, load: Load, loads: list[Load]) -> list[str]:
    """Take away what only the dropped arguments read; says what is left without a reader."""
    left = []
    gone = {name for each in loads for name in each.spread}
    for reader, binding in load.spread.items():
        at_top = binding.scope is site.names.module_scope
        elsewhere = at_top and site.project.imported_elsewhere(site.path, binding.name)
        still = any(binding in each.still_read for each in loads)
        assign = site.parent(binding.value) if binding.value is not None else None
        if still or elsewhere or not set(site.names.references(binding)) <= gone:
            site.kept_names.add(reader.value)
        elif isinstance(assign, (cst.Assign, cst.AnnAssign)):
            _remove(site, group, assign)
    # Of a dictionary that stays, the names are still read.
    going = {each.call for each in loads} | site.notes.get("removed", set())
    dropped = {name for each in loads for name in each.dropped if not going.isdisjoint(site.ancestors(name))}
    for name in filter(dropped.__contains__, load.dropped):
        effects.forget(site, name)
        for binding in site.names.bindings_at(name):
            at_top = binding.scope is site.names.module_scope
            rest = set(site.names.references(binding)) - dropped
            removed = set(site.notes.get("removed", ()))
            if any(not removed.intersection(site.ancestors(each)) for each in rest):
                continue
            assign = site.parent(binding.value) if binding.value is not None else None
            simple = _only_binding(site, name) is binding
            elsewhere = at_top and site.project.imported_elsewhere(site.path, name.value)
            if elsewhere:
                continue
            if binding.kind is Kind.PARAMETER:
                left.append(f"the parameter `{name.value}` was only read for an argument that went")
            elif simple and isinstance(assign, cst.Assign) and edits.is_literal(binding.value or name):
                _remove(site, group, assign)
            elif binding.kind is Kind.IMPORT:
                if binding.node not in site.released:
                    left.append(f"the import of `{name.value}` was only read for an argument that went")
            else:
                left.append(f"`{name.value}` was only read for an argument that went")
    return left


def _remove(site: Site, group: Group, assign: cst.Assign | cst.AnnAssign) -> None:
    removed = site.notes.setdefault("removed", set())
    if assign not in removed:
        removed.add(assign)
        group.replace_statement(assign)


# What is loaded, and in which dtype.


class _Saved:
    """Folders that this file itself wrote with a model it exports, and the checkpoint behind them."""

    def __init__(self, site: Site, loads: list[Load]) -> None:
        self.site = site
        self.written: list[tuple[cst.BaseExpression, Load]] = []
        exported = {load.call: load for load in loads if _is_export(load)}
        for call in site.nodes(cst.Call):
            func = call.func
            if not isinstance(func, cst.Attribute) or func.attr.value != "save_pretrained" or not call.args:
                continue
            origins = site.flow.origin_of(func.value)
            if origins.certain and len(origins.producers) == 1:
                made = origins.producers[0].node
                if isinstance(made, cst.Call) and made in exported:
                    self.written.append((call.args[0].value, exported[made]))

    def source_of(self, folder: cst.BaseExpression) -> tuple[cst.BaseExpression, int] | None:
        """The checkpoint that was exported into a folder, and the line that did it."""
        found = [load for written, load in self.written if self._is_same(written, folder)]
        sources = {edits.code_of(load.values["model_id"]) for load in found if "model_id" in load.values}
        if len(sources) != 1:
            return None
        source = found[0].values["model_id"]
        if not edits.is_literal(source) and not (
            isinstance(source, cst.Name)
            and _only_binding(self.site, source)
            and _means_the_same(self.site, source, folder)
        ):
            return None
        return source.deep_clone(), self.site.positions.span(found[0].call).line

    def _is_same(self, one: cst.BaseExpression, other: cst.BaseExpression) -> bool:
        if isinstance(one, cst.SimpleString) and isinstance(other, cst.SimpleString):
            left, right = one.evaluated_value, other.evaluated_value
            return isinstance(left, str) and isinstance(right, str) and left.rstrip("/") == right.rstrip("/")
        if isinstance(one, cst.Name) and isinstance(other, cst.Name):
            return self.site.names.bindings_at(one) == self.site.names.bindings_at(other) != ()
        return False


def _is_export(load: Load) -> bool:
    return any(
        edits.code_of(load.values[name]) == "True"
        for name in ("export", "from_transformers")
        if name in load.values
    )


_COMPILED_ID = re.compile(r"(optimum|aws-neuron)/|.*-neuronx?$")


def _settle_source(load: Load, saved: _Saved) -> None:
    """Refuse a load of compiled files, which the native device cannot read, or put the original back."""
    model = load.values.get("model_id")
    if load.refused:
        return
    if model is None:
        load.refused = "the checkpoint it loads cannot be seen from here"
        return
    if _is_export(load):
        text = _text(_constant(saved.site, model))
        if _COMPILED_ID.match(text):
            load.todo.append(f"`{text}` looks like a compiled repository: load the original checkpoint")
        return
    export = load.values.get("export") or load.values.get("from_transformers")
    if export is not None and not edits.is_literal(export):
        load.refused = (
            f"whether `{edits.short(model)}` is compiled is decided at run time by `{edits.short(export)}`"
        )
        return
    source = saved.source_of(model)
    if source is None or load.given & {"config", "revision", "subfolder"}:
        folder = edits.short(model)
        load.refused = (
            f"without `export=True` it loads compiled files from `{folder}`, made for legacy devices"
        )
        return
    original, line = source
    load.args = [arg.with_changes(value=original) if _is_model_id(arg) else arg for arg in load.args]
    load.drop(model)
    load.todo.append(f"`{edits.short(model)}` held what line {line} compiled: the original is loaded instead")


def _is_model_id(arg: cst.Arg) -> bool:
    return arg.keyword is None or arg.keyword.value == "pretrained_model_name_or_path"


def _settle_dtype(site: Site, load: Load) -> None:
    """Work out the dtype of the weights, and what it does to the numbers."""
    cast = load.values.get("auto_cast")
    kind = load.values.get("auto_cast_type")
    if load.refused or cast is None or edits.code_of(cast) == "None" or _text(cast) == "none":
        return
    text = _text(cast)
    name = "bf16" if kind is None else _text(kind)
    if text not in ("matmul", "all", "matmult"):
        load.refused = f"`auto_cast={edits.short(cast)}` is not known before it runs"
        return
    if name not in CAST_TYPES:
        load.refused = f"`auto_cast_type={edits.short(kind or cast)}` is not known before it runs"
        return
    load.numerics = Numerics.DTYPE
    asked = load.values.get("dtype")
    float32 = asked is None or site.name_of(asked) in ("torch.float32", "torch.float")
    if asked is not None and not float32 and _text(asked) != "float32":
        load.todo.append(f"the compiler cast {text} operations to {name} as well; now `dtype` alone decides")
        return
    if asked is not None:
        load.drop(asked)
    load.dtype = None
    load.cast = CAST_TYPES[name]
    if load.cast == "torch.float32":
        load.todo.append(f"the compiler cast {text} operations to {name}; now they are float32")
        return
    short = load.cast.rpartition(".")[2]
    load.todo.append(
        f"the compiler cast {text} operations to {name} on float32 weights; now all weights are {short}"
    )


# Call sites.


@codemod.once
def decide_elsewhere(site: Site) -> None:
    """Rewrite the calls of a model that another module of the project loads."""
    if not site.project.modules:
        return
    _attributes_elsewhere(site)
    found = []
    for call in site.names.calls:
        for name, place, certain in _loads_elsewhere(site, model_of(call)):
            if certain:
                found.append((call, name, place))
                continue
            site.mark(
                call,
                name,
                f"it may call the model that is loaded at {place}, and may call something else",
                "if it does, move its inputs to the device and call it under `torch.no_grad()`",
            )
    for calls in _clusters([(_reached_by_call(site, each[0]), each) for each in found]):
        group = site.group()
        for call, name, place in calls:
            # The dtype is written in the other module; float32 stays what it is under `.float()`.
            moved = move_forward(site, group, call, as_float32=True)
            if moved.refused:
                group.refuse(moved.refused)
            elif not dotted_name(model_of(call)):
                group.refuse("the model has no name here of which its device could be asked")
            why = f"the model of {place} is on the device: inputs are moved and outputs brought back"
            if moved.todo:
                group.review(call, name, why, "; ".join(moved.todo))
            else:
                group.fixed(call, name, why)


def _loads_elsewhere(site: Site, model: cst.BaseExpression) -> list[tuple[str, str, bool]]:
    """The load in another module that made a model: its name, its place, and whether that is certain."""
    origins = site.flow.origin_of(model)
    loads = [each for each in origins.producers if each.called and each.node is None and _is_load(each.name)]
    certain = origins.certain and len(loads) == len(origins.producers)
    return [(each.name, each.place, certain) for each in loads[:1]]


def _attributes_elsewhere(site: Site) -> None:
    for node in site.nodes(cst.Attribute):
        if node.attr.value in GONE_ATTRIBUTES or node.attr.value in _MOVERS:
            for _ in _loads_elsewhere(site, node.value):
                _attribute(site, node, [])


def _is_load(name: str) -> bool:
    return name.removesuffix(".from_pretrained") in CLASSES and name.endswith(".from_pretrained")


def _follow(site: Site, group: Group, load: Load, stay: set[cst.Call]) -> str:
    """Rewrite every place where the loaded model goes; says what was done in a few words."""
    todo = load.todo
    found = site.flow.uses_of(load.call)
    moved = 0
    for use in found.uses:
        parent = site.parent(use.node)
        around = site.parent(parent) if parent is not None else None
        line = site.positions.span(use.node).line
        called = parent if isinstance(parent, cst.Call) else around
        if isinstance(called, cst.Call) and model_of(called) is use.node:
            shown = edits.short(called, 40)
            if stay and not dotted_name(use.node):
                makers = site.flow.origin_of(use.node).producers
                if any(each.node in stay for each in makers):
                    group.refuse(f"`{shown}` may call a model that stays a legacy one as well")
            answer = move_forward(site, group, called, as_float32=load.as_float32)
            if answer.refused:
                group.refuse(f"`{shown}`: {answer.refused}")
            todo.extend(answer.todo)
            if _expects_a_refusal(site, called):
                todo.append(
                    f"line {line}: inputs longer than the compiled length raised ValueError; now they run"
                )
            moved += 1
        elif use.kind is UseKind.ATTRIBUTE and isinstance(parent, cst.Attribute):
            _attribute(site, parent, todo)
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


def _attribute(site: Site, node: cst.Attribute, todo: list[str]) -> None:
    """Answer for an attribute of the model that is gone or means something else."""
    told = site.notes.setdefault("told", set())
    name = node.attr.value
    line = site.positions.span(node).line
    parent = site.parent(node)
    if name == "save_pretrained":
        todo.append(f"line {line}: `save_pretrained` now writes the weights, not a compiled model")
    elif name == "device" and not _is_input_device(site, node):
        todo.append(f"line {line}: `{edits.short(node)}` was the CPU and is the Neuron device now")
    elif name in ("forward", "__call__"):
        todo.append(f"line {line}: `{edits.short(node)}` is kept; move inputs of its calls to `model.device`")
    elif node in told:
        return
    elif name in GONE_ATTRIBUTES:
        site.mark(node, f"model.{name}", f"`{name}` is gone", GONE_ATTRIBUTES[name])
    elif name == "config" and isinstance(parent, cst.Attribute) and parent.attr.value == "neuron":
        site.mark(parent, "model.config.neuron", "`config.neuron` is gone", GONE_ATTRIBUTES["neuron_config"])
    elif name in _MOVERS and isinstance(parent, cst.Call):
        site.mark(
            parent,
            f"model.{name}",
            f"`{edits.short(parent)}` moved nothing before and moves the model away from the device now",
            'drop it: `device_map="neuron"` places the model',
        )
    told.add(node)


_MOVERS = ("cpu", "cuda", "to")


def _is_input_device(site: Site, node: cst.Attribute) -> bool:
    """Whether `model.device` is only read to move an input of that model's call where it stands."""
    name = dotted_name(node.value)
    for around in site.ancestors(node):
        if name and isinstance(around, cst.Call) and dotted_name(model_of(around)) == name:
            return True
        if isinstance(around, cst.BaseSmallStatement):
            return False
    return False


def _argument_use(site: Site, group: Group, node: cst.BaseExpression, todo: list[str]) -> None:
    arg = site.parent(node)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    line = site.positions.span(node).line
    if not isinstance(call, cst.Call):
        todo.append(f"line {line}: the model goes where it cannot be followed; move inputs of its calls")
        return
    name = site.name_of(call.func)
    if name in ("transformers.pipeline", "transformers.pipelines.pipeline"):
        _pipeline(site, group, call, todo)
    elif name in ("builtins.print", "builtins.type", "builtins.id", "builtins.isinstance", "builtins.repr"):
        return
    elif isinstance(call.func, cst.Name) and any(
        isinstance(each.node, cst.ClassDef) for each in site.names.bindings_at(call.func)
    ):
        group.refuse(f"`{call.func.value}` keeps the model where its calls cannot be followed")
    else:
        todo.append(
            f"line {line}: `{edits.short(call.func)}` gets the model; inputs of calls there have to be moved"
        )


def _pipeline(site: Site, group: Group, call: cst.Call, todo: list[str]) -> None:
    """Keep the model on the device: a pipeline that is not told so moves it to the CPU."""
    moved = site.notes.setdefault("moved", set())
    if call in moved:
        return
    moved.add(call)
    places = [each for each in call.args if each.keyword and each.keyword.value in ("device", "device_map")]
    hidden = any(each.star for each in call.args)
    if hidden or len(places) > 1 or (places and not _is_host(site, places[0].value)):
        line = site.positions.span(call).line
        todo.append(f'line {line}: the pipeline moves the model, unless it is told `device="neuron"`')
        return
    kept = [each for each in call.args if each not in places]
    group.replace(call, edits.with_arguments(call, [*kept, edits.keyword("device", edits.string("neuron"))]))


def _is_host(site: Site, value: cst.BaseExpression) -> bool:
    """Whether a device is written out: nothing but the Neuron device can be meant now."""
    if isinstance(value, cst.Call) and site.name_of(value.func) == "torch.device" and len(value.args) == 1:
        value = value.args[0].value
    return edits.is_literal(value)


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
