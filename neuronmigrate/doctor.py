"""Whether a machine and its Python environment are ready for the native device, and what is in the way.

Everything is read from the metadata of what is installed, from files and from variables. torch is
imported in a process of its own, and only to learn what happens when it loads a backend. Nothing asks
the network.
"""

from __future__ import annotations

import enum
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import InvalidVersion, Version

from neuronmigrate import catalogue
from neuronmigrate.config import UserError
from neuronmigrate.runtime.select import FAMILIES, is_native
from neuronmigrate.targets import architectures, floors

SCHEMA = 1

NEFF_CACHE = "/tmp/neff_cache"
"""Where compiled operations are kept unless TORCH_NEURONX_NEFF_CACHE_DIR says otherwise (the package's
early source)."""


class Level(str, enum.Enum):
    """How much a check matters."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    level: Level
    found: str
    todo: str = ""
    """What to do about it; empty if nothing has to be done."""


@dataclass(frozen=True)
class Diagnosis:
    """All checks, in the order they are read."""

    checks: tuple[Check, ...]

    @property
    def ready(self) -> bool:
        """Whether nothing stands in the way of running natively."""
        return all(check.level is not Level.ERROR for check in self.checks)

    def as_json(self) -> dict[str, object]:
        """The diagnosis as plain data."""
        from neuronmigrate import __version__

        return {
            "schema": SCHEMA,
            "tool": {"name": "neuronmigrate", "version": __version__},
            "ready": self.ready,
            "tables": max(floors.DATED, architectures.DATED),
            "checks": [
                {"name": each.name, "level": each.level.value, "found": each.found, "todo": each.todo}
                for each in self.checks
            ],
        }


@dataclass(frozen=True)
class Machine:
    """What the checks look at."""

    packages: Mapping[str, str]
    """Installed distributions by normalised name, with their versions."""
    backends: Mapping[str, str] = field(default_factory=dict)
    """Entry points of the group `torch.backends`, which `import torch` runs, with their distributions."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """The environment."""
    root: Path = Path("/")
    """Where `dev` and `sys` are."""
    python: tuple[int, int] = sys.version_info[:2]
    system: str = ""
    """Such as `Linux x86_64`."""
    interpreter: str = ""
    """The Python that torch can be imported with; empty: do not try."""

    @classmethod
    def here(cls) -> Machine:
        """This machine, and the environment of this Python."""
        packages: dict[str, str] = {}
        backends: dict[str, str] = {}
        for distribution in importlib.metadata.distributions():
            name = _normal(distribution.metadata["Name"] or "")
            if name in packages:
                continue  # what comes first on the path is what is imported
            packages[name] = distribution.version
            for entry in distribution.entry_points:
                if entry.group == "torch.backends":
                    backends[entry.name] = name
        system = f"{platform.system()} {platform.machine()}"
        return cls(
            packages, backends, dict(os.environ), system=system, interpreter=sys.executable or "python3"
        )


def diagnose(machine: Machine, model: Path | None = None) -> Diagnosis:
    """Look at everything, and at a model's configuration if one is given.

    Raises UserError if the model's configuration cannot be read.
    """
    loaded = _load_torch(machine)
    checks = [
        *_python(machine),
        *_hardware(machine),
        *_package(machine),
        *_torch(machine, loaded),
        *_leftovers(machine),
        *_libraries(machine),
        *_variables(machine),
        *_cache(machine),
        *_emulation(machine),
    ]
    if model is not None:
        checks += _model(model)
    return Diagnosis(tuple(checks))


# The machine


def _python(machine: Machine) -> Iterator[Check]:
    version = ".".join(map(str, machine.python))
    wheels = f"torch-neuronx has wheels for Python {_listed(floors.PYTHONS)} on Linux x86_64 (release 2.33)"
    fits = machine.python in floors.PYTHONS and machine.system == "Linux x86_64"
    found = f"{version} on {machine.system or 'an unknown system'}"
    yield Check("python", Level.OK if fits else Level.ERROR, found, "" if fits else wheels)


def _hardware(machine: Machine) -> Iterator[Check]:
    devices = sorted(each.name for each in (machine.root / "dev").glob("neuron[0-9]*"))
    instance = _instance(machine.root)
    where = f" on {instance}" if instance else ""
    if instance.startswith(floors.LEGACY_CHIPS):
        yield Check(
            "hardware",
            Level.ERROR,
            f"{len(devices)} devices{where}",
            "this chip has no native backend: stay on torch-neuronx 2.9 and Optimum Neuron, "
            "or move to Trn2 or Trn3",
        )
    elif not devices:
        todo = "run on a Trn2 or Trn3 instance with the Neuron driver; until then on the emulated device"
        yield Check("hardware", Level.ERROR, f"no /dev/neuron*{where}", todo)
    else:
        yield Check("hardware", Level.OK, f"{len(devices)} devices{where}{_neuron_ls(machine)}")


def _instance(root: Path) -> str:
    """The EC2 instance type, which the firmware tells; empty if it does not."""
    try:
        name = (root / "sys/devices/virtual/dmi/id/product_name").read_text("utf-8", "replace").strip()
    except OSError:
        return ""
    return name if re.fullmatch(r"[a-z]+[0-9][a-z0-9-]*\.[a-z0-9-]+", name) else ""


def _neuron_ls(machine: Machine) -> str:
    """What the driver's own tool says about cores; empty without the tool."""
    path = f"{machine.variables.get('PATH', '')}{os.pathsep}{machine.root / 'opt/aws/neuron/bin'}"
    tool = shutil.which("neuron-ls", path=path)
    if tool is None:
        return ""
    try:
        done = subprocess.run([tool, "--json-output"], capture_output=True, text=True, timeout=20)
        told = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return "; neuron-ls does not answer"
    except (OSError, ValueError):
        return "; neuron-ls answers nothing that can be read"
    if isinstance(told, dict):  # the rows may stand under a name
        told = next((value for value in told.values() if isinstance(value, list)), [])
    rows = told if isinstance(told, list) else []
    counts = [
        row["nc_count"] for row in rows if isinstance(row, dict) and isinstance(row.get("nc_count"), int)
    ]
    return f" with {sum(counts)} cores" if counts else ""


