"""What a legacy model did around each call by itself, written out at the call sites.

Optimum Neuron's models took CPU tensors, ran without gradient and gave CPU tensors back. A native model
wants its inputs on the device, records gradients, and answers on the device. All model families share
this one piece of code; how one callable differs from another is said in a Convention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.flow import UseKind
from neuronmigrate.names import Kind, dotted_name
from neuronmigrate.site import Group, Site

NO_GRAD = frozenset(
    {"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode"}
)
_SETS_GRAD = frozenset({"torch.set_grad_enabled", "torch.autograd.set_grad_enabled"})
_RECORDS = frozenset({"torch.enable_grad", "torch.autograd.enable_grad"})
# What a tensor tells on any device.
_TOLD = frozenset({"device", "dim", "dtype", "ndim", "numel", "shape", "size"})
# Fields of what `generate` gives that are tensors, not tuples of tensors.
_SEQUENCES = frozenset({"beam_indices", "sequences", "sequences_scores"})
# Fields of an output that hold tuples of tensors.
TUPLES = frozenset({"attentions", "cross_attentions", "hidden_states", "past_key_values"})
# Parameters of a forward that are no tensors.
_FLAGS = frozenset(
    {"interpolate_pos_encoding", "output_attentions", "output_hidden_states", "return_dict", "return_loss"}
    | {"use_cache"}
)
# Bases of classes whose parameters are trained, as a rule by code that stands elsewhere.
_MODULES = frozenset(
    {
        "lightning.LightningModule",
        "lightning.pytorch.LightningModule",
        "pytorch_lightning.LightningModule",
        "torch.nn.Module",
        "torch.nn.modules.module.Module",
        "transformers.PreTrainedModel",
    }
)
_TRAINERS = ("torch.optim.", "transformers.Trainer", "transformers.Seq2SeqTrainer")
_LOOKERS = frozenset(
    {"builtins.hasattr", "builtins.id", "builtins.isinstance", "builtins.len", "builtins.type"}
)
# What runs through a generator at once.
_CONSUMERS = frozenset(
    {"builtins.dict", "builtins.frozenset", "builtins.list", "builtins.max", "builtins.min"}
    | {"builtins.all", "builtins.any", "builtins.set", "builtins.sorted", "builtins.sum", "builtins.tuple"}
)
_TOKENIZERS = ("Tokenizer", "TokenizerFast")
# Makers of floating point tensors: what they give is a BatchFeature, whose `.to()` casts those alone.
_EXTRACTORS = ("FeatureExtractor", "ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "Processor")
# What reads token ids or other tensors on any device.
_READERS = frozenset({"batch_decode", "convert_ids_to_tokens", "decode"})
_TAKEN = frozenset({"cpu", "item", "tolist"})
# What compiled models let go of, and native ones act on.
_IGNORED = frozenset({"labels", "return_dict"})
_LABELS = "`labels` was ignored before; now a loss is computed and comes first in the output"


@dataclass(frozen=True)
class Convention:
    """How a callable of a native model takes its inputs and gives its outputs."""

    positional: tuple[str, ...] = ()
    """Names of its positional parameters, as far as they matter."""
    agreed: int | None = None
    """How many of these all native classes have in this order: what follows is written by keyword."""
    inputs: frozenset[str] = frozenset()
    """Parameters that take tensors, every other being an option; empty where all but flags do."""
    floats: frozenset[str] = frozenset()
    """Inputs that have to be of the dtype of the weights."""
    sole: str = ""
    """The one input that the legacy callable looked at; whatever else is given goes."""
    packed: bool = False
    """Whether the inputs come as one dictionary, and the output is one, without attributes."""
    fields: tuple[str, ...] = ()
    """Keys of a packed output in the order of the legacy one's fields."""
    records: bool = True
    """Whether it records gradients when nobody says otherwise."""
    tensor: bool = False
    """Whether it gives one tensor, not an output object."""
    last: bool = False
    """Whether the legacy callable gave logits of shape (batch, 1, vocabulary), of the last token."""
    gone: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the legacy callable that cannot be given to the native one, and why."""
    tensors: bool = False
    """Whether it takes tensors alone, so that any number of them may come as `*inputs`."""
    place: str = "{model}.device"
    """Where the inputs go, as a template of the model, where that has a name."""


STATES = {"encoder_outputs": "is no tensor that could be moved: call the model with the encoder's inputs"}
FORWARD = Convention(positional=("input_ids", "attention_mask", "token_type_ids"), agreed=2)
"""A direct call of an encoder: the order of legacy classes, which DistilBERT and MPNet do not have."""
GENERATE = Convention(
    positional=("inputs", "generation_config"),
    inputs=frozenset(
        {"attention_mask", "decoder_attention_mask", "decoder_input_ids"}
        | {"input_features", "input_ids", "input_values", "inputs", "inputs_embeds", "pixel_values"}
        | {"prompt_ids"}
    ),
    floats=frozenset({"input_features", "input_values", "inputs_embeds", "pixel_values"}),
    records=False,
    tensor=True,
    gone=STATES,
)
"""`generate` of an encoder-decoder, whose encoder runs on its inputs unmoved (GenerationMixin.generate)."""


@dataclass
class Moved:
    """What came of one call site."""

    refused: str = ""
    """Why it cannot be rewritten; nothing of it was edited then."""
    todo: tuple[str, ...] = ()
    """What is left to look at."""
    why: str = "inputs are moved and outputs brought back"
    """What was done, in words."""
    freeze: str = ""
    """Why the model itself must record no gradients: no `torch.no_grad()` can be put around the call."""


class _Refused(Exception):
    """A call cannot be rewritten. Its text says why."""


def move_call(
    site: Site,
    group: Group,
    call: cst.Call,
    convention: Convention = FORWARD,
    *,
    model: cst.BaseExpression | None = None,
    args: Sequence[cst.Arg] | None = None,
    as_float32: bool = False,
    half: bool = False,
    prepare: Callable[[cst.BaseExpression], cst.BaseExpression] | None = None,
    home: Callable[[cst.BaseExpression], cst.BaseExpression] | None = None,
    finish: Callable[[cst.BaseExpression], cst.BaseExpression] | None = None,
) -> Moved:
    """Move the inputs of a call of a model, switch gradients off, bring the outputs back.

    `model` is the object whose device is asked, for a call of a method. `args` are the arguments to
    write where they are not those that stand there: made of these, and of new ones that need no move.
    `as_float32` says that floating point outputs were float32 and are not by themselves: numpy has no
    bfloat16. `half` says that the weights may be of another dtype than float32, so that float inputs
    are cast. `prepare` changes the sole input before it is moved, and `finish` the one tensor that it gives
    once that is on the CPU. `home` brings a whole output back where it is given, whatever it is and wherever
    it goes: a call that waited for its output still does.

    All models that may be called here have to share the group: what another of them has moved already
    is not moved again.
    """
    moved = site.notes.setdefault("moved", set())
    freeze, where = "", None
    if convention.records:
        try:
            where = _no_grad_place(site, call)
        except _Refused as refused:
            freeze = str(refused)
    if call in moved:
        return Moved(freeze=freeze)
    new_args = list(call.args if args is None else args)
    new: cst.BaseExpression = call
    try:
        inputs = _Inputs(site, model_of(call) if model is None else model, convention, half, prepare)
        new_args = inputs.add(new_args)
        if new_args != list(call.args):
            new = edits.with_arguments(call, new_args)
        outputs: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
        left: list[str] = []
        if home is not None:
            if not _goes_home(site, call, as_float32):
                new = home(new)
        elif convention.tensor and not _gives_object(site, call):
            if finish is not None:
                new = finish(_home(new, as_float32))
            elif not _goes_home(site, call, as_float32) and (as_float32 or not _stays_on_device(site, call)):
                new = _home(new, as_float32)
        else:
            outputs, left = _bring_back(site, call, convention, as_float32, unseen=inputs.unseen)
    except _Refused as refused:
        return Moved(str(refused))
    changes = [*inputs.changes, *outputs]
    if new is not call:
        changes.append((call, new))
    for old, replacement in changes:
        if old not in moved:
            moved.add(old)
            group.replace(old, replacement)
    moved.add(call)
    if where is not None and where not in moved:
        moved.add(where)
        with_line = group.statements("with torch.no_grad():\n    pass\n")[0]
        assert isinstance(with_line, cst.With)
        alone = where.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        body = cst.IndentedBlock(body=[cst.SimpleStatementLine(body=[alone])])
        group.replace_statement(where, [with_line.with_changes(body=body)])
    return Moved(todo=(*inputs.todo, *left), freeze=freeze)


def model_of(call: cst.Call) -> cst.BaseExpression:
    """The model that is called: `model` of `model(...)` and of `model.forward(...)`."""
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value in ("forward", "__call__"):
        return func.value
    return func


# Where gradients are switched off.


def _no_grad_place(site: Site, node: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The small statement to put under `torch.no_grad()`; None when it runs without gradient already."""
    small: cst.BaseSmallStatement | None = None
    inside: cst.CSTNode = node
    for around in site.ancestors(node):
        if small is None:
            if isinstance(around, cst.BaseSmallStatement):
                small = around
            elif isinstance(around, cst.Lambda):
                break
            elif isinstance(around, cst.GeneratorExp) and not _is_consumed(site, around):
                raise _Refused(
                    "it is called in a generator, which runs later: make it a list, or a loop of its own"
                )
        if isinstance(around, cst.With):
            items = [_gradients(site, item.item) for item in around.items if item is not inside]
            if True in items:
                break
            if False in items:
                return None
        elif isinstance(around, cst.FunctionDef):
            if small is not None and False in [
                _gradients(site, each.decorator) for each in around.decorators
            ]:
                return None
            break
        inside = around
    if small is None:
        raise _Refused(
            "it is called where no `with torch.no_grad()` can be put around it: give its output a name first"
        )
    if any(isinstance(each, (cst.Await, cst.Yield)) for each in _inside(small)):
        raise _Refused(
            "its statement gives way to other code (`await`, `yield`), which would run without gradients "
            "too: give its output a name first"
        )
    trains = _trains(site) or is_module(site, site.names.class_of(node))
    if trains and not _is_plain(site, node) and not _is_printed(site, small):
        raise _Refused(
            "its statement computes more, in code that trains: under `torch.no_grad()` that would get "
            "no gradient either; give its output a name first"
        )
    return small


