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


def settle_cast(site: Site, load: Load, *, by_default: bool = False) -> None:
    """Work out the dtype of the weights from `auto_cast`.

    Where it is not given, it was off for encoders, vision, audio, CLIP and sentence-transformers in every
    release; `by_default` says that it was `matmul` in bf16, as for encoder-decoders
    (inference-by-release section 2; exporters/neuron/convert.py, modeling_seq2seq.py of optimum-neuron).
    """
    cast = load.values.get("auto_cast")
    kind = load.values.get("auto_cast_type")
    if load.refused or (cast is None and not by_default):
        return
    text = "matmul" if cast is None else text_of(cast)
    if cast is not None and (edits.code_of(cast) == "None" or text == "none"):
        return
    name = "bf16" if kind is None or edits.code_of(kind) == "None" else text_of(kind)
    if text not in ("matmul", "all", "matmult"):
        load.refused = f"`auto_cast={edits.short(cast or load.call)}` is not known before it runs"
        return
    if name not in CAST_TYPES:
        load.refused = f"`auto_cast_type={edits.short(kind or load.call)}` is not known before it runs"
        return
    load.numerics = Numerics.DTYPE
    what = f"the compiler cast {text} operations to {name}{' by default' if cast is None else ''}"
    asked = load.values.get("dtype")
    float32 = asked is None or site.name_of(asked) in ("torch.float32", "torch.float")
    if asked is not None and not float32 and text_of(asked) != "float32":
        load.todo.append(f"{what} as well; now `dtype` alone decides")
        return
    if asked is not None and not (site.name_of(asked) or "").startswith("torch."):
        load.drop(asked)
    load.dtype = None
    load.cast = CAST_TYPES[name]
    if load.cast == "torch.float32":
        load.todo.append(f"{what}; now they are float32")
        return
    short = load.cast.rpartition(".")[2]
    load.todo.append(f"{what} on float32 weights; now all weights are {short}")
