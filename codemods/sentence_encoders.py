"""Sentence encoders that Optimum Neuron compiled: `NeuronSentenceTransformers` and its predecessor.

`SentenceTransformer(id, device="neuron")` loads the original checkpoint, in float32. Its `encode` pads by
itself and refuses the tokenizer's keywords, so these go; it gives numpy arrays where the old one gave CPU
tensors, so `convert_to_tensor=True` and `.cpu()` are written, and the compiled batch size. `model(**inputs)`
becomes a call with one dictionary, whose answer is one as well. Releases from 0.4.2 on gave the embeddings
of several sentences back in another order than the sentences'; the native order is right, which is said.
Arguments that cannot be seen, loads of compiled folders and calls that cannot be followed are marked.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.loads.arguments import Given, Load, means_the_same
from neuronmigrate.loads.family import Family, set_late
from neuronmigrate.loads.traced import TABLE
from neuronmigrate.moving import Convention, Moved, move_call
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

SENTENCE_TRANSFORMER = "sentence_transformers.SentenceTransformer"
# 0.0.17 to 0.4.1, without `encode`; 0.4.2 to 0.4.5.
FORMER = ("NeuronModelForSentenceTransformers", "optimum.neuron.modeling")
LATER = ("NeuronSentenceTransformers", "optimum.neuron.modeling_sentence_transformers")
CLASSES = {
    f"{module}.{name}": SENTENCE_TRANSFORMER
    for name, deep in (FORMER, LATER)
    for module in ("optimum.neuron", deep)
}

FORWARD = Convention(
    positional=("input_ids", "attention_mask"),
    packed=True,
    fields=("token_embeddings", "sentence_embedding", "attention_mask"),
)
# It is given strings, and gives one tensor.
ENCODE = Convention(inputs=frozenset({"features"}), records=False, tensor=True)
# NeuronSentenceTransformers.encode and SentenceTransformer.encode begin alike.
PARAMETERS: tuple[str, ...] = ("sentences", "prompt_name", "prompt", "show_progress_bar", "output_value")
PARAMETERS += ("normalize_embeddings",)
KEPT = frozenset(PARAMETERS) - {"sentences"}


def _no_subfolder(site: Site, load: Load, given: Given) -> None:
    load.refuse("`subfolder` picked one module of the repository; natively the whole repository is loaded")


def _fetching(site: Site, load: Load, given: Given) -> None:
    """Drop what the native class cannot be told about a download."""
    load.drop(given.seen)
    load.todo.append(f"`{given.name}` went: `SentenceTransformer` does not take it")


def _dimensions(site: Site, load: Load, given: Given) -> None:
    load.drop(given.seen)
    load.todo.append("`truncate_dim` was never applied and went; natively it would cut the embeddings")


class SentenceEncoders(Family):
    """Models that are constructed, not loaded, and called with a dictionary."""

    suits_pipelines = False

    methods = frozenset({"encode"})
    base = SENTENCE_TRANSFORMER
    suits_both = False

    def written(self, site: Site, group: Group, load: Load) -> cst.BaseExpression:
        """The constructor's call."""
        args = [_for_constructor(arg) for arg in load.args]
        args.append(edits.keyword("device", edits.string("neuron")))
        dtype = load.dtype or group.expression(load.cast)
        args.append(edits.keyword("model_kwargs", edits.expression('{{"dtype": {dtype}}}', dtype=dtype)))
        site.keywords += [(load.native, arg.keyword.value) for arg in args if arg.keyword]
        node, alias = load.use.node, load.use.binding.node
        renamed = isinstance(alias, cst.ImportAlias) and alias.asname is not None
        local = load.use.binding.name if renamed and isinstance(node, cst.Name) else ""
        func = load.call.func
        if load.through and isinstance(func, cst.Attribute):
            name = func.value  # a class that is derived from it
        else:
            name = group.ref(load.native, local=local, module_form=isinstance(node, cst.Attribute))
        return edits.with_arguments(load.call.with_changes(func=name), args)

    def renamed(self, group: Group, load: Load) -> None:
        """The class took its place in the constructor's call."""

    def finish(self, site: Site, group: Group, load: Load) -> None:
        """Let `encode` read as much of a text as the compiled model did."""
        length = load.values.get("sequence_length")
        if length is None or FORMER[0] in load.use.claim:
            return
        if not edits.is_pure(length) or not set_late(
            site, group, load, "{model}.max_seq_length = {length}\n", length=length.deep_clone()
        ):
            load.todo.append(f"set `max_seq_length = {edits.short(length)}`, which was compiled in")
        load.keep(length)
        load.todo.append(f"texts of more than {edits.short(length)} tokens raised; now they are cut")

    def on_call(self, site: Site, group: Group, load: Load, call: cst.Call, method: str) -> Moved:
        """Encode sentences, or call the model with a dictionary."""
        if not method:
            return move_call(site, group, call, FORWARD, as_float32=load.as_float32, half=load.half)
        size = load.values.get("batch_size")
        if size is not None and edits.is_pure(size) and means_the_same(site, size, call):
            load.keep(size)
        else:
            size = None
        return _encode(site, group, call, size, as_float32=load.as_float32)

    def on_call_elsewhere(self, site: Site, group: Group, call: cst.Call, name: str, method: str) -> Moved:
        """As where it is loaded; the batch size stays in the other module."""
        if not method:
            return move_call(site, group, call, FORWARD, as_float32=True, half=True)
        return _encode(site, group, call, None, as_float32=True)

    def on_argument(self, site: Site, group: Group, node: cst.BaseExpression, todo: list[str]) -> None:
        """Answer for an object that is passed to a function; no pipeline takes it."""
        arg = site.parent(node)
        call = site.parent(arg) if isinstance(arg, cst.Arg) else None
        name = site.name_of(call.func) if isinstance(call, cst.Call) else None
        if name is not None and name.rpartition(".")[2] == "pipeline":
            group.refuse("a pipeline cannot run a `SentenceTransformer`: call its `encode`")
            return
        super().on_argument(site, group, node, todo)

    def on_attribute(
        self, site: Site, group: Group | None, load: Load | None, node: cst.Attribute, todo: list[str]
    ) -> None:
        """Answer for an attribute of the model that means something else."""
        if node.attr.value == "tokenize":
            why = "`tokenize` takes texts alone natively, and gives entries that are no tensors"
            if group is not None:
                group.refuse(why)
            else:
                site.mark(node, "model.tokenize", why, "call `encode`, or a tokenizer of Transformers")
            return
        if node.attr.value in self.methods and group is not None:
            group.refuse(
                f"`{edits.short(node)}` is called under another name, and gives numpy arrays natively"
            )
            return
        super().on_attribute(site, group, load, node, todo)

    def why(self, load: Load, calls: int) -> str:
        """What was done, for the report."""
        why = "SentenceTransformer loads the original checkpoint onto the device, without an export"
        return f"{why}; its calls give CPU tensors, as before" if calls else why

    def by_hand(self, load: Load) -> str:
        """What a person can write where a load is only marked."""
        return 'by hand: `SentenceTransformer(original id, device="neuron")`'

    def advice(self, use: Use) -> str:
        """What to do with a class that is used in a way that cannot be followed."""
        return (
            'use `SentenceTransformer(id, device="neuron")` and `encode(..., convert_to_tensor=True).cpu()`'
        )


