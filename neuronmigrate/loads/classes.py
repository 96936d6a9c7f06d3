"""Classes that are handed on as values before something is loaded with them: from a table, by a function."""

from __future__ import annotations

from collections.abc import Collection

import libcst as cst

from neuronmigrate.flow import UseKind
from neuronmigrate.site import Site, Use

_SILENT = (UseKind.BOUND, UseKind.COMPARED, UseKind.DISCARDED, UseKind.ITERATED, UseKind.RETURNED)


def loads_through(
    site: Site, values: Collection[Use], makers: Collection[str]
) -> dict[cst.Call, tuple[Use, ...]]:
    """The loads that classes are handed on to, each with the classes that may be meant there.

    Left out are all loads that share a class with one that cannot be followed, or whose class may be
    another one, so that each class is either renamed where it stands or stays.
    """
    calls: dict[cst.Call, list[Use]] = {}
    lost: set[Use] = set()
    for use in values:
        found = site.flow.uses_of(use.chain)
        if found.lost:
            lost.add(use)
        for each in found.uses:
            attribute = site.parent(each.node)
            call = site.parent(attribute) if isinstance(attribute, cst.Attribute) else None
            if (
                isinstance(attribute, cst.Attribute)
                and attribute.attr.value in makers
                and isinstance(call, cst.Call)
                and call.func is attribute
            ):
                calls.setdefault(call, []).append(use)
            elif each.kind not in _SILENT:
                lost.add(use)
    for call, uses in calls.items():
        func = call.func
        assert isinstance(func, cst.Attribute)
        origins = site.flow.origin_of(func.value)
        if not origins.certain or {each.name for each in origins.producers} != {use.name for use in uses}:
            lost.update(uses)
    while True:
        shared = {use for uses in calls.values() if not lost.isdisjoint(uses) for use in uses} - lost
        if not shared:
            break
        lost |= shared
    return {call: tuple(dict.fromkeys(uses)) for call, uses in calls.items() if lost.isdisjoint(uses)}
