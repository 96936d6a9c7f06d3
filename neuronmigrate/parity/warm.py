"""Records many runs one after the other, without importing torch anew for each.

A process imports the heavy libraries once and forks for every run, so that the search for a cause takes
seconds where it took minutes. A forked run is prepared as one of `neuronmigrate run` is, and torch has not
computed anything before the fork. Where the system cannot fork, each run starts a Python of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

from neuronmigrate.parity.running import Choices, record, recording_orders
from neuronmigrate.runtime.launch import Orders, environment

HEAVY = ("torch", "torch.distributed", "torch.utils.data", "transformers", "accelerate", "safetensors.torch")
"""What is imported once, where it is installed."""
HEAVY_PARTS = (
    "transformers.generation.utils",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)


class Warm:
    """Runs and records scripts, as long as it is entered."""

    def __init__(self, names: Sequence[str] = HEAVY) -> None:
        self.names = tuple(names)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Warm:
        if hasattr(os, "fork"):
            home = str(Path(__file__).parents[2])
            path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH", "")]))
            quiet = environment(Orders(target=("",)), os.environ)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "neuronmigrate.parity.warm", home, *self.names],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**quiet, "PYTHONPATH": path},
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._process = None

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
    ) -> int:
        """Run a script and record it into a folder, as `running.record` does; the exit code.

        `mixed` is for a legacy script that is half migrated, and `variables` are put into the
        environment. Raises UserError if the run cannot work.
        """
        if self._process is None:
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
            )
        orders = recording_orders(
            target, out, choices, legacy=legacy, release=release, devices=devices, mixed=mixed
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "orders": orders.to_text(),
            "environment": {**environment(orders, {**os.environ, **(variables or {})})},
            "cwd": str(cwd or Path.cwd()),
            "devices": devices or 1,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that records ended with {self._process.wait()}")
        return int(answer)


# The process that forks


def serve(home: str, names: Sequence[str]) -> None:
    """Import, then fork for each request on stdin and answer with the exit code."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    # What scripts print is for people.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for name in HEAVY_PARTS:
        if name.partition(".")[0] in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    # The folder of this package holds more than the package, which the scripts must not find.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != home]
    requests = os.fdopen(os.dup(sys.stdin.fileno()))
    for line in requests:
        answers.write(f"{_run(json.loads(line))}\n")
        answers.flush()


def _run(request: Mapping[str, object]) -> int:
    """All processes of one run; the first exit code that is not 0. When one fails the others are ended."""
    world = request["devices"]
    assert isinstance(world, int)
    port = _free_port() if world > 1 else 0
    running: set[int] = set()
    for rank in range(world):
        process = os.fork()
        if not process:
            _be_the_program(request, rank, world, port)
        running.add(process)
    code = 0
    while running:
        process, status = os.wait()
        running.discard(process)
        ended = os.waitstatus_to_exitcode(status)
        if ended and not code:
            code = ended
            for each in running:
                os.kill(each, signal.SIGTERM)
    return code


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _be_the_program(request: Mapping[str, object], rank: int, world: int, port: int) -> None:
    """Become one process of the run. Does not return."""
    code = 1
    try:
        code = _program(request, rank, world, port)
        # Like Python at its end: what is registered to run there, newest first.
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _program(request: Mapping[str, object], rank: int, world: int, port: int) -> int:
    from neuronmigrate.runtime import session

    orders = Orders.from_text(str(request["orders"]))
    variables = request["environment"]
    assert isinstance(variables, dict)
    os.environ.clear()
    os.environ.update(variables)
    if world > 1:
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        os.environ.update({name: str(value) for name, value in own.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"})
        sys.modules["torch"].set_num_threads(1)  # as torchrun does, by OMP_NUM_THREADS
    os.chdir(str(request["cwd"]))
    script = orders.target[0]
    sys.argv = list(orders.target)
    sys.orig_argv[:] = [sys.executable, *orders.target]
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
    serve(sys.argv[1], sys.argv[2:])
