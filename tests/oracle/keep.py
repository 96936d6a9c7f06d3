"""Run one legacy script in an oracle environment and keep its globals; started by record.py.

python keep.py KIND RELEASE VALUES SCRIPT [ARGUMENTS...]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str]) -> int:
    """Prepare what the kind of environment needs, then run the script as `__main__`."""
    kind, release, kept, script, *arguments = argv
    sys.path.insert(0, str(TESTS))
    from on_cpu import execute  # type: ignore[import-not-found]  # a file beside, not a package here

    sys.path.pop(0)
    if kind == "xla":
        _give_back_removed_names()
        status = execute(Path(script), arguments, Path(kept))
    else:
        sys.path.append(str(TESTS.parent))
        from neuronmigrate.runtime.legacy import activate

        session = activate(release)
        status = execute(Path(script), arguments, Path(kept))
        print(*session.summary(), sep="\n", file=sys.stderr)
    assert isinstance(status, int)
    return status


def _give_back_removed_names() -> None:
    """Three functions of xla_model that torch_xla 2.7 removed; their successors in runtime are the same."""
    import torch_xla.core.xla_model as xm  # type: ignore[import-not-found]  # of the oracle alone
    import torch_xla.runtime as xr  # type: ignore[import-not-found]

    xm.xrt_world_size = lambda default=1: xr.world_size()
    xm.get_ordinal = lambda default=0: xr.global_ordinal()
    xm.get_local_ordinal = lambda default=0: xr.local_ordinal()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
