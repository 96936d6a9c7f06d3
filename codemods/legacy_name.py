"""Names of Optimum Neuron, torch_xla, torch-neuronx and NxD that no other codemod rewrites.

Each is marked with the way out that the catalogue of legacy names knows for it, so that nothing
legacy is left without a word. Names that the catalogue only knows by their module, such as those of the
kernel language, are marked once, at the import they come through, with the number of their uses. Code
for Inf1 is left alone with a note: that chip has no native backend.
`neuronmigrate explain NAME` says more about one of them.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import catalogue
from neuronmigrate.codemod import Codemod
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

INF1 = ("torch_neuron.", "torch.neuron.")


@codemod.rest
def decide(site: Site, use: Use) -> None:
    """Mark a use with the advice of the catalogue."""
    entry = catalogue.nearest(use.name)
    what = _short(use.name, entry)
    advice = entry.advice if entry is not None else "find out what it was for"
    if use.name.startswith(INF1):
        site.note(use.whole, use.name, f"Inf1 has no native backend, so `{what}` is left alone")
        return
    if use.ambiguous:
        site.mark(use.whole, use.name, f"`{use.binding.name}` stands for {use.ambiguous} here", advice)
    elif use.stored:
        why = f"`{what}` of a legacy module is replaced here, and the native libraries do not call it"
        site.mark(use.whole, use.name, why, advice)
    elif entry is not None and not _is_exact(use) and isinstance(use.binding.node, cst.ImportAlias):
        _mark_import(site, use, entry)
    else:
        reason = (
            entry.reason if entry is not None and entry.reason else "it is not part of a native installation"
        )
        site.mark(use.whole, use.name, f"`{what}`: {reason}", advice)


def _short(name: str, entry: catalogue.Entry | None) -> str:
    """The last part of a name, with its class when it is a method."""
    last = name.rpartition(".")[2]
    if entry is None or entry.exact or entry.kind == "module":
        return last
    owner = entry.name.rpartition(".")[2]
    return f"{owner}{name.removeprefix(entry.name)}"


def _mark_import(site: Site, use: Use, entry: catalogue.Entry) -> None:
    """Mark the import, once, for all uses of what the catalogue knows by its module alone."""
    alias = use.binding.node
    marked = site.notes.setdefault(codemod.name, set())
    if alias in marked or alias in site.kept_imports:
        return  # it is marked already
    marked.add(alias)
    count = sum(other.binding.node is alias and not _is_exact(other) for other in site.uses)
    why = f"{entry.reason} (used {'once' if count == 1 else f'{count} times'} below)"
    site.mark(alias, entry.name, why, entry.advice)


def _is_exact(use: Use) -> bool:
    """Whether the catalogue knows the name, or the class it is a method of."""
    entry = catalogue.nearest(use.name)
    # The kernel language moved as a whole: its names are used as before.
    return entry is None or (
        (entry.exact or entry.kind != "module") and not use.name.startswith("neuronxcc.nki.")
    )
