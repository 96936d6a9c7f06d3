"""Names of Optimum Neuron, torch_xla, torch-neuronx and NxD that no other codemod rewrites.

Each is marked with the way out that the catalogue of legacy names knows for it, so that nothing
legacy is left without a word. `neuronmigrate explain NAME` says more about one of them.
"""

from __future__ import annotations

from neuronmigrate import catalogue
from neuronmigrate.codemod import Codemod
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)


@codemod.rest
def decide(site: Site, use: Use) -> None:
    """Mark a use with the advice of the catalogue."""
    entry = catalogue.nearest(use.name)
    what = use.name.rpartition(".")[2]
    if use.ambiguous:
        why = f"`{use.binding.name}` stands for {use.ambiguous} here"
    elif use.stored:
        why = f"`{what}` of a legacy module is replaced here, and the native libraries do not call it"
    elif entry is not None and entry.reason:
        why = f"`{what}`: {entry.reason}"
    else:
        why = f"`{what}` is not part of a native installation"
    site.mark(use.whole, use.name, why, entry.advice if entry is not None else "find out what it was for")
