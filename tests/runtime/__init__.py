"""Tests of `neuronmigrate.runtime`."""

from __future__ import annotations
