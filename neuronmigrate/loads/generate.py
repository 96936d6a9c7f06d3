"""Calls of `generate` on a decoder: what they ask for, and what has to be written or said about them.

A native decoder takes its prompts from the CPU and answers there, as the legacy ones did, so the calls
themselves stay (inference-by-release section 1). What differs is told from the arguments of a call,
wherever they are written: in the call, in a dictionary that is spread, or in the `kwargs` of a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst

from neuronmigrate import edits, targets
from neuronmigrate.flow import Origins
from neuronmigrate.loads.arguments import constant, text_of
from neuronmigrate.names import dotted_name
from neuronmigrate.site import Group, Site

LENGTHS = frozenset({"max_length", "max_new_tokens"})
_BY_ITSELF = "drop it: `generate` numbers tokens and sequences by itself"
LOW_LEVEL = {
    **dict.fromkeys(("cache_ids", "position_ids", "seq_ids", "start_ids"), _BY_ITSELF),
    "return_dict": "pass `return_dict_in_generate=True` where more than the tokens is read",
    "sampling_params": "pass `do_sample`, `top_k`, `top_p` and `temperature`",
}
"""Arguments of the legacy decoding loop, which no native `generate` has, and what to do with them."""
PROCESSORS = frozenset(
    {
        "bad_words_ids",
        "begin_suppress_tokens",
        "encoder_repetition_penalty",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "guidance_scale",
        "logits_processor",
        "min_length",
        "min_new_tokens",
        "min_p",
        "no_repeat_ngram_size",
        "prefix_allowed_tokens_fn",
        "repetition_penalty",
        "sequence_bias",
        "suppress_tokens",
        "typical_p",
    }
)
"""What acts through logits processors: sampling on the device left them out
(optimum-neuron 0.4.5, models/inference/backend/modules/generation/generation_utils.py)."""
_NEUTRAL = frozenset({"None", "0", "0.0", "1.0", "1", "[]"})
_CONFIGS = frozenset(
    f"transformers.{module}GenerationConfig"
    for module in ("", "generation.", "generation.configuration_utils.")
)
_TENSORS = frozenset({"attention_mask", "input_ids", "inputs", "pixel_values"})
_TOKENIZERS = ("Tokenizer", "TokenizerFast", "Processor")
_ENCODES = frozenset({"", "apply_chat_template", "batch_encode_plus", "encode", "encode_plus", "pad"})


@dataclass
class Asked:
    """What a call of `generate` asks for."""

    settings: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """The keywords that can be seen, tensors among them."""
    direct: dict[str, cst.Arg] = field(default_factory=dict)
    """Those that stand in the call itself."""
    tensors: list[cst.BaseExpression] = field(default_factory=list)
    """Ids, masks and images that are given one by one."""
    mappings: list[cst.BaseExpression] = field(default_factory=list)
    """What is spread and not written out here: encodings, most of the time."""

    @property
    def prompts(self) -> list[cst.BaseExpression]:
        """Every expression that brings tensors."""
        return [*self.tensors, *self.mappings]

    def samples(self) -> bool:
        """Whether the call may ask for sampling."""
        value = self.settings.get("do_sample")
        return value is not None and edits.code_of(value) not in ("False", "None")

    def processors(self) -> list[str]:
        """Keywords of logits processors that do something."""
        return sorted(
            name
            for name in PROCESSORS & self.settings.keys()
            if edits.code_of(self.settings[name]) not in _NEUTRAL
        )


def asked(site: Site, args: Iterable[cst.Arg]) -> Asked:
    """Read the arguments of a call, dictionaries that are written out in this file included."""
    found = Asked()
    for arg in args:
        if arg.star == "**":
            _spread(site, found, arg.value, set())
        elif arg.keyword is not None:
            found.direct[arg.keyword.value] = arg
            _keyword(found, arg.keyword.value, arg.value)
        elif not arg.star and found.tensors:
            _keyword(found, "generation_config", arg.value)
        elif not arg.star:
            found.tensors.append(arg.value)
    _configured(site, found)
    return found


def asked_by(site: Site, mapping: cst.BaseExpression) -> Asked:
    """Read the keywords that a mapping holds: `kwargs=` of a thread that runs `generate`."""
    found = Asked()
    _spread(site, found, mapping, set())
    _configured(site, found)
    return found


def _configured(site: Site, found: Asked) -> None:
    """Read what a configuration object says that is made in this file; the call itself goes before it."""
    config = found.settings.get("generation_config")
    for name, value in (configuration(site, config) or {}).items() if config is not None else ():
        found.settings.setdefault(name, value)


def configuration_class(site: Site) -> str:
    """The qualified name of `GenerationConfig`, by the path that this file imports it from."""
    bindings = site.names.module_scope.bindings.get("GenerationConfig", ())
    known = [each.target for each in bindings if each.target in _CONFIGS]
    return known[0] if known else "transformers.GenerationConfig"


def configuration(site: Site, config: cst.BaseExpression) -> dict[str, cst.BaseExpression] | None:
    """What a configuration object says that is made in this file; None where none is seen."""
    said: dict[str, cst.BaseExpression] | None = None
    for each in site.flow.origin_of(config).producers:
        node = each.node
        if isinstance(node, cst.Call) and site.name_of(node.func) in _CONFIGS:
            said = said or {}
            for arg in node.args:
                if arg.keyword is not None:
                    said.setdefault(arg.keyword.value, arg.value)
    return said


def _keyword(found: Asked, name: str, value: cst.BaseExpression) -> None:
    found.settings[name] = value
    if name in _TENSORS:
        found.tensors.append(value)


def _spread(site: Site, found: Asked, value: cst.BaseExpression, seen: set[cst.CSTNode]) -> None:
    if value in seen:
        return
    seen.add(value)
    if isinstance(value, cst.Dict):
        for element in value.elements:
            if isinstance(element, cst.DictElement):
                _keyword(found, text_of(element.key), element.value)
            else:
                _spread(site, found, element.value, seen)
    elif isinstance(value, cst.Call) and site.name_of(value.func) == "builtins.dict":
        for arg in value.args:
            if arg.keyword is not None:
                _keyword(found, arg.keyword.value, arg.value)
            else:
                _spread(site, found, arg.value, seen)
    elif isinstance(value, cst.BinaryOperation):
        _spread(site, found, value.left, seen)
        _spread(site, found, value.right, seen)
    else:
        written = [
            each.node
            for each in site.flow.origin_of(value).producers
            if each.name in ("builtins.dict", "") and isinstance(each.node, (cst.Dict, cst.Call))
        ]
        for node in written:
            _spread(site, found, node, seen)
        if not written:
            found.mappings.append(value)


# Prompts.


def encodings(site: Site, asks: Asked) -> dict[cst.Call, bool]:
    """The calls that made the prompts, and whether they are of Transformers' tokenizers and processors."""
    found: dict[cst.Call, bool] = {}
    for prompt in asks.prompts:
        for producer in site.flow.origin_of(_whole(prompt)).producers:
            node = producer.node
            while isinstance(node, (cst.Attribute, cst.Subscript)):
                node = node.value
            if isinstance(node, cst.Call):
                found[node] = _encodes(producer.name)
    return found


