"""Rows that tests use to see imports and references settled, whatever the real codemods do."""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Call, Codemod, Drop, Manual, Rename
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

codemod.symbol(
    "neuronx_distributed.sample.Old",
    Rename("transformers.Trainer"),
    because="it has another name",
)
codemod.symbol(
    "neuronx_distributed.sample.OldArguments",
    Rename("transformers.TrainingArguments"),
    because="it has another name",
    todo="look at the defaults",
)
codemod.symbol(
    "neuronx_distributed.sample.count",
    Call("torch.accelerator.device_count()", args=("verbose",), dropped=("verbose",)),
    because="torch counts devices",
)
codemod.symbol(
    "neuronx_distributed.sample.double",
    Call("torch.mul({tensor}, 2)", args=("tensor",)),
    because="torch multiplies",
)
codemod.symbol(
    "neuronx_distributed.sample.flush",
    Drop(),
    because="nothing is pending",
)
codemod.symbol(
    "neuronx_distributed.sample.lost",
    Manual(),
    because="it has no counterpart",
    todo="write it by hand",
)


@codemod.uses(["neuronx_distributed.sample.region"])
def decide_region(site: Site, use: Use) -> None:
    """Take the block out of `with region(...)`."""
    around = next((each for each in site.ancestors(use.chain) if isinstance(each, cst.With)), None)
    if around is None or len(around.items) > 1:
        site.mark(use.whole, use.name, "it does not stand alone in a `with`", "take it out by hand")
        return
    group = site.group(use)
    group.unindent(around, around.body)
    group.fixed(use.whole, use.name, "the block runs as it is")


@codemod.uses(["neuronx_distributed.sample.broken"])
def decide_broken(site: Site, use: Use) -> None:
    """A codemod with a fault: it calls what nothing binds."""
    group = site.group(use)
    group.replace(use.whole, edits.expression("bound_by_nothing()"))
    group.fixed(use.whole, use.name, "it is claimed to be the same")
