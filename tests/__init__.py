"""Tests; a package, so that `python -m tests.on_cpu` and plain `pytest` find the same modules."""

from __future__ import annotations
