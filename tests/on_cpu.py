"""Run a migrated script on a machine without a Neuron device, and get its numbers out.

    python -m tests.on_cpu [--processes N] SCRIPT [ARGUMENTS...]

The script runs unchanged in a process of its own, on the emulated `neuron` device of
neuronmigrate.runtime. What this proves: the script runs to its end, and what it computes; a batch left
on the CPU, or a result not brought back before `.numpy()`, fails as on the device. What it cannot tell:
an operator or a dtype that the real device lacks, its rounding, its speed, its memory.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from neuronmigrate.parity.forks import Forks


@dataclass(frozen=True)
class Completed:
    """What a script left behind."""

    stdout: str
    stderr: str
    values: dict[str, object]
    """The script's global names that hold plain data or tensors; of rank 0 under several processes."""

    def tensor(self, name: str) -> torch.Tensor:
        """A global of the script that must be a tensor.

        Raises KeyError if there is none, TypeError if it is something else.
        """
        import torch

        value = self.values[name]
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{name} is {type(value).__name__}, not a tensor")
        return value


def run_on_cpu(
    script: Path,
    *arguments: str,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    processes: int = 1,
) -> Completed:
    """Run a script whose device is `neuron`, and return what it printed and computed.

    Raises RuntimeError, with the script's own error output, if it does not end with exit code 0.
    """
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "values.pt")
        variables = {**os.environ, **_quiet_environment(), **(env or {})}
        arguments = ("--keep", str(kept), str(script.resolve()), *arguments)
        done = _forked if hasattr(os, "fork") else _started
        code, out, err = done(arguments, cwd or script.resolve().parent, variables, processes)
        if code:
            raise RuntimeError(f"{script} ended with exit code {code}\n{out}{err}")
        return Completed(out, err, _read(kept))


@functools.cache
def _forks() -> Forks:
    from neuronmigrate.parity.forks import Forks

    forks = Forks([sys.executable, __file__, "--serve"], {**os.environ, **_quiet_environment()})
    atexit.register(forks.close)
    return forks


def _forked(
    arguments: Sequence[str], cwd: Path, env: Mapping[str, str], processes: int
) -> tuple[int, str, str]:
    with tempfile.TemporaryDirectory() as folder:
        code = _forks().run(arguments, cwd, env, processes, printed=Path(folder))
        out, err = (Path(folder, name).read_text("utf-8") for name in ("stdout", "stderr"))
        return code, out, err


def _started(
    arguments: Sequence[str], cwd: Path, env: Mapping[str, str], processes: int
) -> tuple[int, str, str]:
    command = [sys.executable]
    if processes > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, __file__, *arguments], cwd=cwd, env=env, capture_output=True, text=True, encoding="utf-8"
    )
    return done.returncode, done.stdout, done.stderr


def _quiet_environment() -> dict[str, str]:
    """Settings that keep a run off the network, off other accelerators and off torch_xla."""
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "USE_TORCH_XLA": "0",
    }


def _read(kept: Path) -> dict[str, object]:
    import torch

    values = torch.load(kept, weights_only=True)
    assert isinstance(values, dict)
    return values


def main(argv: Sequence[str]) -> int:
    """Run a script in this process, or start several processes that do."""
    parser = argparse.ArgumentParser(prog="python -m tests.on_cpu", allow_abbrev=False)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    if options.processes > 1:
        done = run_on_cpu(options.script, *options.arguments, cwd=Path.cwd(), processes=options.processes)
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        return 0
    # Imported here: the oracles take `execute` from this file, where there is no neuronmigrate.
    from neuronmigrate import runtime

    os.environ.update(_quiet_environment())
    runtime.activate(quiet=True)
    return execute(options.script, options.arguments, options.keep)


def execute(script: Path, arguments: list[str], keep: Path | None) -> int:
    """Execute the script as `__main__`; its globals are kept even if it ends by `sys.exit`."""
    module = types.ModuleType("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    code = compile(script.read_bytes(), str(script), "exec")
    status: object = 0
    try:
        exec(code, module.__dict__)
    except SystemExit as end:
        status = end.code
    if keep and os.environ.get("RANK", "0") == "0":
        import torch

        torch.save(_plain_data(module.__dict__), keep)
    if isinstance(status, str):
        print(status, file=sys.stderr)
        return 1
    return status if isinstance(status, int) else 0


def _plain_data(namespace: Mapping[str, object]) -> dict[str, object]:
    """The names whose values can be compared in another process."""
    kept: dict[str, object] = {}
    for name, value in namespace.items():
        if not name.startswith("_"):
            with contextlib.suppress(TypeError):
                kept[name] = _plain(value)
    return kept


def _plain(value: object) -> object:
    """The value in types that a weights-only load accepts; raises TypeError if there are none."""
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(value).clone()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    raise TypeError(type(value).__name__)


if __name__ == "__main__":
    given = sys.argv[1:]
    if given == ["--serve"]:
        from neuronmigrate.parity.forks import serve

        given = serve()
    sys.exit(main(given))