def _gradients(site: Site, node: cst.BaseExpression) -> bool | None:
    """Whether a context or decorator switches gradients on or off; None when it does neither."""
    name = site.name_of(node.func if isinstance(node, cst.Call) else node)
    if name in _SETS_GRAD and isinstance(node, cst.Call) and len(node.args) == 1:
        return {"True": True, "False": False}.get(edits.code_of(node.args[0].value))
    return True if name in _RECORDS else False if name in NO_GRAD else None


def _is_consumed(site: Site, node: cst.GeneratorExp) -> bool:
    arg = site.parent(node)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and arg is call.args[0] and site.name_of(call.func) in _CONSUMERS


def _trains(site: Site) -> bool:
    """Whether this file computes gradients of anything."""
    if "trains" not in site.notes:
        signs = [
            call
            for call in site.nodes(cst.Call)
            if (isinstance(call.func, cst.Attribute) and call.func.attr.value == "backward")
            or (site.name_of(call.func) or "").startswith(_TRAINERS)
        ]
        methods = [
            each
            for each in site.nodes(cst.FunctionDef)
            if each.name.value in ("compute_loss", "training_step")
        ]
        site.notes["trains"] = {*signs, *methods}
    return bool(site.notes["trains"])


def is_module(site: Site, owner: cst.ClassDef | None) -> bool:
    """Whether a class is a module of PyTorch."""
    bases = owner.bases if owner is not None else ()
    return any(site.name_of(each.value) in _MODULES for each in bases)


