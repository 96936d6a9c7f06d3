"""Encoder-decoders that Optimum Neuron compiled: T5 with `NeuronModelForSeq2SeqLM`, and Whisper.

The plain Transformers class loads the original checkpoint with `device_map="neuron"`, in bfloat16 unless
the load said otherwise: matrix products ran in it by default. Inputs of `generate` are moved, since the
encoder runs on them as they are. What was compiled into the T5 graphs becomes arguments of each
`generate` call: `num_beams`, `max_length` (the `sequence_length` of the load) and `do_sample=False`; the
model's generation configuration gets them where its calls cannot be seen.
Whatever else a call asked for was ignored by the old decoder, such as `repetition_penalty`, and acts now:
that is said as a review. Whisper took all of them, and only gets its `max_length`. Arguments that cannot
be seen, loads of compiled folders and calls that cannot be followed are marked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.flow import UseKind
from neuronmigrate.loads.arguments import Given, Load, constant, means_the_same
from neuronmigrate.loads.dtypes import settle_cast
from neuronmigrate.loads.family import Family, set_late
from neuronmigrate.loads.generate import configuration
from neuronmigrate.loads.sources import Saved, settle_source
from neuronmigrate.loads.traced import TABLE, paths
from neuronmigrate.moving import GENERATE, STATES, Convention, Moved, is_encoding, move_call, written_entries
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

T5 = ("optimum.neuron.NeuronModelForSeq2SeqLM", "optimum.neuron.modeling_seq2seq.NeuronModelForSeq2SeqLM")
WHISPER = paths("whisper", "NeuronWhisperForConditionalGeneration")
# What both are instances of; nothing is loaded with it.
BASE = "optimum.neuron.modeling_seq2seq.NeuronModelForConditionalGeneration"
CLASSES = {
    **dict.fromkeys(T5, "transformers.AutoModelForSeq2SeqLM"),
    **dict.fromkeys(WHISPER, "transformers.WhisperForConditionalGeneration"),
    BASE: "transformers.PreTrainedModel",
}

# NeuronModelForSeq2SeqLM.generate in the order of its parameters (modeling_seq2seq.py, 0.0.16 to 0.4.5).
PARAMETERS = (
    "input_ids",
    "attention_mask",
    "generation_config",
    "logits_processor",
    "stopping_criteria",
    "prefix_allowed_tokens_fn",
    "assistant_model",
    "num_return_sequences",
)
# What it acted on; it let go of every other keyword, and the decoder chose tokens by itself, so that
# processors of their scores saw nothing.
HEEDED = frozenset(
    {"attention_mask", "do_sample", "generation_config", "input_ids", "inputs", "max_length"}
    | {"max_new_tokens", "num_return_sequences", "output_attentions", "output_hidden_states"}
    | {"output_scores", "return_dict_in_generate", "stopping_criteria"}
)
LENGTHS = frozenset({"max_length", "max_new_tokens"})
_PARTS = frozenset({"decoder", "encoder"})
_UNKNOWN_LENGTH = "give `generate` the `sequence_length` it was compiled with, as `max_length`"
_UNKNOWN_BEAMS = f"{_UNKNOWN_LENGTH}, and the `num_beams`"
_FORWARD_GONE = {**STATES, "beam_scores": "is nothing that the native decoder takes: call `generate`"}
FORWARD_T5 = Convention(positional=("attention_mask", "decoder_input_ids"), gone=_FORWARD_GONE)
FORWARD_WHISPER = Convention(
    positional=("input_features", "decoder_input_ids"),
    floats=frozenset({"input_features"}),
    gone=_FORWARD_GONE,
)
GENERATE_T5 = replace(GENERATE, positional=PARAMETERS)
GENERATE_WHISPER = replace(GENERATE, positional=("input_features", "generation_config"))


def _attention_weights(site: Site, load: Load, given: Given) -> None:
    """Let the decoder work attention weights out the way that can give them."""
    load.drop(given.seen)
    if edits.code_of(constant(site, given.seen)) != "False":
        load.args.append(edits.keyword("attn_implementation", edits.string("eager")))


@dataclass
class _Call:
    """The arguments of one `generate` call as they are to be written."""

    site: Site
    call: cst.Call
    args: list[cst.Arg] = field(default_factory=list)
    given: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """What is certainly there, by parameter."""
    options: cst.Arg | None = None
    """A mapping that may hold options which cannot be seen."""
    refused: str = ""

    def read(self, positional: tuple[str, ...]) -> None:
        """Sort the arguments; positional ones after the first become keywords."""
        inputs = False
        for index, arg in enumerate(self.call.args):
            if arg.star == "**":
                entries = written_entries(self.site, arg.value)
                self.given |= entries or {}
                # The first mapping brings the inputs, if nothing else does.
                if entries is None and inputs and not is_encoding(self.site, arg.value):
                    self.options = arg
                inputs = True
                self.args.append(arg)
            elif arg.keyword is not None or arg.star:
                name = arg.keyword.value if arg.keyword else ""
                inputs = inputs or name in GENERATE.inputs - {"attention_mask"}
                self.given[name] = arg.value
                self.args.append(arg)
            elif index < len(positional):
                inputs = True
                self.given[positional[index]] = arg.value
                self.args.append(arg if index == 0 else edits.keyword(positional[index], arg.value))
            else:
                self.refused = f"it is called with {len(self.call.args)} positional arguments"

    def text_of(self, name: str) -> str:
        """The text of an argument; empty for none."""
        return edits.code_of(self.given[name]) if name in self.given else ""

    def add(self, name: str, value: cst.BaseExpression) -> None:
        """Give an argument that may be given already, in a mapping that cannot be seen."""
        if self.options is None:
            self.args.append(edits.keyword(name, value))
            return
        index = self.args.index(self.options)
        old = self.options.value
        elements: list[cst.BaseDictElement] = [cst.DictElement(edits.string(name), value)]
        if isinstance(old, cst.Dict) and self.site.parent(old) is None:
            elements = [*old.elements[:-1], *elements, old.elements[-1]]
        else:
            elements.append(cst.StarredDictElement(old))
        self.options = self.options.with_changes(value=cst.Dict(elements))
        self.args[index] = self.options


class EncoderDecoders(Family):
    """Models whose `generate` takes over what was compiled in."""

    methods = frozenset({"generate"})

    def is_load(self, use: Use) -> bool:
        """Whether a use makes an object, in a way that can be seen."""
        return use.claim != BASE and super().is_load(use)

    def compile(self, site: Site, group: Group, load: Load) -> None:
        """Leave `generate` alone, whose decoder gets a longer input at every step."""
        load.todo.append("it is not compiled: its decoder would be compiled anew for each length")

    def settle(self, site: Site, load: Load, saved: Saved) -> None:
        """Matrix products were cast to bf16 unless the load said otherwise."""
        settle_source(load, saved)
        settle_cast(site, load, by_default=True)

    def by_hand(self, load: Load) -> str:
        """What a person can write where a load is only marked."""
        return super().by_hand(load).replace("float32", "bfloat16")

    def on_call(self, site: Site, group: Group, load: Load, call: cst.Call, method: str) -> Moved:
        """Hand the beams and the length of the load on to `generate`."""
        is_t5 = load.use.claim in T5
        if not method:
            convention = FORWARD_T5 if is_t5 else FORWARD_WHISPER
            return move_call(site, group, call, convention, as_float32=load.as_float32, half=load.half)
        written = _Call(site, call)
        written.read(PARAMETERS if is_t5 else GENERATE_WHISPER.positional)
        if written.refused:
            return Moved(written.refused)
        todo: list[str] = []
        if is_t5:
            todo += [*_ignored(written, load), *_configured(site, written)]
        if load.known:
            if is_t5:
                self._beams(site, load, written, todo)
            self._length(site, load, written)
        elif is_t5 and "num_beams" not in written.given:
            todo.append(_UNKNOWN_BEAMS)
        elif not LENGTHS & written.given.keys():
            todo.append(_UNKNOWN_LENGTH)
        if is_t5 and "do_sample" not in written.given:
            written.add("do_sample", cst.Name("False"))
        elif is_t5 and written.text_of("do_sample") == "True":
            todo.append("`do_sample=True` raised before; now it samples")
        if self._differs(site, call, written):
            return Moved("models with other beams or another length are called here as well")
        if is_t5 and load.known and edits.code_of(_beams_of(load)) == "1" and _asks_shape(site, call):
            todo.append("without beams the output had a row for each compiled one, filled up to `max_length`")
        return self._moved(site, group, call, written, is_t5, todo, half=load.half)

    def on_call_elsewhere(self, site: Site, group: Group, call: cst.Call, name: str, method: str) -> Moved:
        """Move the inputs of a model that another module loads, whose beams cannot be seen from here."""
        is_t5 = name.rpartition(".")[0] in T5
        if not method:
            convention = FORWARD_T5 if is_t5 else FORWARD_WHISPER
            return move_call(site, group, call, convention, as_float32=True, half=True)
        written = _Call(site, call)
        written.read(PARAMETERS if is_t5 else GENERATE_WHISPER.positional)
        if written.refused:
            return Moved(written.refused)
        todo = [*_ignored(written, None), *_configured(site, written)] if is_t5 else []
        if is_t5 and "do_sample" not in written.given:
            written.add("do_sample", cst.Name("False"))
        return self._moved(site, group, call, written, is_t5, todo, half=True)

    def _moved(
        self,
        site: Site,
        group: Group,
        call: cst.Call,
        written: _Call,
        is_t5: bool,
        todo: list[str],
        *,
        half: bool,
    ) -> Moved:
        func = call.func
        assert isinstance(func, cst.Attribute)
        moved = move_call(
            site,
            group,
            call,
            GENERATE_T5 if is_t5 else GENERATE_WHISPER,
            model=func.value,
            args=written.args,
            half=half,
        )
        site.keywords += [
            ("transformers.AutoModelForSeq2SeqLM.generate", arg.keyword.value)
            for arg in written.args
            if arg.keyword and arg not in call.args
        ]
        return replace(moved, todo=(*moved.todo, *todo))

    def _beams(self, site: Site, load: Load, written: _Call, todo: list[str]) -> None:
        beams = _beams_of(load)
        if "num_beams" in written.given:
            if written.text_of("num_beams") != edits.code_of(beams):
                shown = edits.short(beams)
                todo.append(f"`num_beams` of the call was ignored for the compiled {shown}; now it acts")
        elif _is_known(site, beams, written.call):
            load.keep(beams)
            written.add("num_beams", beams.deep_clone())
        else:
            load.late["num_beams"] = beams

    def _length(self, site: Site, load: Load, written: _Call) -> None:
        length = load.values.get("sequence_length")
        if length is None or LENGTHS & written.given.keys():
            return
        if _is_known(site, length, written.call):
            load.keep(length)
            written.add("max_length", length.deep_clone())
        else:
            load.late["max_length"] = length

    def on_attribute(
        self, site: Site, group: Group | None, load: Load | None, node: cst.Attribute, todo: list[str]
    ) -> None:
        """Answer for an attribute of the model that means something else."""
        if node.attr.value in self.methods:
            line = site.positions.span(node).line
            todo.append(
                f"line {line}: `{edits.short(node)}` is kept; move inputs of its calls to `model.device`"
            )
            return
        around = site.parent(node)
        if node.attr.value in _PARTS and isinstance(around, cst.Call) and around.func is node:
            told = site.notes.setdefault("told", set())
            if node not in told:
                told.add(node)
                site.mark(
                    around,
                    f"model.{node.attr.value}",
                    "the compiled part took other arguments, on the CPU, and filled a cache",
                    "call the model or `generate`, or move the inputs of the part to `model.device`",
                )
            return
        super().on_attribute(site, group, load, node, todo)

    def finish(self, site: Site, group: Group, load: Load) -> None:
        """Set what cannot be given to each call: the beams and the length of calls that are not seen here."""
        settings = load.late
        if load.known and self._is_called_unseen(site, load):
            settings = dict(self._compiled(load))
        if not settings:
            return
        for value in settings.values():
            load.keep(value)
        args = [edits.keyword(name, value.deep_clone()) for name, value in settings.items()]
        update = cst.Call(cst.Name("update"), edits.with_arguments(cst.Call(cst.Name("update")), args).args)
        text = edits.code_of(update)
        values = all(edits.is_pure(value) for value in settings.values())
        if not values or not set_late(site, group, load, f"{{model}}.generation_config.{text}\n"):
            shown = text.removeprefix("update")
            load.todo.append(f"pass `{shown[1:-1]}` to `generate`: it was compiled in")

    def _compiled(self, load: Load) -> Iterator[tuple[str, cst.BaseExpression]]:
        """What the graphs were compiled for, as `generate` calls it."""
        if load.use.claim in T5:
            yield "num_beams", _beams_of(load)
        if "sequence_length" in load.values:
            yield "max_length", load.values["sequence_length"]
        if load.use.claim in T5:
            yield "do_sample", cst.Name("False")

    def _is_called_unseen(self, site: Site, load: Load) -> bool:
        """Whether the object goes where its `generate` may be called unseen."""
        found = site.flow.uses_of(load.call)
        for use in found.uses:
            parent = site.parent(use.node)
            if use.kind is UseKind.ARGUMENT and isinstance(parent, cst.Arg):
                call = site.parent(parent)
                name = site.name_of(call.func) if isinstance(call, cst.Call) else None
                if name is None or not name.startswith("builtins."):
                    return True
            elif use.kind in (UseKind.HANDED_ON, UseKind.STORED, UseKind.OTHER):
                return True
            elif isinstance(parent, cst.Attribute) and parent.attr.value in self.methods:
                around = site.parent(parent)
                if not isinstance(around, cst.Call) or around.func is not parent:
                    return True
        return bool(found.lost)

    def _differs(self, site: Site, call: cst.Call, written: _Call) -> bool:
        """Whether another model that may be called here wants other arguments."""
        wanted = ", ".join(edits.code_of(arg) for arg in written.args)
        others = [
            key
            for key, calls in site.notes.items()
            if key.startswith("generate:") and key != f"generate:{wanted}" and call in calls
        ]
        site.notes.setdefault(f"generate:{wanted}", set()).add(call)
        return bool(others)


def _beams_of(load: Load) -> cst.BaseExpression:
    """The compiled number of beams; one where none was given."""
    beams = load.values.get("num_beams")
    return cst.Integer("1") if beams is None or edits.code_of(beams) == "None" else beams


def _ignored(written: _Call, load: Load | None) -> list[str]:
    """What is said of keywords that had no effect; `--exact` leaves them out."""
    names = sorted(name for name in written.given if name and name not in HEEDED | {"num_beams"})
    if written.site.settings.exact and load is not None:
        gone = [arg for arg in written.args if arg.keyword is not None and arg.keyword.value in names]
        written.args = [arg for arg in written.args if arg not in gone]
        written.site.notes.setdefault("removed", set()).update(gone)
        for arg in gone:
            load.drop(arg.value)
        names = sorted(set(names) - {arg.keyword.value for arg in gone if arg.keyword is not None})
    if not names:
        return []
    shown = ", ".join(f"`{name}`" for name in names)
    return [f"{shown} had no effect on the compiled decoder; now it has: drop it for the old tokens"]


def _configured(site: Site, written: _Call) -> list[str]:
    """What is said of a configuration object: the length, the beams and sampling came before it.

    `generate` handed these on by themselves, `max_new_tokens=None` among them, so that they overruled the
    object, and the decoder chose tokens by itself (modeling_seq2seq.py, 0.0.16 to 0.4.5).
    """
    config = written.given.get("generation_config")
    if config is None or edits.code_of(config) == "None":
        return []
    said = configuration(site, config)
    if said is None:
        return [f"`{edits.short(config)}` had no effect on the length, and on scores none either; now it has"]
    names = sorted(said.keys() - written.given.keys() - {"do_sample", "max_length", "num_beams"})
    if not names:
        return []
    shown = ", ".join(f"`{name}`" for name in names)
    return [f"{shown} of the configuration had no effect; now it has: drop it for the old tokens"]


def _is_known(site: Site, value: cst.BaseExpression, at: cst.CSTNode) -> bool:
    """Whether an argument of the load can be written at a call."""
    return edits.is_pure(value) and means_the_same(site, value, at)


def _asks_shape(site: Site, call: cst.Call) -> bool:
    """Whether the number of rows or tokens of an output is read."""
    for use in site.flow.uses_of(call).uses:
        parent = site.parent(use.node)
        if isinstance(parent, cst.Attribute) and parent.attr.value in ("shape", "size", "tolist"):
            return True
        if use.kind is UseKind.ARGUMENT and isinstance(parent, cst.Arg):
            around = site.parent(parent)
            if isinstance(around, cst.Call) and site.name_of(around.func) == "builtins.len":
                return True
    return False


family = EncoderDecoders(
    codemod,
    CLASSES,
    replace(
        TABLE,
        kept=TABLE.kept - {"output_hidden_states"},
        consumed=TABLE.consumed | {"num_beams", "sequence_length"},
        dropped=(TABLE.dropped - {"sequence_length"}) | {"output_hidden_states"},
        special={**TABLE.special, "output_attentions": _attention_weights},
    ),
)
