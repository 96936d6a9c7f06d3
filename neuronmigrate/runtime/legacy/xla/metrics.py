"""`torch_xla.debug.metrics`: nothing is compiled, so there is nothing to report but steps."""

from __future__ import annotations

from collections.abc import Sequence

from neuronmigrate.runtime.legacy.session import current

__all__ = [
    "clear_all",
    "clear_counters",
    "clear_metrics",
    "counter_names",
    "counter_value",
    "metric_data",
    "metric_names",
    "metrics_report",
    "short_metrics_report",
]


def counter_names() -> list[str]:
    """The one counter there is."""
    return ["MarkStep"]


def counter_value(name: str) -> int | None:
    """Steps so far; None for any other counter."""
    return sum(current().steps.values()) if name == "MarkStep" else None


def metric_names() -> list[str]:
    """None: nothing is timed."""
    return []


def metric_data(name: str) -> None:
    """None: nothing is timed."""


def metrics_report() -> str:
    """The counter, in the form of the original."""
    return f"Counter: MarkStep\n  Value: {counter_value('MarkStep')}\n"


def short_metrics_report(
    counter_names: Sequence[str] | None = None, metric_names: Sequence[str] | None = None
) -> str:
    """The same."""
    return metrics_report()


def clear_counters() -> None:
    """Nothing: the log of steps is kept for the end of the run."""


clear_metrics = clear_all = clear_counters
