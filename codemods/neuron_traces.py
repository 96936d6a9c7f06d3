"""Models traced ahead of time: `torch_neuronx.trace(model, example)` and the files they were saved as.

Natively the model itself runs on the device and is compiled in place, so that its attributes and the keys
of its weights stay. A helper, written once per file, does that and calls it once with the example, which
compiles where the trace did. What a trace did by itself is written out: it recorded no gradients, so the
weights are frozen; it took and gave CPU tensors, so inputs are moved and outputs brought back; it was a
copy, so a model that is read later is copied. Its checkpoint is loaded as under Transformers 4, in float32
and with `return_dict=False` for `torchscript=True`. Where calls cannot be followed the model goes on taking
and giving CPU tensors. A saved trace becomes a file of weights; where it is loaded the model is built again
if the code says how. `async_load`, `dynamic_batch`, placement on cores and the like go. `DataParallel` ran
several cores of one process: one core runs it now, and the way to several processes is said.

Marked are loads of files that nobody seems to write, traces whose arguments cannot be seen or that keep
state in aliased outputs, and traced methods. Compiled files of old are not readable natively.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import artefacts, edits
from neuronmigrate.artefacts import Artefact
from neuronmigrate.codemod import Call, Codemod
from neuronmigrate.effects import forget
from neuronmigrate.flow import Producer, UseKind
from neuronmigrate.loads.family import clusters, is_annotation, reached_by_call
from neuronmigrate.moving import Convention, model_of, move_call
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use
from neuronmigrate.traces import builder, is_read_later, path_shape, path_text, same_path, standing

codemod = Codemod(__name__)

_IMPL = "torch_neuronx.xla_impl"
TRACES = ("torch_neuronx.trace", f"{_IMPL}.trace.trace")
# Keyword-only from the third on (torch_neuronx/xla_impl/trace.py, 1.0 to 2.8).
TRACE_PARAMETERS = ("func", "example_inputs")
# What only told the compiler how; a graph that changes its inputs is another matter.
DROPPED = frozenset({"cpu_backend", "inline_weights_to_neff", "options", "partitioner_config"})
ALIASES = frozenset({"input_output_aliases", "states"})

BATCHES = ("torch_neuronx.dynamic_batch", f"{_IMPL}.torchscript.dynamic_batch")
REPLICAS = ("torch_neuronx.DataParallel", f"{_IMPL}.data_parallel.DataParallel")
REPLICA_PARAMETERS = ("model", "device_ids", "dim", "set_dynamic_batching")
WEIGHTS = ("torch_neuronx.replace_weights", f"{_IMPL}.torchscript.replace_weights")
# Statements without which a native model does what it should.
UPLOADS = (
    "torch_neuronx.async_load",
    "torch_neuronx.lazy_load",
    f"{_IMPL}.torchscript.async_load",
    f"{_IMPL}.torchscript.lazy_load",
)
PLACES = (
    "torch_neuronx.experimental.set_multicore",
    "torch_neuronx.experimental.set_neuron_cores",
    "torch_neuronx.move_trace_to_device",
    "torch_neuronx.set_multicore",
    "torch_neuronx.set_neuron_cores",
)
CONTEXTS = (
    "torch_neuronx.experimental.multicore_context",
    "torch_neuronx.experimental.neuron_cores_context",
    "torch_neuronx.multicore_context",
    "torch_neuronx.neuron_cores_context",
)
ANALYSES = ("torch_neuronx.analyze",)
WRITTEN = "neuron-traces written"
"""What several models of a file share and only the first of them rewrites or marks."""
JIT_SAVE, JIT_LOAD = "torch.jit.save", "torch.jit.load"

CORES = "a process has one core: start one with `NEURON_RT_VISIBLE_CORES` for each further one"
SPREAD = (
    "the batch ran split over several cores and runs whole on one now: start a process for each core with "
    "torchrun, and give each its part of the batch"
)
BY_HAND = (
    'put the model on the device with `model.eval().requires_grad_(False).to("neuron")`, compile it with '
    '`model.compile(backend="neuron", dynamic=False)`, move inputs to "neuron" and outputs back with `.cpu()`'
)
BUILD = (
    "build the model, give it what the tracing script saves now with `load_state_dict`, then "
    '`.eval().requires_grad_(False).to("neuron")` and `.compile(backend="neuron", dynamic=False)`; move '
    "inputs and outputs at its calls"
)
OLD_FILES = "compiled files of old cannot be read natively: run what saves them again"

TO_DEVICE = '''\
def {name}(data, device):
    """Move the tensors in nested containers to a device."""
    if isinstance(data, torch.Tensor):
        return data.to(device)
    if isinstance(data, dict):
        return {{key: {name}(value, device) for key, value in data.items()}}
    if isinstance(data, (list, tuple)):
        moved = [{name}(value, device) for value in data]
        return tuple(moved) if isinstance(data, tuple) else moved
    return data
'''
COMPILE = '''\
def {name}(model, example=None):
    """Put a model on the device and compile it in place; given an example, for its shapes at once.

    It records no gradients from then on, and takes and gives tensors on the device.
    """
    model = model.eval().requires_grad_(False).to("neuron")
    model.compile(backend="neuron", dynamic=False)
    if example is not None:
        inputs = example if isinstance(example, (list, tuple)) else [example]
        model(*{to_device}(inputs, "neuron"))
    return model
'''
COMPILE_BEHIND = '''\
def {name}(model, example=None):
    """Compile a model on the device, whose callers go on passing and getting CPU tensors.

    It records no gradients from then on; given an example, it is compiled for its shapes at once.
    """
    model = model.eval().requires_grad_(False).to("neuron")
    compiled = torch.compile(model.forward, backend="neuron", dynamic=False)

    def forward(*args, **kwargs):
        output = compiled(*{to_device}(args, "neuron"), **{to_device}(kwargs, "neuron"))
        return {to_device}(output, "cpu")

    model.forward = forward
    if example is not None:
        model(*(example if isinstance(example, (list, tuple)) else [example]))
    return model
'''
WITH_WEIGHTS = '''\
def {name}(model, path):
    """Give a model the weights of a file."""
    model.load_state_dict(torch.load(path, map_location="cpu"))
    return model
'''
MODULE = Convention(place='"neuron"', records=False, tensors=True)
"""A compiled module, whose weights are frozen."""
FUNCTION = Convention(place='"neuron"', tensors=True)
"""A compiled function, whose weights nobody froze."""

for _name in (f"{_IMPL}.data_parallel.device_count",):
    codemod.symbol(
        _name,
        Call("torch.accelerator.device_count()"),
        because="torch counts the devices of any accelerator",
    )


@dataclass(eq=False)
class Made:
    """A compiled model, from where it is traced or loaded to wherever it goes in this file."""

    call: cst.Call
    use: Use | None = None
    """The use of `trace`; None for a load."""
    path: cst.BaseExpression | None = None
    """The file that it is loaded from."""
    built: tuple[cst.BaseExpression, bool] | None = None
    """For a load: the expression that builds the model again, and whether it has to be copied."""
    code: str = ""
    """For a load of what another file saves: the code there that builds the model."""
    shared: bool = False
    """Whether a load elsewhere in the file copies the model that is traced."""
    loads_checkpoint: bool = False
    """Whether what builds the model loads a checkpoint of Transformers."""
    in_place: bool = False
    """Whether a load takes the place of the very module that it was traced from."""
    refused: str = ""
    is_function: bool = False
    calls: list[cst.Call] = field(default_factory=list)
    wrappers: list[Use] = field(default_factory=list)
    """`DataParallel` and `dynamic_batch` around it."""
    saves: list[tuple[cst.Call, cst.BaseExpression, cst.BaseExpression]] = field(default_factory=list)
    """Calls that write it, with the model and the path."""
    settings: list[cst.BaseSmallStatement] = field(default_factory=list)
    """Statements that set up a `DataParallel`, and go."""
    lost: list[str] = field(default_factory=list)
    """Where it goes that its calls cannot be followed to."""
    left: list[str] = field(default_factory=list)
    """What is done with it that a module of PyTorch does not do."""


@codemod.uses([*TRACES, *REPLICAS, *BATCHES])
def decide(site: Site, use: Use) -> None:
    """Answer for all models of the file at once: they may be called at the same places."""
    _decide_file(site)


@codemod.once
def decide_loads(site: Site) -> None:
    """Answer for loads in files that trace nothing."""
    _decide_file(site)


def _decide_file(site: Site) -> None:
    done = site.notes.setdefault(codemod.name, set())
    if site.module in done:
        return
    done.add(site.module)
    made = [*_traces(site), *_loads(site)]
    for each in made:
        _follow(site, each, each.call)
    saved = [(each, path) for each in made for _, _, path in each.saves if each.use is not None]
    for each in made:
        if each.use is None and not each.refused:
            _settle_load(site, each, saved)
    alive = [each for each in made if not each.refused]
    for cluster in clusters([(_reached(site, each), each) for each in alive]):
        _rewrite(site, cluster)
    for each in made:
        if each.refused:
            _mark(site, each)
    _decide_checkpoints(site, [each for each in alive if each.use is not None])
    answered = {use for each in made for use in (each.use, *each.wrappers)}
    answered |= _decide_handed_on(site, made, answered)
    for use in site.uses:
        if use.claim in (*TRACES, *REPLICAS, *BATCHES) and not use.stored:
            if use not in answered and is_annotation(site, use.chain):
                group = site.group(use)
                group.rename(use, "torch.nn.Module", alias=False)
                group.fixed(use.chain, use.name, "as a type it is any module of PyTorch")
            elif use not in answered:
                site.mark(use.whole, use.name, "it cannot be seen what becomes of it here", _advice(use))
            site.settled.add(use)


def _decide_checkpoints(site: Site, made: Sequence[Made]) -> None:
    """Load what is traced as it was loaded then: Transformers 5 has another default and lacks an option."""
    imported = {binding.target.partition(".")[0] for binding in site.names.imports}
    if not (site.project.traces and site.project.concerns(site.path)) and "torch_neuronx" not in imported:
        return
    traced = {
        producer.node
        for each in made
        for producer in site.flow.origin_of(
            edits.arguments(each.call, TRACE_PARAMETERS).by_name["func"].value
        ).producers
    }
    for call in site.names.calls:
        if not _loads_checkpoint(site.name_of(call.func)):
            continue
        group = site.group()
        loads = edits.code_of(call.func).endswith("from_pretrained")
        new = _as_loaded(group, call, call in traced, loads)
        if new is call:
            continue
        group.replace(call, new)
        before, after = (_keywords(each) for each in (call, new))
        why = []
        if "torchscript" in before:
            why.append("`return_dict=False` gives the tuples of `torchscript`, which Transformers 5 lacks")
        if "dtype" in after - before:
            why.append("float32 is written out: Transformers 5 takes the dtype of the checkpoint")
        group.fixed(call, site.name_of(call.func) or "", "; ".join(why))


def _keywords(call: cst.Call) -> set[str]:
    return {arg.keyword.value for arg in call.args if arg.keyword is not None}


def _loads_checkpoint(name: str | None) -> bool:
    parts = (name or "").split(".")
    return (
        parts[0] == "transformers"
        and parts[-1] in ("from_config", "from_pretrained")
        and not any(part.endswith(_NO_MODELS) for part in parts)
    )


_NO_MODELS = ("Config", "Extractor", "Processor", "Tokenizer", "TokenizerFast")


def _as_loaded(group: Group, call: cst.Call, traced: bool, loads: bool) -> cst.Call:
    """A load of a checkpoint as it was meant under Transformers 4; the call itself where it says so."""
    if any(arg.star for arg in call.args):
        return call
    args: list[cst.Arg] = []
    told = {arg.keyword.value: arg.value for arg in call.args if arg.keyword is not None}
    for arg in call.args:
        if arg.keyword is None or arg.keyword.value != "torchscript":
            args.append(arg)
        elif edits.code_of(arg.value) == "True" and "return_dict" not in told:
            args.append(arg.with_changes(keyword=cst.Name("return_dict"), value=cst.Name("False")))
        elif edits.code_of(arg.value) not in ("True", "False"):
            return call
    traced = traced or "torchscript" in told
    if loads and traced and not told.keys() & {"dtype", "torch_dtype", "quantization_config"}:
        args.append(edits.keyword("dtype", group.expression("torch.float32")))
    return call if args == list(call.args) else edits.with_arguments(call, args)


def _decide_handed_on(site: Site, made: Sequence[Made], answered: set[Use | None]) -> set[Use | None]:
    """Answer for what is done here with models that another module traces, which take CPU tensors there."""
    found: set[Use | None] = set()
    for use in site.uses:
        arg = use.call.args[0] if use.call is not None and use.call.args else None
        if use.claim not in (*BATCHES, *REPLICAS) or use in answered or arg is None or arg.star:
            continue
        if _is_traced_elsewhere(site, arg.value):
            found.add(use)
            group = site.group(use)
            later = Made(use.call or cst.Call(use.chain), wrappers=[use])
            _write_wrappers(site, group, later)
            _answer_wrappers(site, group, later)
    own = {call for each in made for call, _, _ in each.saves}
    for call in site.names.calls:
        saved = _saved(site, call)
        if saved is not None and call not in own and _is_traced_elsewhere(site, saved[0]):
            group = site.group()
            later = Made(call, saves=[(call, *saved)])
            _write_saves(site, group, later, group.helper("to_device", TO_DEVICE))
            _answer_saves(group, later)
    return found


def _is_traced_elsewhere(site: Site, value: cst.BaseExpression) -> bool:
    """Whether a value is certainly a trace of another module."""
    origins = site.flow.origin_of(value)
    return origins.certain and all(
        each.called and each.name in TRACES and each.node is None for each in origins.producers
    )


def _saved(site: Site, call: cst.Call) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """The model and the path of a call that saves TorchScript."""
    if any(arg.star or arg.keyword is not None for arg in call.args):
        return None
    if site.name_of(call.func) == JIT_SAVE and len(call.args) == 2:
        return call.args[0].value, call.args[1].value
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "save" and len(call.args) == 1:
        return call.func.value, call.args[0].value
    return None


def _advice(use: Use) -> str:
    if use.claim in REPLICAS:
        return "start a process for each core with torchrun, and give each its part of the batch"
    return BY_HAND


# Finding.


def _traces(site: Site) -> Iterator[Made]:
    for use in site.uses:
        if use.claim not in TRACES or use.call is None or use.stored or use.method or use.ambiguous:
            continue
        made = Made(use.call, use)
        bound = edits.arguments(use.call, TRACE_PARAMETERS)
        func, example = bound.value("func"), bound.value("example_inputs")
        names = {arg.keyword.value if arg.keyword else "" for arg in bound.extra}
        names = {name for name in names if not name.startswith("compiler_")}
        if bound.spread or func is None or example is None or not names <= DROPPED | ALIASES:
            made.refused = "its arguments cannot be seen from here"
        elif any(name in ALIASES and not _is_empty(bound.value(name)) for name in names):
            made.refused = "it keeps state in outputs that are inputs of the next call"
        else:
            made.is_function, made.refused = _kind(site, func)
        yield made


def _is_empty(value: cst.BaseExpression | None) -> bool:
    return value is None or edits.code_of(value) in ("None", "{}", "dict()")


def _kind(site: Site, func: cst.BaseExpression) -> tuple[bool, str]:
    """Whether a plain function is traced, and why it cannot be compiled alike."""
    for producer in site.flow.origin_of(func).producers:
        if isinstance(producer.node, (cst.FunctionDef, cst.Lambda)) and not producer.called:
            if site.names.class_of(producer.node) is not None:
                return True, "a method is traced, whose weights its object keeps"
            return True, ""
        if producer.called and producer.name == "functools.partial":
            inner = producer.node.args[:1] if isinstance(producer.node, cst.Call) else ()
            if inner and not inner[0].star and _is_function(site, inner[0].value):
                return True, ""
            return True, "a model is traced with some of its arguments filled in"
    if isinstance(func, cst.Attribute) and func.attr.value in ("forward", "encode", "decode", "generate"):
        return True, "a method is traced, whose weights its object keeps"
    return False, ""


def _is_function(site: Site, value: cst.BaseExpression) -> bool:
    """Whether a value is a function, of torch or of this file."""
    if (site.name_of(value) or "").startswith("torch."):
        return True
    producers = site.flow.origin_of(value).producers
    return bool(producers) and all(
        isinstance(each.node, (cst.FunctionDef, cst.Lambda)) and not each.called for each in producers
    )


def _loads(site: Site) -> Iterator[Made]:
    """The loads of TorchScript files in a file that has something to do with compiled models."""
    imported = {binding.target.partition(".")[0] for binding in site.names.imports}
    concerned = bool(imported & {"torch_neuronx", "neuronx_distributed"})
    for call in site.names.calls:
        if site.name_of(call.func) != JIT_LOAD:
            continue
        bound = edits.arguments(call, ("f", "map_location", "_extra_files"))
        made = Made(call, path=bound.value("f"))
        if not concerned and not (
            made.path
            and site.project.traces
            and site.project.traces_at(path_shape(site, made.path), site.path)
        ):
            continue
        given = set(bound.by_name) - {"f", "map_location"}
        if made.path is None or bound.spread or given:
            made.refused = "what it loads cannot be seen from here"
        yield made


def _follow(site: Site, made: Made, node: cst.BaseExpression) -> None:
    """Collect where a model goes."""
    found = site.flow.uses_of(node)
    for use in found.uses:
        parent = site.parent(use.node)
        around = site.parent(parent) if parent is not None else None
        if use.kind is UseKind.CALLED and isinstance(parent, cst.Call):
            made.calls.append(parent)
        elif use.kind is UseKind.ATTRIBUTE and isinstance(parent, cst.Attribute):
            called = around if isinstance(around, cst.Call) and around.func is parent else None
            _follow_attribute(site, made, parent, called)
        elif use.kind is UseKind.ARGUMENT and isinstance(parent, cst.Arg) and isinstance(around, cst.Call):
            _follow_argument(site, made, use.node, parent, around)
        elif use.kind is UseKind.HANDED_ON:
            made.lost.append(_said(site, use.node, "another module gets it"))
        elif use.kind in (UseKind.OPERAND, UseKind.ITERATED, UseKind.SUBSCRIPT, UseKind.OTHER):
            made.left.append(_said(site, use.node, f"`{edits.short(use.node)}` is used as something else"))
    made.lost += [_said(site, place, why) for place, why in found.lost]


def _follow_attribute(site: Site, made: Made, attribute: cst.Attribute, call: cst.Call | None) -> None:
    name = attribute.attr.value
    if call is not None and name in ("forward", "__call__"):
        made.calls.append(call)
    elif call is not None and name == "save" and len(call.args) == 1 and not call.args[0].star:
        made.saves.append((call, attribute.value, call.args[0].value))
    elif name in ("num_workers", "split_size", "disable_dynamic_batching"):
        holder = call or attribute
        small = next(
            (each for each in site.ancestors(holder) if isinstance(each, cst.BaseSmallStatement)), None
        )
        if isinstance(small, (cst.Assign, cst.Expr)):
            made.settings.append(small)
    elif name in ("code", "graph", "inlined_graph", "original_name"):
        made.left.append(_said(site, attribute, f"`{name}` is of TorchScript"))


_HARMLESS = frozenset(f"builtins.{name}" for name in ("id", "isinstance", "print", "repr", "type"))


def _follow_argument(site: Site, made: Made, node: cst.BaseExpression, arg: cst.Arg, call: cst.Call) -> None:
    name = site.name_of(call.func) or ""
    use = next((each for each in site.uses if each.call is call), None)
    if use is not None and use.claim in (*BATCHES, *REPLICAS) and arg is call.args[0]:
        if use not in made.wrappers:
            made.wrappers.append(use)
            _follow(site, made, call)
    elif name == JIT_SAVE:
        bound = edits.arguments(call, ("m", "f"))
        path = bound.value("f")
        if path is None or bound.extra:
            made.left.append(_said(site, call, "more than a model and a path is saved"))
        else:
            made.saves.append((call, node, path))
    elif use is None and name not in _HARMLESS:
        made.lost.append(_said(site, call, f"`{edits.short(call.func)}` gets it"))


def _said(site: Site, node: cst.CSTNode, what: str) -> str:
    return f"line {site.positions.span(node).line}: {what}"


def _reached(site: Site, made: Made) -> set[object]:
    reached: set[object] = {made.call, *made.settings, *(call for call, _, _ in made.saves)}
    reached.update(use.whole for use in made.wrappers)
    for call in made.calls:
        reached |= reached_by_call(site, call)
    return reached


# Loads.


def _settle_load(site: Site, made: Made, saved: Sequence[tuple[Made, cst.BaseExpression]]) -> None:
    """Find the trace whose file is loaded, and how its model is built."""
    assert made.path is not None, "a load without a path is refused"
    made.built = standing(site, made.call)
    if made.built is not None:
        made.in_place = True
        return
    writers = [writer for writer, path in saved if same_path(site, path, made.path)]
    shape = path_shape(site, made.path)
    elsewhere = [] if writers else list(site.project.traces_at(shape, site.path))
    if not writers:
        writers = [writer for writer, path in saved if artefacts.alike(path_shape(site, path), shape)]
        unseen = not shape.strip("*/")
        if not writers and not elsewhere and unseen and len(saved) == 1:
            writers = [saved[0][0]]
        elif not writers and not elsewhere and not saved:
            beside = site.project.traces_beside(site.path)
            elsewhere = [each for each in beside if unseen or not each.folder.strip("*/")]
        if len({edits.code_of(writer.call) for writer in writers}) == 1:
            line = site.positions.span(writers[0].call).line
            made.left.append(f"check that the file is the one of line {line}")
    if not writers:
        codes = {each.checkpoint for each in elsewhere}
        if len(codes) == 1 and not elsewhere[0].unseen and _is_reached(site, elsewhere[0]):
            made.code = elsewhere[0].checkpoint
            made.left.append(
                f"check that the file is that of {elsewhere[0].place}, and the model built alike"
            )
        elif elsewhere:
            code = " ".join(elsewhere[0].checkpoint.split())
            made.refused = f"{elsewhere[0].place} traces `{code}` and saves its weights there now"
        else:
            made.refused = "nothing here says what the file was traced from"
        return
    if len({edits.code_of(writer.call) for writer in writers}) > 1:
        made.refused = "several files are saved here that it may be"
        return
    writer = writers[0]
    if writer.refused or writer.is_function:
        made.refused = "what was saved there is not rewritten"
        return
    assert writer.use is not None and writer.use.call is not None
    func = edits.arguments(writer.use.call, TRACE_PARAMETERS).value("func")
    assert func is not None, "a trace without a function is refused"
    made.built = builder(site, func, made.call)
    if made.built is not None:
        writer.shared = writer.shared or made.built[1]
        producers = site.flow.origin_of(func).producers
        made.loads_checkpoint = any(_loads_checkpoint(each.name) for each in producers)
    else:
        line = site.positions.span(writer.call).line
        made.refused = f"the model of line {line}, whose weights are in the file now, cannot be built here"


def _is_reached(site: Site, saved: Artefact) -> bool:
    """Whether what builds a model can be imported from here: a library, or a module beside this one."""
    root = saved.checkpoint.partition("(")[0].partition(".")[0]
    roots, path = site.project.roots, saved.place.rpartition(":")[0]
    of_project = root in {name.partition(".")[0] for name in site.project.names.values()}
    return not of_project or roots.get(site.path) == roots.get(path)


# Rewriting.


def _rewrite(site: Site, cluster: Sequence[Made]) -> None:
    """Rewrite models that may be called at the same places."""
    group = site.group(next((each.use for each in cluster if each.use is not None), None))
    to_device = group.helper("to_device", TO_DEVICE)
    makers = {each.call for each in cluster}
    calls = list(dict.fromkeys(call for each in cluster for call in each.calls))
    convention = FUNCTION if any(each.is_function for each in cluster) else MODULE
    others = [call for call in calls if not _is_certain(site, model_of(call), makers)]
    unmoved = [_said(site, call, "something else may be called") for call in others]
    behind = bool(unmoved) or any(each.lost for each in cluster)
    if convention is FUNCTION or not behind:
        for call in calls:
            why = _write_call(site, group, call, convention, to_device)
            if why:
                unmoved.append(_said(site, call, why))
    behind = behind or bool(unmoved)
    name, code = ("compile_for_neuron", COMPILE)
    if behind:
        name, code = ("compile_behind_cpu", COMPILE_BEHIND)
    compile_name = group.helper(name, code, to_device=to_device)
    for made in cluster:
        todo: list[str] = []
        if made.use is not None:
            _write_trace(site, group, made, compile_name, todo)
        else:
            _write_load(site, group, made, compile_name)
        _write_rest(site, group, made, to_device)
        if behind and made.is_function:
            todo += [f"{text}: move inputs and outputs there" for text in (*made.lost, *unmoved)]
        _answer(site, group, made, [*todo, *made.left], [*made.lost, *unmoved] if behind else [])


def _write_trace(site: Site, group: Group, made: Made, compile_name: cst.Name, todo: list[str]) -> None:
    assert made.use is not None
    call = made.call
    bound = edits.arguments(call, TRACE_PARAMETERS)
    func_arg, example_arg = bound.by_name["func"], bound.by_name["example_inputs"]
    gone = [arg for arg in call.args if arg not in (func_arg, example_arg)]
    for arg in gone:
        forget(site, arg.value)
        _settle_inside(site, arg)
    if made.is_function:
        forget(site, example_arg.value)
        new = group.expression('torch.compile({func}, backend="neuron", dynamic=False)', func=func_arg.value)
        assert isinstance(new, cst.Call)
        args = [edits.positional(func_arg), *new.args[1:]]
        group.replace(call, edits.with_arguments(call.with_changes(func=new.func), args))
        todo.append("weights that it reads have to be on the device")
    else:
        model = func_arg.value
        if made.shared or is_read_later(site, model, call):
            copied = cst.Call(group.ref("copy.deepcopy", module_form=True), [cst.Arg(model)])
            func_arg = edits.positional(func_arg, copied)
        args = [edits.positional(func_arg), edits.positional(example_arg)]
        group.replace(call, edits.with_arguments(call.with_changes(func=compile_name), args))
    todo[:0] = _numerics(site, bound)


def _settle_inside(site: Site, node: cst.CSTNode) -> None:
    """Legacy names in an argument that goes are answered with it."""
    for use in site.uses:
        if node in site.ancestors(use.node):
            site.settled.add(use)


def _numerics(site: Site, bound: edits.Arguments) -> list[str]:
    """What the compiler was told that matters to the numbers or the program."""
    value = bound.value("compiler_args")
    words = _words(site, value) if value is not None else []
    if words is None:
        return [
            f"compiler options in `{edits.short(value)}` went: NEURON_CC_FLAGS gives them to all graphs"
            for value in [value]
            if value is not None
        ]
    casts = [index for index, word in enumerate(words) if word.startswith("--auto-cast")]
    chosen = " ".join(words)
    if "--auto-cast none" in chosen or "--auto-cast=none" in chosen:
        return []
    said = "" if casts else "unless told otherwise "
    return [
        f"compare the numbers: {said}the compiler multiplied float32 matrices in bfloat16, and they stay "
        "float32 now; for its speed load the model in bfloat16, or use torch.autocast"
    ]


def _words(site: Site, value: cst.BaseExpression) -> list[str] | None:
    """The words of compiler options; None when they cannot be seen."""
    if isinstance(value, (cst.List, cst.Tuple)):
        texts = [path_text(site, element.value) for element in value.elements]
        return [word for text in texts for word in text.split()] if all(texts) else None
    if edits.code_of(value) == "None":
        return []
    text = path_text(site, value)
    return text.split() if text or edits.code_of(value) in ('""', "''") else None


def _write_load(site: Site, group: Group, made: Made, compile_name: cst.Name) -> None:
    assert made.path is not None
    model, copied = made.built or (_built_from(group, made.code), False)
    if isinstance(model, cst.Call) and (
        _loads_checkpoint(made.code.partition("(")[0]) or made.loads_checkpoint
    ):
        loads = (made.code.partition("(")[0] or edits.code_of(model.func)).endswith("from_pretrained")
        model = _as_loaded(group, model, True, loads)
    if made.in_place:
        forget(site, made.path)
    else:
        if copied:
            model = cst.Call(group.ref("copy.deepcopy", module_form=True), [cst.Arg(model)])
        weights = group.helper("with_weights", WITH_WEIGHTS)
        args = [cst.Arg(model), cst.Arg(made.path)]
        model = edits.with_arguments(made.call.with_changes(func=weights), args)
    group.replace(made.call, cst.Call(compile_name, [cst.Arg(model)]))


def _built_from(group: Group, code: str) -> cst.BaseExpression:
    """The code that another file builds a model with, here: a call of something that can be imported."""
    call = edits.expression(code)
    assert isinstance(call, cst.Call), "what builds a model is a call"
    args = [
        arg.with_changes(value=group.ref(edits.code_of(arg.value)))
        if isinstance(arg.value, cst.Attribute)
        else arg
        for arg in call.args
    ]
    return call.with_changes(func=group.ref(edits.code_of(call.func)), args=args)


def _write_call(site: Site, group: Group, call: cst.Call, convention: Convention, to_device: cst.Name) -> str:
    """Move the inputs and outputs of a call; why that is not possible, if so."""
    for arg in call.args:
        if not arg.star and any(
            isinstance(each.node, (cst.BaseDict, cst.List, cst.ListComp, cst.Tuple))
            for each in site.flow.origin_of(arg.value).producers
        ):
            return f"`{edits.short(arg.value)}` is a container"
    template = "{value}.cpu()" if _gives_tensor(site, call) else '{to_device}({value}, "cpu")'

    def home(value: cst.BaseExpression) -> cst.BaseExpression:
        return edits.expression(template, value=value, to_device=to_device)

    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "forward":
        group.replace(call.func, call.func.value)  # what is compiled is the call of the module
    moved = move_call(site, group, call, convention, home=home)
    return moved.refused or moved.freeze


def _is_certain(site: Site, model: cst.BaseExpression, makers: set[cst.Call]) -> bool:
    """Whether nothing but models of these makers can be called."""
    origins = site.flow.origin_of(model)
    return origins.certain and all(
        each.node in makers or each.name in (*BATCHES, *REPLICAS) for each in origins.producers
    )


# What tensors have, and containers of them have not.
_TENSORS = """
    argmax argsort chunk clamp clone contiguous cpu detach dim dtype flatten float max mean min numel numpy
    permute reshape shape sigmoid size softmax squeeze sum to tolist topk transpose unsqueeze view
