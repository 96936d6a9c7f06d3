"""neuronmigrate: move a code base from Optimum Neuron and torch_xla to the native neuron device."""

__version__ = "0.1.0"
