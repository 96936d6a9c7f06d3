"""Runs migrated programs: on the real neuron device where there is one, else on an emulated one.

Importing this package imports no torch and changes nothing; `activate()` does.
"""

from __future__ import annotations

from neuronmigrate.runtime.activation import Activation, activate
from neuronmigrate.runtime.select import Backend, Selection, UnsupportedTorch, select

__all__ = ["Activation", "Backend", "Selection", "UnsupportedTorch", "activate", "select"]
