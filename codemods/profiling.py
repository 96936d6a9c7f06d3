"""Metrics and named regions of torch_xla: `met.metrics_report()` and `xp.Trace("name")`.

The report counted the graphs of the lazy device, which are gone: a statement that only prints or logs it
goes. A region is named with `torch.profiler.record_function`, in a `with` and above a function alike; a
`StepTrace` cut the graph as well, which nothing needs now. A server that somebody could have asked for a
trace goes, `start_trace` and `stop_trace` of one block become torch's profiler, and so does the context of
`torch_neuronx.experimental.profiler`. Everything else of the profiler is marked.
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


PROFILER = "torch_xla.debug.profiler"
SERVER, START, STOP = f"{PROFILER}.start_server", f"{PROFILER}.start_trace", f"{PROFILER}.stop_trace"
LEGACY = "torch_neuronx.experimental.profiler.profile"
# torch_neuronx/experimental/profiler/profile.py; where the result was put, the other options were the tool's.
LEGACY_FOLDERS = ("neuron_tensorboard_plugin_dir", "working_directory")
VIEW = (
    "for the graphs of the device give it `experimental_config=NeuronConfig(...)` of "
    "torch_neuronx.profiling, and look at it with Neuron Explorer"
)


@codemod.uses([SERVER])
def decide_server(site: Site, use: Use) -> None:
    """Take a server out that nobody can ask any more."""
    call = use.call
    parent = site.parent(call) if call is not None else None
    small: cst.BaseSmallStatement | None = parent if isinstance(parent, cst.Expr) else None
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
        target = parent.targets[0].target
        kept = isinstance(target, cst.Name) and not [
            reader for binding in site.names.bound_by(target) for reader in site.names.references(binding)
        ]
        small = parent if kept else None
    if call is None or small is None or not all(is_harmless(arg.value, site.name_of) for arg in call.args):
        todo = "record with `torch.profiler.profile` around the code to be seen"
        site.mark(use.whole, use.name, "the server is used for more than to be there", todo)
        return
    group = site.group(use)
    group.replace_statement(small)
    forget(site, small)
    todo = "to record, put `torch.profiler.profile()` around the code to be seen"
    group.review(call, use.name, "there is no server to ask for a trace", todo)


@codemod.uses([START, STOP])
def decide_trace(site: Site, use: Use) -> None:
    """Let torch's profiler start and stop where the old one did."""
    if use.claim == STOP:
        if use not in site.settled:
            site.mark(
                use.whole, use.name, "where it was started cannot be seen from here", "call `stop()` of it"
            )
        return
    call, stop = use.call, _stop_of(site, use)
    alone = site.alone(call) if call is not None else None
    folder = edits.arguments(call, ("log_dir",)).value("log_dir") if call is not None else None
    if call is None or stop is None or alone is None or folder is None:
        todo = "record with `torch.profiler.profile`, whose `start()` and `stop()` pair the same way"
        site.mark(use.whole, use.name, "where it stops cannot be seen from here", todo)
        return
    group = site.group(use)
    name = group.fresh("profiler")
    handler = group.expression("torch.profiler.tensorboard_trace_handler({folder})", folder=folder)
    started = group.statements(
        "{name} = torch.profiler.profile(on_trace_ready={handler})\n{name}.start()\n",
        name=name,
        handler=handler,
    )
    group.replace_statement(alone, started)
    ended = site.alone(stop.whole)
    assert ended is not None, "it was looked for as a statement of its own"
    group.replace_statement(ended, group.statements("{name}.stop()\n", name=cst.Name(name.value)))
    site.settled.add(stop)
    group.review(call, use.name, "torch's profiler records from here", VIEW)
    group.fixed(stop.whole, stop.name, "torch's profiler stops here")


def _stop_of(site: Site, start: Use) -> Use | None:
    """The one statement that stops what another one of the same block, or around it, starts."""
    around = site.suite(start.whole)
    stops = [each for each in site.uses if each.claim == STOP and each.call is not None and not each.method]
    starts = [each for each in site.uses if each.claim == START]
    if len(stops) != 1 or len(starts) != 1 or site.alone(stops[0].whole) is None:
        return None
    inside = around is not None and around in site.ancestors(stops[0].whole)
    later = site.names.order_of(stops[0].whole) > site.names.order_of(start.whole)
    same = site.names.function_of(stops[0].whole) is site.names.function_of(start.whole)
    return stops[0] if inside and later and same else None


@codemod.uses([LEGACY])
def decide_context(site: Site, use: Use) -> None:
    """Record with torch's profiler instead."""
    call = use.call
    bound = edits.arguments(call, ("port", "ms_duration")) if call is not None else edits.Arguments()
    if call is None or bound.spread or not isinstance(site.parent(call), cst.WithItem):
        todo = "use `with torch.profiler.profile():` around the code to be seen"
        site.mark(use.whole, use.name, "more than a `with` whose options can be seen", todo)
        return
    folder = next((bound.by_name[name] for name in LEGACY_FOLDERS if name in bound.by_name), None)
    args = []
    group = site.group(use)
    if folder is not None:
        handler = group.expression("torch.profiler.tensorboard_trace_handler({folder})", folder=folder.value)
        args.append(edits.keyword("on_trace_ready", handler))
    for arg in call.args:
        if arg is not folder:
            forget(site, arg.value)
    func = group.ref("torch.profiler.profile")
    group.replace(call, edits.with_arguments(call.with_changes(func=func), args))
    group.review(call, use.name, "torch's profiler records the block", VIEW)


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
