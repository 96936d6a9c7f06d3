"""Tests of neuronmigrate.runtime."""
