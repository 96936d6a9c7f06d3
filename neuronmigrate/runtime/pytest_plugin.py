"""The emulated device for a project's own tests: `pytest --neuron-emulate`, or `neuron_emulate = true`.

Without the option, and without the ini setting, the plugin does nothing and imports nothing.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options and their twins in the ini file."""
    group = parser.getgroup("neuronmigrate")
    group.addoption(
        "--neuron-emulate",
        action="store_true",
        help="run on the real neuron device where there is one, else on an emulated one (CPU)",
    )
    group.addoption(
        "--neuron-strict", action="store_true", help="as --neuron-emulate, and refuse what hardware refuses"
    )
    parser.addini("neuron_emulate", "as --neuron-emulate", type="bool", default=False)
    parser.addini("neuron_strict", "as --neuron-strict", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Activate the device before a test module is imported; pytest.UsageError if it cannot be."""
    strict = bool(config.getoption("--neuron-strict") or config.getini("neuron_strict"))
    if not (strict or config.getoption("--neuron-emulate") or config.getini("neuron_emulate")):
        return
    from neuronmigrate.runtime import activate

    try:
        config.stash[SELECTION] = activate(strict=strict, quiet=True).selection.line()
    except RuntimeError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_report_header(config: pytest.Config) -> str | None:
    """The line that says what runs."""
    return config.stash.get(SELECTION, None)


SELECTION = pytest.StashKey[str]()
