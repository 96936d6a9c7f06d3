"""Places that set or read environment variables, as several codemods look at them."""

from __future__ import annotations

import libcst as cst

from neuronmigrate.site import Site

ANSWERED = "environment answered"
"""Note of the nodes whose strings a codemod has answered for."""
PATCHED = "environment patched"
"""Note of the patches that went with the test around them."""

_WRAPS = "the Trainer wraps the model for several processes, as it should natively"
PATCHES = {
    "torch.cuda.is_bf16_supported": "the native device is asked itself, so nothing has to be pretended",
    "transformers.Trainer._wrap_model": _WRAPS,
    "transformers.modeling_utils.get_parameter_dtype": "parameters are of the dtype that they say natively",
    "transformers.trainer.Trainer._wrap_model": _WRAPS,
}
"""Names that scripts for legacy devices put their own functions in the place of."""

_READS = frozenset({"os.environ.get", "os.getenv", "os.environ.pop"})
_CALLS = _READS | {"os.environ.setdefault", "os.putenv", "os.unsetenv"}


def is_key(site: Site, string: cst.SimpleString) -> bool:
    """Whether a string names a variable of `os.environ`, read or set."""
    parent = site.parent(string)
    around = site.parent(parent) if parent is not None else None
    if isinstance(parent, cst.Arg) and isinstance(around, cst.Call):
        return parent is around.args[0] and site.name_of(around.func) in _CALLS
    if isinstance(parent, cst.Index):
        subscript = site.parent(around) if around is not None else None
        return isinstance(subscript, cst.Subscript) and site.name_of(subscript.value) == "os.environ"
    if isinstance(parent, cst.Comparison) and parent.left is string:
        return any(site.name_of(each.comparator) == "os.environ" for each in parent.comparisons)
    return False


def is_read_of(site: Site, string: cst.SimpleString) -> bool:
    """Whether a string names a variable that is read there."""
    if not is_key(site, string):
        return False
    parent = site.parent(string)
    if isinstance(parent, cst.Arg):
        call = site.parent(parent)
        return isinstance(call, cst.Call) and site.name_of(call.func) in _READS
    if isinstance(parent, cst.Index):
        subscript = next((each for each in site.ancestors(string) if isinstance(each, cst.Subscript)), None)
        target = site.parent(subscript) if subscript is not None else None
        # An augmented assignment reads as well, but only to write.
        if isinstance(target, cst.Element):
            whole = site.parent(target)
            target = site.parent(whole) if whole is not None else None
        return not isinstance(target, (cst.AssignTarget, cst.Del, cst.AugAssign))
    return True