def _for_constructor(arg: cst.Arg) -> cst.Arg:
    if arg.keyword is not None and arg.keyword.value == "pretrained_model_name_or_path":
        return arg.with_changes(keyword=cst.Name("model_name_or_path"))
    return arg


def _encode(
    site: Site, group: Group, call: cst.Call, size: cst.BaseExpression | None, *, as_float32: bool
) -> Moved:
    """Write a call of `encode` out in native words."""
    args: list[cst.Arg] = []
    given: dict[str, cst.BaseExpression] = {}
    todo: list[str] = []
    for index, arg in enumerate(call.args):
        if arg.star:
            return Moved(f"the arguments `{arg.star}{edits.short(arg.value)}` cannot be seen from here")
        if arg.keyword is None and index >= len(PARAMETERS):
            return Moved(f"it is called with {len(call.args)} positional arguments")
        name = arg.keyword.value if arg.keyword else PARAMETERS[index]
        given[name] = arg.value
        if name == "sentences":
            args.append(arg if arg.keyword is None else edits.keyword("inputs", arg.value))
        elif name == "prompt_name" or (name == "prompt" and arg.keyword is None):
            args.append(arg)
        elif name in KEPT:
            args.append(arg if arg.keyword else edits.keyword(name, arg.value))
        elif name == "batch_size":
            # It was ignored; the numbers are the same with any.
            args.append(arg)
        elif name == "max_length":
            todo.append(
                f"texts were cut to `max_length={edits.short(arg.value)}`: set `max_seq_length` to it"
            )
    # Tokenizer keywords, and those of the native `encode`, which the old one handed to its tokenizer.
    kind = given.get("output_value")
    plain = kind is None or edits.code_of(kind).strip("\"'") == "sentence_embedding"
    if size is not None and "batch_size" not in given:
        args.append(edits.keyword("batch_size", size.deep_clone()))
    if plain:
        args.append(edits.keyword("convert_to_tensor", cst.Name("True")))
    else:
        todo.append(f"`output_value={edits.short(kind or call)}` gives lists of tensors on the device now")
    site.keywords += [
        (f"{SENTENCE_TRANSFORMER}.encode", arg.keyword.value)
        for arg in args
        if arg.keyword and arg not in call.args
    ]
    sentences = given.get("sentences")
    several = not isinstance(sentences, (cst.SimpleString, cst.ConcatenatedString, cst.FormattedString))
    again = sentences is not None and (edits.is_pure(sentences) or _is_written(sentences))
    scrambles = several and again and plain and site.settings.exact

    def scrambled(embeddings: cst.BaseExpression) -> cst.BaseExpression:
        assert sentences is not None
        name = group.helper("in_old_order", _OLD_ORDER)
        return cst.Call(name, [cst.Arg(embeddings), cst.Arg(sentences.deep_clone())])

    if scrambles:
        todo.append("the embeddings are put into the old order, which was a fault, as `--exact` asks")
    elif several:
        todo.append(
            "several embeddings came back in another order than their sentences, which was a fault; now the "
            "order is that of the sentences"
        )
    func = call.func
    assert isinstance(func, cst.Attribute)
    convention = ENCODE if plain else replace(ENCODE, tensor=False)
    moved = move_call(
        site,
        group,
        call,
        convention,
        model=func.value,
        args=args,
        as_float32=as_float32,
        finish=scrambled if scrambles else None,
    )
    return moved if moved.refused else replace(moved, todo=(*todo, *moved.todo) if plain else tuple(todo))


