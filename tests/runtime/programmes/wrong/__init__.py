"""Programmes: see tests/runtime/programmes/__init__.py."""
