"""Run several migrated scripts in one process, where starting one for each would cost more than they do.

    python -m tests.several FOLDER SCRIPT...

Each runs as `__main__` on the emulated device, as in on_cpu.py; its globals go to FOLDER/NUMBER.pt. They
must not lean on each other: what a script starts it has to end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.on_cpu import _quiet_environment, execute


def main(argv: Sequence[str]) -> int:
    """Run the scripts in order; the exit code is the number of those that failed."""
    from neuronmigrate import runtime

    folder, *scripts = argv
    os.environ.update(_quiet_environment())
    # One process of one, for those that start a process group; any free port will do.
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"})
    runtime.activate(quiet=True)
    failed = 0
    for number, script in enumerate(scripts):
        try:
            status = execute(Path(script), [], Path(folder, f"{number}.pt"))
        except Exception as error:
            print(f"{script}: {type(error).__name__}: {error}", file=sys.stderr)
            status = 1
        failed += bool(status)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