def _is_written(value: cst.BaseExpression) -> bool:
    """Whether an expression is a list or tuple of texts."""
    return isinstance(value, (cst.List, cst.Tuple)) and all(
        edits.is_literal(each.value) for each in value.elements
    )


# It sorted the texts by their length, and put the embeddings back by the same order, not by its inverse
# (modeling_sentence_transformers.py, 0.4.2 to 0.4.5).
_OLD_ORDER = '''\
def {name}(embeddings, sentences):
    """Give embeddings in the order in which Optimum Neuron gave those of several texts."""
    if isinstance(sentences, str):
        return embeddings
    order = torch.argsort(-torch.tensor([len(text) for text in sentences]))
    return embeddings[order[order]]
'''

family = SentenceEncoders(
    codemod,
    CLASSES,
    replace(
        TABLE,
        kept=frozenset({"local_files_only", "prompts", "revision", "similarity_fn_name", "token"})
        | {"trust_remote_code"},
        renamed={
            **TABLE.renamed,
            "cache_dir": "cache_folder",
            # The old class read a misspelt word.
            "default_prompt_nam": "default_prompt_name",
        },
        consumed=TABLE.consumed | {"batch_size", "sequence_length"},
        dropped=(TABLE.dropped - {"batch_size", "sequence_length"}) | {"default_prompt_name"},
        special={
            "config": _fetching,
            "force_download": _fetching,
            "instance_type": TABLE.special["instance_type"],
            "output_attentions": _fetching,
            "output_hidden_states": _fetching,
            "subfolder": _no_subfolder,
            "tensor_parallel_size": TABLE.special["tensor_parallel_size"],
            "truncate_dim": _dimensions,
        },
    ),
)
