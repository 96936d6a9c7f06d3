"""A legacy session for tests in this process: no import hook, so that nothing else is touched."""

from __future__ import annotations

import pytest

from neuronmigrate.runtime.legacy import session
from neuronmigrate.runtime.legacy.releases import Release
from neuronmigrate.runtime.legacy.session import Session


def begin(monkeypatch: pytest.MonkeyPatch, release: str = "0.4.5") -> Session:
    """Let stand-ins find a session of this release until the test is over."""
    made = Session(Release(release))
    monkeypatch.setattr(session, "_current", made)
    return made
