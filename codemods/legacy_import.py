"""Imports of Optimum Neuron, torch_xla and the legacy Neuron packages.

An import goes with the last use of it, and takes a `try` that only guarded it along. One that nothing
uses goes as well: left over, `import torch_xla` makes Accelerate and Transformers choose XLA. An import
that others may reach (re-exported, listed in `__all__`, in an `__init__.py`, imported from here by
another module of the project), that is there for what it registers, or that a string leans on, is
marked. `import torch_neuronx` stays, since the native package has the same name, and so do imports of the
Inf1 package.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import catalogue, edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.imports import gives_up, guarded_try, imported_name
from neuronmigrate.names import Binding
from neuronmigrate.processes import REGISTERS, xla_starts
from neuronmigrate.site import Site

codemod = Codemod(__name__)


@codemod.once
def decide(site: Site) -> None:
    """Release the imports that may go, and mark those that may not."""
    starts = xla_starts(site)
    for binding in site.names.imports:
        alias = binding.node
        if not isinstance(alias, cst.ImportAlias) or alias in site.released:
            continue
        name = imported_name(binding)
        if starts and name in REGISTERS and (binding.dotted or not site.names.references(binding)):
            continue  # it goes with the group that it registers
        if name == "torch_neuronx" or name.partition(".")[0] == "torch_neuron":
            _note(site, alias, binding, name)
            continue
        if not catalogue.is_legacy(name):
            continue
        reason = _stays(site, alias, binding, name)
        if reason:
            site.kept_imports.add(alias)
            site.mark(alias, name, reason, _advice(name))
        elif not site.names.references(binding) or binding.dotted:
            site.released.add(alias)
    for statement, module in site.names.stars:
        if catalogue.is_legacy(module):
            site.mark(
                statement,
                module,
                "a star import hides which legacy names are used here",
                "import the names one by one, then run neuronmigrate again",
            )


def _note(site: Site, alias: cst.ImportAlias, binding: Binding, name: str) -> None:
    """Say aloud that an import stays."""
    site.kept_imports.add(alias)
    if name != "torch_neuronx":
        site.note(alias, name, "Inf1 has no native backend, so its package stays imported")
    elif not site.names.references(binding):
        site.note(alias, name, "the native package has the same name, so the import stays")


def _stays(site: Site, alias: cst.ImportAlias, binding: Binding, name: str) -> str:
    """Why an import may not go even if nothing in this file uses it."""
    if name in REGISTERS:
        return REGISTERS[name]
    if binding.name in site.exported:
        return f"`{binding.name}` is listed in `__all__`, so others may import it from here"
    if site.path.rpartition("/")[2] == "__init__.py" and binding.scope is site.names.module_scope:
        return "an `__init__.py` hands its imports on to others"
    if alias.asname is not None and edits.code_of(alias.asname.name) == edits.code_of(alias.name):
        return f"`{binding.name} as {binding.name}` hands the name on to others"
    if binding.scope is site.names.module_scope and site.project.imported_elsewhere(site.path, binding.name):
        return f"another module imports `{binding.name}` from here"
    root = name.partition(".")[0]
    # What is looked up by its dotted name is found through an `import`, not through `from ... import`.
    if root in site.blocked and not isinstance(site.parent(alias), cst.ImportFrom):
        return f"a string in this file leans on `{site.blocked[root]}`"
    guard = next((around for around in site.ancestors(alias) if isinstance(around, cst.Try)), None)
    if guard is not None and _still_decides(site, guard, alias):
        return ""
    if guard is not None and not guarded_try(guard) and not gives_up(site.names, guard):
        return "a `try` around it decides by whether it can be imported"
    return ""


def _still_decides(site: Site, guard: cst.Try, alias: cst.ImportAlias) -> bool:
    """Whether the native package is imported by the same `try`, and so decides in the place of torch_xla."""
    inside = {
        imported_name(each): each.node
        for each in site.names.imports
        if any(around is guard.body for around in site.ancestors(each.node))
    }
    return inside.get("torch_neuronx") is not None and alias in inside.values()


def _advice(name: str) -> str:
    entry = catalogue.lookup(name) or catalogue.nearest(name)
    return entry.advice if entry is not None else "remove it once nothing leans on it"
