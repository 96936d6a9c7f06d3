"""Encoders that Optimum Neuron traced, such as `NeuronModelForSequenceClassification`.

The native device needs no export: the plain Transformers class loads the original checkpoint with
`device_map="neuron"`, and shapes and compiler options go. What the old class did by itself is written
out: it held float32 weights whatever the checkpoint holds, so `dtype` is written; it took and gave CPU
tensors without gradient, so inputs are moved, calls run under `torch.no_grad()` and outputs come back.
Tokenizer calls stay, since the old class cut its padding back. A load of a compiled folder, arguments
that cannot be seen, and calls that cannot be followed are marked.
"""

from __future__ import annotations

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.loads.arguments import (
    CAST,
    COMPILER,
    EXPORT,
    FOLDERS,
    HUB,
    PLACES,
    RENAMED,
    SHAPES,
    Given,
    Load,
    Table,
    constant,
    instance_type,
)
from neuronmigrate.loads.family import Family
from neuronmigrate.site import Site

codemod = Codemod(__name__)

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


def _tensor_parallel_size(site: Site, load: Load, given: Given) -> None:
    load.drop(given.seen)
    if edits.code_of(constant(site, given.seen)) != "1":
        load.refuse(
            "encoders have no tensor-parallel plan natively, so `tensor_parallel_size` has no counterpart"
        )


def _output_attentions(site: Site, load: Load, given: Given) -> None:
    load.args.append(given.arg)
    load.todo.append('attention weights need `attn_implementation="eager"` natively')


_OTHERS = "is for models of text and images, whose outputs this class named otherwise"
TABLE = Table(
    kept=HUB | {"output_hidden_states"},
    renamed=RENAMED,
    consumed=EXPORT | CAST,
    dropped=COMPILER | SHAPES | PLACES,
    folders=FOLDERS,
    refused={name: f"`{name}` {_OTHERS}" for name in ("image_batch_size", "text_batch_size")},
    special={
        "instance_type": instance_type,
        "output_attentions": _output_attentions,
        "tensor_parallel_size": _tensor_parallel_size,
    },
)

family = Family(codemod, CLASSES, TABLE)
