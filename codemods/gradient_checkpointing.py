"""Gradient checkpointing of torch_xla: `torch_xla.utils.checkpoint.checkpoint(fn, *args)`.

The native function is `torch.utils.checkpoint.checkpoint`. It wants to be told `use_reentrant`, which was
True unless something else was said, so that is written out. An assignment that put the old function in
the place of torch's own goes.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

OLD = "torch_xla.utils.checkpoint.checkpoint"
NEW = "torch.utils.checkpoint.checkpoint"


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
    call = use.call
    if call is None or use.method:
        todo = f"pass `functools.partial({NEW}, use_reentrant=True)`"
        site.mark(use.chain, use.name, "the function is passed on, not called", todo)
        return
    group = site.group(use)
    args = list(call.args)
    hidden = any(arg.star == "**" for arg in args)
    if not hidden and not any(
        arg.keyword is not None and arg.keyword.value == "use_reentrant" for arg in args
    ):
        args.append(edits.keyword("use_reentrant", cst.Name("True")))
        site.keywords.append((NEW, "use_reentrant"))
    group.replace(call, edits.with_arguments(call.with_changes(func=group.ref(NEW)), args))
    why = "torch's own function, with the old default written out"
    if hidden:
        group.review(call, use.name, why, "pass `use_reentrant=True` unless the mapping says something else")
    else:
        group.fixed(call, use.name, why)