"""
_OF_TENSORS = frozenset(_TENSORS.split())
_OF_TENSORS_FUNCTIONS = ("torch.nn.functional.",)
_FUNCTIONS = frozenset(
    {"torch.argmax", "torch.argsort", "torch.log_softmax", "torch.max", "torch.mean", "torch.sigmoid"}
    | {"torch.softmax", "torch.squeeze", "torch.sum", "torch.topk"}
)


def _gives_tensor(site: Site, call: cst.Call) -> bool:
    """Whether what is done with the output shows that it is one tensor."""
    uses = site.flow.uses_of(call).uses
    if any(use.kind in (UseKind.ITERATED, UseKind.SUBSCRIPT) for use in uses):
        return False  # it may as well be a tuple
    for use in uses:
        parent = site.parent(use.node)
        if isinstance(parent, cst.Attribute) and parent.value is use.node:
            if parent.attr.value in _OF_TENSORS:
                return True
        elif use.kind is UseKind.ARGUMENT and isinstance(parent, cst.Arg):
            around = site.parent(parent)
            name = site.name_of(around.func) if isinstance(around, cst.Call) else None
            if name is not None and (name in _FUNCTIONS or name.startswith(_OF_TENSORS_FUNCTIONS)):
                return True
    return False


def _write_rest(site: Site, group: Group, made: Made, to_device: cst.Name) -> None:
    """Saves, wrappers and what set them up."""
    _write_saves(site, group, made, to_device)
    _write_wrappers(site, group, made)
    for small in made.settings:
        group.replace_statement(small)
        forget(site, small)


def _write_saves(site: Site, group: Group, made: Made, to_device: cst.Name) -> None:
    written = site.notes.setdefault(WRITTEN, set())
    for call, model, path in made.saves:
        if call in written:
            continue
        written.add(call)
        template = 'torch.save({to_device}({model}.state_dict(), "cpu"), {path})'
        new = group.expression(template, to_device=to_device, model=model, path=path)
        assert isinstance(new, cst.Call)
        group.replace(call, edits.with_arguments(call.with_changes(func=new.func), new.args))


def _write_wrappers(site: Site, group: Group, made: Made) -> None:
    written = site.notes.setdefault(WRITTEN, set())
    for use in made.wrappers:
        assert use.call is not None
        if use.call in written:
            continue
        written.add(use.call)
        inner = use.call.args[0].value
        assign = site.parent(use.call)
        if (
            isinstance(inner, cst.Name)
            and isinstance(assign, cst.Assign)
            and [edits.code_of(each.target) for each in assign.targets] == [inner.value]
        ):
            group.replace_statement(assign)  # it would give the model its own name
        else:
            group.replace(use.call, inner)
        for arg in use.call.args[1:]:
            forget(site, arg.value)


def _answer(site: Site, group: Group, made: Made, todo: list[str], behind: list[str]) -> None:
    model = "the model that stands here" if made.in_place else "the model"
    why = f"{model} is compiled in place on the device"
    if made.is_function:
        why = "the function is compiled for the device"
    elif behind:
        why = f"{model} is compiled on the device behind a `forward` that takes and gives CPU tensors"
        todo = [
            *todo,
            f"move tensors at its calls instead if you can, which cannot all be followed ({behind[0]})",
        ]
    if made.use is not None and not made.is_function:
        why += ", frozen and in evaluation, and called once with the example"
    if made.calls and (made.is_function or not behind):
        why += "; inputs are moved and outputs brought back at its calls"
    if made.use is not None:
        shapes = "each new shape of its inputs is compiled anew"
        numerics = Numerics.DTYPE if any("bfloat16" in each for each in todo) else Numerics.SAME
        group.review(made.call, made.use.name, why, "; ".join(todo) or shapes, numerics=numerics)
    elif made.in_place:
        dtype = "check that its weights and their dtype are those that were traced: no file is read"
        group.review(made.call, JIT_LOAD, why, "; ".join([dtype, *todo]))
    else:
        group.review(
            made.call,
            JIT_LOAD,
            f"the model is built again and gets the weights of the file; {why}",
            "; ".join([*todo, OLD_FILES] if made.code else [OLD_FILES, *todo]),
            numerics=Numerics.FORMAT,
        )
    _answer_saves(group, made)
    _answer_wrappers(site, group, made)


def _answer_saves(group: Group, made: Made) -> None:
    for call, _, _ in made.saves:
        if not any(answer.node is call for answer in group.answers):
            why = "weights are saved, on the CPU"
            group.review(call, JIT_SAVE, why, OLD_FILES, numerics=Numerics.FORMAT)


def _answer_wrappers(site: Site, group: Group, made: Made) -> None:
    for use in made.wrappers:
        if use in site.settled:
            continue
        if use.claim in BATCHES:
            group.review(
                use.whole,
                use.name,
                "a compiled model takes any number of rows",
                "each number of rows is compiled anew: pad the batch, or cut it to one size",
            )
        else:
            group.review(use.whole, use.name, "one core runs the model", SPREAD)
        site.settled.add(use)


def _mark(site: Site, made: Made) -> None:
    name = made.use.name if made.use is not None else JIT_LOAD
    site.mark(made.call, name, made.refused, BY_HAND if made.use is not None else BUILD)
    for use in made.wrappers:
        if use in site.settled:
            continue
        site.settled.add(use)
        if use.claim in REPLICAS:
            site.mark(use.whole, use.name, "one process runs one core natively", _advice(use))
        else:
            site.mark(use.whole, use.name, "a native model takes any number of rows", "remove it")
    done = site.notes.setdefault(WRITTEN, set())
    for call, _, _ in made.saves:
        if call not in done:
            done.add(call)
            site.mark(call, JIT_SAVE, "a compiled model is saved as its weights", "save its `state_dict()`")


# What stands beside the models.


@codemod.uses([*UPLOADS, *PLACES, *ANALYSES])
def decide_statement(site: Site, use: Use) -> None:
    """Take a statement out that told the old runtime where and when to load."""
    alone = site.alone(use.call) if use.call is not None else None
    if alone is None or use.method:
        todo = "remove it: weights are on the device once the model is moved there"
        site.mark(use.whole, use.name, "more than a statement of its own", todo)
        return
    group = site.group(use)
    group.replace_statement(alone)
    forget(site, alone)
    if use.claim in UPLOADS:
        group.fixed(use.whole, use.name, "the model is on the device once it is moved there")
    elif use.claim in ANALYSES:
        todo = "ask `torch_neuronx.get_fallback_ops()` after a run which operations ran on the CPU"
        group.review(use.whole, use.name, "nothing is compiled ahead that could be analyzed", todo)
    elif use.claim == "torch_neuronx.move_trace_to_device" and _is_first(use):
        group.fixed(use.whole, use.name, "the model is moved to the one device of the process")
    else:
        group.review(use.whole, use.name, "the process has one device", CORES)


def _is_first(use: Use) -> bool:
    given = use.call.args if use.call is not None else ()
    return len(given) == 2 and edits.code_of(given[1].value) == "0"


@codemod.uses(CONTEXTS)
def decide_context(site: Site, use: Use) -> None:
    """Take the context of a placement away."""
    item = site.parent(use.whole)
    around = site.parent(item) if item is not None else None
    if use.call is None or not isinstance(item, cst.WithItem) or not isinstance(around, cst.With):
        todo = "remove it: a process has one core"
        site.mark(use.whole, use.name, "more than a `with` of its own", todo)
        return
    if len(around.items) > 1 or item.asname is not None:
        site.mark(
            use.whole, use.name, "it shares its `with` with another context", "take it out of the `with`"
        )
        return
    group = site.group(use)
    group.unindent(around, around.body)
    forget(site, use.call)
    group.review(use.whole, use.name, "the process has one device", CORES)


@codemod.uses(WEIGHTS)
def decide_weights(site: Site, use: Use) -> None:
    """Load weights as those of any module."""
    call = use.call
    bound = edits.arguments(call, ("neuron_model", "weights")) if call is not None else edits.Arguments()
    model, weights = bound.value("neuron_model"), bound.value("weights")
    if call is None or model is None or weights is None or bound.spread or site.alone(call) is None:
        site.mark(
            use.whole, use.name, "more than a statement of its own", "use `model.load_state_dict(weights)`"
        )
        return
    group = site.group(use)
    state, todo = weights, "names have to be those of the model: a state of a part needs `strict=False`"
    producers = site.flow.origin_of(weights).producers
    if producers and all(each.called and each.name.endswith(_MODELS) for each in producers):
        state = edits.expression("{weights}.state_dict()", weights=weights)
    elif not producers or not all(_is_state(each) for each in producers):
        todo = f"if `{edits.short(weights)}` is a module, pass its `state_dict()`"
    group.replace(call, edits.expression("{model}.load_state_dict({state})", model=model, state=state))
    group.review(call, use.name, "weights are ordinary parameters", todo)


_MODELS = (".from_pretrained", ".from_config", "torch.nn.Linear", "torch.nn.Sequential")
_STATES = (".state_dict", "safetensors.torch.load_file", "torch.load", "builtins.dict")


def _is_state(producer: Producer) -> bool:
    return isinstance(producer.node, (cst.Dict, cst.DictComp)) or producer.name.endswith(_STATES)
