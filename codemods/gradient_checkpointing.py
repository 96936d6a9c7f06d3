"""Gradient checkpointing of torch_xla: `torch_xla.utils.checkpoint.checkpoint(fn, *args)`.

The native function is `torch.utils.checkpoint.checkpoint`. It wants to be told `use_reentrant`, which was
True unless something else was said, so that is written out. An assignment that put the old function in
the place of torch's own goes. A name that one branch or another gives the old or the native function is
given torch's own in both branches; where a branch imports it, or a third gives something else, it is marked.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

OLD = "torch_xla.utils.checkpoint.checkpoint"
NEW = "torch.utils.checkpoint.checkpoint"
codemod.twins[OLD] = NEW


@codemod.uses([OLD])
def decide(site: Site, use: Use) -> None:
    """Call torch's own function, with the old default."""
    assign = site.parent(use.chain)
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        target = assign.targets[0].target
        if isinstance(target, cst.Attribute) and site.name_of(target) == NEW:
            group = site.group(use)
            group.replace_statement(assign)
            group.fixed(use.chain, use.name, "torch's own function stays what it is")
            return
        if isinstance(target, cst.Name) and _is_chosen(site, target):
            group = site.group(use)
            group.rename(use, NEW, alias=False)
            group.fixed(use.chain, use.name, "torch's own function, as in the other branch")
            return
    call = use.call
    if call is None or use.method:
        todo = f"pass `functools.partial({NEW}, use_reentrant=True)`"
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    if use.twin and not (use.certain and use.alias):
        why = "a branch imports it" if use.certain else "another function may be called here"
        todo = f"call `{NEW}` where the old one was meant, with `use_reentrant=True`"
        site.mark(call, use.name, why, todo)
        return
    group = site.group(use)
    args = list(call.args)
    hidden = any(arg.star == "**" for arg in args)
    if not hidden and not any(
        arg.keyword is not None and arg.keyword.value == "use_reentrant" for arg in args
    ):
        args.append(edits.keyword("use_reentrant", cst.Name("True")))
        site.keywords.append((NEW, "use_reentrant"))
    func = call.func if use.twin else group.ref(NEW)
    group.replace(call, edits.with_arguments(call.with_changes(func=func), args))
    why = "torch's own function, with the old default written out"
    if hidden:
        group.review(call, use.name, why, "pass `use_reentrant=True` unless the mapping says something else")
    else:
        group.fixed(call, use.name, why)


def _is_chosen(site: Site, target: cst.Name) -> bool:
    """Whether another branch gives a name torch's own function."""
    readers = site.names.references(site.names.bound_by(target)[0])
    return bool(readers) and all(NEW in site.names.names_of(each).names for each in readers)
