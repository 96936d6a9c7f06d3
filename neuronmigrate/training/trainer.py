"""The constructor of a trainer in native words, and what the legacy one did otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import libcst as cst

from neuronmigrate import edits, targets
from neuronmigrate.loads.arguments import Given, Load, Table, sorted_arguments
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Site, Use
from neuronmigrate.training import losses, trl_trainer
from neuronmigrate.training.fields import OWN_CLASS
from neuronmigrate.training.hooks import stores_tokenizer
from neuronmigrate.training.kinds import MODELS, PLAIN_ARGUMENTS, TRAINERS
from neuronmigrate.training.loads import write_load
from neuronmigrate.training.precision import precision_of
from neuronmigrate.training.unit import Training, Unit, resumed

LEADING = ("model", "args", "data_collator", "train_dataset", "eval_dataset")
"""The first parameters, the same in every release and natively."""
_INHERITED = ("model_init", "compute_metrics", "callbacks", "optimizers", "preprocess_logits_for_metrics")
"""Of Transformers' Trainer before 4.46, after the tokenizer."""
_OWN = ("callbacks", "optimizers", "optimizer_cls_and_kwargs", "tokenizer")
"""Of NeuronTrainer from 0.4.0 on, after `processing_class`."""
KEPT = frozenset({*_INHERITED, *_OWN, "compute_loss_func"}) - {"tokenizer"}


@dataclass(eq=False)
class Written:
    """The arguments of a trainer's constructor."""

    args: list[cst.Arg] | None = None
    """None where they stay as they are."""
    todo: list[str] = field(default_factory=list)
    refused: str = ""
    load: Load | None = None
    """Its arguments, sorted; None for a class with an `__init__` of its own."""
    numerics: Numerics = Numerics.SAME
    after: list[tuple[str, dict[str, cst.BaseExpression]]] = field(default_factory=list)
    """Templates of statements that follow it, with their holes."""


def _tokenizer(site: Site, load: Load, given: Given) -> None:
    """`tokenizer` is `processing_class` natively; 0.4.x only took it where both were given."""
    load.values["tokenizer"] = given.seen
    load.args.append(given.arg.with_changes(keyword=cst.Name("processing_class")))


def trainer_table(release: str, kept: frozenset[str] = frozenset()) -> Table:
    """What becomes of a trainer's arguments in a release. `kept` are those of a trainer with more."""
    from packaging.version import Version

    own = Version(release) >= Version(OWN_CLASS)
    return Table(
        kept=KEPT | kept,
        special={"tokenizer": _tokenizer},
        leading=LEADING,
        positional=_OWN if own else _INHERITED,
        identifier="processing_class",
    )


def write_trainer(unit: Unit, use: Use, training: Training) -> Written:
    """Sort the arguments of a trainer's constructor, and give the load of its model what it needs."""
    site = unit.site
    written = Written()
    if training.derived:
        # What it takes is the script's own matter; the call of the base in it is rewritten there.
        written.args = _renamed(training)
    else:
        native = TRAINERS[training.name].native
        is_trl = native.startswith("trl.")
        table = trl_trainer.trainer_table(unit, native) if is_trl else trainer_table(unit.release)
        if training.partial:
            table = replace(table, leading=("class", *table.leading))
        load = sorted_arguments(site, use, training.call, native, table)
        if is_trl:
            written.todo += trl_trainer.settle(unit, training, load, native)
        written.refused = load.refused
        written.todo += load.todo
        both = "tokenizer" in load.values and table.identifier in load.given
        # Where both are given, the tokenizer won.
        written.args = [arg for arg in load.args if not (both and arg is load.id_arg)]
        written.load = load
        if not is_trl:
            _default_collator(unit, training, load, written)
        if not training.derived:
            site.keywords += [(native, arg.keyword.value) for arg in load.args if arg.keyword]
    for call in training.loads:
        written.todo += write_load(unit, call)
    written.todo += _unseen_load(unit, training)
    written.todo += _native_arguments(site, training)
    _tokenizer_reads(unit, training)
    _rename_made(unit, training)
    _tell_faults(unit, training, written)
    return written


def _rename_made(unit: Unit, training: Training) -> None:
    """`tokenizer` in the call of what a `functools.partial` of a trainer gives."""
    made = training.made
    if not training.partial or made is None:
        return
    args = [
        arg.with_changes(keyword=cst.Name("processing_class"))
        if arg.keyword is not None and arg.keyword.value == "tokenizer" and "tokenizer" not in _own(training)
        else arg
        for arg in made.args
    ]
    if any(new is not old for new, old in zip(args, made.args, strict=True)):
        unit.group.replace(made, edits.with_arguments(made, args))


