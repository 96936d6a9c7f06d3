# ruff: noqa: I002 - even `__future__` is a file that the current folder could bring along
"""The way in, as `neuronmigrate` and as `python -m neuronmigrate`."""

import os
import sys


def leave_current_folder() -> None:
    """Never import from the folder that the tool is started in: that is the scanned project's code.

    `python -m` puts the current folder first on the path, and PYTHONPATH may name it. It stays only
    where the package itself lives in it.
    """
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:
        return  # the folder is gone, and nothing can be imported from it
    home = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if here != home:
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or here) != here]


def main() -> None:
    """Run the command line and leave with its exit code."""
    leave_current_folder()
    from neuronmigrate.cli import main as command_line

    sys.exit(command_line())


if __name__ == "__main__":
    main()
