"""A process that has imported the heavy libraries, and forks for each program that is to run.

Importing torch and transformers takes longer than most scripts do. Nothing is computed and no device is
activated before the fork, so that a forked process runs as one that was started does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

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
    "transformers.trainer",
)
"""What is imported once, where it is installed."""

TIMEOUT = -signal.SIGALRM
"""Exit code of a program that was stopped because it took too long."""


class Forks:
    """The process, until it is closed."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """`command` starts a Python program that calls `serve`."""
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(environment), text=True
        )

    def run(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        processes: int = 1,
        *,
        printed: Path | None = None,
        timeout: float | None = None,
    ) -> int:
        """Run a program in forked processes; the first exit code that is not 0, then the others are ended.

        `arguments` are what `serve` returns there. What is printed goes to the files `stdout` and `stderr` of
        the folder `printed`, or to standard error. After `timeout` seconds all are ended, and the answer is
        TIMEOUT. Raises RuntimeError if the process that forks is gone.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {
            "arguments": list(arguments),
            "cwd": str(cwd),
            "environment": dict(environment),
            "processes": processes,
            "printed": None if printed is None else str(printed),
            "timeout": timeout,
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that forks ended with {self._process.wait()}")
        return int(answer)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def serve(names: Iterable[str] = HEAVY) -> list[str]:
    """Import, then fork for each request and answer with the exit code.

    In a forked process the arguments of the request are returned: it goes on with them. The process itself
    ends here, when nobody asks any more.
    """
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    requests = os.fdopen(os.dup(sys.stdin.fileno()))
    os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdin.fileno())
    for line in requests:
        request = json.loads(line)
        port = _free_port()
        running: set[int] = set()
        for rank in range(request["processes"]):
            process = os.fork()
            if not process:
                # The pipes are the other process's.
                os.close(requests.fileno())
                os.close(answers.fileno())
                _prepare(request, rank, port)
                arguments: list[str] = request["arguments"]
                return arguments
            running.add(process)
        answers.write(f"{_wait(running, request['timeout'])}\n")
        answers.flush()
    os._exit(0)


class _TooLong(Exception):
    """The time of a program is up."""


def _wait(running: set[int], timeout: float | None) -> int:
    """The first exit code that is not 0. No process is left, nor any that it started in its group."""
    code = 0

    def ring(number: int, frame: types.FrameType | None) -> NoReturn:
        raise _TooLong

    usual = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, timeout or 0)
    groups = frozenset(running)
    try:
        while running and not code:
            process, status = os.wait()
            running.discard(process)
            code = os.waitstatus_to_exitcode(status)
    except _TooLong:
        code = TIMEOUT
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
        for process in groups if code else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process, signal.SIGKILL)
    for process in running:
        os.waitpid(process, 0)
    return code


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _prepare(request: Mapping[str, object], rank: int, port: int) -> None:
    """Become one process of a program."""
    variables, processes, printed = request["environment"], request["processes"], request["printed"]
    assert isinstance(variables, dict)
    assert isinstance(processes, int)
    # What it starts ends with it.
    os.setpgid(0, 0)
    if printed is not None:
        for name, descriptor in (("stdout", 1), ("stderr", 2)):
            path = os.path.join(str(printed), name)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, descriptor)
            os.close(file)
    os.environ.clear()
    os.environ.update(variables)
    if processes > 1:
        # What torchrun gives its children.
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        os.environ.update({name: str(value) for name, value in own.items()})
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GROUP_RANK": "0"})
        os.environ["TORCHELASTIC_RUN_ID"] = "none"
        # As torchrun does, by OMP_NUM_THREADS.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    torch = sys.modules.get("torch")
    if threads.isdigit() and torch is not None:
        torch.set_num_threads(int(threads))
    os.chdir(str(request["cwd"]))


__all__ = ["HEAVY", "TIMEOUT", "Forks", "serve"]
