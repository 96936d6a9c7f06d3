"""Runs scripts: migrated ones on a Neuron device or its emulation, legacy ones on stand-ins."""
