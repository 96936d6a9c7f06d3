"""A process that has imported the heavy libraries, and forks for each script that on_cpu.py runs.

Importing torch and transformers takes longer than most scripts do. Nothing is computed and no device is
activated before the fork, so that a forked process runs as one that was started does.
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
from collections.abc import Mapping, Sequence
from pathlib import Path

HEAVY = (
    "torch",
    "torch.distributed",
    "torch.utils.data",
    "accelerate",
    "safetensors.torch",
    "transformers.generation.utils",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
)


class Forks:
    """The process, for as long as the tests run."""

    def __init__(self, script: Path, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(script), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            text=True,
        )
        atexit.register(self._end)

    def run(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        processes: int,
        folder: Path,
    ) -> int:
        """The exit code; what is printed goes to `stdout` and `stderr` in a folder."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = [list(arguments), str(cwd), dict(environment), processes, str(folder)]
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve() -> list[str]:
    """Fork for each request and answer with the exit code.

    In a forked process the arguments to go on with are returned: it ends as any Python does. The process
    itself ends here, when nobody asks any more.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for name in HEAVY:
        importlib.import_module(name)
    requests = os.fdopen(os.dup(sys.stdin.fileno()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    for line in requests:
        arguments, cwd, environment, processes, folder = json.loads(line)
        port = _free_port()
        running: set[int] = set()
        for rank in range(processes):
            process = os.fork()
            if not process:
                # The pipes are the other process's.
                os.close(requests.fileno())
                os.close(answers.fileno())
                _prepare(cwd, environment, folder, rank, processes, port)
                return list(arguments)
            running.add(process)
        answers.write(f"{_wait(running)}\n")
        answers.flush()
    os._exit(0)


def _wait(running: set[int]) -> int:
    """The first exit code that is not 0; the others are ended then."""
    code = 0
    while running:
        process, status = os.wait()
        running.discard(process)
        ended = os.waitstatus_to_exitcode(status)
        if ended and not code:
            code = ended
            for each in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGTERM)
    return code


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _prepare(
    cwd: str, environment: Mapping[str, str], folder: str, rank: int, processes: int, port: int
) -> None:
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    if processes > 1:
        # What torchrun gives its children.
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        os.environ.update({name: str(value) for name, value in own.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"})
    importlib.import_module("torch").set_num_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    os.chdir(cwd)
