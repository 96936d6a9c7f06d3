"""The arguments of a legacy load, sorted by what becomes of them.

Each family of legacy classes has a table of its arguments. Dictionaries that are spread are taken apart
where it is certain what is in them, and what only the dropped arguments read goes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from neuronmigrate import catalogue, edits, effects
from neuronmigrate.artefacts import Artefact
from neuronmigrate.names import Binding, Kind
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Group, Site, Use

# Arguments that many families share, of `from_pretrained` and `export` (optimum-neuron 0.0.5 to 0.4.5).
HUB = frozenset(
    {
        "cache_dir",
        "config",
        "force_download",
        "local_files_only",
        "revision",
        "subfolder",
        "token",
        "trust_remote_code",
    }
)
"""How a checkpoint is fetched: native loads take the same."""
RENAMED = {"use_auth_token": "token", "torch_dtype": "dtype"}
EXPORT = frozenset({"export", "from_transformers"})
CAST = frozenset({"auto_cast", "auto_cast_type"})
COMPILER = frozenset(
    {
        "compiler_workdir",
        "configs",
        "disable_fallback",
        "disable_fast_relayout",
        "disable_neuron_cache",
        "dynamic_batch_size",
        "file_name",
        "float_dtype",
        "inline_weights_to_neff",
        "int_dtype",
        "library_name",
        "low_cpu_mem_usage",
        "model_and_config_save_paths",
        "model_save_dir",
        "neuron_config",
        "neuron_configs",
        "optlevel",
        "preprocessors",
        "task",
    }
)
"""What the compiler or the loader of compiled files was told."""
SHAPES = frozenset(
    {
        "audio_sequence_length",
        "batch_size",
        "encoder_hidden_size",
        "feature_size",
        "height",
        "image_batch_size",
        "image_size",
        "nb_max_frames",
        "nb_points_per_image",
        "num_channels",
        "num_choices",
        "patch_size",
        "point_batch_size",
        "rotary_axes_dim",
        "sequence_length",
        "text_batch_size",
        "vae_scale_factor",
        "visual_seq_length",
        "width",
    }
)
"""Shapes a model was compiled for. Those of another kind of model were read by nobody."""
FILES = frozenset(
    f"{part}_file_name"
    for part in (
        "controlnet",
        "decoder",
        "encoder",
        "image_encoder",
        "model",
        "text_encoder",
        "text_encoder_2",
        "transformer",
        "unet",
        "vae_decoder",
        "vae_encoder",
    )
)
"""Names of compiled files, of this kind of model or of another one, which read them nowhere."""
PLACES = frozenset({"device", "device_id", "device_map"})
"""Where it ran; `device_map="neuron"` is written."""
FOLDERS = frozenset({"compiler_workdir", "model_save_dir"})

OPTIONS = frozenset({"compiler_args", "compiler_kwargs", "input_shapes", "kwargs_shapes"})
"""Arguments that hold others in a dictionary, which is left as it is."""

MODEL_ID = ("model_id", "model_name_or_path", "pretrained_model_name_or_path")


@dataclass(frozen=True)
class Given:
    """One argument of a load."""

    name: str
    """The legacy keyword."""
    arg: cst.Arg
    """The argument as it is to be written, by keyword."""
    seen: cst.BaseExpression
    """The expression in the file that it stands for: in a dictionary, or its own value."""


@dataclass(frozen=True)
class Table:
    """What becomes of the arguments of a family's loads, by name.

    `positional` names those that come without a keyword, after the model id, and `leading` those before it,
    which stay as they are. The values of `consumed`
    ones are kept in `Load.values` for the family to write out elsewhere; they go from the load. Those of
    `folders`, a part of `dropped`, name a folder the export wrote to. `refused` says why a load with an
    argument cannot be rewritten. `special` functions answer for an argument themselves. Arguments without
    a place in the table are refused, unless it `passes` them on.
    """

    kept: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    consumed: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)
    special: Mapping[str, Callable[[Site, Load, Given], None]] = field(default_factory=dict)
    positional: tuple[str, ...] = ("config",)
    leading: tuple[str, ...] = ()
    identifier: str = "pretrained_model_name_or_path"
    """The native keyword of the model id."""
    spread: Callable[[Site, Load, cst.Arg], bool] | None = None
    """Answers for a `**` whose entries cannot be told; False where it cannot either."""
    passes: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Every argument it knows, the model id aside."""
        return (
            self.kept
            | self.consumed
            | self.dropped
            | frozenset(self.renamed)
            | frozenset(self.refused)
            | frozenset(self.special)
        )

    def goes(self, name: str) -> bool:
        """Whether an argument is in no case written as an argument of the new load."""
        return name in self.dropped or name in self.consumed


