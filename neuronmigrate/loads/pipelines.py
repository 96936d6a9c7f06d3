"""`pipeline(...)`: what the legacy function did by itself, written as arguments of the native one.

Sources: pipelines/transformers/base.py of optimum-neuron 0.0.7 to 0.4.5, pipelines/ of Transformers 5.24.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.flow import UseKind
from neuronmigrate.loads.arguments import (
    CAST,
    COMPILER,
    SHAPES,
    Given,
    Load,
    Table,
    constant,
    means_the_same,
    sorted_arguments,
    take_apart,
    text_of,
    unread,
)
from neuronmigrate.loads.releases import by_release
from neuronmigrate.site import Group, Site, Use

LEGACY = tuple(
    f"optimum.neuron.{module}pipeline"
    for module in ("", "pipelines.", "pipelines.transformers.", "pipelines.transformers.base.")
)
NATIVE = ("transformers.pipeline", "transformers.pipelines.pipeline")
_CLASS = re.compile(r"transformers\.(?:pipelines\.)?(?:\w+\.)?(\w+)Pipeline")
"""The classes of Transformers' pipelines, such as `TextClassificationPipeline`."""

# What the legacy function loaded when no model was named; for text generation it changed with 0.2.0.
DEFAULTS = {
    "audio-classification": "facebook/wav2vec2-large-960h-lv60-self",
    "automatic-speech-recognition": "facebook/wav2vec2-large-960h-lv60-self",
    "feature-extraction": "distilbert-base-cased",
    "fill-mask": "bert-base-cased",
    "image-classification": "microsoft/beit-base-patch16-224-pt22k-ft22k",
    "image-segmentation": "apple/deeplabv3-mobilevit-small",
    "object-detection": "apple/deeplabv3-mobilevit-small",
    "question-answering": "distilbert-base-cased-distilled-squad",
    "text-classification": "distilbert-base-uncased-finetuned-sst-2-english",
    "token-classification": "dbmdz/bert-large-cased-finetuned-conll03-english",
}
GENERATORS = {"0.0.12": "gpt2", "0.2.0": "Qwen/Qwen2.5-0.5B-Instruct"}

# What has to stand beside a model object, which the legacy function took from `model.preprocessors`.
COMPANIONS = {
    "audio-classification": ("feature_extractor",),
    "automatic-speech-recognition": ("tokenizer", "feature_extractor"),
    "image-classification": ("image_processor",),
    "image-segmentation": ("image_processor",),
    "object-detection": ("image_processor",),
}

_HEARING = ("audio-classification", "automatic-speech-recognition")

REMOVED = {
    "question-answering": "take the best span of `AutoModelForQuestionAnswering`'s start and end logits",
    "summarization": "call `tokenizer.decode(model.generate(**inputs.to(model.device))[0])` yourself",
    "text2text-generation": "call `tokenizer.decode(model.generate(**inputs.to(model.device))[0])` yourself",
    "translation": "call `tokenizer.decode(model.generate(**inputs.to(model.device))[0])` yourself",
    "visual-question-answering": "use `image-text-to-text` with a model for it",
    "vqa": "use `image-text-to-text` with a model for it",
    "image-to-image": "use a pipeline of Diffusers",
}
"""Tasks that Transformers 5 has no pipeline for, and what to do (`REMOVED_TASKS` of its pipelines)."""
_TASKS = {
    "QuestionAnswering": "question-answering",
    "Summarization": "summarization",
    "Text2TextGeneration": "text2text-generation",
    "Translation": "translation",
    "VisualQuestionAnswering": "visual-question-answering",
}
"""Pipeline classes that went with their tasks."""


def _inner(site: Site, load: Load, given: Given) -> None:
    """Take `input_shapes` and `compiler_args` apart; what cannot be seen in them is told."""
    if edits.code_of(given.seen) == "None":
        return
    if not take_apart(site, load, given.seen):
        load.drop(given.seen)
        lost = "batch_size=" if given.name == "input_shapes" else "dtype=torch.bfloat16"
        load.todo.append(
            f"what `{given.name}` holds cannot be seen from here: write `{lost}` if it asked for it"
        )


def _ignored_dtype(site: Site, load: Load, given: Given) -> None:
    """The legacy function loaded the model without it."""
    load.drop(given.seen)
    load.todo.append(f"`{given.name}` had no effect on compiled models, which held float32")


