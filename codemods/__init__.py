"""The codemods: one file, one subject, named for what it finds.

A codemod is a module with a docstring and a `codemod = Codemod(__name__)`; neuronmigrate.registry
finds it by its file, nothing imports it by name. `docs/writing-a-codemod.md` walks through one.
"""