@dataclass(eq=False)
class Load:
    """One call that makes a legacy object of a checkpoint: its arguments, sorted by what becomes of them."""

    use: Use
    call: cst.Call
    native: str
    """The qualified name of the class that loads it now."""
    table: Table
    args: list[cst.Arg] = field(default_factory=list)
    values: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """The values of the arguments that are consumed or leading, of `model_id` and of `dtype`."""
    told: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """What each argument is given as, by its legacy name, dictionaries taken apart."""
    through: tuple[Use, ...] = ()
    """The classes that may be meant, when the load gets its class as a value."""
    id_arg: cst.Arg | None = None
    """The argument that is the model id, as it is to be written."""
    spread: dict[cst.Name, Binding] = field(default_factory=dict)
    """Where dictionaries that were taken apart are read, and what bound them."""
    added: dict[Binding, list[cst.BaseSmallStatement]] = field(default_factory=dict)
    """The statements that gave these dictionaries more entries."""
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
    """The dtype that comes nearest to what the compiler made of the model; empty for none written."""
    numerics: Numerics = Numerics.SAME
    known: bool = True
    """Whether what was compiled in can be told: it cannot for a folder whose export is not seen."""
    late: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """What has to be set on the object, because it cannot be given to each of its calls."""
    artefact: Artefact | None = None
    """What another place of the project exported, when this loads its compiled files."""
    folder: cst.BaseExpression | None = None
    """The folder of compiled files in whose place the original is loaded."""
    frozen: bool = False
    """Whether it has to be told to record no gradients, since a call of it cannot be."""
    compiled_by: Load | None = None
    """The load of this file that wrote the folder it loads."""

    @property
    def source(self) -> Load:
        """The load whose arguments say what was compiled."""
        return self.compiled_by or self

    def drop(self, value: cst.BaseExpression) -> None:
        """Take note that an expression goes, and what it read loses a reader."""
        self.dropped += [name for name in m.findall(value, m.Name()) if isinstance(name, cst.Name)]

    def keep(self, value: cst.BaseExpression) -> None:
        """Take note that an argument that went is written elsewhere, so that what it read has a reader."""
        stays = {name.value for name in m.findall(value, m.Name()) if isinstance(name, cst.Name)}
        self.dropped = [name for name in self.dropped if name.value not in stays]

    def refuse(self, why: str) -> None:
        """Say why it cannot be rewritten; the first reason stays."""
        self.refused = self.refused or why

    @property
    def as_float32(self) -> bool:
        """Whether outputs, which were float32 tensors, have to be made so."""
        return self.dtype is None and self.cast not in ("torch.float32", "")

    @property
    def half(self) -> bool:
        """Whether the weights may be of another dtype than float32."""
        if self.dtype is None:
            return self.cast != "torch.float32"
        return edits.code_of(self.dtype).strip("\"'") not in ("torch.float32", "float32")