TABLE = Table(
    kept=frozenset(
        {
            "config",
            "feature_extractor",
            "image_processor",
            "revision",
            "token",
            "tokenizer",
            "trust_remote_code",
            "use_fast",
        }
    ),
    renamed={"use_auth_token": "token"},
    consumed=CAST | {"batch_size", "export", "num_cores", "sequence_length", "tensor_parallel_size"},
    dropped=(COMPILER | SHAPES | {"device", "device_id", "device_map", "framework"})
    - {"batch_size", "sequence_length", "configs", "preprocessors", "neuron_config", "neuron_configs", "task"}
    - {"model_and_config_save_paths"},
    special={
        "compiler_args": _inner,
        "dtype": _ignored_dtype,
        "input_shapes": _inner,
        "torch_dtype": _ignored_dtype,
    },
    positional=("tokenizer", "feature_extractor"),
    leading=("task",),
    identifier="model",
    passes=True,
)


def is_gone(load: Load) -> bool:
    """Whether Transformers 5 has no pipeline for its task, and no function takes its place."""
    return removed(task_of(load)) not in ("", "question-answering")


@dataclass(frozen=True)
class Calls:
    """The calls of a pipeline that can be seen, and whether there may be others."""

    seen: tuple[cst.Call, ...]
    lost: bool

    @classmethod
    def of(cls, site: Site, made: cst.Call) -> Calls:
        found = site.flow.uses_of(made)
        calls: list[cst.Call] = []
        lost = bool(found.lost)
        for use in found.uses:
            parent = site.parent(use.node)
            if isinstance(parent, cst.Call) and parent.func is use.node:
                calls.append(parent)
            elif use.kind in (UseKind.ARGUMENT, UseKind.STORED, UseKind.HANDED_ON, UseKind.OTHER):
                lost = True
        return cls(tuple(calls), lost)

    def give(self, name: str) -> bool:
        """Whether one of them gives a keyword, or may."""
        return any(
            arg.star or (arg.keyword and arg.keyword.value == name) for c in self.seen for arg in c.args
        )

    def all_give(self, *names: str) -> bool:
        """Whether each of them gives one of these keywords."""
        return not self.lost and all(
            any(arg.keyword and arg.keyword.value in names for arg in call.args) for call in self.seen
        )


def task_of(load: Load) -> str:
    """The task of a pipeline; empty when it is not written out."""
    return text_of(load.values["task"]) if "task" in load.values else ""


def removed(task: str) -> str:
    """The entry of REMOVED for a task; empty if Transformers 5 has a pipeline for it."""
    name = "translation" if task.startswith("translation_") else task
    return name if name in REMOVED else ""


def written(site: Site, group: Group, load: Load, made: Load | None) -> cst.Call:
    """The native call. `made` is the load of the model that it gets, if it gets one.

    What the table does not know was handed on to Transformers' function before, and still is.
    """
    task = task_of(load)
    args = list(load.args)
    if made is not None:
        needed = COMPANIONS.get(task, ("tokenizer",))
        # A feature extractor may be an image processor; of an unknown task any of them is enough.
        enough = {"feature_extractor", "image_processor", *(() if task else ("tokenizer",))}
        if needed == ("image_processor",) or not task:
            needed = () if load.given & enough else needed
        for companion in needed:
            if companion not in load.given:
                _add_companion(site, load, made, companion, args)
    elif task != "text-generation":
        args.append(edits.keyword("dtype", group.expression(load.cast)))
    if task == "text-generation":
        _text_generation(site, group, load, made, args)
    elif not task:
        load.todo.append("`question-answering` is no task of Transformers 5, should this be one")
    if task in _HEARING and (made is None or not made.native.endswith("ConditionalGeneration")):
        load.todo.append("audio shorter than what it was compiled for was padded with silence; now it is not")
    args.append(edits.keyword("device", edits.string("neuron")))
    batch = _batch_size(site, load, made)
    if batch is not None:
        args.append(edits.keyword("batch_size", batch))
        if task == "text-generation":
            load.todo.append(
                "a batch needs `tokenizer.pad_token_id`, which was set to the end of text where it lacked"
            )
    own = [arg for arg in args if arg not in load.args or (arg.keyword and arg.keyword.value in TABLE.kept)]
    site.keywords += [(NATIVE[0], arg.keyword.value) for arg in own if arg.keyword]
    return edits.with_arguments(load.call, args)