# Packages


def _package(machine: Machine) -> Iterator[Check]:
    """torch-neuronx: the native and the legacy package have one name, and only the version tells."""
    version = machine.packages.get("torch-neuronx")
    torch = machine.packages.get("torch")
    if version is None:
        family = _family(torch or "")
        todo = f"install torch-neuronx=={family if family in FAMILIES else FAMILIES[-1]}.*"
        yield Check("torch-neuronx", Level.ERROR, "not installed", todo)
        return
    if not _is_native(version):
        todo = (
            "this is the legacy package on torch_xla: make a new environment with torch "
            f"{' or '.join(FAMILIES)} and the torch-neuronx of the same numbers"
        )
        yield Check("torch-neuronx", Level.ERROR, f"{version}, legacy", todo)
        return
    family = _family(version)
    if torch is not None and family in FAMILIES and family != _family(torch):
        todo = f"install torch-neuronx=={_family(torch)}.*" if _family(torch) in FAMILIES else ""
        todo = todo or f"install torch=={family}.*"
        yield Check("torch-neuronx", Level.ERROR, f"{version}, native, for torch {family}, not {torch}", todo)
    elif family not in FAMILIES:
        todo = f"a beta: install torch-neuronx=={FAMILIES[-1]}.*"
        yield Check("torch-neuronx", Level.WARNING, f"{version}, native", todo)
    else:
        yield Check("torch-neuronx", Level.OK, f"{version}, native")
    for name, why in floors.BESIDE.items():
        if name not in machine.packages:
            yield Check(name, Level.ERROR, "not installed", f"install it: {why}")
    if "libtorch-neuronx-lite" in machine.packages:
        todo = "give vLLM an environment of its own: both packages take the name of the device"
        yield Check("libtorch-neuronx-lite", Level.ERROR, "beside torch-neuronx", todo)


