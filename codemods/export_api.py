"""Exports by function, `optimum.exporters.neuron.main_export(...)` and what stands around it.

Nothing is compiled ahead of time for the native device, so a statement that only exports goes, with the
configurations and submodels that were made for it and nothing else. Whoever loaded its output loads the
original checkpoint, with the dtype that the export asked for. A program that runs `optimum-cli export neuron`
downloads the original into the folder that was exported to. An export whose result is read further, a
comparison that decides something, and configurations of own architectures are marked.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits, exports
from neuronmigrate.codemod import Codemod
from neuronmigrate.loads.arguments import Load, Table, constant, unread
from neuronmigrate.names import Binding
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

PACKAGE = "optimum.exporters.neuron."
ARGUMENTS = "optimum.neuron.utils."
"""Where the classes are that only group arguments of an export."""

# The functions, by the module that defines them; the package itself has them too (0.0.2 to 0.4.5).
FUNCTIONS = {
    "__main__": (
        "get_submodels_and_neuron_configs",
        "infer_shapes_of_diffusers",
        "infer_stable_diffusion_shapes_from_diffusers",
        "load_models_and_neuron_configs",
        "main_export",
        "normalize_diffusers_input_shapes",
        "normalize_input_shapes",
        "normalize_stable_diffusion_input_shapes",
    ),
    "convert": (
        "export",
        "export_models",
        "export_neuronx",
        "validate_model_outputs",
        "validate_models_outputs",
    ),
    "utils": (
        "build_stable_diffusion_components_mandatory_shapes",
        "get_diffusion_models_for_export",
        "get_stable_diffusion_models_for_export",
        "get_submodels_for_export_diffusion",
        "get_submodels_for_export_stable_diffusion",
        "replace_stable_diffusion_submodels",
    ),
}
NAMES = sorted(
    {
        f"{PACKAGE}{path}{name}"
        for module, names in FUNCTIONS.items()
        for name in names
        for path in ("", f"{module}.")
    }
    - {f"{PACKAGE}export_neuronx"}
)

# What is exported and where to, by function; the first parameters in their order (0.0.2 to 0.4.5).
EXPORTS = {
    "export": (("model_or_path", "model"), ("output",)),
    "export_models": ((), ("output_dir",)),
    "export_neuronx": (("model_or_path", "model"), ("output",)),
    "main_export": (("model_name_or_path",), ("output",)),
}
POSITIONS = {
    "export": ("model_or_path", "config", "output"),
    "export_models": ("models_and_neuron_configs",),
    "export_neuronx": ("model_or_path", "config", "output"),
    "main_export": ("model_name_or_path", "output"),
}


@codemod.on(cst.ConcatenatedString, cst.FormattedString, cst.List, cst.SimpleString)
def decide_command(
    site: Site, node: cst.ConcatenatedString | cst.FormattedString | cst.List | cst.SimpleString
) -> None:
    """Let a command that exports into a folder download the original into it."""
    export = exports.exported(site, node)
    if export is None:
        return
    group = site.group()
    group.replace(node, export.new)
    todo = "what the folder holds now is the original: it is as large as that, and nothing is compiled"
    if not export.known:
        todo += "; where it exported a folder, that holds the original already"
    group.review(node, export.found, "the original is downloaded into the folder that was exported to", todo)


@codemod.uses(NAMES)
def decide(site: Site, use: Use) -> None:
    """Decide on all exports of the file at once: they hand their results to each other."""
    going = _going(site)
    if not any(use in own for own in going.values()):
        return  # it is marked with the advice of the catalogue
    group = site.group(use)
    loads = {}
    for small, own in going.items():
        call = own[0].call
        assert call is not None, "only calls go"
        loads[small] = load = Load(own[0], call, "", Table())
        for arg in call.args:
            load.drop(arg.value)
        site.settled.update(own)
    site.notes.setdefault("removed", set()).update(going)
    for small, load in loads.items():
        group.replace_statement(small)
        told = [_told(site, load.call, load.use.name.rpartition(".")[2])]
        told += unread(site, group, load, list(loads.values()))
        todo = "; ".join(filter(None, dict.fromkeys(told)))
        why = "nothing is compiled ahead of time for the native device"
        if todo:
            group.review(load.call, load.use.name, why, todo)
        else:
            group.fixed(load.call, load.use.name, why)


def _going(site: Site) -> dict[cst.BaseSmallStatement, list[Use]]:
    """The statements that only serve an export, with the legacy names in them."""
    found: dict[cst.BaseSmallStatement, list[Use]] = {}
    for use in site.uses:
        small = _served(site, use)
        if small is not None and use not in site.settled:
            inside = [each for each in site.uses if small in site.ancestors(each.chain)]
            if all(each.name.startswith((PACKAGE, ARGUMENTS)) for each in inside):
                found[small] = [use, *(each for each in inside if each is not use)]
    while True:
        stays = [small for small in found if not _only_read_in(site, small, found)]
        if not stays:
            return found
        for small in stays:
            del found[small]


def _served(site: Site, use: Use) -> cst.BaseSmallStatement | None:
    """The statement that calls a function of the package alone, or gives its result a name."""
    if not use.name.startswith(PACKAGE) or use.call is None or use.ambiguous or not use.certain:
        return None
    parent = site.parent(use.call)
    if isinstance(parent, (cst.Expr, cst.Assign)):
        return parent
    return None


def _only_read_in(
    site: Site, small: cst.BaseSmallStatement, found: dict[cst.BaseSmallStatement, list[Use]]
) -> bool:
    """Whether what a statement binds is read in these statements alone."""
    if isinstance(small, cst.Expr):
        return True
    assert isinstance(small, cst.Assign)
    bound: list[Binding] = []
    for target in small.targets:
        parts = target.target.elements if isinstance(target.target, (cst.Tuple, cst.List)) else ()
        for part in [each.value for each in parts] or [target.target]:
            if not isinstance(part, cst.Name):
                return False
            bound += site.names.bound_by(part)
    for binding in bound:
        at_top = binding.scope is site.names.module_scope
        if at_top and site.project.imported_elsewhere(site.path, binding.name):
            return False
        readers = site.names.references(binding)
        if not all(any(each in found for each in site.ancestors(reader)) for reader in readers):
            return False
    return True


def _told(site: Site, call: cst.Call, name: str) -> str:
    """Which checkpoint takes the place of what was exported."""
    if name.startswith("validate_"):
        return "`neuronmigrate parity` compares a script's numbers before and after"
    if name not in EXPORTS:
        return ""
    models, outputs = EXPORTS[name]
    given = edits.arguments(call, POSITIONS[name])
    model = next(filter(None, map(given.value, models)), None)
    output = next(filter(None, map(given.value, outputs)), None)
    if output is None:
        return "nothing is written any more: load the original checkpoint"
    source = f"load `{edits.short(constant(site, model))}`" if model is not None else "load the original"
    return f"nothing is written to `{edits.short(output)}` any more: {source} where that was loaded"
