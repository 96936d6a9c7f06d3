"""`neuronmigrate run`: starts a script in a Python of its own that knows what to bring about.

The script is run by Python itself, as without us: its `__main__`, its arguments, its tracebacks and its
exit code are Python's. What is ours begins in `startup/sitecustomize.py`, which Python imports as it starts
because its folder stands first in PYTHONPATH. So the processes that the script starts are part of the run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from neuronmigrate.config import UserError
from neuronmigrate.runtime import autoload
from neuronmigrate.runtime.select import UnsupportedTorch, package_version, torch_version

VARIABLE = "NEURONMIGRATE_RUN"
"""Carries the orders, as JSON, to the processes of the run."""

STARTUP = Path(__file__).with_name("startup")


@dataclass(frozen=True)
class Orders:
    """What a process of the run has to bring about before its program begins."""

    target: tuple[str, ...]
    """The script or `-m` and the module, and its arguments: by this the processes of the program are told
    from others that they start."""
    strict: bool = False
    observe: bool = False
    gather: str | None = None
    """With `observe`: an empty folder of ours in which each rank leaves what it saw, for torchrun's process
    to report it; None where the one process of the run reports itself."""
    processes: int = 1
    """With `gather`: how many leave something."""
    report: str | None = None
    """File for what ran and what was seen, as an absolute path."""
    legacy: bool = False
    release: str | None = None
    """Release of optimum-neuron to stand in for; None for the newest."""
    mixed: bool = False
    """With `legacy`: the program is half migrated, and the neuron device means the CPU for it."""
    record: Mapping[str, object] | None = None
    """Options of neuronmigrate.parity.recorder, to record what the program computes."""

    def to_text(self) -> str:
        """The orders as the value of a variable."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Orders:
        """The orders that `to_text` wrote."""
        fields = json.loads(text)
        return cls(**{**fields, "target": tuple(fields["target"])})


def check(orders: Orders, *, emulate: bool, devices: int | None) -> None:
    """Raise UserError if the run cannot work: a missing script, extra, or torch of another release."""
    kind = orders.target[0]
    script = Path(kind)
    if kind != "-m" and not (script.is_file() or (script / "__main__.py").is_file()):
        what = "has no __main__.py" if script.is_dir() else "there is no such script"
        raise UserError(f"{kind}: {what}")
    if kind == "-m" and len(orders.target) < 2:
        raise UserError("-m: which module?")
    if devices is not None and devices < 1:
        raise UserError(f"--devices: {devices} is not a number of devices")
    if orders.report is not None and not Path(orders.report).parent.is_dir():
        raise UserError(f"--report: {orders.report}: there is no such folder")
    if orders.legacy:
        if emulate or orders.strict or orders.observe:
            raise UserError("--legacy: an old script has no neuron device to emulate or to observe")
        from neuronmigrate.runtime.legacy.releases import Release

        try:
            Release(orders.release)
        except ValueError as error:
            raise UserError(f"--from-version: {error}") from error
        if importlib.util.find_spec("torch") is None:
            raise UserError("--legacy: torch is not installed, and the stand-ins compute with it")
        return
    try:
        torch_version()
    except UnsupportedTorch as error:
        raise UserError(str(error)) from error
    package = package_version()
    if emulate and package is not None:
        raise UserError(
            f"--emulate: torch-neuronx {package} is installed, and nothing stands in for it; "
            "use an environment without it"
        )


def command(orders: Orders, devices: int | None) -> list[str]:
    """The command line that runs the script: Python's own, or torchrun's for several processes."""
    # How this Python was started holds for the script: -W, -X, -O and the like.
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    python = [sys.executable, *flags]
    if devices is None or devices == 1:
        return [*python, *orders.target]
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={devices}"]
    return [*python, *torchrun, *orders.target]


def environment(orders: Orders, variables: Mapping[str, str]) -> dict[str, str]:
    """The variables of the run: the orders, and nothing else that could be taken for the device.

    Accelerate and Transformers look for XLA and CUDA before they look for neuron.
    """
    given = {
        VARIABLE: orders.to_text(),
        # One way in is enough: PyTorch's own hook would activate a second time.
        autoload.VARIABLE: "0",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(STARTUP), variables.get("PYTHONPATH", "")])),
        "USE_TORCH_XLA": "0",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return {**variables, **given}


def launch(orders: Orders, *, emulate: bool = False, devices: int | None = None) -> int:
    """Run the script and return its exit code. Where the system can, this process becomes the script's.

    With several devices it is torchrun's exit code: 0, or 1 when a process failed.
    Raises UserError if the run cannot work.
    """
    check(orders, emulate=emulate, devices=devices)
    if orders.observe and devices is not None and devices > 1:
        orders = replace(orders, gather=tempfile.mkdtemp(prefix="neuronmigrate-"), processes=devices)
    arguments = command(orders, devices)
    variables = environment(orders, os.environ)
    sys.stdout.flush()
    sys.stderr.flush()
    if hasattr(os, "fork"):
        os.execve(arguments[0], arguments, variables)
    return subprocess.call(arguments, env=variables)


def is_program(orders: Orders, original: Sequence[str]) -> bool:
    """Whether a process, by the command line that it was started with, is one that runs the program.

    The others are torchrun itself, and what the program starts: workers, compilers, other scripts.
    """
    if tuple(original[-len(orders.target) :]) != orders.target:
        return False
    return not starts_programs(orders, original)


def starts_programs(orders: Orders, original: Sequence[str]) -> bool:
    """Whether a process is the torchrun that starts the program's processes, and outlives them."""
    before = original[: -len(orders.target)]
    return [*before, *orders.target] == [*original] and "torch.distributed.run" in before


__all__ = [
    "STARTUP",
    "VARIABLE",
    "Orders",
    "check",
    "command",
    "environment",
    "is_program",
    "launch",
    "starts_programs",
]
