"""Legacy names that stand in strings: module names, environment variables and command lines.

`mock.patch("torch_xla...")`, `find_spec("optimum.neuron")`, `eval(f"optimum.neuron.{name}")` and their like
fail, or silently choose another path, once the legacy package is gone, so they are marked, and `import`
statements of that package stay in the file. The name of a logger is only noted. Environment variables that
no longer act and commands that no longer exist are marked with what takes their place, and so are the
backends of torch.distributed and torch.compile that legacy packages register. Documentation strings are
left alone.
"""

from __future__ import annotations

import re

import libcst as cst

from neuronmigrate import catalogue, edits, exports, probes
from neuronmigrate.codemod import Codemod
from neuronmigrate.devices import FOREIGN
from neuronmigrate.environment import ANSWERED
from neuronmigrate.names import Kind, last_name
from neuronmigrate.processes import xla_starts
from neuronmigrate.site import Site

codemod = Codemod(__name__)

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\.?")
# Callables that act on a module by its name.
_PROBES = {
    "importlib.import_module": "the import fails once the package is gone",
    "importlib.util.find_spec": "without the package the test is false, and the other path is taken silently",
    "builtins.__import__": "the import fails once the package is gone",
    "builtins.eval": "the name is looked up at run time",
    "builtins.exec": "the name is looked up at run time",
    "unittest.mock.patch": "the patched name is gone once the package is",
    "unittest.mock.patch.dict": "the patched name is gone once the package is",
    "mock.patch": "the patched name is gone once the package is",
    "pytest.importorskip": "the tests are skipped silently once the package is gone",
    "importlib.metadata.version": "the package is not installed any more",
}
# Backends and what to write instead.
_GROUP = 'start the group with "neuron", above the first use of the device, and drop `init_method`'
_COMPILE = 'use `backend="neuron"` with `dynamic=False`'
_BACKENDS = {
    "xla": _GROUP,
    "xla://": _GROUP,
    "pjrt://": _GROUP,
    "openxla": _COMPILE,
    "openxla_eval": _COMPILE,
    "torchxla_trace_once": _COMPILE,
    "neuronx": _COMPILE,
}
_BACKEND_KEYWORDS = frozenset({"backend", "init_method", "dist_backend", "ddp_backend"})
_OWN_VARIABLE = re.compile(
    r"NEURON|XLA|PJRT|XRT|NXD|OPTIMUM|TRAINIUM|TPU|CUSTOM_CACHE_REPO|^NKI_|^FRAMEWORKS?_"
)
_SEPARATORS = re.compile(r"&&|\|\||[;\n|]")


@codemod.on(cst.SimpleString, cst.FormattedString, cst.ConcatenatedString)
def decide(site: Site, node: cst.SimpleString | cst.FormattedString | cst.ConcatenatedString) -> None:
    """Mark a string that names something legacy."""
    parent = site.parent(node)
    if node in site.notes.get(ANSWERED, ()):
        return
    if isinstance(parent, (cst.Expr, cst.ConcatenatedString, cst.FormattedStringExpression)):
        return
    text = _text(node)
    if not text or len(text) > 20_000:
        return
    found = _module(site, node, text) or _variable(site, node, text) or _backend(site, node, text)
    if not found:
        _command(site, node, text)


@codemod.on(cst.List, cst.Tuple)
def decide_words(site: Site, node: cst.List | cst.Tuple) -> None:
    """Mark a command line that is written as a list of words."""
    words = []
    for element in node.elements:
        if isinstance(element.value, (cst.SimpleString, cst.FormattedString)):
            words.append(_text(element.value) or "x")
        else:
            words.append("x")
    if len(words) > 1 and words[0] != "x" and " " not in words[0]:
        _command(site, node, " ".join(words))


def _text(node: cst.BaseExpression) -> str:
    """The text of a string; `\\0` stands for what is filled in at run time."""
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return value if isinstance(value, str) else ""
    if isinstance(node, cst.ConcatenatedString):
        return _text(node.left) + _text(node.right)
    if isinstance(node, cst.FormattedString):
        parts = node.parts
        return "".join(part.value if isinstance(part, cst.FormattedStringText) else "\0" for part in parts)
    return ""