def sorted_arguments(site: Site, use: Use, call: cst.Call, native: str, table: Table) -> Load:
    """Sort the arguments of a load. What stands in the way is told in `Load.refused`."""
    load = Load(use, call, native, table)
    for index, arg in enumerate(call.args):
        if arg.star == "*":
            load.refused = f"the arguments `*{edits.short(arg.value)}` cannot be seen from here"
        elif arg.star == "**":
            if not take_apart(site, load, arg.value) and not (table.spread and table.spread(site, load, arg)):
                load.refused = f"what `**{edits.short(arg.value)}` holds cannot be seen from here"
        elif arg.keyword is not None:
            _argument(site, load, Given(arg.keyword.value, arg, arg.value))
        elif index < len(table.leading):
            load.given.add(table.leading[index])
            load.values[table.leading[index]] = constant(site, arg.value)
            load.args.append(arg)
        elif index == len(table.leading):
            load.given.add(table.identifier)
            load.values["model_id"] = arg.value
            load.id_arg = arg
            load.args.append(arg)
        elif index - len(table.leading) <= len(table.positional):
            name = table.positional[index - len(table.leading) - 1]
            _argument(site, load, Given(name, edits.keyword(name, arg.value), arg.value))
        else:
            load.refused = f"it is called with {len(call.args)} positional arguments"
    return load


def _argument(site: Site, load: Load, given: Given) -> None:
    name, arg, table = given.name, given.arg, load.table
    is_id = name in MODEL_ID or name == table.identifier
    native = table.identifier if is_id else table.renamed.get(name, name)
    if native in load.given:
        load.refused = f"`{native}` is given twice"
    load.given.add(native)
    load.told[name] = given.seen
    if is_id:
        load.values["model_id"] = given.seen
        load.id_arg = arg if name == native else arg.with_changes(keyword=cst.Name(native))
        load.args.append(load.id_arg)
    elif name in table.leading:
        load.values[name] = constant(site, given.seen)
        load.args.append(arg)
    elif name in table.special:
        table.special[name](site, load, given)
    elif native == "dtype":
        load.values["dtype"] = given.seen
        load.dtype = arg.value
    elif name in table.renamed:
        load.args.append(arg.with_changes(keyword=cst.Name(native)))
    elif name in table.kept:
        load.args.append(arg)
    elif name in table.consumed:
        load.values[name] = constant(site, given.seen)
        load.drop(given.seen)
    elif name in table.refused:
        load.refused = table.refused[name]
    elif name in table.dropped:
        drop_argument(site, load, given)
    elif name in OPTIONS:
        binding = only_binding(site, given.seen) if isinstance(given.seen, cst.Name) else None
        held = binding.value if binding is not None and binding.value is not None else given.seen
        if isinstance(held, (cst.List, cst.Tuple)) or edits.code_of(held) == "None":
            load.drop(given.seen)  # options of the compiler's command line
        elif not take_apart(site, load, given.seen):
            load.refuse(f"what `{name}={edits.short(given.seen)}` holds cannot be seen from here")
    elif table.passes:
        load.args.append(arg)
    elif name in catalogue.arguments(load.use.name):
        load.refused = f"`{name}=` is nothing that a load of these models reads"
    else:
        load.refused = f"`{name}=` is no argument that any release of optimum-neuron documents"


def drop_argument(site: Site, load: Load, given: Given) -> None:
    """Let an argument go, and say what goes with it."""
    value = given.arg.value
    load.drop(given.seen)
    if given.name in load.table.folders and edits.code_of(constant(site, given.seen)) != "None":
        load.todo.append(f"no compiled files are written to `{edits.short(value)}` any more")
    if isinstance(value, cst.Attribute) and _is_last_reader(site, value):
        load.todo.append(f"`{edits.short(value)}` was only read for an argument that went")
    elif not effects.is_harmless(value, site.name_of):
        load.todo.append(f"`{given.name}={edits.short(value)}` went, and what it called no longer runs")


def instance_type(site: Site, load: Load, given: Given) -> None:
    """Drop the chip that was compiled for, and say which chips run natively."""
    load.drop(given.seen)
    built = edits.short(constant(site, given.seen))
    if built.strip("\"'").startswith(("trn2", "trn3")):
        return
    load.todo.append(f"it was built for {built}: the native device is Trainium 2 and 3 alone")


