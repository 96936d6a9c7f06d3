"""Records many runs one after the other, without importing torch anew for each.

A process imports the heavy libraries once and forks for every run, so that the search for a cause takes
seconds where it took minutes. A forked run is prepared as one of `neuronmigrate run` is. Where the system
cannot fork, each run starts a Python of its own.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

from neuronmigrate.parity.forks import HEAVY, Forks, serve
from neuronmigrate.parity.running import Choices, record, recording_orders
from neuronmigrate.runtime.launch import Orders, environment

HOME = str(Path(__file__).parents[2])
OURS = ("neuronmigrate.parity.recorder", "neuronmigrate.runtime.session", "neuronmigrate.runtime.legacy")
"""What every run needs of this package. Imported once, so that all runs are of one state of it."""


class Warm:
    """Runs and records scripts, as long as it is entered."""

    def __init__(self, names: Sequence[str] = HEAVY) -> None:
        self.names = tuple(names)
        self._forks: Forks | None = None

    def __enter__(self) -> Warm:
        if hasattr(os, "fork"):
            path = os.pathsep.join(filter(None, [HOME, os.environ.get("PYTHONPATH", "")]))
            quiet = environment(Orders(target=("",)), os.environ)
            command = [sys.executable, "-m", "neuronmigrate.parity.warm", *self.names, *OURS]
            self._forks = Forks(command, {**quiet, "PYTHONPATH": path})
        return self

    def __exit__(self, *_: object) -> None:
        if self._forks is not None:
            self._forks.close()
            self._forks = None

    def record(
        self,
        target: Sequence[str],
        out: Path,
        choices: Choices,
        *,
        legacy: bool = False,
        release: str | None = None,
        devices: int | None = None,
        mixed: bool = False,
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Run a script and record it into a folder, as `running.record` does; the exit code.

        `mixed` is for a legacy script that is half migrated, and `variables` are put into the
        environment. Raises UserError if the run cannot work; one that is stopped after `timeout` seconds
        leaves a recording without an end.
        """
        if self._forks is None:
            return record(
                target,
                out,
                choices,
                legacy=legacy,
                release=release,
                devices=devices,
                mixed=mixed,
                cwd=cwd,
                quiet=True,
                timeout=timeout,
            )
        orders = recording_orders(
            target, out, choices, legacy=legacy, release=release, devices=devices, mixed=mixed
        )
        given = environment(orders, {**os.environ, **(variables or {})})
        return self._forks.run(target, cwd or Path.cwd(), given, devices or 1, timeout=timeout)


# The process that forks


def _be_the_program(target: Sequence[str]) -> None:
    """Become one process of the run. Does not return."""
    code = 1
    try:
        code = _program(target)
        # Like Python at its end: what is registered to run there, newest first. To take torch apart, as
        # Python would then do, takes longer than many a run.
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _program(target: Sequence[str]) -> int:
    from neuronmigrate.runtime import session

    script = target[0]
    # The folder of this package holds more than the package, which the scripts must not find.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != HOME]
    sys.argv = list(target)
    sys.orig_argv[:] = [sys.executable, *target]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    session.begin()
    module = types.ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    try:
        with open(script, "rb") as file:
            code = compile(file.read(), script, "exec")
        exec(code, module.__dict__)
    except SystemExit as leaving:
        if isinstance(leaving.code, int) or leaving.code is None:
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.last_value = error
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except SystemExit as leaving:
            return leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _be_the_program(serve(sys.argv[1:]))