def _module(site: Site, node: cst.BaseExpression, text: str) -> bool:
    start = text.partition("\0")[0]
    if _DOTTED.fullmatch(start) is None:
        return False
    name = start.rstrip(".")
    if not catalogue.is_legacy(name):
        return False
    call = _call_around(site, node)
    if call is not None and probes.asked(site, call) is node:
        return True  # availability-probes answers for it
    function = site.name_of(call.func) if call is not None else None
    whole = "\0" not in text and "." in name
    if function not in _PROBES and not whole and not _is_key_of_modules(site, node):
        return False
    if function == "logging.getLogger":
        site.note(node, name, "a logger of a package that is gone: what is set on it does nothing")
        return True
    root = name.partition(".")[0]
    site.blocked.setdefault(root, edits.short(node))
    why = _PROBES.get(function or "", "a string names a legacy module")
    entry = catalogue.nearest(name)
    advice = entry.advice if entry is not None else ""
    if function in ("importlib.util.find_spec", "pytest.importorskip"):
        advice = "test for the native device instead: `torch.neuron.is_available()`, or decide without a test"
    site.mark(node, name, why, advice)
    return True


def _backend(site: Site, node: cst.BaseExpression, text: str) -> bool:
    """A backend of torch.distributed or torch.compile that only the legacy packages register."""
    arg = site.parent(node)
    call = _call_around(site, node)
    if text not in _BACKENDS or call is None or not isinstance(arg, cst.Arg):
        return False
    keyword = arg.keyword.value if arg.keyword is not None else ""
    if call in xla_starts(site) or _is_own(site, call.func):
        return True
    name = site.name_of(call.func) or last_name(call.func)
    if name.partition(".")[0] in FOREIGN:
        return False
    function = name.rpartition(".")[2]
    if function not in ("init_process_group", "new_group", "compile") and keyword not in _BACKEND_KEYWORDS:
        return False
    if arg.keyword is None and (function == "compile" or arg is not call.args[0]):
        return False
    advice = _COMPILE if function == "compile" else _BACKENDS[text]
    site.mark(node, text, f"`{text}` is a backend that the legacy packages register", advice)
    return True


def _is_own(site: Site, func: cst.BaseExpression) -> bool:
    """Whether a function of this file is called."""
    bindings = site.names.bindings_at(func) if isinstance(func, cst.Name) else ()
    return any(binding.kind in (Kind.FUNCTION, Kind.CLASS) for binding in bindings)


def _call_around(site: Site, node: cst.CSTNode) -> cst.Call | None:
    arg = site.parent(node)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    return call if isinstance(call, cst.Call) else None


def _is_key_of_modules(site: Site, node: cst.BaseExpression) -> bool:
    """`sys.modules["torch_xla"]` and `"torch_xla" in sys.modules`."""
    for around in site.ancestors(node):
        if isinstance(around, cst.Subscript):
            return site.name_of(around.value) == "sys.modules"
        if isinstance(around, cst.Comparison):
            return any(site.name_of(each.comparator) == "sys.modules" for each in around.comparisons)
        if isinstance(around, cst.BaseSmallStatement):
            return False
    return False


def _variable(site: Site, node: cst.BaseExpression, text: str) -> bool:
    name = text.partition("=")[0]
    if not re.fullmatch(r"[A-Z][A-Z0-9_]+", name) or not _OWN_VARIABLE.search(name):
        return False  # many programs read MAX_BATCH_SIZE or HF_MODEL_ID
    entry = catalogue.env(name)
    if entry is None or entry.action == "keep":
        return False
    site.mark(node, name, f"`{name}` does not act as it did", entry.advice)
    return True


def _command(site: Site, node: cst.BaseExpression, text: str) -> bool:
    if " " not in text.strip() or exports.exported(site, node) is not None:
        return False  # export-api answers for what is exported
    for part in _SEPARATORS.split(text.replace("\0", "x")):
        entry = catalogue.command(part.strip())
        if entry is not None and entry.kind == "package" and "install" not in part:
            continue  # a sentence that begins with its name
        if entry is not None and entry.action != "keep" and _NAMES_LEGACY.search(entry.name):
            site.mark(node, entry.name, f"`{entry.name}` is not part of a native installation", entry.advice)
            return True
    return False


_NAMES_LEGACY = re.compile(r"neuron|xla|inference_demo")
