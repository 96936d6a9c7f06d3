"""The emulated device for the tests of this folder, which run after all others: it cannot be taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronmigrate.runtime import Activation, activate

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of this folder last."""
    items.sort(key=lambda item: HERE in item.path.parents)


@pytest.fixture(scope="session")
def neuron() -> Activation:
    """The emulated device, in this process from here on."""
    return activate(quiet=True)