@dataclass(frozen=True)
class _Loaded:
    """What came of `import torch` in a process of its own."""

    error: str = ""
    """The last line of what it raised."""
    plain_error: str = ""
    """The same without backends, if it raised with them."""
    devices: int | None = None
    """Devices of `torch.neuron`; None if there is no such module."""


_IMPORT = """
import sys
if sys.path and not sys.path[0]:
    del sys.path[0]  # the folder that the tool was started in is none of its business
import json
import torch
module = getattr(torch, "neuron", None)
there = module is not None and hasattr(module, "is_available")
print("\\n" + json.dumps((module.device_count() if module.is_available() else 0) if there else None))
"""


def _load_torch(machine: Machine) -> _Loaded | None:
    """Import torch as the user's program will; None if there is no torch, or no Python to ask."""
    if "torch" not in machine.packages or not machine.interpreter:
        return None
    variables = {**machine.variables, "NEURONMIGRATE_EMULATE": "0"}
    error, devices = _ask_torch(machine.interpreter, variables)
    if not error:
        return _Loaded(devices=devices)
    plain_error, _ = _ask_torch(machine.interpreter, {**variables, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    return _Loaded(error, plain_error)


def _ask_torch(interpreter: str, variables: Mapping[str, str]) -> tuple[str, int | None]:
    """The error of the import, or the number of devices."""
    try:
        done = subprocess.run(
            [interpreter, "-c", _IMPORT], env=variables, capture_output=True, text=True, timeout=300
        )
    except subprocess.TimeoutExpired:
        return "it did not end within five minutes", None
    except OSError as error:
        return f"{interpreter} cannot be run: {error.strerror}", None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {done.returncode}", None
    devices = json.loads(done.stdout.splitlines()[-1])
    return "", devices if isinstance(devices, int) else None


def _torch(machine: Machine, loaded: _Loaded | None) -> Iterator[Check]:
    version = machine.packages.get("torch")
    if version is None:
        yield Check("torch", Level.ERROR, "not installed", f"install torch {' or '.join(FAMILIES)}")
        return
    if _family(version) in FAMILIES:
        yield Check("torch", Level.OK, version)
    else:
        todo = f"TorchNeuron is built for torch {' and '.join(FAMILIES)}"
        yield Check("torch", Level.ERROR, version, todo)
    switched_off = machine.variables.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0"
    others = sorted(set(machine.backends.values()) - {"neuronmigrate"})
    named = ", ".join(others) or "none"
    if switched_off:
        todo = "unset TORCH_DEVICE_BACKEND_AUTOLOAD, or import torch_neuronx in every program"
        yield Check("backends", Level.WARNING, f"{named}, not loaded by `import torch`", todo)
    elif loaded is not None and loaded.error:
        if loaded.plain_error:
            todo = "torch itself cannot be imported: install it anew"
            yield Check("backends", Level.ERROR, f"`import torch` fails: {loaded.plain_error}", todo)
        else:
            todo = (
                "the backend fails as `import torch` loads it; TORCH_DEVICE_BACKEND_AUTOLOAD=0 leaves it out"
            )
            yield Check("backends", Level.ERROR, f"{named}: {loaded.error}", todo)
    elif loaded is not None and loaded.devices is not None:
        level = Level.OK if loaded.devices else Level.ERROR
        yield Check("backends", level, f"{named}; torch.neuron has {loaded.devices} devices")
    elif _is_native(machine.packages.get("torch-neuronx", "")) and loaded is not None:
        todo = "torch-neuronx is installed, but `import torch` does not bring torch.neuron: install it anew"
        yield Check("backends", Level.ERROR, named, todo)
    else:
        yield Check("backends", Level.OK, named)


def _leftovers(machine: Machine) -> Iterator[Check]:
    version = machine.packages.get("torch-xla")
    if version is not None:
        off = machine.variables.get("USE_TORCH_XLA", "").upper() in ("0", "FALSE", "NO", "OFF")
        todo = "uninstall it: Transformers and Accelerate prefer it to the neuron device" + (
            "; USE_TORCH_XLA=0 is set and holds them off" if off else "; USE_TORCH_XLA=0 holds them off"
        )
        yield Check("torch-xla", Level.WARNING if off else Level.ERROR, f"{version} is left over", todo)
    for name, why in floors.LEFTOVERS.items():
        if name in machine.packages:
            found = f"{machine.packages[name]} is left over"
            yield Check(name, Level.WARNING, found, f"uninstall it: {why}")


def _libraries(machine: Machine) -> Iterator[Check]:
    """The Hugging Face libraries: one line for all that are new enough."""
    good = []
    for name, floor in floors.FLOORS.items():
        version = machine.packages.get(name)
        if version is None:
            continue
        if floor.first and _older(version, floor.first):
            yield Check(name, Level.ERROR, version, f"install {floor.floor} or newer: {floor.because}")
        elif _older(version, floor.floor):
            yield Check(name, Level.WARNING, version, f"install {floor.floor} or newer: {floor.because}")
        else:
            good.append(f"{name} {version}")
    good += [f"{each} {machine.packages[each]}" for each in _UNBOUND if each in machine.packages]
    if good:
        yield Check("libraries", Level.OK, ", ".join(good))


_UNBOUND = ("peft", "sentence-transformers")
"""Libraries that run on the device without knowing it."""


# Variables and folders


_HARMLESS = {"ACCELERATE_TORCH_DEVICE": "neuron", "PJRT_DEVICE": "CPU"}
"""Values with which a legacy variable does no harm: Accelerate 1.15 reads the first (state.py)."""


def _variables(machine: Machine) -> Iterator[Check]:
    """Variables of the legacy stack, which the native one does not read or reads in another way."""
    for name, value in sorted(machine.variables.items()):
        entry = catalogue.env(name)
        if entry is None or entry.action in ("keep", "insert") or _HARMLESS.get(name) == value:
            continue
        # The loader's own variable is of interest only if it names a library of the old runtime.
        if name == "LD_PRELOAD" and "neuron" not in value:
            continue
        yield Check(name, Level.WARNING, "does not act as it did", entry.advice)


def _cache(machine: Machine) -> Iterator[Check]:
    name = "TORCH_NEURONX_NEFF_CACHE_DIR"
    given = machine.variables.get(name, "")
    if "://" in given:
        todo = f"give {name} a folder: whether an address works is not documented"
        yield Check("neff cache", Level.WARNING, given, todo)
        return
    folder = Path(given or machine.root / NEFF_CACHE.lstrip("/"))
    where = str(folder) if given else f"{folder} (default)"
    above = folder
    while not above.exists() and above != above.parent:
        above = above.parent
    try:
        free = shutil.disk_usage(above).free
    except OSError as error:
        yield Check("neff cache", Level.WARNING, f"{where}: {error.strerror}", "")
        return
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        todo = f"point {name} at a folder that can be written: each process would compile anew"
        yield Check("neff cache", Level.WARNING, f"{where} cannot be written", todo)
    else:
        state = "" if folder.exists() else ", not there yet"
        found = f"{where}{state}, {free / 1e9:.0f} GB free"
        todo = f"make room, or point {name} at another disk: each compiled operation is kept there"
        full = free < 1e9
        yield Check("neff cache", Level.WARNING if full else Level.OK, found, todo if full else "")


def _emulation(machine: Machine) -> Iterator[Check]:
    torch = machine.packages.get("torch", "")
    if "torch-neuronx" in machine.packages:
        yield Check("emulation", Level.NOTE, "off: torch-neuronx is installed, and nothing stands in for it")
    elif _family(torch) in FAMILIES:
        yield Check("emulation", Level.OK, "available: `neuronmigrate run SCRIPT` (on the CPU)")
    else:
        todo = "install neuronmigrate[runtime] to run migrated code without a Trainium"
        yield Check("emulation", Level.NOTE, f"not available: needs torch {' or '.join(FAMILIES)}", todo)


# A model


def _model(path: Path) -> list[Check]:
    """What is known of the architecture that a configuration names."""
    file, settings = _configuration(path)
    pipeline = settings.get("_class_name")
    kind = settings.get("model_type")
    if isinstance(pipeline, str):
        name, seen = pipeline, architectures.PIPELINES.get(pipeline, ())
    elif isinstance(kind, str):
        name, seen = kind, architectures.MODEL_TYPES.get(kind, ())
    else:
        raise UserError(f"{file}: has neither `model_type` nor `_class_name`, so it names no architecture")
    dated = f"as of {architectures.DATED}"
    checks = []
    if seen:
        told = "; ".join(f"{each.what} ({each.source})" for each in seen)
        checks.append(Check("model", Level.OK, f"{name}: {told}; {dated}"))
    else:
        found = f"{name}: no public word of it on the device, {dated}"
        todo = "try a small one first, and look at torch_neuronx.get_fallback_ops() afterwards"
        checks.append(Check("model", Level.NOTE, found, todo))
    return checks + _model_traps(file, settings)


def _model_traps(file: Path, settings: Mapping[str, object]) -> list[Check]:
    checks = []
    compiled = [name for name in ("neuron_config.json", "model.neuron") if (file.parent / name).exists()]
    if isinstance(settings.get("neuron"), dict) or compiled:
        inner = settings.get("neuron")
        origin = inner.get("model_id") or inner.get("checkpoint_id") if isinstance(inner, dict) else None
        todo = f"start from {origin}" if origin else "start from the checkpoint that it was exported from"
        found = "was compiled by Optimum Neuron, and cannot be loaded natively"
        checks.append(Check("model", Level.ERROR, found, todo))
    quantization = settings.get("quantization_config")
    if isinstance(quantization, dict):
        method = quantization.get("quant_method", "unknown")
        todo = "load the checkpoint it was made from: no kernel for quantised weights is known of"
        checks.append(Check("model", Level.WARNING, f"quantised ({method})", todo))
    dtype = settings.get("dtype", settings.get("torch_dtype"))
    todo = _DTYPES.get(dtype) if isinstance(dtype, str) else None
    if todo is not None:
        checks.append(Check("model", Level.WARNING, f"its weights are {dtype}", todo))
    return checks


_DTYPES = {
    "float16": "load it with dtype=torch.bfloat16: mixed precision in float16 is refused on the device",
    "float64": "load it with dtype=torch.float32: the device has no 64 bits and computes in 32",
}
"""What to do about weights of a dtype."""


def _configuration(path: Path) -> tuple[Path, Mapping[str, object]]:
    file = path
    if path.is_dir():
        known = [path / name for name in ("model_index.json", "config.json")]
        file = next((each for each in known if each.is_file()), known[-1])
    try:
        settings = json.loads(file.read_bytes())
    except OSError as error:
        raise UserError(
            f"{file}: {error.strerror}; --model takes a model's folder or its config.json"
        ) from error
    except ValueError as error:
        raise UserError(f"{file}: is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise UserError(f"{file}:1: is not a model's configuration")
    return file, settings


# Versions


def _is_native(version: str) -> bool:
    return bool(re.match(r"\d+\.\d+", version)) and is_native(version)


def _family(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _older(version: str, floor: str) -> bool:
    try:
        # A development release of the floor has what the floor has.
        return Version(Version(version).base_version) < Version(floor)
    except InvalidVersion:
        return False


def _listed(versions: tuple[tuple[int, int], ...]) -> str:
    *most, last = (".".join(map(str, each)) for each in versions)
    return f"{', '.join(most)} and {last}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