def _whole(value: cst.BaseExpression) -> cst.BaseExpression:
    """The encoding behind `enc["input_ids"]`, `enc.input_ids.to(device)` and the like."""
    while True:
        if isinstance(value, (cst.Attribute, cst.Subscript)):
            value = value.value
        elif (
            isinstance(value, cst.Call)
            and isinstance(value.func, cst.Attribute)
            and value.func.attr.value in ("to", "cpu", "long", "int")
        ):
            value = value.func.value
        else:
            return value


def _encodes(name: str) -> bool:
    """Whether a producer's name is that of a call of `transformers.AutoTokenizer.from_pretrained()`."""
    maker, _, rest = name.partition("()")
    parts = maker.split(".")
    method = rest.partition("(")[0].partition("[")[0].removeprefix(".").partition(".")[0]
    return (
        parts[0] == "transformers"
        and any(part.endswith(_TOKENIZERS) for part in parts)
        and (method in _ENCODES or method in _TENSORS)
    )


def pad_left(site: Site, group: Group, asks: Asked) -> list[str]:
    """Let the tokenizer of a padded batch pad on the left, as native decoders need it.

    Right padding gives wrong tokens natively (inference-by-release section 7); NxD wanted it before.
    """
    todo = []
    for call, known in encodings(site, asks).items():
        if not _pads(site, call):
            continue
        line = site.positions.span(call).line
        tokenizer = _tokenizer_of(call)
        makers = site.flow.origin_of(tokenizer)
        own = next((each for each in call.args if _named(each, "padding_side")), None)
        shared = own is None and _pads_for_legacy(site, makers)
        stored, new = (False, False) if shared else _stored_side(site, group, tokenizer, makers)
        made = [each.node for each in makers.producers if isinstance(each.node, cst.Call)]
        if own is not None:
            new = text_of(own.value) == "right" and _first(site, own.value)
            if new:
                group.replace(own.value, edits.string("left"))
        elif stored:
            pass
        elif shared and known and _encodes_alone(site, call):
            new = _first(site, call)
            if new:
                left = edits.keyword("padding_side", edits.string("left"))
                group.replace(call, edits.with_arguments(call, [*call.args, left]))
        elif shared or not known:
            todo.append(f"line {line}: where it pads prompts, let it pad on the left")
        elif len(made) == 1 and makers.certain and len(makers.producers) == 1 and _takes_side(site, made[0]):
            side = next((each for each in made[0].args if _named(each, "padding_side")), None)
            new = (side is None or text_of(side.value) != "left") and _once(site, group, made[0], side)
        elif dotted_name(tokenizer):
            new = _before(site, group, call, tokenizer, makers)
        else:
            todo.append(f'line {line}: pad prompts on the left: `tokenizer.padding_side = "left"`')
        if new:
            todo.append(
                f"line {line}: prompts of a batch are padded on the left now: cut them off by their common "
                "length, `output[:, ids.shape[1]:]`"
            )
    return todo


