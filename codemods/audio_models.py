"""Models of audio that Optimum Neuron traced, such as `NeuronModelForCTC`.

As for traced encoders, the plain Transformers class loads the original checkpoint in float32 with
`device_map="neuron"`; inputs are moved, calls run under `torch.no_grad()` and outputs come back. The old
classes filled audio up with zeros to `audio_sequence_length` and did not cut the outputs back, which
shows in the number of frames and, where a model normalises over time, in the numbers: the same zeros are
written out. They looked at `input_values` alone, so an attention mask goes, which native models would
heed. Arguments that cannot be seen, loads of compiled folders and calls that cannot be followed are
marked.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.loads.arguments import Load, means_the_same
from neuronmigrate.loads.family import Family
from neuronmigrate.loads.traced import TABLE
from neuronmigrate.moving import Convention, Moved, move_call
from neuronmigrate.site import Group, Site

codemod = Codemod(__name__)

# `NeuronModelFor...` and the class that loads the same checkpoint (optimum-neuron 0.0.24 to 0.4.5).
TASKS = {
    "AudioClassification": "AutoModelForAudioClassification",
    "AudioFrameClassification": "AutoModelForAudioFrameClassification",
    "CTC": "AutoModelForCTC",
    "XVector": "AutoModelForAudioXVector",
}
CLASSES = {
    f"{module}.NeuronModelFor{task}": f"transformers.{native}"
    for module in ("optimum.neuron", "optimum.neuron.modeling")
    for task, native in TASKS.items()
}
LENGTH = "audio_sequence_length"
AUDIO = Convention(positional=("input_values",), floats=frozenset({"input_values"}), sole="input_values")
# Longer audio, which raised before, runs as it is.
PAD = """\
def {name}(values, length):
    return torch.nn.functional.pad(values, (0, max(0, length - values.shape[1])))
"""


class AudioModels(Family):
    """Models that were fed zeros after the end of the audio."""

    def on_call(self, site: Site, group: Group, load: Load, call: cst.Call, method: str) -> Moved:
        """Fill the audio up to the length that was compiled for, and move it."""
        length = load.values.get(LENGTH)
        written = length is not None and edits.is_pure(length) and means_the_same(site, length, call)
        if length is not None and written:
            load.keep(length)

        def filled(value: cst.BaseExpression) -> cst.BaseExpression:
            return value if length is None or not written else _filled(group, value, length)

        moved = move_call(
            site, group, call, AUDIO, as_float32=load.as_float32, half=load.half, prepare=filled
        )
        if moved.refused or written or (length is None and load.known):
            return moved
        if length is None:
            return replace(
                moved, todo=(*moved.todo, f"audio was filled up with zeros to the compiled `{LENGTH}`")
            )
        todo = (
            f"audio was filled up with zeros to `{LENGTH}={edits.short(length)}`, which cannot be written at "
            f"`{edits.short(call, 40)}`: there are fewer frames now, and better numbers"
        )
        return replace(moved, todo=(*moved.todo, todo))

    def on_argument(self, site: Site, group: Group, node: cst.BaseExpression, todo: list[str]) -> None:
        """Answer for a model that is passed to a function: what calls it there fills nothing up."""
        super().on_argument(site, group, node, todo)
        arg = site.parent(node)
        call = site.parent(arg) if isinstance(arg, cst.Arg) else None
        name = site.name_of(call.func) if isinstance(call, cst.Call) else None
        if name is not None and not name.startswith("builtins."):
            line = site.positions.span(node).line
            todo.append(f"line {line}: audio was filled up with zeros to the compiled `{LENGTH}`")

    def on_call_elsewhere(self, site: Site, group: Group, call: cst.Call, name: str, method: str) -> Moved:
        """Move the audio of a model that another module loads."""
        moved = move_call(site, group, call, AUDIO, as_float32=True, half=True)
        todo = f"audio was filled up with zeros to `{LENGTH}`: there are fewer frames now, and better numbers"
        return moved if moved.refused else replace(moved, todo=(*moved.todo, todo))


def _filled(group: Group, value: cst.BaseExpression, length: cst.BaseExpression) -> cst.BaseExpression:
    """Audio `(batch, samples)` with zeros after it."""
    name = group.helper("pad_audio", PAD)
    return cst.Call(name, [cst.Arg(value), cst.Arg(length.deep_clone())])


family = AudioModels(
    codemod,
    CLASSES,
    replace(TABLE, consumed=TABLE.consumed | {LENGTH}, dropped=TABLE.dropped - {LENGTH}),
)
