"""Pipelines that Optimum Neuron made, `optimum.neuron.pipeline(...)`.

Transformers' own `pipeline` runs the original checkpoint on the device, if it is told so: without
`device="neuron"` it takes any model back to the CPU. What the legacy function did by itself is written
out: the dtype of the compiled model, its batch size, the checkpoint that it loaded when none was named,
and for text generation the decoding of its release. Transformers 5 has no pipeline for question
answering: a short function takes its place where its calls ask for the best answer to one question. A
pipeline of compiled files without a known original is marked, and so is one on several cores.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import catalogue, edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.loads import pipelines
from neuronmigrate.loads.arguments import Load, constant, sorted_arguments, text_of
from neuronmigrate.loads.dtypes import settle_cast
from neuronmigrate.loads.family import Family
from neuronmigrate.loads.releases import by_release
from neuronmigrate.loads.sources import Saved, settle_source
from neuronmigrate.moving import Moved
from neuronmigrate.site import Group, Site, Use

codemod = Codemod(__name__)

CLASSES = dict.fromkeys(pipelines.LEGACY, "transformers.pipeline")
_ASIDE = (
    "{pipe}.model.generation_config = transformers.GenerationConfig.from_model_config({pipe}.model.config)"
)
_BY_HAND = {
    "feature-extraction": 'use `SentenceTransformer(original id, device="neuron").encode(texts)`',
    "question-answering": "load `AutoModelForQuestionAnswering` and take the best spans of its logits",
    "text-generation": (
        "load the model, with `distributed_config=DistributedConfig(tp_size=...)` under torchrun if it needs "
        'several devices, and give it to `transformers.pipeline("text-generation", model, device="neuron")`'
    ),
}


class Pipelines(Family):
    """Pipelines that load a checkpoint by themselves; those that get a model go with the model."""

    makers = frozenset({""})
    suits_pipelines = False
    lost_calls = ""

    def decide(self, site: Site, use: Use) -> None:
        """Leave a pipeline of a model that is loaded here to whoever answers for that model."""
        if not _gets_model(site, use):
            super().decide(site, use)

    def compiled(self, load: Load) -> tuple[str, ...]:
        """The model that it loads."""
        return (".model",)

    def is_load(self, use: Use) -> bool:
        """Whether a use makes a pipeline."""
        return use.call is not None and not use.ambiguous and not use.stored

    def loads(self, site: Site) -> list[Use]:
        """The uses that make a pipeline of a checkpoint."""
        return [use for use in super().loads(site) if not _gets_model(site, use)]

    def read(self, site: Site, use: Use, call: cst.Call) -> Load:
        """The arguments, with the checkpoint of the release where none is named."""
        load = super().read(site, use, call)
        task = pipelines.task_of(load)
        if "model_id" not in load.values and not load.refused:
            _name_default(site, load, task)
        return load

    def settle(self, site: Site, load: Load, saved: Saved) -> None:
        """Work out the checkpoint and the dtype."""
        task = pipelines.task_of(load)
        if pipelines.is_gone(load):
            load.refuse(f"Transformers 5 has no pipeline for `{task}`")
        model = load.values.get("model_id")
        if model is not None and (made := _made_elsewhere(site, model)):
            load.todo.append(f"the model is loaded at {made}: it has to be a native one")
        else:
            settle_source(load, saved)
        cores = load.values.get("tensor_parallel_size") or load.values.get("num_cores")
        if cores is not None and edits.code_of(constant(site, cores)) not in ("1", "None"):
            load.refuse(f"it runs on {edits.short(cores)} cores at once")
        if task == "text-generation":
            if cores is None and not load.refused:
                load.todo.append("it ran on all cores by tensor parallelism; now it runs on one device")
        else:
            settle_cast(site, load)
        if task == "question-answering" and not load.refused:
            load.refuse(pipelines.answers(site, load))
        if task == "feature-extraction":
            _sentences(site, load)

    def written(self, site: Site, group: Group, load: Load) -> cst.BaseExpression:
        """The call of Transformers' function, or the function that answers questions."""
        if pipelines.task_of(load) == "question-answering":
            return pipelines.answerer(site, group, load, None)
        return pipelines.written(site, group, load, None)

    def renamed(self, group: Group, load: Load) -> None:
        """The legacy function goes where another one takes its place."""
        if pipelines.task_of(load) != "question-answering":
            super().renamed(group, load)

    def place(self, site: Site, group: Group, load: Load, new: cst.BaseExpression) -> None:
        """Leave the checkpoint's generation_config.json aside, as NxD models did (0.2.0 to 0.4.5)."""
        generates = pipelines.task_of(load) == "text-generation"
        if not generates or not by_release(site, [], "", {"0.0.12": False, "0.2.0": True}):
            group.replace(load.call, new)
            return
        small = site.parent(load.call)
        line = site.statement(load.call)
        if isinstance(small, cst.Return):
            pipe = group.fresh("pipe")
            template = f"{{pipe}} = {{new}}\n{_ASIDE}\nreturn {{pipe}}\n"
            group.replace_statement(small, group.statements(template, pipe=pipe, new=new))
            return
        group.replace(load.call, new)
        if (
            isinstance(small, cst.Assign)
            and len(small.targets) == 1
            and edits.is_pure(small.targets[0].target)
            and isinstance(line, cst.SimpleStatementLine)
            and len(line.body) == 1
        ):
            target = small.targets[0].target.deep_clone()
            group.insert(line, group.statements(_ASIDE, pipe=target), before=False)
        else:
            load.todo.append(
                "give it a name and set `pipe.model.generation_config = "
                "GenerationConfig.from_model_config(pipe.model.config)`, or generation_config.json acts"
            )

    def on_argument(self, site: Site, group: Group, node: cst.BaseExpression, todo: list[str]) -> None:
        """A pipeline is called as before, wherever it goes."""

    def on_call(self, site: Site, group: Group, load: Load, call: cst.Call, method: str) -> Moved:
        """Calls take and give what they did."""
        return Moved()

    def on_attribute(
        self, site: Site, group: Group | None, load: Load | None, node: cst.Attribute, todo: list[str]
    ) -> None:
        """The parts of a pipeline are where they were; its model is on the device."""
        line = site.positions.span(node).line
        if load is not None and pipelines.task_of(load) == "question-answering":
            todo.append(f"line {line}: a function has no `{node.attr.value}`")
        elif node.attr.value == "save_pretrained":
            todo.append(f"line {line}: `save_pretrained` now writes the weights, not a compiled model")

    def why(self, load: Load, calls: int) -> str:
        """What was done, for the report."""
        if pipelines.task_of(load) == "question-answering":
            return pipelines.ANSWERED
        return "Transformers' pipeline loads the original checkpoint onto the device, without an export"

    def by_hand(self, load: Load) -> str:
        """What a person can write where a pipeline is only marked."""
        plain = '`transformers.pipeline(task, original id, dtype=torch.float32, device="neuron")`'
        task = pipelines.task_of(load)
        gone = pipelines.REMOVED.get(pipelines.removed(task), plain)
        return f"by hand: {_BY_HAND.get(task, gone)}"

    def advice(self, use: Use) -> str:
        """What to do with the function as a value."""
        return 'use `transformers.pipeline` and pass `device="neuron"` and `dtype=torch.float32` to it'