def _is_last_reader(site: Site, node: cst.Attribute) -> bool:
    """Whether an attribute such as `args.batch_size` is written nowhere else in this file."""
    text = edits.code_of(node)
    return not any(each is not node and edits.code_of(each) == text for each in site.nodes(cst.Attribute))


def text_of(value: cst.BaseExpression) -> str:
    """The text of a string literal; empty for everything else."""
    text = value.evaluated_value if isinstance(value, cst.SimpleString) else ""
    return text if isinstance(text, str) else ""


def constant(site: Site, value: cst.BaseExpression) -> cst.BaseExpression:
    """What a name stands for that is bound once, to a literal; else the expression itself."""
    if isinstance(value, cst.Name) and not edits.is_literal(value):
        binding = only_binding(site, value)
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


def take_apart(site: Site, load: Load, value: cst.BaseExpression) -> bool:
    """Sort the entries of a dictionary as arguments; tells whether it is certain what is in it."""
    spread = dict(load.spread)
    entries = _entries(site, load, value, None, None)
    if entries is None:
        load.spread = spread  # it stays, whatever made it
        return False
    for name, entry in entries.items():
        given = entry.value
        if entry.through is not None and not load.table.goes(name):
            inline = edits.is_literal(given) or (
                edits.is_pure(given) and means_the_same(site, given, load.call)
            )
            if inline:
                given = given.deep_clone()
            else:
                key = cst.SubscriptElement(cst.Index(edits.string(name)))
                given = cst.Subscript(entry.through.deep_clone(), [key])
                if entry.binding is not None:
                    load.still_read.add(entry.binding)
        _argument(site, load, Given(name, edits.keyword(name, given), entry.value))
    return True


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
        bound = only_binding(site, value)
        if bound is None or bound.value is None or value in load.spread:
            return None
        added = _additions(site, load, bound)
        if added is None:
            return None
        load.spread[value] = bound
        parts.append(_entries(site, load, bound.value, value, bound))
        for small, items in added:
            parts.append({name: _Entry(each, value, bound) for name, each in items.items()})
            load.added.setdefault(bound, []).append(small)
    elif isinstance(value, cst.Attribute):
        constant = _classconstant(site, value) or _field(site, value)
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


def _additions(
    site: Site, load: Load, bound: Binding
) -> list[tuple[cst.BaseSmallStatement, dict[str, cst.BaseExpression]]] | None:
    """What a dictionary gets after it was made: `options["x"] = 1`, `options.update(x=1)`, in their order.

    None when it may change in another way, or when a change is not certain to be made before the load.
    """
    found = []
    home = site.parent(bound.value) if bound.value is not None else None
    for reader in site.names.references(bound):
        if _leaves_alone(site, reader):
            continue
        told = _addition(site, reader)
        if told is None or home is None:
            return None
        if site.suite(told[0]) is not site.suite(home):
            if not told[1].keys() <= load.table.dropped:
                return None
        elif _is_before(site, told[0], load.call):
            found.append(told)
        elif site.names.function_of(told[0]) is not site.names.function_of(load.call):
            return None
    return found


def _addition(
    site: Site, reader: cst.BaseExpression
) -> tuple[cst.BaseSmallStatement, dict[str, cst.BaseExpression]] | None:
    """A statement that gives a dictionary more entries, and these."""
    parent = site.parent(reader)
    target = site.parent(parent) if parent is not None else None
    if isinstance(parent, cst.Subscript) and parent.value is reader and isinstance(target, cst.AssignTarget):
        assign = site.parent(target)
        index = parent.slice[0].slice
        key = text_of(index.value) if isinstance(index, cst.Index) else ""
        if isinstance(assign, cst.Assign) and len(assign.targets) == 1 and len(parent.slice) == 1 and key:
            return assign, {key: assign.value}
    if isinstance(parent, cst.Attribute) and parent.attr.value == "update":
        call = target
        alone = site.alone(call) if isinstance(call, cst.Call) and call.func is parent else None
        if isinstance(call, cst.Call) and alone is not None:
            items: dict[str, cst.BaseExpression] = {}
            for arg in call.args:
                if arg.keyword is not None:
                    items[arg.keyword.value] = arg.value
                    continue
                inner = written_out(site, arg.value) if arg.star != "*" else None
                if inner is None or isinstance(arg.value, cst.Name):
                    return None
                items |= inner
            return alone, items
    return None


