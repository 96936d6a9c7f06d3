"""In which dtype a legacy class held its weights."""

from __future__ import annotations

from neuronmigrate import edits
from neuronmigrate.loads.arguments import Load, text_of
from neuronmigrate.plan import Numerics
from neuronmigrate.site import Site

# `auto_cast_type` and the weights' dtype that comes nearest.
CAST_TYPES = {
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    "fp32": "torch.float32",
    "mixed": "torch.float32",
    "tf32": "torch.float32",
}


def settle_cast(site: Site, load: Load) -> None:
    """Work out the dtype of the weights from `auto_cast`, which was off where it is not given.

    So it was for encoders, vision, audio, CLIP and sentence-transformers in every release
    (inference-by-release section 2; exporters/neuron/convert.py of optimum-neuron).
    """
    cast = load.values.get("auto_cast")
    kind = load.values.get("auto_cast_type")
    if load.refused or cast is None or edits.code_of(cast) == "None" or text_of(cast) == "none":
        return
    text = text_of(cast)
    name = "bf16" if kind is None else text_of(kind)
    if text not in ("matmul", "all", "matmult"):
        load.refused = f"`auto_cast={edits.short(cast)}` is not known before it runs"
        return
    if name not in CAST_TYPES:
        load.refused = f"`auto_cast_type={edits.short(kind or cast)}` is not known before it runs"
        return
    load.numerics = Numerics.DTYPE
    asked = load.values.get("dtype")
    float32 = asked is None or site.name_of(asked) in ("torch.float32", "torch.float")
    if asked is not None and not float32 and text_of(asked) != "float32":
        load.todo.append(f"the compiler cast {text} operations to {name} as well; now `dtype` alone decides")
        return
    if asked is not None:
        load.drop(asked)
    load.dtype = None
    load.cast = CAST_TYPES[name]
    if load.cast == "torch.float32":
        load.todo.append(f"the compiler cast {text} operations to {name}; now they are float32")
        return
    short = load.cast.rpartition(".")[2]
    load.todo.append(
        f"the compiler cast {text} operations to {name} on float32 weights; now all weights are {short}"
    )
