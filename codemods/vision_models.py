"""Models of images, and of images and texts, that Optimum Neuron traced, such as `NeuronCLIPModel`.

As for traced encoders, the plain Transformers class loads the original checkpoint in float32 with
`device_map="neuron"`; inputs are moved, calls run under `torch.no_grad()` and outputs come back. Images
keep the size that their processor gives them: smaller ones were padded with black to the compiled size,
which native models refuse. `NeuronCLIPModel` returned rows for the texts and images it had padded the
batch with; the native one returns those that were given. Arguments that cannot be seen, loads of
compiled folders and calls that cannot be followed are marked.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.loads.arguments import Given, Load, constant
from neuronmigrate.loads.family import Family
from neuronmigrate.loads.traced import TABLE, paths
from neuronmigrate.moving import Convention, Moved, move_call
from neuronmigrate.site import Group, Site

codemod = Codemod(__name__)

# `NeuronModelFor...` and the class that loads the same checkpoint (optimum-neuron 0.0.24 to 0.4.5).
TASKS = ("ImageClassification", "ObjectDetection", "SemanticSegmentation")
# Classes of one architecture (0.2.0 to 0.4.5).
ARCHITECTURES = {
    "CLIPForImageClassification": "clip",
    "CLIPModel": "clip",
    "YolosForObjectDetection": "yolos",
}
CLASSES = {
    **{
        f"{module}.NeuronModelFor{task}": f"transformers.AutoModelFor{task}"
        for module in ("optimum.neuron", "optimum.neuron.modeling")
        for task in TASKS
    },
    **{
        path: f"transformers.{name}"
        for name, folder in ARCHITECTURES.items()
        for path in paths(folder, f"Neuron{name}")
    },
}

IMAGES = Convention(positional=("pixel_values",), floats=frozenset({"pixel_values"}))
# The order of NeuronCLIPModel.forward, which is that of CLIPModel.forward as well.
BOTH = Convention(
    positional=("input_ids", "pixel_values", "attention_mask"), floats=frozenset({"pixel_values"})
)


def _batch_size(site: Site, load: Load, given: Given) -> None:
    """Drop the number of texts or images, and say what became of the rows of padding."""
    load.drop(given.seen)
    if edits.code_of(constant(site, given.seen)) not in ("1", "None"):
        load.todo.append(
            "fewer texts or images than were compiled for gave rows of padding as well: a softmax over them "
            "is another one now"
        )


class VisionModels(Family):
    """Models whose pixels are floats."""

    def on_call(self, site: Site, group: Group, load: Load, call: cst.Call, method: str) -> Moved:
        """Move pixels in the dtype of the weights."""
        convention = BOTH if load.native == "transformers.CLIPModel" else IMAGES
        return move_call(site, group, call, convention, as_float32=load.as_float32, half=load.half)

    def on_call_elsewhere(self, site: Site, group: Group, call: cst.Call, name: str, method: str) -> Moved:
        """Move pixels in the dtype of weights that another module loads."""
        return move_call(site, group, call, BOTH, as_float32=True, half=True)


family = VisionModels(
    codemod,
    CLASSES,
    replace(
        TABLE,
        special={**TABLE.special, "image_batch_size": _batch_size, "text_batch_size": _batch_size},
    ),
)
