"""Run a migrated script on a machine without a Neuron device, and get its numbers out.

    python -m tests.on_cpu [--processes N] SCRIPT [ARGUMENTS...]

The script runs unchanged in a process of its own in which `neuron` is a device type that PyTorch
knows and the current accelerator, but whose tensors live on the CPU: each device argument that
says `neuron` is replaced by `cpu` on its way into PyTorch.

What this proves: the script runs to its end, and what it computes. What it cannot tell, because
every tensor really is a CPU tensor:

- a batch or a mask left on the CPU beside a model on the device, a result not brought back before
  `.numpy()`, a comparison of devices (`tensor.device.type` says `cpu`),
- an operator or a dtype that the real device lacks, its rounding, its speed, its memory,
- that a fixed device index, a pinned buffer or a stream is wrong on the real device.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

DEVICE = "neuron"


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
        command = [sys.executable]
        if processes > 1:
            command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        command += [__file__, "--keep", str(kept), str(script.resolve()), *arguments]
        done = subprocess.run(
            command,
            cwd=cwd or script.resolve().parent,
            env={**os.environ, **_quiet_environment(), **(env or {})},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )
        if done.returncode:
            raise RuntimeError(f"{script} ended with exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return Completed(done.stdout, done.stderr, _read(kept))


def _quiet_environment() -> dict[str, str]:
    """Settings that keep a run off the network, off other accelerators and off torch_xla."""
    return {
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONIOENCODING": "utf-8",
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
    os.environ.update(_quiet_environment())
    _install()
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


def _install() -> None:
    """Make `neuron` a usable device in this process."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(DEVICE, backend_module=_device_module())
    sys.meta_path.append(_NeuronPackage())
    _redirect_functions()
    _redirect_classes()
    _redirect_process_groups()


class _NeuronPackage(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An empty `torch_neuronx`: libraries look for the package before they ask torch.neuron."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == "torch_neuronx" else None

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _device_module() -> types.ModuleType:
    """`torch.neuron`, as far as PyTorch and the Hugging Face libraries ask for it."""
    import torch

    def says(value: object) -> Callable[..., object]:
        return lambda *args, **kwargs: value

    yes = ("is_available", "is_initialized", "is_bf16_supported")
    nothing = ("init", "synchronize", "set_device", "empty_cache", "manual_seed", "manual_seed_all")
    zero = ("current_device", "memory_allocated", "max_memory_allocated", "memory_reserved")
    module = types.ModuleType(f"torch.{DEVICE}")
    module.__dict__.update(dict.fromkeys(yes, says(True)))
    module.__dict__.update(dict.fromkeys(nothing, says(None)))
    module.__dict__.update(dict.fromkeys(zero, says(0)))
    module.__dict__.update(
        device_count=says(1),
        _is_in_bad_fork=says(False),
        get_amp_supported_dtype=says([torch.bfloat16, torch.float16]),
        # The tensors are CPU tensors, so the CPU's generator is the one that draws for them.
        get_rng_state=lambda device=DEVICE: torch.get_rng_state(),
        set_rng_state=lambda state, device=DEVICE: torch.set_rng_state(state),
    )
    return module


def _on_cpu(value: object) -> object:
    """The value, or the CPU if it names the device."""
    import torch

    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == DEVICE else value
    if isinstance(value, str) and (value == DEVICE or value.startswith(f"{DEVICE}:")):
        return "cpu"
    return value


def _replace(owner: object, **attributes: object) -> None:
    for name, value in attributes.items():
        setattr(owner, name, value)


def _redirect_functions() -> None:
    """Replace device arguments of every torch function and tensor method, in every thread."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnCpu(TorchFunctionMode):
        def __torch_function__(
            self,
            func: Callable[..., object],
            types: Iterable[type],
            args: Sequence[object] = (),
            kwargs: Mapping[str, object] | None = None,
        ) -> object:
            return func(*map(_on_cpu, args), **{key: _on_cpu(item) for key, item in (kwargs or {}).items()})

    # A mode belongs to one thread, and checkpoints are loaded by a pool of them.
    run = threading.Thread.run

    def run_on_cpu(thread: threading.Thread) -> None:
        with OnCpu():
            run(thread)

    _replace(threading.Thread, run=run_on_cpu)
    contextlib.ExitStack().enter_context(OnCpu())

    # No mode sees these: they are made for the backend, or ask the accelerator's own runtime.
    _replace(torch.nn.Module, **{DEVICE: lambda module, *args, **kwargs: module})
    _replace(
        torch.Tensor,
        pin_memory=lambda tensor, device=None: tensor,
        **{DEVICE: lambda tensor, *args, **kwargs: tensor},
    )
    _replace(
        torch.accelerator,
        synchronize=lambda device=None, /: None,
        empty_cache=lambda: None,
        set_device_index=lambda device, /: None,
    )


def _redirect_classes() -> None:
    """Replace device arguments where no torch function is called."""
    import torch

    class Autocast(torch.autocast):
        def __init__(self, device_type: str, dtype: torch.dtype | None = None, **options: bool) -> None:
            # Float16 is what PyTorch takes for a registered backend when no dtype is given.
            if device_type == DEVICE:
                device_type, dtype = "cpu", dtype or torch.float16
            super().__init__(device_type, dtype, **options)

    class Generator(torch.Generator):
        def __new__(cls, device: object = "cpu") -> Generator:
            create: Callable[..., Generator] = super().__new__
            return create(cls, _on_cpu(device))

    load: Callable[..., object] = torch.load
    set_default_device: Callable[..., object] = torch.set_default_device
    _replace(
        torch,
        autocast=Autocast,
        Generator=Generator,
        load=lambda f, map_location=None, **options: load(f, _on_cpu(map_location), **options),
        set_default_device=lambda device: set_default_device(_on_cpu(device)),
    )
    _replace(torch.amp, autocast=Autocast)
    _replace(torch.amp.autocast_mode, autocast=Autocast)


def _redirect_process_groups() -> None:
    """Make `neuron` another name of gloo."""
    import torch.distributed as dist

    if dist.is_available():
        dist.Backend.register_backend(DEVICE, dist.ProcessGroupGloo, devices=["cpu", DEVICE])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
