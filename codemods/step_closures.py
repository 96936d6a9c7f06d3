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
    changed = _changed_after(site, call, args)
    if changed:
        group.review(
            call,
            use.name,
            why,
            f"`{changed}` is changed below, which the function saw before it ran at the step",
        )
    else:
        group.fixed(call, use.name, why)


def _changed_after(site: Site, call: cst.Call, args: list[cst.Arg]) -> str:
    """An argument that is changed in place behind the call, in the same function."""
    function = site.names.function_of(call)
    here = site.positions.span(call)
    for arg in args:
        if not isinstance(arg.value, cst.Name):
            continue
        for binding in site.names.bindings_at(arg.value):
            for reader in site.names.references(binding):
                parent = site.parent(reader)
                around = site.parent(parent) if parent is not None else None
                in_place = (
                    isinstance(parent, cst.Attribute)
                    and isinstance(around, cst.Call)
                    and around.func is parent
                    and parent.attr.value.endswith("_")
                ) or (isinstance(parent, cst.AugAssign) and parent.target is reader)
                if (
                    in_place
                    and site.names.function_of(reader) is function
                    and site.positions.span(reader) > here
                ):
                    return arg.value.value
    return ""
