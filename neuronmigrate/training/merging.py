"""Training arguments that are made only to be handed on by `to_dict()`: their fields go where they are used.

`NeuronSFTConfig(max_length=1024, **training_args.to_dict())` was how Optimum Neuron's examples made a
configuration of arguments that also gave `trn_config`. Natively nothing else reads those arguments, so one
constructor is enough.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.loads.arguments import Load, means_the_same, only_binding
from neuronmigrate.site import Site
from neuronmigrate.training.arguments import old_defaults
from neuronmigrate.training.kinds import ARGUMENTS
from neuronmigrate.training.parallel import CONFIG_FIELDS
from neuronmigrate.training.unit import Source, Unit


def merged(unit: Unit, load: Load) -> list[cst.Arg] | None:
    """The arguments of a configuration with the fields of those it takes over, which are removed.

    None where those are read elsewhere, or their fields mean something else here.
    """
    site = unit.site
    taken = [(arg, sources) for arg, sources in unit.taken_over(load.call).items()]
    if len(taken) != 1 or len(taken[0][1]) != 1:
        return None
    spread, (source,) = taken[0]
    inner = None if source.call is None else unit.read.get(source.call)
    if inner is None or inner.refused or source.derived:
        return None
    going = [_assignment(site, source), *_dictionary(site, spread)]
    if None in going or not _only_handed_on(site, source, spread):
        return None
    if not all(_means_the_same(site, arg, load.call) for arg in inner.args):
        return None
    args = [arg for arg in load.args if not arg.star]
    given = {arg.keyword.value for arg in args if arg.keyword is not None}
    for arg in inner.args:
        name = "output_dir" if arg.keyword is None else arg.keyword.value
        if name in given:
            return None
        args.append(arg.with_changes(keyword=cst.Name(name), equal=edits.keyword(name, arg.value).equal))
        given.add(name)
    kind = ARGUMENTS[load.use.claim]
    args += [
        edits.keyword(default.name, cst.parse_expression(code))
        for default, code in old_defaults(unit, kind)
        if default.name not in given
    ]
    for assign in going:
        if assign is not None:
            unit.group.replace_statement(assign)
    site.keywords += [(load.native, name) for name in given]
    for answer in unit.group.answers:
        if answer.node is source.call:
            answer.why = f"its fields stand in {load.native.rpartition('.')[2]}, as nothing else reads them"
    return args


def _assignment(site: Site, source: Source) -> cst.Assign | None:
    """The statement that gives arguments their only name."""
    assign = site.parent(source.call) if source.call is not None else None
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return None
    target = assign.targets[0].target
    if not isinstance(target, cst.Name) or target.value in site.exported:
        return None
    binding = site.names.bound_by(target)[0]
    alone = len(binding.scope.bindings.get(target.value, ())) == 1
    inside = binding.scope is not site.names.module_scope
    return (
        assign if alone and (inside or not site.project.imported_elsewhere(site.path, target.value)) else None
    )


def _dictionary(site: Site, spread: cst.Arg) -> list[cst.Assign | None]:
    """The statement that gives the dictionary a name, if it has one; None for one that is read twice."""
    if not isinstance(spread.value, cst.Name):
        return []
    binding = only_binding(site, spread.value)
    assign = site.parent(binding.value) if binding is not None and binding.value is not None else None
    if binding is None or list(site.names.references(binding)) != [spread.value]:
        return [None]
    return [assign if isinstance(assign, cst.Assign) else None]


def _only_handed_on(site: Site, source: Source, spread: cst.Arg) -> bool:
    """Whether arguments are read for this dictionary, and for settings that go, alone."""
    assign = _assignment(site, source)
    if assign is None:
        return False
    dictionaries = 0
    for binding in site.names.bound_by(assign.targets[0].target):
        for reader in site.names.references(binding):
            parent = site.parent(reader)
            if not isinstance(parent, cst.Attribute) or parent.value is not reader:
                return False
            if parent.attr.value == "to_dict":
                dictionaries += 1
            elif parent.attr.value not in CONFIG_FIELDS:
                return False
    return dictionaries == 1


def _means_the_same(site: Site, arg: cst.Arg, at: cst.CSTNode) -> bool:
    """Whether a field may be worked out where the configuration is made."""
    value = arg.value
    if edits.is_literal(value):
        return True
    if isinstance(value, (cst.List, cst.Tuple)):
        return all(edits.is_literal(each.value) for each in value.elements)
    return value in site.positions and edits.is_pure(value) and means_the_same(site, value, at)