def _add_companion(site: Site, load: Load, made: Load, companion: str, args: list[cst.Arg]) -> None:
    """Give the tokenizer or processor of the model, which came with the compiled files."""
    source = made.id_arg.value if made.id_arg is not None else None
    if source is not None and (edits.is_literal(source) or means_the_same(site, source, load.call)):
        args.append(edits.keyword(companion, source.deep_clone()))
    else:
        load.todo.append(f"it needs `{companion}=`, which came with the compiled model")


def _batch_size(site: Site, load: Load, made: Load | None) -> cst.BaseExpression | None:
    """The batch size of the compiled model, which the pipeline took over; None for that of one."""
    value = load.values.get("batch_size")
    if value is None and made is not None:
        value = made.told.get("batch_size")
        value = constant(site, value) if value is not None else None
    if value is None or edits.code_of(value) in ("1", "None"):
        return None
    for each in filter(None, (load, made)):
        each.keep(value)
    if edits.is_literal(value):
        return value.deep_clone()
    if edits.is_pure(value) and (made is None or means_the_same(site, value, load.call)):
        return value.deep_clone()
    load.todo.append(f"it ran in batches of `{edits.short(value)}`: give that as `batch_size=`")
    return None


# Text generation.

# Dtype and decoding by the release that began with them: `file` is what generation_config.json says, `same`
# is the pipeline's own sampling, which Transformers has from 4.55 on, as 0.4.0 has it.
_GENERATION = {
    "0.0.12": ("torch.float32", "file"),
    "0.2.0": ("torch.bfloat16", "greedy"),
    "0.4.0": ("torch.float32", "same"),
    "0.4.1": ('"auto"', "same"),
}
_CASTS = {"bf16": "torch.bfloat16", "f32": "torch.float32", "fp16": "torch.float16", "fp32": "torch.float32"}


def _text_generation(site: Site, group: Group, load: Load, made: Load | None, args: list[cst.Arg]) -> None:
    """Write the dtype and the decoding that a release chose by itself (inference-by-release section 9)."""
    cast, way = by_release(site, load.todo, "what it does by default", _GENERATION)
    if made is None:
        asked = load.values.get("auto_cast_type")
        kind = text_of(asked) if asked is not None else ""
        args.append(edits.keyword("dtype", group.expression(_CASTS.get(kind, cast))))
    calls = Calls.of(site, load.call)
    length = bool(load.given & {"max_new_tokens", "max_length"}) or calls.all_give(
        "max_new_tokens", "max_length"
    )
    chosen = "do_sample" in load.given or calls.all_give("do_sample")
    if way == "greedy":
        if not chosen:
            args.append(edits.keyword("do_sample", cst.Name("False")))
        if not length and not calls.lost and not calls.give("max_length"):
            args.append(edits.keyword("max_new_tokens", cst.Integer("20")))
        elif not length:
            load.todo.append("calls that give no length made 20 new tokens; now they make up to 256")
    elif way == "file" and not (chosen and length):
        load.todo.append(
            "where neither the calls nor generation_config.json say it, decoding was greedy and ended at 20 "
            "tokens in all; now it is do_sample=True, temperature=0.7 and max_new_tokens=256"
        )


# Question answering, which Transformers 5 has no pipeline for.

ANSWERER = '''\
def {name}(model, tokenizer):
    """Answer with the likeliest words of the context, as the pipeline of Transformers 4 did."""

    def answer(question, context):
        inputs = tokenizer(question, context, truncation="only_second", return_tensors="pt")
        outside = torch.tensor([part != 1 for part in inputs.sequence_ids(0)])
        outside[0] = False
        with torch.no_grad():
            output = model(**inputs.to(model.device))
        start = output.start_logits[0].float().cpu().masked_fill(outside, -10000).softmax(0)
        end = output.end_logits[0].float().cpu().masked_fill(outside, -10000).softmax(0)
        start[0] = end[0] = 0
        spans = torch.outer(start, end).triu().tril(14).flatten()
        found = {{}}
        # Several spans of tokens may be the same words: what they score counts together.
        for index in spans.topk(min(12, len(spans))).indices.tolist():
            if spans[index] > 0:
                first, last = (inputs.token_to_word(0, token) for token in divmod(index, len(end)))
                begin, stop = inputs.word_to_chars(0, first, 1).start, inputs.word_to_chars(0, last, 1).end
                words = context[begin:stop]
                best = found.setdefault(
                    words.lower(), {{"score": 0.0, "start": begin, "end": stop, "answer": words}}
                )
                best["score"] += float(spans[index])
        return max(found.values(), key=lambda each: each["score"])

    return answer
'''
ANSWERED = "question-answering has no pipeline in Transformers 5: a function takes the likeliest words"
_CUT = "a context beyond the model's positions is cut, not searched in parts"