def _is_before(site: Site, small: cst.CSTNode, call: cst.Call) -> bool:
    """Whether a statement runs before a call that follows it, in the same run of the same function."""
    if site.names.function_of(small) is not site.names.function_of(call):
        return False
    one, other = site.positions.span(small), site.positions.span(call)
    return (one.line, one.column) < (other.line, other.column)


def only_binding(site: Site, name: cst.Name) -> Binding | None:
    """The assignment that gave a name what is read here, when there is only one."""
    bindings = site.names.bindings_at(name)
    if len(bindings) != 1 or bindings[0].kind is not Kind.ASSIGN or bindings[0].path:
        return None
    parent = site.parent(bindings[0].value) if bindings[0].value is not None else None
    single = isinstance(parent, cst.AnnAssign) or (
        isinstance(parent, cst.Assign) and len(parent.targets) == 1
    )
    return bindings[0] if single else None


def _classconstant(site: Site, node: cst.Attribute) -> cst.BaseExpression | None:
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


def _field(site: Site, node: cst.Attribute) -> cst.BaseExpression | None:
    """The dictionary that a field of a dataclass holds, when each object that may be meant holds the same."""
    name = node.attr.value
    found: dict[str, cst.BaseExpression] = {}
    origins = site.flow.origin_of(node.value)
    for each in origins.producers if origins.certain else ():
        call = each.node
        if not isinstance(call, cst.Call) or any(arg.star for arg in call.args):
            return None
        given = next((arg.value for arg in call.args if arg.keyword and arg.keyword.value == name), None)
        if each.name == "dataclasses.replace":
            if given is not None:
                return None
            continue  # its first argument holds the same
        if given is None:
            count = sum(arg.keyword is None for arg in call.args)
            given = _default_of_field(site, call.func, name, count)
        if given is None:
            return None
        found[edits.code_of(given)] = given
    readers = [each for each in site.nodes(cst.Attribute) if each.attr.value == name]
    alone = all(_leaves_alone(site, each) for each in readers)
    return next(iter(found.values())) if len(found) == 1 and alone else None


def _default_of_field(
    site: Site, func: cst.BaseExpression, name: str, count: int
) -> cst.BaseExpression | None:
    """What a field of a dataclass of this file is where `count` positional arguments do not reach it."""
    owners = [each.node for each in site.names.bindings_at(func)] if isinstance(func, cst.Name) else []
    owner = owners[0] if len(owners) == 1 else None
    if not isinstance(owner, cst.ClassDef) or site.project.imported_elsewhere(site.path, owner.name.value):
        return None
    decorators = [
        each.decorator.func if isinstance(each.decorator, cst.Call) else each.decorator
        for each in owner.decorators
    ]
    if [site.name_of(each) for each in decorators] != ["dataclasses.dataclass"]:
        return None
    fields = [
        small.target.value
        for line in owner.body.body
        if isinstance(line, cst.SimpleStatementLine)
        for small in line.body
        if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name)
    ]
    if (owner.bases and count) or name not in fields or fields.index(name) < count:
        return None
    stores = site.names.class_attribute(owner, name, subclasses=True)
    value = stores[0].value if len(stores) == 1 and isinstance(stores[0], Binding) else None
    if not isinstance(value, cst.Call) or site.name_of(value.func) != "dataclasses.field":
        return None
    made = next((arg.value for arg in value.args if arg.keyword and _is_factory(arg.keyword)), None)
    return made.body if isinstance(made, cst.Lambda) and isinstance(made.body, cst.Dict) else None


def _is_factory(keyword: cst.Name) -> bool:
    return keyword.value == "default_factory"


