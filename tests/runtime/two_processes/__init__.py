"""Programmes for two processes: see tests/runtime/programmes/__init__.py."""