def answers(site: Site, load: Load) -> str:
    """Why the function cannot answer the calls of a question answering pipeline; empty if it can."""
    extra = (
        load.given - {"task", "model", "tokenizer"} - {*HUB, "export", "batch_size", "device", "framework"}
    )
    extra -= {"input_shapes", "compiler_args", *SHAPES, *CAST, *COMPILER}
    if extra:
        return f"Transformers 5 has no pipeline for question answering that takes `{min(extra)}`"
    return _asks_more(site, load.call)


def _asks_more(site: Site, made: cst.Call) -> str:
    """Why the calls of a pipeline ask for more than one answer; empty if they do not."""
    for call in Calls.of(site, made).seen:
        names = [arg.keyword.value if arg.keyword else arg.star for arg in call.args]
        if sorted(names) != ["context", "question"] or any(
            isinstance(arg.value, (cst.List, cst.ListComp, cst.Tuple)) for arg in call.args
        ):
            return (
                f"Transformers 5 has no pipeline for question answering, and `{edits.short(call)}` asks for "
                "more than the best answer to one question"
            )
    return ""


HUB = frozenset({"revision", "token", "trust_remote_code"})


def answerer(site: Site, group: Group, load: Load, made: Load | None) -> cst.BaseExpression:
    """The function that takes the place of a question answering pipeline."""
    helper = group.helper("question_answerer", ANSWERER)
    by_name = {arg.keyword.value: arg for arg in load.args if arg.keyword}
    model = load.id_arg.value if load.id_arg is not None else edits.string(DEFAULTS["question-answering"])
    tokenizer = by_name["tokenizer"].value if "tokenizer" in by_name else None
    hub = [arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for name, arg in by_name.items() if name in HUB]
    load.todo.append(_CUT)
    if Calls.of(site, load.call).lost:
        load.todo.append(
            "it goes where its calls cannot be seen: they may give `question` and `context` alone"
        )
    if made is None:
        source: cst.BaseExpression | None = model
        cast = edits.keyword("dtype", group.expression(load.cast))
        place = edits.keyword("device_map", edits.string("neuron"))
        model = _loaded(group, "transformers.AutoModelForQuestionAnswering", model, [*hub, cast, place])
    else:
        source = made.id_arg.value if made.id_arg is not None else None
        if source is not None and not (edits.is_literal(source) or means_the_same(site, source, load.call)):
            source = None
    if tokenizer is None:
        tokenizer = source.deep_clone() if source is not None else cst.Name("None")
        if source is None:
            group.refuse("the question answering pipeline needs `tokenizer=`")
    elif not text_of(constant(site, tokenizer)):
        if not all(isinstance(each.node, cst.Call) for each in site.flow.origin_of(tokenizer).producers):
            load.todo.append(f"`{edits.short(tokenizer)}` has to be a tokenizer, not its name")
        return edits.expression("{f}({model}, {tokenizer})", f=helper, model=model, tokenizer=tokenizer)
    options = [each.deep_clone() for each in hub]
    tokenizer = _loaded(group, "transformers.AutoTokenizer", tokenizer, options)
    return edits.expression("{f}({model}, {tokenizer})", f=helper, model=model, tokenizer=tokenizer)


def _loaded(
    group: Group, owner: str, source: cst.BaseExpression, options: list[cst.Arg]
) -> cst.BaseExpression:
    call = group.expression(f"{owner}.from_pretrained({{source}})", source=source)
    assert isinstance(call, cst.Call)
    return edits.with_arguments(call, [*call.args, *options])


# Model objects that are handed to a pipeline.


def is_native(name: str | None) -> bool:
    """Whether a name is that of Transformers' function or of a class that it makes."""
    return name in NATIVE or (name is not None and _CLASS.fullmatch(name) is not None)


