"""neuronmigrate: move a code base from Optimum Neuron and torch_xla to the native neuron device."""

from __future__ import annotations

__version__ = "0.1.0"