def _gets_model(site: Site, use: Use) -> bool:
    """Whether a pipeline gets a legacy model that this file loads."""
    if use.call is None:
        return False
    if pipelines.is_gone(sorted_arguments(site, use, use.call, "", pipelines.TABLE)):
        return False
    given = [arg for arg in use.call.args if arg.keyword and arg.keyword.value == "model"]
    given += [arg for arg in use.call.args[1:2] if not arg.keyword and not arg.star]
    return any(
        isinstance(each.node, cst.Call) and catalogue.is_legacy(each.name)
        for arg in given
        for each in site.flow.origin_of(arg.value).producers
    )


def _name_default(site: Site, load: Load, task: str) -> None:
    """Write the checkpoint that was loaded when none was named."""
    name = pipelines.DEFAULTS.get(task)
    if task == "text-generation":
        name = by_release(site, load.todo, "the checkpoint", pipelines.GENERATORS)
    if name is None:
        load.refuse("which checkpoint it loads for this task cannot be seen from here")
        return
    if task == "object-detection":
        load.todo.append(f"`{name}`, which it loaded by default, is no detector: name one")
    load.id_arg = edits.keyword("model", edits.string(name))
    load.args.append(load.id_arg)
    load.given.add("model")
    load.values["model_id"] = load.id_arg.value


def _made_elsewhere(site: Site, model: cst.BaseExpression) -> str:
    """Where a legacy model object is made that another module loads."""
    for each in site.flow.origin_of(model).producers:
        if each.called and each.node is None and each.place and each.name.startswith("optimum.neuron."):
            return each.place
    return ""


def _sentences(site: Site, load: Load) -> None:
    """From 0.0.22 on a sentence encoder gave one vector for each text, not one for each token."""
    if load.refused or not by_release(site, [], "", {"0.0.7": False, "0.0.22": True}):
        return
    text = text_of(constant(site, load.values["model_id"]))
    if text.startswith("sentence-transformers/"):
        load.refuse("it gave one vector for each text, where Transformers' pipeline gives one for each token")
    elif text not in pipelines.DEFAULTS.values():
        load.todo.append(
            "should the checkpoint be one of sentence-transformers: it gave one vector for each text, where "
            "this gives one for each token (`SentenceTransformer(...).encode` gives the former)"
        )


@codemod.uses(["optimum.neuron.pipelines.transformers.base.NEURONX_SUPPORTED_TASKS"])
def decide_tasks(site: Site, use: Use) -> None:
    """Ask Transformers which tasks there are; what the table says of a task it does not say."""
    parent = site.parent(use.chain)
    if use.method == "keys" or (not use.method and isinstance(parent, (cst.ComparisonTarget, cst.For))):
        group = site.group(use)
        group.rename(use, "transformers.pipelines.SUPPORTED_TASKS")
        group.review(
            use.chain,
            use.name,
            "Transformers lists the tasks that it has pipelines for",
            "there are more of them, and question-answering is none",
        )
    else:
        site.mark(
            use.whole,
            use.name,
            "the table of Transformers has other entries",
            "ask `transformers.pipelines.SUPPORTED_TASKS` whether there is a task, and no more",
        )


family = Pipelines(codemod, CLASSES, pipelines.TABLE)