def hand_to_native(site: Site, group: Group, call: cst.Call, todo: list[str]) -> None:
    """Keep the model on the device: a pipeline that is not told so moves it to the CPU."""
    moved = site.notes.setdefault("moved", set())
    if call in moved:
        return
    moved.add(call)
    task = next(
        (
            arg.value
            for at, arg in enumerate(call.args)
            if (arg.keyword.value if arg.keyword else at) in ("task", 0)
        ),
        None,
    )
    text = text_of(constant(site, task)) if task is not None else ""
    name = site.name_of(call.func) or ""
    made = _CLASS.fullmatch(name)
    if made is not None:
        text = _TASKS.get(made[1], "")
    gone = removed(text)
    if made is None and gone == "question-answering" and _answer_natively(site, group, call):
        todo.append(f"line {site.positions.span(call).line}: {ANSWERED}")
        return
    if gone:
        site.mark(
            call, "transformers.pipeline", f"Transformers 5 has no pipeline for `{text}`", REMOVED[gone]
        )
        return
    places = [each for each in call.args if each.keyword and each.keyword.value in ("device", "device_map")]
    hidden = any(each.star for each in call.args)
    if hidden or len(places) > 1 or (places and not _is_host(site, places[0].value)):
        line = site.positions.span(call).line
        todo.append(f'line {line}: the pipeline moves the model, unless it is told `device="neuron"`')
        return
    kept = [each for each in call.args if each not in places]
    group.replace(call, edits.with_arguments(call, [*kept, edits.keyword("device", edits.string("neuron"))]))


def _answer_natively(site: Site, group: Group, call: cst.Call) -> bool:
    """Put the function in the place of Transformers' own pipeline, where its calls allow it."""
    given = {arg.keyword.value if arg.keyword else str(at): arg.value for at, arg in enumerate(call.args)}
    model = given.pop("model", given.pop("1", None))
    tokenizer = given.pop("tokenizer", None)
    for name in ("0", "task", "device"):
        given.pop(name, None)
    if given or model is None or tokenizer is None or _asks_more(site, call):
        return False
    if text_of(constant(site, tokenizer)):
        tokenizer = _loaded(group, "transformers.AutoTokenizer", tokenizer, [])
    helper = group.helper("question_answerer", ANSWERER)
    new = edits.expression("{f}({model}, {tokenizer})", f=helper, model=model, tokenizer=tokenizer)
    group.replace(call, new)
    if isinstance(call.func, cst.Name) and call.func.value not in site.exported:
        # The import of Transformers' function goes with its last reader.
        site.released.update(each.node for each in site.names.bindings_at(call.func) if each.target)
    return True


def hand_to_legacy(site: Site, group: Group, made: Load, call: cst.Call) -> None:
    """Turn a legacy pipeline that gets a model object into a native one."""
    moved = site.notes.setdefault("moved", set())
    use = _use_of(site, call)
    if call in moved or use is None:
        return
    load = sorted_arguments(site, use, call, NATIVE[0], TABLE)
    if is_gone(load):
        return  # the model is a native one all the same
    moved.add(call)
    site.settled.add(use)
    answering = task_of(load) == "question-answering"
    why = "Transformers' pipeline gets the model and is told to stay on the device"
    if not load.refused and answering:
        load.refused = answers(site, load)
        why = ANSWERED
    if load.refused:
        group.refuse(load.refused)
    elif answering:
        group.replace(call, answerer(site, group, load, made))
    else:
        group.rename(use, NATIVE[0])
        group.replace(call, written(site, group, load, made))
    load.todo += unread(site, group, load, [load, made])
    if load.todo:
        group.review(call, use.name, why, "; ".join(dict.fromkeys(load.todo)))
    else:
        group.fixed(call, use.name, why)


def left_with(site: Site, model: cst.Call) -> None:
    """Mark the legacy pipelines that get a model which stays a legacy one."""
    for each in site.flow.uses_of(model).uses:
        arg = site.parent(each.node)
        call = site.parent(arg) if isinstance(arg, cst.Arg) else None
        use = _use_of(site, call) if isinstance(call, cst.Call) else None
        if use is None or use.call is None or is_gone(sorted_arguments(site, use, use.call, "", TABLE)):
            continue
        if use not in site.settled:
            site.settled.add(use)
            site.mark(
                use.whole,
                use.name,
                "the model that it gets stays a legacy one",
                'once it is a native one: `transformers.pipeline(..., device="neuron")`',
            )


def _use_of(site: Site, call: cst.Call) -> Use | None:
    return next((use for use in site.uses if use.call is call and use.claim in LEGACY), None)


def _is_host(site: Site, value: cst.BaseExpression) -> bool:
    """Whether a device is written out: nothing but the Neuron device can be meant now."""
    if isinstance(value, cst.Call) and site.name_of(value.func) == "torch.device" and len(value.args) == 1:
        value = value.args[0].value
    return edits.is_literal(value)
