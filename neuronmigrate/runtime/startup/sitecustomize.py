"""Imported by Python as it starts a process of `neuronmigrate run`; nothing else may import it.

It stands alone in its folder, which stands first in PYTHONPATH. It takes that folder off the path again, lets
the environment's own sitecustomize act, and hands over to neuronmigrate.runtime.session.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys


def _act() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    own = importlib.machinery.PathFinder.find_spec("sitecustomize")
    if own is not None and own.loader is not None:
        module = importlib.util.module_from_spec(own)
        sys.modules["sitecustomize"] = module
        own.loader.exec_module(module)
    if "NEURONMIGRATE_RUN" not in os.environ or sys.version_info < (3, 10):
        return  # another Python that the program started
    if importlib.machinery.PathFinder.find_spec("neuronmigrate") is None:
        # Run from a checkout. The folder above is not put on the path: it has more in it than this package.
        home = os.path.dirname(os.path.dirname(here))
        spec = importlib.util.spec_from_file_location(
            "neuronmigrate", os.path.join(home, "__init__.py"), submodule_search_locations=[home]
        )
        if spec is None or spec.loader is None:
            return
        package = importlib.util.module_from_spec(spec)
        sys.modules["neuronmigrate"] = package
        spec.loader.exec_module(package)
    from neuronmigrate.runtime import session

    session.begin()


_act()
