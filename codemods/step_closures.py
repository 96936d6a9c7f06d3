"""Functions that ran at the next step of the lazy graph: `xm.add_step_closure(fn, args=(...))`.

Natively values are there as soon as they are computed, so the function is called where it was added. It
used to see what happened to its arguments until the step: where one of them may be changed in place in
between, that is said. `run_async` goes.

Marked are closures whose function or arguments cannot be seen.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

CLOSURE = "torch_xla.core.xla_model.add_step_closure"
PARAMETERS = ("closure", "args", "run_async")


@codemod.uses([CLOSURE])
def decide(site: Site, use: Use) -> None:
    """Call the function where it is added."""
    call = use.call
    todo = "call the function where it is added"
    if call is None or use.method:
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    bound = edits.arguments(call, PARAMETERS)
    function, given = bound.value("closure"), bound.value("args")
    if function is None or bound.spread or bound.extra or site.alone(call) is None:
        site.mark(call, use.name, "its arguments cannot be seen from here, or its result is used", todo)
        return
    args: list[cst.Arg] = []
    if isinstance(given, (cst.Tuple, cst.List)):
        for element in given.elements:
            starred = isinstance(element, cst.StarredElement)
            args.append(cst.Arg(element.value, star="*" if starred else ""))
    elif given is not None:
        args.append(cst.Arg(given, star="*"))
    if isinstance(function, cst.Lambda):
        function = edits.parenthesized(function)
    group = site.group(use)
    group.replace(call, edits.with_arguments(call.with_changes(func=function), args))
    run_async = bound.value("run_async")
    if run_async is not None:
        forget(site, run_async)
    why = "values are there as soon as they are computed, so it is called at once"
    changed = _changed_after(site, call, bound.value("closure"), args)
    if changed:
        group.review(
            call,
            use.name,
            why,
            f"`{changed}` is changed below, which the function saw before it ran at the step",
        )
    else:
        group.fixed(call, use.name, why)


def _changed_after(
    site: Site, call: cst.Call, function: cst.BaseExpression | None, args: list[cst.Arg]
) -> str:
    """What the function was given, or reads by itself, and what is changed behind the call until the step."""
    given = {edits.code_of(arg.value) for arg in args if isinstance(arg.value, _PLACES)}
    read = _read_late(site, function)
    here = site.positions.span(call)
    around = site.names.function_of(call)
    for node in (*site.nodes(cst.Assign), *site.nodes(cst.AugAssign), *site.nodes(cst.Call)):
        if site.positions.span(node) <= here or site.names.function_of(node) is not around:
            continue
        for code in sorted(_changed_in_place(node) & (given | read) | _rebound(node) & read):
            if not _steps_between(site, call, node):
                return code
    return ""


_PLACES = (cst.Attribute, cst.Name, cst.Subscript)
# Methods that change what they are called on, beside those of tensors that end in an underscore.
_CHANGING = frozenset({"add", "append", "clear", "extend", "insert", "pop", "remove", "reset", "update"})


def _read_late(site: Site, function: cst.BaseExpression | None) -> set[str]:
    """What a lambda, or a function inside this one, reads when it runs and not when it is added."""
    body: cst.CSTNode | None = function.body if isinstance(function, cst.Lambda) else None
    own = site.names.scope_made_by(function) if isinstance(function, cst.Lambda) else None
    if isinstance(function, cst.Name):
        for binding in site.names.bindings_at(function):
            if isinstance(binding.node, cst.FunctionDef) and site.names.function_of(binding.node) is not None:
                body, own = binding.node.body, site.names.scope_made_by(binding.node)
    found: set[str] = set()
    todo = [] if body is None else [body]
    while todo:
        node = todo.pop()
        if isinstance(node, cst.Name):
            if any(binding.scope is not own for binding in site.names.bindings_at(node)):
                found.add(node.value)
        elif isinstance(node, cst.Attribute):
            found.add(edits.code_of(node))
            todo.append(node.value)
        else:
            todo.extend(node.children)
    return found


def _changed_in_place(node: cst.CSTNode) -> set[str]:
    """What a call or an assignment changes without giving it another value."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        name = node.func.attr.value
        changes = name in _CHANGING or (name.endswith("_") and not name.endswith("__"))
        return {edits.code_of(node.func.value)} if changes else set()
    if isinstance(node, cst.AugAssign):
        # A number that is counted on was handed over as it stood.
        return set() if edits.is_literal(node.value) else {edits.code_of(node.target)}
    targets = [each.target for each in node.targets] if isinstance(node, cst.Assign) else []
    return {edits.code_of(each.value) for each in targets if isinstance(each, cst.Subscript)}


def _rebound(node: cst.CSTNode) -> set[str]:
    """The names that an assignment gives another value."""
    if isinstance(node, cst.AugAssign):
        return {edits.code_of(node.target)}
    targets = [each.target for each in node.targets] if isinstance(node, cst.Assign) else []
    return {edits.code_of(each) for each in targets}


def _steps_between(site: Site, call: cst.Call, change: cst.CSTNode) -> bool:
    """Whether a step of the lazy graph certainly stood between a closure and a change, and ran it."""
    blocks = {id(site.parent(each)) for each in (change, *site.ancestors(change))}
    for use in site.uses:
        if use.claim in _STEPS and use.call is not None:
            line = site.statement(use.call)
            between = site.positions.span(call) < site.positions.span(line) < site.positions.span(change)
            if between and id(site.parent(line)) in blocks:
                return True
    return False


_STEPS = frozenset({"torch_xla.core.xla_model.mark_step", "torch_xla.sync"})