def _is_plain(site: Site, node: cst.CSTNode) -> bool:
    """Whether a statement does nothing but call, take from the output and keep it."""
    parent = site.parent(node)
    while isinstance(parent, (cst.Attribute, cst.Subscript)) or (
        isinstance(parent, cst.Call) and parent.func is node
    ):
        node, parent = parent, site.parent(parent)
    return isinstance(parent, (cst.Assign, cst.AnnAssign, cst.Expr, cst.Return))


def _is_printed(site: Site, small: cst.BaseSmallStatement) -> bool:
    """Whether nothing of a statement can be used further."""
    call = small.value if isinstance(small, cst.Expr) else None
    return isinstance(call, cst.Call) and site.name_of(call.func) == "builtins.print"


def _inside(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and what runs when it does."""
    yield node
    if not isinstance(node, cst.Lambda):
        for child in node.children:
            yield from _inside(child)


# Inputs.


class _Inputs:
    """The inputs of one call, and their moves to the device."""

    def __init__(
        self,
        site: Site,
        model: cst.BaseExpression,
        convention: Convention,
        half: bool,
        prepare: Callable[[cst.BaseExpression], cst.BaseExpression] | None,
    ) -> None:
        self.site = site
        self.model = model
        self.convention = convention
        self.half = half
        self.prepare = prepare
        self.changes: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
        self.todo: list[str] = []
        self.unseen = False
        """Whether a mapping may bring more than can be seen."""

    def add(self, args: Sequence[cst.Arg]) -> list[cst.Arg]:
        """Move what the arguments of a call hold, and give the arguments to write. Raises _Refused."""
        for arg in args:
            if arg.star == "*" and not self.convention.tensors:
                raise _Refused(f"its inputs come as `*{edits.short(arg.value)}`")
        if self.site.settings.exact and not self.convention.inputs:
            args = [arg for arg in args if arg.keyword is None or arg.keyword.value not in _IGNORED]
        if self.convention.sole:
            return self.only(args)
        if self.convention.packed and len(args) == 1 and self.is_packed(args[0]):
            self.mapping(args[0].value)
            return list(args)
        named = {self.name_at(args, index) for index, arg in enumerate(args) if not arg.star}
        seen = bool(named & self.convention.inputs)
        for index, arg in enumerate(args):
            if not arg.star:
                self.named(self.name_at(args, index), arg.value)
            elif arg.star == "*":
                self.several(arg.value)
            elif not self.convention.inputs or self.brings_inputs(arg.value, seen):
                self.mapping(arg.value)
                seen = True
        if self.convention.packed:
            return self.pack(args)
        return [self.by_keyword(args, index) for index in range(len(args))]

    def several(self, value: cst.BaseExpression) -> None:
        """Move the tensors of a sequence that is spread."""
        if isinstance(value, (cst.Tuple, cst.List)):
            for element in value.elements:
                if isinstance(element, cst.StarredElement):
                    self.several(element.value)
                else:
                    self.named("", element.value)
            return
        tensor = cst.Name("tensor")
        self.change(
            value,
            edits.expression("({to} for tensor in {value})", to=self.to(tensor, cast=False), value=value),
        )

    def by_keyword(self, args: Sequence[cst.Arg], index: int) -> cst.Arg:
        """An argument as it is to be written: by keyword where native classes differ in the order."""
        arg, name, agreed = args[index], self.name_at(args, index), self.convention.agreed
        if arg.star or arg.keyword is not None or agreed is None or index < agreed:
            return arg
        if not name:
            raise _Refused(f"it is called with {len(args)} positional arguments")
        return edits.keyword(name, arg.value)

    def name_at(self, args: Sequence[cst.Arg], index: int) -> str:
        """The parameter that an argument is for; empty for one of a position without a name."""
        keyword, positional = args[index].keyword, self.convention.positional
        if keyword is not None:
            return keyword.value
        return positional[index] if index < len(positional) else ""

    def brings_inputs(self, value: cst.BaseExpression, seen: bool) -> bool:
        """Whether a mapping holds inputs, or options alone; `seen` says that inputs came before it."""
        entries = written_entries(self.site, value)
        if entries is None:
            return is_encoding(self.site, value) or not seen
        return bool(entries.keys() & self.convention.inputs)

    def only(self, args: Sequence[cst.Arg]) -> list[cst.Arg]:
        """Move the sole input; the other arguments go."""
        name = self.convention.sole
        named = [self.name_at(args, index) for index, arg in enumerate(args) if not arg.star]
        gone = ", ".join(f"`{each}`" for each in named if each and each != name)
        if gone:
            self.todo.append(f"{gone} went: it was ignored before, and a native model heeds it")
        for index, arg in enumerate(args):
            if arg.star:
                key = cst.SubscriptElement(cst.Index(edits.string(name)))
                picked = cst.Subscript(edits.parenthesized(arg.value), [key])
                return [edits.keyword(name, self.moved(name, self.prepared(picked)))]
            if self.name_at(args, index) == name:
                if _may_be_none(self.site, arg.value):
                    raise _Refused(f"`{edits.short(arg.value)}` may be None")
                self.change(arg.value, self.moved(name, self.prepared(arg.value)))
                return [arg]
        raise _Refused(f"no `{name}` can be seen")

    def prepared(self, value: cst.BaseExpression) -> cst.BaseExpression:
        return value if self.prepare is None else self.prepare(value)

    def is_packed(self, arg: cst.Arg) -> bool:
        """Whether an argument is the one dictionary of inputs already."""
        if arg.star or arg.keyword is not None:
            return False
        value = arg.value
        return isinstance(value, (cst.Dict, cst.DictComp)) or (
            isinstance(value, cst.Call) and self.site.name_of(value.func) == "builtins.dict"
        )

    def pack(self, args: Sequence[cst.Arg]) -> list[cst.Arg]:
        """The arguments as one dictionary."""
        if len(args) == 1 and args[0].star:
            value = args[0].value
            new = next((new for old, new in self.changes if old is value), value)
            if isinstance(new, (cst.Dict, cst.DictComp)):
                return [cst.Arg(value)]
            return [cst.Arg(edits.expression("dict({value})", value=value))]
        elements: list[cst.BaseDictElement] = []
        for index, arg in enumerate(args):
            name = self.name_at(args, index)
            if arg.star:
                elements.append(cst.StarredDictElement(arg.value))
            elif name:
                elements.append(cst.DictElement(edits.string(name), arg.value))
            else:
                raise _Refused(f"it is called with {len(args)} positional arguments")
        return [cst.Arg(cst.Dict(elements))]

    def named(self, name: str, value: cst.BaseExpression) -> None:
        """Move one input."""
        if name in self.convention.gone:
            raise _Refused(f"`{name}` {self.convention.gone[name]}")
        if self.convention.inputs:
            if name in self.convention.inputs:
                self.change(value, self.moved(name, value))
            return
        if name == "labels":
            self.todo.append(_LABELS)
        if name == "return_dict" and edits.code_of(value) not in ("True", "None"):
            self.todo.append("`return_dict` was ignored before; where it is False the output is a tuple now")
        if name not in _FLAGS:
            self.change(value, self.moved(name, value))

    def change(self, old: cst.BaseExpression, new: cst.BaseExpression) -> None:
        if new is not old:
            self.changes.append((old, new))

    def moved(self, name: str, value: cst.BaseExpression) -> cst.BaseExpression:
        """The value of an input on the device; the value itself when it needs no move."""
        if edits.is_literal(value) or self.is_moved(value):
            return value
        if isinstance(value, cst.IfExp):
            body, orelse = self.moved(name, value.body), self.moved(name, value.orelse)
            stays = body is value.body and orelse is value.orelse
            return value if stays else value.with_changes(body=body, orelse=orelse)
        if isinstance(value, cst.BooleanOperation) or (
            isinstance(value, cst.UnaryOperation) and isinstance(value.operator, cst.Not)
        ):
            raise _Refused(f"whether `{edits.short(value)}` is a tensor cannot be told")
        to = self.to(value, cast=name in self.convention.floats)
        if _may_be_none(self.site, value):
            if not isinstance(value, cst.Name):
                raise _Refused(f"`{edits.short(value)}` may be None: give it a name first")
            return edits.expression("None if {value} is None else {to}", value=value, to=to)
        return to

    def to(self, value: cst.BaseExpression, *, cast: bool) -> cst.BaseExpression:
        """A tensor, or what has a `.to()` like one, on the device; floats in the dtype of the weights."""
        if not dotted_name(self.model) and cast and self.half:
            raise _Refused("the model has no name here of which its dtype could be asked")
        place = self.place()
        if cast and self.half:
            model = self.model.deep_clone()
            return edits.expression(
                "{value}.to({place}, {model}.dtype)", value=value, place=place, model=model
            )
        return edits.expression("{value}.to({place})", value=value, place=place)

    def place(self) -> cst.BaseExpression:
        """The device that the inputs go to."""
        if not dotted_name(self.model) or "{model}" not in self.convention.place:
            return edits.string("neuron")
        return edits.expression(self.convention.place, model=self.model.deep_clone())

    def mapping(self, value: cst.BaseExpression) -> None:
        """Move the values of a mapping that is spread."""
        if isinstance(value, cst.Dict):
            for element in value.elements:
                if isinstance(element, cst.DictElement):
                    key = element.key.evaluated_value if isinstance(element.key, cst.SimpleString) else ""
                    self.named(str(key), element.value)
                else:
                    self.mapping(element.value)
            return
        if isinstance(value, cst.Call) and self.site.name_of(value.func) == "builtins.dict":
            for arg in value.args:
                if arg.keyword:
                    self.named(arg.keyword.value, arg.value)
                elif arg.star == "*":
                    raise _Refused(f"its inputs come as `*{edits.short(arg.value)}`")
                else:
                    self.mapping(arg.value)
            return
        if isinstance(value, cst.DictComp):
            self.unseen = True
            self.change(value.value, self.each(value.value))
            return
        if self.is_moved(value):
            return
        written = _written_out(self.site, value)
        if any(edits.is_literal(each) for each in written):
            raise _Refused(
                f"`{edits.short(value)}` holds values that are no tensors: pass those as keywords of the call"
            )
        if is_encoding(self.site, value):
            if not _read_elsewhere(self.site, value):
                self.change(value, self.to(value, cast=not self.holds_ids(value)))
                return
        else:
            self.unseen = not written
        tensor = cst.Name("tensor")
        template = "{{key: {tensor} for key, tensor in {value}.items()}}"
        self.change(
            value,
            edits.expression(template, tensor=self.each(tensor, ids=self.holds_ids(value)), value=value),
        )

    def each(self, value: cst.BaseExpression, *, ids: bool = False) -> cst.BaseExpression:
        """One tensor of a mapping on the device, whatever its dtype."""
        plain = self.moved("", value)
        if ids or not self.half or not self.convention.floats or plain is value:
            return plain
        if not isinstance(value, cst.Name):
            raise _Refused(f"whether `{edits.short(value)}` holds floats cannot be told: name it first")
        return edits.expression(
            "{cast} if {value}.is_floating_point() else {plain}",
            cast=self.to(value, cast=True),
            value=value,
            plain=plain,
        )

    def holds_ids(self, value: cst.BaseExpression) -> bool:
        """Whether a mapping holds no floats that have to be cast."""
        return not self.convention.floats or is_encoding(self.site, value, _TOKENIZERS)

    def is_moved(self, value: cst.BaseExpression) -> bool:
        """Whether a value is brought to the device of the model where it stands."""
        if not (
            isinstance(value, cst.Call)
            and isinstance(value.func, cst.Attribute)
            and value.func.attr.value == "to"
            and value.args
        ):
            return False
        target = edits.code_of(value.args[0].value)
        return target in ('"neuron"', edits.code_of(self.place()))


def _may_be_none(site: Site, value: cst.BaseExpression) -> bool:
    """Whether an optional input may be missing."""
    if edits.code_of(value) == "None":
        return True
    if isinstance(value, cst.IfExp):
        return _may_be_none(site, value.body) or _may_be_none(site, value.orelse)
    if isinstance(value, cst.Call):
        return (
            isinstance(value.func, cst.Attribute)
            and value.func.attr.value in ("get", "pop")
            and len(value.args) == (1 if value.func.attr.value == "get" else 2)
        )
    if not isinstance(value, cst.Name):
        return False
    given = [each.value for each in site.names.bindings_at(value) if not each.path]
    # One step is enough: what another name holds is asked where that one is bound.
    return any(
        edits.code_of(each) == "None" or (not isinstance(each, cst.Name) and _may_be_none(site, each))
        for each in given
        if each is not None
    )


def _written_out(site: Site, value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The values of a dictionary that is written out where its name is bound."""
    found = []
    for producer in site.flow.origin_of(value).producers:
        if isinstance(producer.node, cst.Dict):
            found += [each.value for each in producer.node.elements]
    return found


def written_entries(site: Site, value: cst.BaseExpression) -> dict[str, cst.BaseExpression] | None:
    """The entries of a mapping that is certainly written out; None when they cannot be told."""
    if isinstance(value, cst.Call) and site.name_of(value.func) == "builtins.dict":
        if any(arg.keyword is None for arg in value.args):
            return None
        return {arg.keyword.value: arg.value for arg in value.args if arg.keyword}
    origins = site.flow.origin_of(value)
    if not isinstance(value, cst.Dict) and not origins.certain:
        return None
    found: dict[str, cst.BaseExpression] = {}
    for node in [value] if isinstance(value, cst.Dict) else [each.node for each in origins.producers]:
        if not isinstance(node, cst.Dict):
            return None
        for element in node.elements:
            key = element.key if isinstance(element, cst.DictElement) else None
            if not isinstance(key, cst.SimpleString):
                return None
            found[str(key.evaluated_value)] = element.value
    return found


def is_encoding(
    site: Site, value: cst.BaseExpression, makers: tuple[str, ...] = (*_TOKENIZERS, *_EXTRACTORS)
) -> bool:
    """Whether a value is certainly what a tokenizer or processor gave: a mapping with its own `.to()`."""
    origins = site.flow.origin_of(value)
    return origins.certain and all(
        producer.called and _makes_encodings(producer.name, makers) for producer in origins.producers
    )


def _makes_encodings(name: str, makers: tuple[str, ...]) -> bool:
    """`transformers.AutoTokenizer.from_pretrained()`, called again, and what its methods give."""
    maker, called, method = name.rpartition("()")
    parts = maker.partition("(")[0].split(".")
    if not called or parts[0] != "transformers":
        return False
    if method in (".feature_extractor", ".image_processor", ".tokenizer"):
        # Parts of a processor.
        own = _TOKENIZERS if method == ".tokenizer" else _EXTRACTORS
        return own[0] in makers and any(part.endswith(_EXTRACTORS) for part in parts)
    return any(part.endswith(makers) for part in parts) and method in (
        "",
        ".batch_encode_plus",
        ".encode_plus",
        ".pad",
        ".preprocess",
    )


def _read_elsewhere(site: Site, value: cst.BaseExpression) -> bool:
    """Whether anything but this place holds the value: moving it in place would move it there too."""
    if isinstance(value, cst.Call):
        # What a function of the project returns may be kept there.
        return bool(site.flow.sites_at(value))
    if not isinstance(value, cst.Name):
        return True
    for binding in site.names.bindings_at(value):
        # A parameter or the item of a loop is held by whoever gave it.
        if binding.kind not in (Kind.ASSIGN, Kind.WALRUS) or binding.path or binding.value is None:
            return True
        if not isinstance(binding.value, cst.Call) or _read_elsewhere(site, binding.value):
            return True
        if any(reader is not value for reader in site.names.references(binding)):
            return True
        at_top = binding.scope is site.names.module_scope
        if at_top and site.project.imported_elsewhere(site.path, binding.name):
            return True
        assign = site.parent(binding.value)
        if not isinstance(assign, (cst.Assign, cst.AnnAssign)) or (
            isinstance(assign, cst.Assign) and len(assign.targets) > 1
        ):
            return True
    return False


# Outputs.


def _gives_object(site: Site, call: cst.Call) -> bool:
    """Whether `generate` is asked for more than token ids, or may be."""
    for arg in call.args:
        if arg.star == "**" and "return_dict_in_generate" in (written_entries(site, arg.value) or {}):
            return True
        if arg.keyword and arg.keyword.value in ("return_dict_in_generate", "return_segments"):
            return edits.code_of(arg.value) not in ("False", "None")
    return False


def _stays_on_device(site: Site, value: cst.BaseExpression, depth: int = 4) -> bool:
    """Whether everything that is done with a tensor works as well on the device as on the CPU."""
    found = site.flow.uses_of(value)
    if found.lost:
        return False
    for use in found.uses:
        parent = site.parent(use.node)
        if use.kind in (UseKind.BOUND, UseKind.DISCARDED, UseKind.COMPARED):
            continue
        if isinstance(parent, cst.Attribute) and parent.attr.value in (_TOLD | _TAKEN):
            continue
        if isinstance(parent, cst.Subscript) and parent.value is use.node:
            if depth and _stays_on_device(site, parent, depth - 1):
                continue
        elif use.kind is UseKind.ARGUMENT and (_is_looked_at(site, parent) or _is_decoded(site, parent)):
            continue
        return False
    return True


def _picks_last(around: cst.CSTNode | None, logits: cst.Attribute) -> bool:
    """Whether logits are read as `logits[:, -1]`, which picks the same of one token and of all."""
    if not isinstance(around, cst.Subscript) or around.value is not logits or len(around.slice) < 2:
        return False
    index = around.slice[1].slice
    return isinstance(index, cst.Index) and edits.code_of(index.value) == "-1"


def _is_decoded(site: Site, arg: cst.CSTNode | None) -> bool:
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    return (
        isinstance(call, cst.Call)
        and isinstance(call.func, cst.Attribute)
        and call.func.attr.value in _READERS
    )


def _bring_back(
    site: Site, call: cst.Call, convention: Convention, as_float32: bool, *, unseen: bool
) -> tuple[list[tuple[cst.BaseExpression, cst.BaseExpression]], list[str]]:
    """Edits that bring the tensors of an output to the CPU, and what could not be followed."""
    found = site.flow.uses_of(call)
    changes: list[tuple[cst.BaseExpression, cst.BaseExpression]] = []
    left: list[str] = []
    others: list[str] = []
    for use in found.uses:
        parent = site.parent(use.node)
        around = site.parent(parent) if parent is not None else None
        field: str | None = None
        if isinstance(parent, cst.Attribute) and parent.value is use.node:
            field = parent.attr.value
            if isinstance(around, cst.Call) and around.func is parent:
                left.append(_said(site, use.node, f"`{field}()` gives tensors"))
                continue
        elif isinstance(parent, cst.Subscript) and parent.value is use.node:
            field = _key(parent)
            if field == "0" and unseen and not convention.packed:
                others.append(
                    _said(
                        site,
                        use.node,
                        "if the inputs hold `labels`, which were ignored before, `[0]` is the loss",
                    )
                )
        elif use.kind in (UseKind.BOUND, UseKind.DISCARDED, UseKind.RETURNED, UseKind.COMPARED):
            continue  # what is returned is followed, or told as lost
        elif use.kind is UseKind.ARGUMENT and _is_looked_at(site, parent):
            continue
        if field == "loss":
            continue
        if field is None or parent is None:
            left.append(_said(site, use.node, "the whole output is passed on"))
        elif isinstance(around, (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.Del)) and (
            not isinstance(around, (cst.AugAssign, cst.AnnAssign)) or around.target is parent
        ):
            left.append(_said(site, use.node, "the output is changed"))
        elif convention.packed and isinstance(parent, (cst.Attribute, cst.Subscript)):
            entry = _entry(parent, use.node, field, convention.fields)
            if entry is None:
                raise _Refused(_said(site, use.node, f"`{edits.short(parent)}` is no entry of the output"))
            if not _goes_home(site, parent, as_float32):
                changes.append((parent, _home(entry, as_float32)))
            elif entry is not parent:
                changes.append((parent, entry))
        elif convention.last:
            if field != "logits" or not isinstance(parent, cst.Attribute):
                raise _Refused(f"`{edits.short(parent)}` of its output is read")
            picked: cst.BaseExpression = parent
            if not _picks_last(around, parent):
                picked = edits.expression("{logits}[:, -1:]", logits=parent)
            changes.append((parent, _home(picked, as_float32)))
        elif _may_be_tuple(field, convention):
            left.append(_said(site, use.node, f"`{edits.short(parent)}` may be a tuple of tensors"))
        elif isinstance(parent, cst.BaseExpression) and not _goes_home(site, parent, as_float32):
            changes.append((parent, _home(parent, as_float32)))
    for node, why in found.lost:
        left.append(_said(site, node, why))
    if convention.last and left:
        raise _Refused(left[0])
    return changes, [*others, *(f"{text}: its tensors are on the device now" for text in dict.fromkeys(left))]


def _may_be_tuple(field: str, convention: Convention) -> bool:
    """Whether a field of an output, by its name or place, may hold several tensors."""
    if not field or (field.lstrip("-").isdigit() and field != "0"):
        return True
    return field not in {*_SEQUENCES, "0"} if convention.tensor else field in TUPLES


def _entry(
    node: cst.Attribute | cst.Subscript, output: cst.BaseExpression, field: str, fields: tuple[str, ...]
) -> cst.BaseExpression | None:
    """How an entry of an output that is a dictionary is read; None if it may not be there."""
    if field.isdigit() and int(field) < len(fields):
        field = fields[int(field)]
    elif isinstance(node, cst.Subscript) and field in fields:
        return node
    if field not in fields:
        return None
    return cst.Subscript(
        output, [cst.SubscriptElement(cst.Index(edits.string(field)))], lpar=node.lpar, rpar=node.rpar
    )


def _key(node: cst.Subscript) -> str:
    """The key or index of a subscript; empty for a slice and what is not written out."""
    index = node.slice[0].slice
    if len(node.slice) != 1 or not isinstance(index, cst.Index):
        return ""
    if isinstance(index.value, cst.SimpleString):
        return str(index.value.evaluated_value)
    return edits.code_of(index.value) if edits.is_literal(index.value) else ""


def _is_looked_at(site: Site, arg: cst.CSTNode | None) -> bool:
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    return isinstance(call, cst.Call) and site.name_of(call.func) in _LOOKERS


def _said(site: Site, node: cst.CSTNode, what: str) -> str:
    return f"line {site.positions.span(node).line}: {what}"


def _goes_home(site: Site, node: cst.CSTNode, as_float32: bool) -> bool:
    """Whether what follows works on the device, or brings the tensor to the CPU as it should be."""
    seen: list[str] = []
    parent = site.parent(node)
    current = node
    while True:
        if isinstance(parent, cst.Attribute) and parent.value is current:
            seen.append(parent.attr.value)
        elif not (isinstance(parent, cst.Call) and parent.func is current):
            break
        current, parent = parent, site.parent(parent)
    if seen and seen[0] in _TOLD:
        return True
    before = seen[: seen.index("cpu")] if "cpu" in seen else []
    return (
        "cpu" in seen
        and all(name in ("detach", "float") for name in before)
        and (not as_float32 or "float" in before)
    )


def _home(node: cst.BaseExpression, as_float32: bool) -> cst.BaseExpression:
    # Parentheses around it stay where they are, around the whole.
    bare = node.with_changes(lpar=(), rpar=())
    return edits.expression("{x}.float().cpu()" if as_float32 else "{x}.cpu()", x=bare)
