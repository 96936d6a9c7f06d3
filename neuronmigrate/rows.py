"""What a row of a codemod decides about one use of its name."""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Call, Drop, Manual, Rename, Symbol
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.site import Group, Site, Use


def decide_row(site: Site, use: Use, row: Symbol) -> None:
    """Answer a use by its row; every way out reports something."""
    if use.stored:
        site.mark(use.chain, use.name, "the legacy name is assigned to here", row.todo or row.because)
    elif isinstance(row.action, Manual):
        site.mark(use.whole, use.name, row.because, row.todo)
    elif isinstance(row.action, Rename):
        group = site.group(use)
        group.rename(use, row.action.new)
        _report(group, use, row)
    elif use.method:
        site.mark(use.chain, use.name, f"`{use.method}` of it has no row", row.todo or row.because)
    elif use.call is None:
        site.mark(
            use.chain,
            use.name,
            "the legacy function is passed on, not called",
            row.todo or f"write what replaces a call of it: {row.because}",
        )
    elif isinstance(row.action, Drop):
        _drop(site, use, use.call, row)
    else:
        _call(site, use, use.call, row, row.action)


def _drop(site: Site, use: Use, call: cst.Call, row: Symbol) -> None:
    alone = site.alone(call)
    if alone is None:
        site.mark(call, use.name, "its result is used", row.todo or row.because)
        return
    if not all(is_harmless(arg.value, site.name_of) for arg in call.args):
        todo = "run that first, then drop the call"
        site.mark(call, use.name, "what is worked out for its arguments may act", todo)
        return
    group = site.group(use)
    group.replace_statement(alone)
    for arg in call.args:
        forget(site, arg)
    _report(group, use, row)


def _call(site: Site, use: Use, call: cst.Call, row: Symbol, action: Call) -> None:
    bound = edits.arguments(call, action.args)
    unknown = [name for name in bound.by_name if name not in action.args]
    if bound.spread or bound.extra or unknown:
        what = f"`{unknown[0]}=`" if unknown else "arguments that cannot be seen from here"
        site.mark(call, use.name, f"it is called with {what}", row.todo or row.because)
        return
    given = {name: arg.value for name, arg in bound.by_name.items()}
    holes = {name: value for name, value in given.items() if f"{{{name}}}" in action.template}
    for name, value in given.items():
        if name not in holes and name not in action.dropped:
            site.mark(call, use.name, f"its argument `{name}` has no counterpart", row.todo or row.because)
            return
        if name in action.dropped and not is_harmless(value, site.name_of):
            site.mark(call, use.name, f"its argument `{name}` would no longer run", row.todo or row.because)
            return
    if any(f"{{{name}}}" in action.template and name not in holes for name in action.args):
        site.mark(call, use.name, "an argument that the rewrite needs is not given", row.todo or row.because)
        return
    group = site.group(use)
    group.replace(call, group.expression(action.template, **holes))
    for name, value in given.items():
        if name not in holes:
            forget(site, value)
    _report(group, use, row)


def _report(group: Group, use: Use, row: Symbol) -> None:
    if row.todo:
        group.review(use.whole, use.name, row.because, row.todo, numerics=row.numerics)
    else:
        group.fixed(use.whole, use.name, row.because, numerics=row.numerics)