def _pads_for_legacy(site: Site, makers: Origins) -> bool:
    """Whether a tokenizer also pads the prompts of a model that stays a legacy one, on the right."""
    stay = site.notes.get("stay", set())
    for call in site.names.calls if stay else ():
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value != "generate":
            continue
        if stay.isdisjoint(each.node for each in site.flow.origin_of(func.value).producers):
            continue
        for encoding in encodings(site, asked(site, call.args)):
            others = site.flow.origin_of(_tokenizer_of(encoding)).producers
            if not set(makers.producers).isdisjoint(others):
                return True
    return False


def _encodes_alone(site: Site, call: cst.Call) -> bool:
    """Whether a tokenizer itself is called, and what it gives goes to no legacy model."""
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in _ENCODES:
        return False
    stay = site.notes.get("stay", set())
    for use in site.flow.uses_of(call).uses:
        for around in site.ancestors(use.node):
            if isinstance(around, cst.Call) and isinstance(around.func, cst.Attribute):
                makers = site.flow.origin_of(around.func.value).producers
                if not stay.isdisjoint(each.node for each in makers):
                    return False
            if isinstance(around, cst.BaseSmallStatement):
                break
    return True


def _named(arg: cst.Arg, name: str) -> bool:
    return arg.keyword is not None and arg.keyword.value == name


def _pads(site: Site, call: cst.Call) -> bool:
    """Whether a tokenizer's call may put padding into what it gives."""
    if isinstance(call.func, cst.Attribute) and call.func.attr.value == "pad":
        return True
    for arg in call.args:
        if _named(arg, "padding"):
            return edits.code_of(arg.value) not in ("False", "None") and text_of(arg.value) != "do_not_pad"
    return False


def _tokenizer_of(call: cst.Call) -> cst.BaseExpression:
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value in _ENCODES:
        return func.value
    return func


def _stored_side(
    site: Site, group: Group, tokenizer: cst.BaseExpression, makers: Origins
) -> tuple[bool, bool]:
    """Whether this file sets the padding side of a tokenizer, and whether a right one became left."""
    settled = changed = False
    for node in site.nodes(cst.Assign):
        for target in node.targets:
            store = target.target
            if not isinstance(store, cst.Attribute) or store.attr.value != "padding_side":
                continue
            owner = store.value
            if isinstance(owner, cst.Attribute) and owner.attr.value == "tokenizer":
                owner = owner.value if _is_processor(makers) else owner
            same = edits.code_of(owner) == edits.code_of(tokenizer)
            if not same and set(makers.producers).isdisjoint(site.flow.origin_of(owner).producers):
                continue
            settled = True
            if text_of(node.value) == "right" and _first(site, node.value):
                group.replace(node.value, edits.string("left"))
                changed = True
    return settled, changed


def _takes_side(site: Site, made: cst.Call) -> bool:
    """Whether a call that makes a tokenizer takes the padding side."""
    name = site.name_of(made.func)
    return name is not None and targets.accepts(name, "padding_side") is True


def _once(site: Site, group: Group, made: cst.Call, side: cst.Arg | None) -> bool:
    if not _first(site, made):
        return False
    left = edits.keyword("padding_side", edits.string("left"))
    name = site.name_of(made.func)
    if name is not None:
        site.keywords.append((name, "padding_side"))
    if side is not None:
        group.replace(side.value, left.value)
    else:
        group.replace(made, edits.with_arguments(made, [*made.args, left]))
    return True


