"""Places that set or read environment variables, as several codemods look at them."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from neuronmigrate import catalogue
from neuronmigrate.effects import is_harmless
from neuronmigrate.site import Site

ANSWERED = "environment answered"
"""Note of the nodes whose strings a codemod has answered for."""
PATCHED = "environment patched"
"""Note of the patches that went with the test around them."""

_WRAPS = "the Trainer wraps the model for several processes, as it should natively"
PATCHES = {
    "torch.finfo": "tensors are of the dtype that they say natively, so the limits of that dtype are right",
    "torch.cuda.is_bf16_supported": "the native device is asked itself, so nothing has to be pretended",
    "transformers.Trainer._wrap_model": _WRAPS,
    "transformers.modeling_utils.get_parameter_dtype": "parameters are of the dtype that they say natively",
    "transformers.trainer.Trainer._wrap_model": _WRAPS,
}
"""Names that scripts for legacy devices put their own functions in the place of."""

DOWNCASTS = frozenset({"XLA_DOWNCAST_BF16", "XLA_USE_BF16"})
"""Switches that let the lazy device hold bfloat16 where a tensor said float32."""

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


@dataclass(frozen=True)
class Setting:
    """A statement that sets a variable."""

    statement: cst.Assign | cst.AugAssign | cst.Expr
    key: cst.SimpleString
    value: cst.BaseExpression

    @property
    def name(self) -> str:
        """The variable."""
        return str(self.key.evaluated_value)


def setting_of(site: Site, key: cst.SimpleString) -> Setting | None:
    """The statement that sets the variable which a string names, if it does nothing else."""
    if catalogue.env(str(key.evaluated_value)) is None or not is_key(site, key):
        return None
    around = site.parent(key)
    call = site.parent(around) if isinstance(around, cst.Arg) else None
    if isinstance(call, cst.Call):
        statement = site.parent(call)
        sets = site.name_of(call.func) in ("os.environ.setdefault", "os.putenv") and len(call.args) == 2
        if sets and isinstance(statement, cst.Expr) and around is call.args[0]:
            return Setting(statement, key, call.args[1].value)
        return None
    subscript = next((each for each in site.ancestors(key) if isinstance(each, cst.Subscript)), None)
    target = site.parent(subscript) if subscript is not None else None
    if isinstance(target, cst.AugAssign) and target.target is subscript:
        return Setting(target, key, target.value)
    statement = site.parent(target) if isinstance(target, cst.AssignTarget) else None
    if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
        return Setting(statement, key, statement.value)
    return None


def is_read(site: Site, setting: Setting) -> bool:
    """Whether the file reads the variable as well, or adds to it; tests that go do not count."""
    for each in site.nodes(cst.SimpleString):
        if each.evaluated_value != setting.name or setting.statement in site.ancestors(each):
            continue
        other = setting_of(site, each)
        if isinstance(other, Setting) and isinstance(other.statement, cst.AugAssign):
            return True
        if is_read_of(site, each) and not any(
            isinstance(around, cst.If) and (guarded_patches(site, around) or tells_dtype(site, around))
            for around in site.ancestors(each)
        ):
            return True
    return False


def answer(site: Site, node: cst.CSTNode) -> None:
    """Let other codemods pass over the strings in code that is rewritten."""
    answered = site.notes.setdefault(ANSWERED, set())
    todo = [node]
    while todo:
        part = todo.pop()
        todo.extend(part.children)
        answered.add(part)


def strings_in(value: cst.CSTNode) -> list[cst.SimpleString]:
    """The string literals of an expression, in their order."""
    if isinstance(value, cst.SimpleString):
        return [value]
    return [each for child in value.children for each in strings_in(child)]


def guarded_patches(site: Site, node: cst.If) -> list[tuple[cst.Assign, str]]:
    """The patches that a test of these switches guards, with what they replace, if it guards no more."""
    if node.orelse is not None or not isinstance(node.body, cst.IndentedBlock):
        return []
    patches: list[tuple[cst.Assign, str]] = []
    for line in node.body.body:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else [None]:
            if not isinstance(small, cst.Assign):
                return []
            name = _patched(site, small)
            if name:
                patches.append((small, name))
            elif not _only_for_patches(site, small):
                return []
    tested = [each for each in strings_in(node.test) if each.evaluated_value in DOWNCASTS]
    harmless = is_harmless(node.test, site.name_of)
    return patches if harmless and any(is_read_of(site, each) for each in tested) else []


def _patched(site: Site, assign: cst.Assign) -> str:
    """The function that an assignment patches; empty for any other assignment."""
    target = assign.targets[0].target
    name = site.name_of(target) if isinstance(target, cst.Attribute) else None
    return name if name in PATCHES and name is not None else ""


def _only_for_patches(site: Site, assign: cst.Assign) -> bool:
    """Whether nothing but patches reads the name that an assignment gives."""
    target = assign.targets[0].target
    if not isinstance(target, cst.Name) or len(assign.targets) != 1:
        return False
    readers = [each for binding in site.names.bound_by(target) for each in site.names.references(binding)]
    return is_harmless(assign.value, site.name_of) and all(
        any(isinstance(around, cst.Assign) and _patched(site, around) for around in site.ancestors(reader))
        for reader in readers
    )


def tells_dtype(site: Site, node: cst.If) -> bool:
    """Whether a test of one of these switches does nothing but return the name of another dtype.

    `if "XLA_USE_BF16" in os.environ: return "torch.bfloat16"`, before what the tensor itself says.
    """
    if not isinstance(node.test, cst.Comparison) or len(node.test.comparisons) != 1:
        return False
    key, target = node.test.left, node.test.comparisons[0]
    if not isinstance(key, cst.SimpleString) or key.evaluated_value not in DOWNCASTS:
        return False
    inside = isinstance(target.operator, cst.In) and site.name_of(target.comparator) == "os.environ"
    return inside and _returns_dtypes(node)


def _returns_dtypes(node: cst.If) -> bool:
    if node.orelse is not None or not isinstance(node.body, cst.IndentedBlock):
        return False
    for line in node.body.body:
        if isinstance(line, cst.If):
            if not _returns_dtypes(line):
                return False
            continue
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else None
        value = small.value if isinstance(small, cst.Return) else None
        text = value.evaluated_value if isinstance(value, cst.SimpleString) else ""
        if not isinstance(text, str) or not text.startswith("torch."):
            return False
    return True