def written_out(site: Site, value: cst.BaseExpression) -> dict[str, cst.BaseExpression] | None:
    """The entries of a dictionary that is written out and only read; None when they cannot be told."""
    if isinstance(value, cst.Name):
        binding = only_binding(site, value)
        if binding is None or binding.value is None or isinstance(binding.value, cst.Name):
            return None
        if not all(_leaves_alone(site, each) for each in site.names.references(binding)):
            return None
        value = binding.value
    found: dict[str, cst.BaseExpression] = {}
    if isinstance(value, cst.Dict):
        for element in value.elements:
            inner = written_out(site, element.value) if isinstance(element, cst.StarredDictElement) else {}
            if inner is None:
                return None
            found.update(inner)
            if isinstance(element, cst.DictElement):
                key = element.key.evaluated_value if isinstance(element.key, cst.SimpleString) else None
                if not isinstance(key, str):
                    return None
                found[key] = element.value
        return found
    if isinstance(value, cst.Call) and site.name_of(value.func) == "builtins.dict":
        if any(arg.keyword is None for arg in value.args):
            return None
        return {arg.keyword.value: arg.value for arg in value.args if arg.keyword is not None}
    return None


def means_the_same(site: Site, value: cst.BaseExpression, at: cst.CSTNode) -> bool:
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
        called = site.name_of(call.func) if isinstance(call, cst.Call) else None
        options = parent.keyword is not None and parent.keyword.value in OPTIONS
        return bool(parent.star) or called in _PRINTERS or (options and catalogue.is_legacy(called or ""))
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


def unread(site: Site, group: Group, load: Load, loads: list[Load]) -> list[str]:
    """Take away what only the dropped arguments read; says what is left without a reader."""
    left = []
    gone = {name for each in loads for name in each.spread}
    for reader, binding in load.spread.items():
        at_top = binding.scope is site.names.module_scope
        elsewhere = at_top and site.project.imported_elsewhere(site.path, binding.name)
        still = any(binding in each.still_read for each in loads)
        assign = site.parent(binding.value) if binding.value is not None else None
        added = load.added.get(binding, [])
        others = [
            each
            for each in site.names.references(binding)
            if each not in gone and not any(small in site.ancestors(each) for small in added)
        ]
        if still or elsewhere or others:
            site.kept_names.add(reader.value)
            if not still and not elsewhere and all(_addition(site, each) for each in others):
                left.append(f"`{reader.value}` is filled, and nothing reads it any more")
        elif isinstance(assign, (cst.Assign, cst.AnnAssign)):
            _remove(site, group, assign)
            for small in added:
                _remove(site, group, small)
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
            simple = only_binding(site, name) is binding
            elsewhere = at_top and site.project.imported_elsewhere(site.path, name.value)
            if elsewhere or assign in removed or catalogue.is_legacy(binding.target):
                continue
            if binding.kind is Kind.PARAMETER:
                left.append(f"the parameter `{name.value}` was only read for an argument that went")
            elif simple and isinstance(assign, cst.Assign) and _is_constant(binding.value or name):
                _remove(site, group, assign)
            elif binding.kind is Kind.IMPORT:
                if binding.node not in site.released:
                    left.append(f"the import of `{name.value}` was only read for an argument that went")
            elif binding.kind is not Kind.FOR:
                left.append(f"`{name.value}` was only read for an argument that went")
    return left


def _is_constant(value: cst.BaseExpression) -> bool:
    """Whether an expression is a literal, or a dictionary, list or tuple of literals."""
    if isinstance(value, cst.Dict):
        return all(
            isinstance(each, cst.DictElement) and edits.is_literal(each.key) and edits.is_literal(each.value)
            for each in value.elements
        )
    if isinstance(value, (cst.List, cst.Tuple)):
        return all(edits.is_literal(each.value) for each in value.elements)
    return edits.is_literal(value)


def _remove(site: Site, group: Group, assign: cst.BaseSmallStatement) -> None:
    removed = site.notes.setdefault("removed", set())
    if assign not in removed:
        removed.add(assign)
        group.replace_statement(assign)