def _before(site: Site, group: Group, call: cst.Call, tokenizer: cst.BaseExpression, makers: Origins) -> bool:
    if not _first(site, call):
        return False
    # A processor hands its texts to a tokenizer of its own.
    owner = "{tokenizer}.tokenizer" if _is_processor(makers) else "{tokenizer}"
    line = group.statements(f'{owner}.padding_side = "left"\n', tokenizer=tokenizer.deep_clone())
    group.insert(site.statement(call), line)
    return True


def _is_processor(makers: Origins) -> bool:
    return any(part.endswith("Processor") for each in makers.producers for part in each.name.split("."))


def _first(site: Site, node: cst.CSTNode) -> bool:
    """Whether a place is settled for the first time."""
    seen = site.notes.setdefault("padding side", set())
    if node in seen:
        return False
    seen.add(node)
    return True


# Devices of prompts.


def move_together(group: Group, asks: Asked) -> None:
    """Move the mask where the ids of a call are moved, and the other way round."""
    tensors = [asks.direct[name].value for name in ("attention_mask", "input_ids") if name in asks.direct]
    moved = [each for each in tensors if _is_moved(each)]
    for value in tensors:
        if moved and value not in moved and not edits.is_literal(value):
            call = moved[0]
            assert isinstance(call, cst.Call)
            device = call.args[0].value.deep_clone()
            group.replace(value, edits.expression("{value}.to({device})", value=value, device=device))


def _is_moved(value: cst.BaseExpression) -> bool:
    return (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and value.func.attr.value == "to"
        and bool(value.args)
        and text_of(value.args[0].value) != "cpu"
    )


# Lengths.


def cap(site: Site, group: Group, asks: Asked, limit: cst.BaseExpression | None) -> list[str]:
    """Write the limit that came from `sequence_length` up to 0.1.0, prompt included.

    `max_length` was clamped to it, and `max_new_tokens` stands for a `max_length` that counts the prompt
    (optimum-neuron 0.1.0, generation/token_selector.py).
    """
    if not LENGTHS & asks.settings.keys():
        if "generation_config" in asks.settings:
            return []
        return [
            "without a length it stopped at 20 tokens in all, prompt included, unless generation_config.json "
            "says otherwise; now 20 are added to the prompt: pass `max_length` or `max_new_tokens`"
        ]
    if limit is None:
        return []
    said = edits.code_of(limit if edits.is_literal(limit) else edits.parenthesized(limit))
    top = _number(limit)
    for name in sorted(LENGTHS & asks.settings.keys()):
        value = asks.settings[name]
        arg = asks.direct.get(name)
        number = _number(constant(site, value))
        if number is not None and top is not None and number < top:
            if name == "max_new_tokens":
                return [
                    f"generation stopped at {said} tokens in all: a prompt longer than {top - number} goes "
                    "past that now"
                ]
            return []
        if arg is None:
            return [f"generation stopped at {said} tokens in all (`sequence_length`): limit `{name}` to that"]
        if number is not None and top is not None:
            # With the limit as small as this, the prompt and what is added always filled it.
            group.replace(arg, edits.keyword("max_length", limit.deep_clone()))
        elif name == "max_length":
            new = edits.expression("min({value}, {limit})", value=value, limit=limit.deep_clone())
            group.replace(value, new)
        else:
            ids = _ids(asks)
            if ids is None:
                return [f"generation stopped at {said} tokens in all: `{name}` has no such limit"]
            left = f"min({{value}}, {said} - {{ids}}.shape[1])"
            group.replace(value, edits.expression(left, value=value, ids=ids))
    return []


def _number(value: cst.BaseExpression) -> int | None:
    return value.evaluated_value if isinstance(value, cst.Integer) else None


def _ids(asks: Asked) -> cst.BaseExpression | None:
    """An expression for the ids of a call, where they have a name."""
    for ids in asks.tensors:
        if _is_chain(ids) and ids is not asks.settings.get("attention_mask"):
            return ids.deep_clone()
    for mapping in asks.mappings:
        if _is_chain(mapping):
            return edits.expression('{mapping}["input_ids"]', mapping=mapping.deep_clone())
    return None


def _is_chain(value: cst.BaseExpression) -> bool:
    while isinstance(value, (cst.Attribute, cst.Subscript)):
        value = value.value
    return isinstance(value, cst.Name)
