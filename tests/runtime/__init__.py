"""Tests of the runtime; they share one emulated device, as a process has no second one."""

from __future__ import annotations