def _own(training: Training) -> set[str]:
    """The parameters that a class of this file names itself."""
    named: set[str] = set()
    for each in training.owner.body.body if training.owner is not None else ():
        if isinstance(each, cst.FunctionDef) and each.name.value == "__init__":
            named = {param.name.value for param in (*each.params.params, *each.params.kwonly_params)}
    return named


def _renamed(training: Training) -> list[cst.Arg]:
    """The arguments of a class of the script, which hands on what it does not name itself."""
    named = _own(training)
    return [
        arg.with_changes(keyword=cst.Name("processing_class"))
        if arg.keyword is not None and arg.keyword.value == "tokenizer" and "tokenizer" not in named
        else arg
        for arg in training.call.args
    ]


def _default_collator(unit: Unit, training: Training, load: Load, written: Written) -> None:
    """0.4.x lost a `tokenizer` that came without `processing_class`, so that it padded nothing."""
    tokenizer = load.values.get("tokenizer")
    if unit.before(OWN_CLASS) or tokenizer is None or edits.code_of(tokenizer) == "None":
        return
    if "data_collator" in {*load.given, *training.given}:
        return
    assert written.args is not None
    written.args.append(
        edits.keyword("data_collator", unit.group.expression("transformers.default_data_collator"))
    )
    written.todo.append(
        "0.4.x lost `tokenizer` without `processing_class`, so that batches were stacked and not padded, as "
        "written; now the tokenizer is saved beside the model as well"
    )


def _unseen_load(unit: Unit, training: Training) -> list[str]:
    """What is said of a model that comes from elsewhere, whose load left the dtype to the old release."""
    model = training.model
    if training.loads or model is None or edits.code_of(model) == "None":
        return []
    if any(each.text or each.node is not None for each in unit.site.flow.origin_of(model).producers):
        return []
    found = precision_of(unit, training.sources[0]) if training.sources else None
    half = unit.before(OWN_CLASS) if found is None else not found.off and not found.autocast
    if half and training.sources and training.sources[0].call is not None:
        return []  # said where the arguments are constructed
    dtype = "torch.bfloat16 where `bf16` is on, else torch.float32" if half else "torch.float32"
    return [
        f"where `{edits.short(model)}` is loaded, give `dtype`, {dtype}: left out, it is the checkpoint's"
    ]


def _native_arguments(site: Site, training: Training) -> list[str]:
    """What is said of arguments that were Transformers' own already: no field of them is rewritten."""
    if training.args is None or training.sources:
        return []
    todo = []
    for each in site.flow.origin_of(training.args).producers:
        if each.name not in PLAIN_ARGUMENTS or not isinstance(each.node, cst.Call):
            continue
        known = targets.parameters(each.name) or ()
        gone = [arg.keyword.value for arg in each.node.args if arg.keyword and arg.keyword.value not in known]
        shown = ", ".join(f"`{name}`" for name in gone)
        line = site.positions.span(each.node).line
        todo.append(
            f"line {line}: these arguments were Transformers' own and stay as they are, so their defaults "
            "are those of Transformers 5, such as `optim`" + (f"; it has no {shown}" if gone else "")
        )
    return todo


def _tokenizer_reads(unit: Unit, training: Training) -> None:
    """`trainer.tokenizer` is `processing_class` natively, unless a class of the script has its own."""
    site = unit.site
    if training.derived and (training.owner is None or stores_tokenizer(site, training.owner)):
        return
    for use in site.flow.uses_of(training.made or training.call).uses:
        node = site.parent(use.node)
        if isinstance(node, cst.Attribute) and node.value is use.node and node.attr.value == "tokenizer":
            unit.group.replace(node, node.with_changes(attr=cst.Name("processing_class")))
            unit.say(node, "tokenizer", "the native Trainer calls it `processing_class`")


