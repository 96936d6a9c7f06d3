"""Run programmes, each in a process of its own, and keep what they computed.

    python -m tests.runtime.runner --device neuron --output FOLDER PROGRAMME...

One process imports the libraries, and activates the emulated device if that is the device; each
programme then runs in a fork of it (in two, for the programmes of two processes), in an empty
folder of its own. So the imports are paid for once, and a programme that leaves something behind, or
brings its process down, spoils nothing for the next. `run_programmes` is the same for a test.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tests.runtime.programmes import Programme

if TYPE_CHECKING:
    import torch

EMULATED = "neuron"
LIMIT = 600
"""Seconds after which a programme counts as hanging, such as two processes that wait for each other."""


@dataclass(frozen=True)
class Outcome:
    """What one process of one programme computed."""

    error: str = ""
    """The traceback, or how the process died; empty if the programme ran to its end."""
    values: dict[str, object] = field(default_factory=dict)
    """The results that are no tensors, as json holds them."""
    devices: dict[str, str] = field(default_factory=dict)
    """The device type on which each tensor of the result stood."""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """The tensors of the result, on the CPU."""
    stderr: str = ""
    seconds: float = 0.0
    """CPU time of the process, without the imports."""


def run_programmes(
    programmes: Iterable[Programme], folder: Path, devices: Sequence[str] = ("cpu", EMULATED)
) -> dict[str, dict[str, list[Outcome]]]:
    """Run the programmes on each of the devices: device -> programme -> one outcome a process.

    The devices run side by side. Raises RuntimeError if the runner itself fails.
    """
    names = [programme.name for programme in programmes]
    started = {}
    for device in devices:
        command = [
            sys.executable,
            "-m",
            __name__,
            "--device",
            device,
            "--output",
            str(folder / device),
            *names,
        ]
        started[device] = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment(), text=True
        )
    said = {device: process.communicate()[0] for device, process in started.items()}
    for device, process in started.items():
        if process.returncode:
            raise RuntimeError(f"the runner for {device} failed\n{said[device]}")
    return {device: {name: _read(folder / device / name) for name in names} for device in devices}


def _environment() -> dict[str, str]:
    """The environment, off the network, off other accelerators, off torch_xla, on one thread."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "USE_TORCH_XLA": "0",
    }


def _read(folder: Path) -> list[Outcome]:
    """The outcomes of one programme, one for each of its processes."""
    from safetensors.torch import load_file

    outcomes = []
    for rank in sorted(folder.glob("[0-9]")):
        report = json.loads((rank / "outcome.json").read_text())
        tensors = load_file(rank / "outcome.safetensors") if report["devices"] else {}
        outcomes.append(Outcome(tensors=tensors, stderr=(rank / "stderr.txt").read_text(), **report))
    return outcomes


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.runtime.runner", allow_abbrev=False)
    parser.add_argument("--device", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("programmes", nargs="+", type=Programme)
    options = parser.parse_args(argv)
    if options.device == EMULATED:
        from neuronmigrate import runtime

        runtime.activate(devices=max(each.processes for each in options.programmes))
    for programme in options.programmes:
        importlib.import_module(programme.name)
    for programme in options.programmes:
        _start(programme, options.device, options.output.resolve() / programme.name)
    return 0


def _start(programme: Programme, device: str, output: Path) -> None:
    """Run a programme in its processes, and wait for them."""
    port = _free_port()
    (output / "work").mkdir(parents=True)
    os.chdir(output / "work")
    children = {}
    for rank in range(programme.processes):
        folder = output / str(rank)
        folder.mkdir()
        child = os.fork()
        if not child:
            if programme.processes > 1:
                os.environ.update(_torchrun_environment(rank, programme.processes, port))
            _child(programme, device, folder)
        children[child] = folder
    deadline = time.monotonic() + LIMIT
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            folder = children.pop(child)
            if not (folder / "outcome.json").exists():
                died = f"the process died: {os.waitstatus_to_exitcode(status)}"
                (folder / "outcome.json").write_text(json.dumps(_report(died)))
            # The others would wait for it until the timeout of their process group.
            if status:
                deadline = min(deadline, time.monotonic() + 10)
        elif time.monotonic() > deadline:
            for child in children:
                os.kill(child, 9)
        else:
            time.sleep(0.01)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        assert isinstance(port, int)
        return port


def _torchrun_environment(rank: int, processes: int, port: int) -> dict[str, str]:
    """What torchrun tells a process, as far as the libraries ask for it."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _child(programme: Programme, device: str, folder: Path) -> NoReturn:
    """Run one programme in this process, write its outcome, and end the process."""
    with open(folder / "stderr.txt", "wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    status = 1
    try:
        _write(_run(programme, device, folder), folder)
        status = 0
    except BaseException:
        _write(_report(traceback.format_exc()), folder)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Nothing of the parent's is to be cleaned up here, and no thread to be waited for.
        os._exit(status)


def _run(programme: Programme, device: str, folder: Path) -> dict[str, object]:
    import torch
    from safetensors.torch import save_file

    start = time.process_time()
    random.seed(0)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = importlib.import_module(programme.name).run(device)
    tensors = {name: value for name, value in result.items() if isinstance(value, torch.Tensor)}
    # The copy must not share memory: safetensors writes no aliases.
    save_file(
        {name: value.detach().cpu().clone().contiguous() for name, value in tensors.items()},
        folder / "outcome.safetensors",
    )
    return _report(
        values={name: value for name, value in result.items() if name not in tensors},
        devices={name: value.device.type for name, value in tensors.items()},
        seconds=time.process_time() - start,
    )


def _report(
    error: str = "",
    values: dict[str, object] | None = None,
    devices: dict[str, str] | None = None,
    seconds: float = 0.0,
) -> dict[str, object]:
    return {"error": error, "values": values or {}, "devices": devices or {}, "seconds": seconds}


def _write(report: dict[str, object], folder: Path) -> None:
    (folder / "outcome.json").write_text(json.dumps(report))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
