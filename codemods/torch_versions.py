"""Questions about the release of torch around legacy code: `version.parse(torch.__version__) >= ...`.

Scripts that ran on several releases of the legacy stack chose a module, or the way to start a process group,
by them. The native device begins at torch 2.13, so what asks for an older release is answered: the branch
that stays takes the place of the question.

Left alone are tests that decide about no legacy code, and releases that a native installation may have.
"""

from __future__ import annotations

import re

import libcst as cst

from neuronmigrate import catalogue, edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.processes import XLA_BACKENDS
from neuronmigrate.site import Site

codemod = Codemod(__name__)

RELEASE = "torch.__version__"
OLDEST = (2, 13)
"""docs: installation of TorchNeuron, the oldest release that it goes with."""
PARSES = frozenset({"packaging.version.parse", "packaging.version.Version"})
PARSES |= {"distutils.version.LooseVersion", "pkg_resources.parse_version"}
ABOVE = (cst.GreaterThan, cst.GreaterThanEqual, cst.NotEqual)
BELOW = (cst.Equal, cst.LessThan, cst.LessThanEqual)
WHY = "the native device begins at torch 2.13"


@codemod.knows
def know(site: Site) -> None:
    """Answer what asks for releases that came before."""
    if "__version__" not in site.positions.code:
        return
    for asked in site.nodes(cst.Comparison):
        answer = _of_comparison(site, asked)
        if answer is not None and _is_about_legacy(site, asked):
            site.know(asked, answer, RELEASE, WHY)
    for call in site.names.calls:
        answer = _of_start(site, call)
        if answer is not None and _is_about_legacy(site, call):
            site.know(call, answer, RELEASE, WHY)


def _of_comparison(site: Site, asked: cst.Comparison) -> bool | None:
    """`torch.__version__ >= "2.0"`, parsed or as text."""
    if len(asked.comparisons) != 1 or not _is_release(site, asked.left):
        return None
    sign = asked.comparisons[0].operator
    other = _parsed(site, asked.comparisons[0].comparator)
    if other is None or other >= OLDEST or not isinstance(sign, (*ABOVE, *BELOW)):
        return None
    return isinstance(sign, ABOVE)


def _of_start(site: Site, call: cst.Call) -> bool | None:
    """`torch.__version__.startswith("1.13")`."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "startswith" or len(call.args) != 1:
        return None
    start = call.args[0].value
    if site.name_of(func.value) != RELEASE or not isinstance(start, cst.SimpleString):
        return None
    text = str(start.evaluated_value)
    if text in ("2", "2."):
        return True
    older = _parsed(site, edits.string(text.rstrip(".")))
    # "2.1" may be the beginning of 2.13.
    begins = "2.13".startswith(text)
    return False if older is not None and older < OLDEST and not begins else None


def _is_release(site: Site, node: cst.BaseExpression) -> bool:
    if isinstance(node, cst.Call) and len(node.args) == 1 and site.name_of(node.func) in PARSES:
        node = node.args[0].value
    return site.name_of(node) == RELEASE


def _parsed(site: Site, node: cst.BaseExpression) -> tuple[int, ...] | None:
    """The release that a string names, parsed or not."""
    if isinstance(node, cst.Call) and len(node.args) == 1 and site.name_of(node.func) in PARSES:
        node = node.args[0].value
    text = str(node.evaluated_value) if isinstance(node, cst.SimpleString) else ""
    return tuple(map(int, text.split("."))) if re.fullmatch(r"\d+(\.\d+)*", text) else None


def _is_about_legacy(site: Site, asked: cst.BaseExpression) -> bool:
    """Whether a test decides about legacy code."""
    owner = next((each for each in site.ancestors(asked) if isinstance(each, (cst.If, cst.IfExp))), None)
    if owner is None or owner.test not in (asked, *site.ancestors(asked)):
        return False
    legacy: list[cst.CSTNode] = [use.node for use in site.uses]
    legacy += [each.node for each in site.names.imports if catalogue.is_legacy(each.target)]
    legacy += [each for each in site.nodes(cst.SimpleString) if each.evaluated_value in XLA_BACKENDS]
    return any(owner in site.ancestors(each) for each in legacy)