def _tell_faults(unit: Unit, training: Training, written: Written) -> None:
    """What the legacy trainer did otherwise, as far as it can be told from the file."""
    site = unit.site
    own = not unit.before(OWN_CLASS)
    exact = site.settings.exact
    names = [site.name_of(call.func) or "" for call in training.loads]
    custom = any(name.rpartition(".")[0] in MODELS for name in names)
    causal = any("CausalLM" in name for name in names) and "ORPO" not in training.name
    again = "" if own else ", the same in each epoch"
    order = f"with several processes the data came in an order of seed 0{again}"
    if has_twin(unit, training):
        written.todo.append(f"{order}: `{SAME_ORDER}` deals it out so")
    else:
        written.todo.append(f"{order}; natively it follows `seed`")
    written.numerics = Numerics.RANDOM
    counts = exact and not own and _accumulates(unit, training) and not _gives(unit, training, "max_steps")
    if counts and _after(unit, training, written, _UPDATES, batches=unit.group.fresh("batches")):
        written.todo.append("the updates are counted as before")
        if unit.before("0.1.0"):
            written.todo.append("the rest of an epoch is not taken over into the next one, as it was")
    if own and not custom and any(name.startswith("transformers.") for name in names):
        written.todo.append(
            "where the model's forward takes `**kwargs`, the loss in the log was too small by the number of "
            "tokens and gradients were never clipped, which was a fault"
        )
    if causal and not unit.before("0.1.0") and losses.leaves_loss(unit, training):
        if exact and _after(unit, training, written, "{trainer}._loss_shifts_labels = False\n"):
            written.todo.append(
                "the loss is divided by all labels, as before, also by the one that is shifted out"
            )
        else:
            written.todo.append(
                "the loss of unmasked rows of L tokens is L/(L-1) times the old one, which counted the label "
                "that is shifted out"
            )
    written.todo += _divide_loss(unit, training, written)
    if custom and pads_left(site):
        written.todo.append(
            "the tokenizer pads on the left, which the model ignored: padding was attended to, a fault"
        )
    written.todo += _resumes(unit, training)
    _write_after(unit, training, written)


_DIVIDED = "model_accepts_loss_kwargs = False"


def _divide_loss(unit: Unit, training: Training, written: Written) -> list[str]:
    """Have the native Trainer divide a loss that is a mean by the number of micro-batches."""
    if TRAINERS[training.name].native not in _COUNTING or "compute_loss_func" in training.given:
        return []
    summed = unit.before("0.1.0") and unit.site.settings.exact and _accumulates(unit, training)
    scale, model = losses.loss_of(unit, training)
    if not summed and (scale is losses.Scale.SETTLED or not losses.may_be_summed(unit, training)):
        return []
    if not losses.leaves_loss(unit, training):
        if training.owner is not None:
            return []  # said at its `compute_loss`
        return [
            "a loss of this class that is a mean is divided by the number of micro-batches only where the "
            "class has `loss_is_scaled_for_ga = False`"
        ]
    if scale is losses.Scale.UNKNOWN and not summed:
        shown = "the model" if training.model is None else f"`{edits.short(training.model)}`"
        return [
            f"if the loss of {shown} is a mean, as with BERT's heads, set `{_DIVIDED}` on the trainer: else "
            "Transformers 5 sums the gradients of micro-batches"
        ]
    why = f"the loss of {model} is a mean, which Transformers 5 divides by the number of micro-batches only"
    if scale is not losses.Scale.MEAN:
        why = "micro-batches count alike, whatever the number of their tokens, as before"
    if _after(unit, training, written, f"{{trainer}}.{_DIVIDED}\n"):
        return [f"{why} with `{_DIVIDED}`, as written"]
    return [f"{why} with `{_DIVIDED}`: give the trainer a name and set it there"]


_COUNTING = ("transformers.Trainer", "transformers.Seq2SeqTrainer", "trl.SFTTrainer")
"""Trainers that count the items of a batch; ORPOTrainer divides by itself."""

SAME_ORDER = "SameOrderTrainer"
_UPDATES = """
{batches} = math.ceil(
    len({trainer}.train_dataset) / ({trainer}.args.train_batch_size * {trainer}.args.world_size)
)
{trainer}.args.max_steps = math.ceil(
    {trainer}.args.num_train_epochs * max(1, {batches} // {trainer}.args.gradient_accumulation_steps)
)
"""
_TWIN = """
class {name}(transformers.Trainer):
    \"""Deals the rows out to several processes in the order that optimum-neuron had.\"""

    def get_train_dataloader(self):
        if self.args.world_size == 1:
            return super().get_train_dataloader()
        sampler = torch.utils.data.DistributedSampler(
            self.train_dataset, num_replicas=self.args.world_size, rank=self.args.process_index, shuffle=True
        )
        loader = torch.utils.data.DataLoader(
            self.train_dataset,
            batch_size=self.args.train_batch_size,
            sampler=sampler,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, "training"),
            drop_last=self.args.dataloader_drop_last,
        )
"""
_RESHUFFLED = "        loader.set_epoch = sampler.set_epoch\n"


