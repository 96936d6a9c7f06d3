"""Loads of checkpoints through legacy classes, and what becomes of the loaded objects."""

from __future__ import annotations
