"""Work that the processes of a host do one after the other: `xmp.MpSerialExecutor()`.

The old class held a lock that processes of one `spawn` shared. Those of torchrun share none, so a class of
the same method lets the first process of each host go first and the others follow together: what it is used
for, as a rule, is a download that is there for the others then. Without a process group nobody waits.
"""

from __future__ import annotations

from neuronmigrate.codemod import Codemod
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

OLD = "torch_xla.distributed.xla_multiprocessing.MpSerialExecutor"
FIRST = '''\
class {name}:
    """Runs a function on the first process of each host, then on the others."""

    def run(self, function):
        waits = torch.distributed.is_initialized()
        first = int(os.environ.get("LOCAL_RANK", 0)) == 0
        if waits and not first:
            torch.distributed.barrier()
        result = function()
        if waits and first:
            torch.distributed.barrier()
        return result
'''
TODO = (
    "the others of a host run it at the same time: give each a file of its own where it writes; every "
    "process has to come here"
)


@codemod.uses([OLD])
def decide(site: Site, use: Use) -> None:
    """Put a class in its place that lets the first process of the host go first."""
    if use.call is None or use.method or use.call.args:
        todo = "let the first process of the host run it before the others, with `dist.barrier()` in between"
        site.mark(use.whole, use.name, "the class is passed on, or called with arguments", todo)
        return
    group = site.group(use)
    group.replace(use.chain, group.helper("FirstOfHost", FIRST))
    group.review(use.call, use.name, "a class lets the first process of each host run it first", TODO)