def has_twin(unit: Unit, training: Training) -> bool:
    """Whether the old order of the data is written out, as a class that derives from Trainer."""
    native = TRAINERS[training.name].native
    return unit.site.settings.exact and not training.derived and native == "transformers.Trainer"


def twin(unit: Unit) -> cst.Name:
    """The class with the old order of the data, above its first use."""
    code = _TWIN + ("" if unit.before(OWN_CLASS) else _RESHUFFLED) + "        return loader\n"
    return unit.group.helper(SAME_ORDER, code)


def _gives(unit: Unit, training: Training, name: str) -> bool:
    return any(unit.told(source, name) is not None for source in training.sources)


def _accumulates(unit: Unit, training: Training) -> bool:
    return any(
        (value := unit.told(source, "gradient_accumulation_steps")) is not None
        and edits.code_of(value) not in ("1", "None")
        for source in training.sources
    )


def pads_left(site: Site) -> bool:
    """Whether a file has a tokenizer pad on the left."""
    for text in site.nodes(cst.SimpleString):
        if text.evaluated_value == "left":
            around = site.parent(text)
            if isinstance(around, cst.Arg) and around.keyword and around.keyword.value == "padding_side":
                return True
            if isinstance(around, cst.Assign) and "padding_side" in edits.code_of(around.targets[0].target):
                return True
    return False


def _after(
    unit: Unit, training: Training, written: Written, template: str, **holes: cst.BaseExpression
) -> bool:
    """Have a statement about a trainer follow its construction; False where there is no place for it."""
    if _place(unit, training) is None:
        return False
    written.after.append((template, holes))
    return True


def _place(unit: Unit, training: Training) -> cst.BaseSmallStatement | None:
    """The small statement that makes a trainer and gives it a name, trains or returns it at once."""
    site, made = unit.site, training.made
    around = None if made is None else site.parent(made)
    if isinstance(around, (cst.Assign, cst.AnnAssign, cst.Return)):
        found: cst.CSTNode | None = around
    else:
        # `NeuronTrainer(...).train()`
        outer = site.parent(around) if isinstance(around, cst.Attribute) else None
        found = site.parent(outer) if isinstance(outer, cst.Call) and outer.func is around else None
        if not isinstance(found, cst.Expr):
            return None
    assert isinstance(found, cst.BaseSmallStatement)
    return found if isinstance(site.statement(found), cst.SimpleStatementLine) else None


def _write_after(unit: Unit, training: Training, written: Written) -> None:
    """Write what follows the construction of a trainer, which gets a name for that."""
    place = _place(unit, training)
    if not written.after or place is None or training.made is None:
        return
    group = unit.group
    if isinstance(place, (cst.Assign, cst.AnnAssign)):
        trainer = place.target if isinstance(place, cst.AnnAssign) else place.targets[0].target
    else:
        trainer = group.fresh("trainer")
    new = [
        statement
        for template, holes in written.after
        for statement in group.statements(template.lstrip(), trainer=trainer.deep_clone(), **holes)
    ]
    line = unit.site.statement(training.made)
    if isinstance(place, (cst.Assign, cst.AnnAssign)):
        assert isinstance(line, cst.SimpleStatementLine)
        group.insert(line, new, before=False)
        return
    made = cst.Assign([cst.AssignTarget(trainer.deep_clone())], training.made)
    last: cst.BaseSmallStatement = cst.Return(trainer.deep_clone())
    if isinstance(place, cst.Expr):
        outer = cst.ensure_type(place.value, cst.Call)
        func = cst.ensure_type(outer.func, cst.Attribute).with_changes(value=trainer.deep_clone())
        last = cst.Expr(outer.with_changes(func=func))
    group.replace_statement(place, [cst.SimpleStatementLine([made]), *new, cst.SimpleStatementLine([last])])


def _resumes(unit: Unit, training: Training) -> list[str]:
    """What is said of training that resumes from a checkpoint."""
    call = resumed(unit, training)
    if call is None:
        return []
    line = unit.site.positions.span(call).line
    if not unit.before(OWN_CLASS):
        return [
            f"line {line}: 0.4.x could not resume; natively it does, but only from a native checkpoint: "
            "of an old one load the weights with `from_pretrained`"
        ]
    if unit.before("0.1.0") or unit.site.settings.exact:
        return []
    return [
        f"line {line}: {unit.release} resumed inside an epoch at its first batch, which was a fault; "
        "natively the batches that were seen are skipped"
    ]
