"""Encoders that Optimum Neuron traced, such as `NeuronModelForSequenceClassification`.

The native device needs no export: the plain Transformers class loads the original checkpoint with
`device_map="neuron"`, and shapes and compiler options go. What the old class did by itself is written
out: it held float32 weights whatever the checkpoint holds, so `dtype` is written; it took and gave CPU
tensors without gradient, so inputs are moved, calls run under `torch.no_grad()` and outputs come back;
where a call cannot be put under it, the weights are frozen. Tokenizer calls stay, since the old class cut
its padding back. A load of a compiled folder, arguments that cannot be seen, and calls that cannot be
followed are marked.
"""

from __future__ import annotations

from dataclasses import replace

from neuronmigrate.codemod import Codemod
from neuronmigrate.loads.family import Family
from neuronmigrate.loads.traced import TABLE, paths
from neuronmigrate.site import Use

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
# Classes of one architecture, `NeuronBert...` (0.2.0 to 0.4.5).
BERT: tuple[str, ...] = ("Model", "ForMaskedLM", "ForMultipleChoice", "ForQuestionAnswering")
BERT += ("ForSequenceClassification", "ForTokenClassification")
# What all of them are instances of (0.0.5 to 0.4.5); none is loaded with these.
BASES = frozenset(
    {
        "optimum.neuron.NeuronBaseModel",
        "optimum.neuron.NeuronTracedModel",
        "optimum.neuron.modeling_base.NeuronBaseModel",
        "optimum.neuron.modeling_traced.NeuronTracedModel",
    }
)
CLASSES = {
    **{
        f"{module}.NeuronModelFor{task}": f"transformers.{native}"
        for module in ("optimum.neuron", "optimum.neuron.modeling")
        for task, native in TASKS.items()
    },
    **{name: f"transformers.Bert{head}" for head in BERT for name in paths("bert", f"NeuronBert{head}")},
    **dict.fromkeys(BASES, "transformers.PreTrainedModel"),
}
_OTHERS = "is for models of text and images, whose outputs this class named otherwise"


class TracedModels(Family):
    """Encoders of text, and the classes that all traced models are made from."""

    handed_on = True

    def is_load(self, use: Use) -> bool:
        """Whether a use makes an object, in a way that can be seen."""
        return use.claim not in BASES and super().is_load(use)


family = TracedModels(
    codemod,
    CLASSES,
    replace(TABLE, refused={name: f"`{name}` {_OTHERS}" for name in ("image_batch_size", "text_batch_size")}),
)
