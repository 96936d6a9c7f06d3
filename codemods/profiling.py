"""Metrics and named regions of torch_xla: `met.metrics_report()` and `xp.Trace("name")`.

The report counted the graphs of the lazy device, which are gone: a statement that only prints or logs it
goes. A region is named with `torch.profiler.record_function`, in a `with` and above a function alike; a
`StepTrace` cut the graph as well, which nothing needs now. Everything else of the profiler is marked.
"""

from __future__ import annotations

import libcst as cst

from neuronmigrate import edits
from neuronmigrate.codemod import Codemod
from neuronmigrate.effects import forget, is_harmless
from neuronmigrate.site import Site, Use

codemod = Codemod(__name__)

REPORTS = ("torch_xla.debug.metrics.metrics_report", "torch_xla.debug.metrics.short_metrics_report")
REGIONS = (
    "torch_xla.debug.profiler.StepTrace",
    "torch_xla.debug.profiler.Trace",
    "torch_xla.debug.profiler.trace_me",
)
PRINTERS = frozenset(
    {
        "builtins.print",
        "logging.debug",
        "logging.info",
        "neuronx_distributed.utils.master_print",
        "torch_xla.core.xla_model.master_print",
    }
)
REPORT_TODO = (
    "count with `torch.neuron.get_dynamo_metrics()`, and ask `torch_neuronx.get_fallback_ops()` which "
    "operations ran on the CPU"
)


@codemod.uses(REPORTS)
def decide_report(site: Site, use: Use) -> None:
    """Take a statement out that only shows the report."""
    shown = _shown(site, use)
    if shown is None:
        what = "the report is used for more than to be shown"
        site.mark(use.whole, use.name, what, REPORT_TODO)
        return
    group = site.group(use)
    group.replace_statement(shown)
    for each in site.uses:
        if shown in site.ancestors(each.node):
            site.settled.add(each)
    forget(site, shown)
    group.fixed(use.whole, use.name, "there are no lazy graphs to report on, and nothing else reads it")


def _shown(site: Site, use: Use) -> cst.Expr | None:
    """The statement that prints or logs the report, and nothing that acts."""
    call = use.call
    if call is None or use.method:
        return None
    alone = site.alone(call)
    if alone is not None:
        return alone
    outer: cst.Call | None = None
    for around in site.ancestors(call):
        if isinstance(around, cst.Call):
            outer = around
        if isinstance(around, (cst.BaseSmallStatement, cst.Lambda)):
            break
    if outer is None or site.alone(outer) is None or not _is_printer(site, outer):
        return None
    others = [arg.value for arg in outer.args if call is not arg.value]
    return site.alone(outer) if all(_only_formats(site, each, call) for each in others) else None


def _is_printer(site: Site, call: cst.Call) -> bool:
    if site.name_of(call.func) in PRINTERS:
        return True
    func = call.func
    return (
        isinstance(func, cst.Attribute)
        and func.attr.value in ("debug", "info", "warning")
        and edits.code_of(func.value).lower().endswith(("log", "logger", "logging"))
    )


def _only_formats(site: Site, value: cst.BaseExpression, report: cst.Call) -> bool:
    """Whether a value is made of text and the report alone."""
    if value is report:
        return True
    if isinstance(value, cst.FormattedString):
        parts = [each.expression for each in value.parts if isinstance(each, cst.FormattedStringExpression)]
        return all(each is report or is_harmless(each, site.name_of) for each in parts)
    return is_harmless(value, site.name_of)


@codemod.uses(REGIONS)
def decide_region(site: Site, use: Use) -> None:
    """Name the region for torch's profiler."""
    call = use.call
    name = edits.arguments(call, ("name",)).value("name") if call is not None else None
    if call is None or use.method or name is None or any(arg.star for arg in call.args):
        todo = "use `torch.profiler.record_function(name)`"
        site.mark(use.whole, use.name, "its name cannot be seen from here", todo)
        return
    rest = [arg for arg in call.args if arg.value is not name]
    if not all(is_harmless(arg.value, site.name_of) for arg in rest):
        todo = "run that first, then use `torch.profiler.record_function(name)`"
        site.mark(call, use.name, "what is worked out for its arguments may act", todo)
        return
    group = site.group(use)
    func = group.ref("torch.profiler.record_function")
    kept = next(arg for arg in call.args if arg.value is name)
    group.replace(call, edits.with_arguments(call.with_changes(func=func), [edits.positional(kept)]))
    for arg in rest:
        forget(site, arg)
    group.fixed(call, use.name, "torch's profiler shows the region under its name")
