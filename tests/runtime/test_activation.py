"""Choosing a backend, and what activation does to a process."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from neuronmigrate.runtime import Activation, Backend, UnsupportedTorch, activate, select
from neuronmigrate.runtime import autoload as autoload_module
from neuronmigrate.runtime.activation import is_first
from neuronmigrate.runtime.select import FAMILIES, is_native, torch_version

ROOT = Path(__file__).parents[2]


def python(program: str, *paths: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh process that finds this tree, and what lies in `paths` before it."""
    path = os.pathsep.join([*map(str, paths), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **variables},
    )


def distribution(
    folder: Path, name: str, version: str, *, entry_point: str = "", module: str | None = None
) -> Path:
    """A folder that holds the metadata of an installed package, and perhaps a module of its name."""
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if entry_point:
        (metadata / "entry_points.txt").write_text(f"[torch.backends]\n{name} = {entry_point}\n")
    if module is not None:
        (folder / f"{name.replace('-', '_')}.py").write_text(module)
    return folder


@pytest.fixture
def autoload(tmp_path: Path) -> Path:
    """A folder in which neuronmigrate looks installed, with its entry point."""
    return distribution(
        tmp_path / "installed", "neuronmigrate", "0", entry_point="neuronmigrate.runtime.autoload:autoload"
    )


ASK = "import json; from neuronmigrate.runtime import select; print(json.dumps(select().as_json()))"


def native_package(folder: Path, *, available: bool) -> Path:
    """A package that registers a device through the entry point, as TorchNeuron does."""
    module = (
        "import torch, types\n"
        "def load():\n"
        "    torch.utils.rename_privateuse1_backend('neuron')\n"
        "    device = types.ModuleType('torch.neuron')\n"
        f"    device.is_available = lambda: {available}\n"
        "    device.device_count = lambda: 4\n"
        "    torch._register_device_module('neuron', device)\n"
    )
    entry_point = "torch_neuronx:load"
    return distribution(folder, "torch-neuronx", "2.13.3.0", entry_point=entry_point, module=module)


@pytest.mark.parametrize(
    ("command", "speaks"),
    [
        pytest.param("train.py torchrun", True, id="a program"),
        pytest.param("-m package.train", True, id="a module"),
        pytest.param("/usr/bin/torchrun --nproc-per-node 2 train.py", False, id="torchrun"),
        pytest.param("-W ignore -m torch.distributed.run train.py", False, id="torchrun as a module"),
        pytest.param("/usr/bin/accelerate launch train.py", False, id="accelerate"),
        pytest.param("-c from multiprocessing.spawn --multiprocessing-fork", False, id="a worker"),
    ],
)
def test_one_process_speaks(command: str, speaks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, *command.split(" ")])
    monkeypatch.delenv("RANK", raising=False)
    assert is_first() == speaks
    monkeypatch.setenv("RANK", "1")
    assert not is_first()


class TestSelect:
    """The real device, the emulated one, or the CPU, with a reason."""

    def test_nothing_installed(self) -> None:
        selection = select()
        assert (selection.backend, selection.package, selection.devices) == (Backend.EMULATED, None, 1)
        assert "no torch-neuronx is installed" in selection.line() and "emulated (CPU)" in selection.line()
        assert select(emulate=False).backend is Backend.CPU
        assert select(devices=4).devices == 4
        assert json.loads(str(selection)) == selection.as_json()

    def test_devices_of_torchrun(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
        assert select().devices == 2

    @pytest.mark.parametrize(
        ("version", "native"),
        [
            ("2.14.3.0", True),
            ("2.13.3.0.1", True),
            ("0.1.0", True),
            ("2.9.0.2.15.32035", False),
            ("1.13.1.1", False),
        ],
    )
    def test_families(self, version: str, native: bool) -> None:
        assert is_native(version) == native

    def test_a_native_package_without_a_device(self, tmp_path: Path) -> None:
        done = python(ASK, native_package(tmp_path, available=False))
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert (answer["backend"], answer["package"], answer["devices"]) == ("cpu", "2.13.3.0", 0)
        assert "no Neuron device answers" in answer["reason"]

    def test_the_native_package_is_left_alone(self, tmp_path: Path, autoload: Path) -> None:
        program = (
            "import torch, sys; compile = torch.compile; from neuronmigrate.runtime import activate;"
            " activation = activate(); assert activation.selection.devices == 4;"
            " assert activation.touched == () and torch.compile is compile;"
            " assert not any(name.startswith('neuronmigrate.runtime.emulated') for name in sys.modules)"
        )
        folder = native_package(tmp_path / "real", available=True)
        done = python(program, folder, autoload, NEURONMIGRATE_EMULATE="1")
        assert done.returncode == 0, done.stderr
        assert "NEURONMIGRATE_EMULATE=1 is ignored" in done.stderr
        assert "running on native" in done.stderr

    def test_the_legacy_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.metadata.version
        monkeypatch.setattr(
            importlib.metadata,
            "version",
            lambda name: "2.9.0.2.15.1" if name == "torch-neuronx" else real(name),
        )
        assert select().backend is Backend.CPU and "legacy package" in select().reason

    def test_other_torches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.metadata.version
        for version, family in (
            ("2.12.1", None),
            ("2.15.0+cpu", None),
            ("2.14.0", "2.14"),
            ("2.13.1+cu126", "2.13"),
        ):
            monkeypatch.setattr(
                importlib.metadata, "version", lambda name, v=version: v if name == "torch" else real(name)
            )
            if family is None:
                with pytest.raises(
                    UnsupportedTorch, match=rf"torch {version.partition('+')[0]}.*2\.13 and 2\.14"
                ):
                    torch_version()
            else:
                assert torch_version() == version and family in FAMILIES

    def test_no_torch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def missing(name: str) -> str:
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "version", missing)
        with pytest.raises(UnsupportedTorch, match=r"neuronmigrate\[runtime\]"):
            torch_version()


class TestAutoload:
    """The entry point that PyTorch calls at the end of `import torch`."""

    def test_off(self, autoload: Path) -> None:
        program = (
            "import torch, sys;"
            " assert torch._C._get_privateuse1_backend_name() == 'privateuseone';"
            " names = [n for n in sys.modules if n.startswith('neuronmigrate')]; print(names)"
        )
        done = python(program, autoload)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        assert "emulated" not in done.stdout

    def test_on(self, autoload: Path) -> None:
        program = "import torch; print((torch.ones(2, device='neuron') + 1).device)"
        done = python(program, autoload, NEURONMIGRATE_EMULATE="1")
        assert done.stdout == "neuron:0\n", done.stderr
        assert done.stderr.count("emulated (CPU)") == 1

    def test_settings_and_the_silence_of_other_ranks(self, autoload: Path) -> None:
        program = (
            "import torch\nprint(torch.neuron.device_count())\n"
            "try: torch.Generator('neuron')\nexcept RuntimeError as error: print(error)"
        )
        variables = {"NEURONMIGRATE_EMULATE": "1", "NEURONMIGRATE_STRICT": "1", "NEURONMIGRATE_DEVICES": "2"}
        done = python(program, autoload, RANK="1", **variables)
        assert done.stdout.startswith("2\n") and "draw on the CPU" in done.stdout
        assert done.stderr == ""

    def test_it_never_raises(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("NEURONMIGRATE_EMULATE", "1")
        monkeypatch.setenv("NEURONMIGRATE_DEVICES", "many")
        autoload_module.autoload()
        assert "no emulated neuron device: ValueError" in capsys.readouterr().err


class TestActivation:
    """What changes in the process."""

    def test_importing_the_runtime_imports_no_torch(self) -> None:
        program = (
            "import sys, neuronmigrate.runtime; from neuronmigrate.runtime import autoload, pytest_plugin;"
            " assert 'torch' not in sys.modules"
        )
        done = python(program)
        assert done.returncode == 0, done.stderr

    def test_a_second_time_changes_nothing(self, neuron: Activation) -> None:
        before = neuron.touched
        assert activate(quiet=True).touched == before
        assert activate(quiet=True, devices=1).selection == neuron.selection
        with pytest.raises(RuntimeError, match="is active already, with 1 device"):
            activate(quiet=True, strict=True)
        with pytest.raises(RuntimeError, match="without strict mode"):
            activate(quiet=True, devices=2)

    @pytest.mark.parametrize("strict", [False, True])
    def test_after_a_backward_pass_on_the_cpu(self, strict: bool) -> None:
        program = f"""
import torch
from torch.utils.checkpoint import checkpoint

def gradient(device, reentrant=True):
    weight = torch.linspace(-1, 1, 12).view(3, 4).to(device).requires_grad_()
    layer = lambda x: (x @ weight.T).tanh() @ weight
    checkpoint(layer, weight * 2, use_reentrant=reentrant).square().mean().cpu().backward()
    return weight.grad.cpu()

before = gradient("cpu")
from neuronmigrate.runtime import activate
activate(strict={strict})
assert torch.equal(before, gradient("neuron")) and torch.equal(before, gradient("neuron", False))
"""
        done = python(program)
        assert done.returncode == 0, done.stderr

    def test_a_taken_backend(self, neuron: Activation, monkeypatch: pytest.MonkeyPatch) -> None:
        from neuronmigrate.runtime.emulated import install

        monkeypatch.setattr(install, "_done", False)
        with pytest.raises(RuntimeError, match="in use by 'neuron'"):
            activate(quiet=True)

    def test_every_change_is_stated(self) -> None:
        """Compare all attributes of torch's modules and classes before and after."""
        program = """
import json, sys, types, warnings

warnings.simplefilter("ignore")
import torch, torch._dynamo, torch.optim
from neuronmigrate.runtime import activate
from neuronmigrate.runtime.emulated import install, strict


def attributes():
    found, seen = {}, set()

    def look(owner, name):
        for key, value in list(vars(owner).items()):
            found[f"{name}.{key}"] = value
            if isinstance(value, type) and value.__module__.split(".")[0] == "torch" and value not in seen:
                seen.add(value)
                look(value, f"{value.__module__}.{value.__qualname__}")

    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "torch" and isinstance(module, types.ModuleType):
            look(module, name)
    return found


before = attributes()
activation = activate(strict=True, quiet=True)
changed = [name for name, value in attributes().items() if before.get(name, ...) is not value]
print(json.dumps([changed, [touch.part for touch in activation.touched]]))
"""
        done = python(program)
        assert done.returncode == 0, done.stderr
        changed, touched = json.loads(done.stdout)
        # What renaming the backend changes by itself, the new module's inside, and torch's own counters and
        # namespaces, which it makes at their first use.
        by_itself = (
            *("torch._C._autograd.DeviceType.", "torch._C._profiler.ProfilerActivity."),
            *("torch.utils.backend_registration._privateuse1_backend_name", "torch.neuron."),
            *("torch.utils.hooks.RemovableHandle.next_id", "torch._C.Generator.", "torch.ops.c10d"),
        )
        changed = {name for name in changed if not name.startswith(by_itself) and ".__" not in name}
        assert changed - set(touched) == set()
        registrations = {"torch.utils.rename_privateuse1_backend", "torch._dynamo.register_backend"}
        registrations |= {"torch._dynamo.device_interface", "torch.autograd.set_multithreading_enabled"}
        registrations |= {"torch.optim.optimizer.register_optimizer_step_pre_hook"}
        attributes = {name for name in touched if name.startswith("torch.") and ".__" not in name}
        assert attributes - registrations == changed

    def test_documentation_lists_every_change(self, neuron: Activation) -> None:
        text = (ROOT / "docs" / "runtime.md").read_text(encoding="utf-8")
        for touch in neuron.touched:
            assert f"`{touch.part}`" in text, touch.part


class TestPlugin:
    """The plugin for other projects' tests."""

    TEST = "def test_device():\n    import torch\n    assert torch.ones(1, device='neuron').is_neuron\n"

    def run(self, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
        (folder / "test_it.py").write_text(self.TEST)
        # Where neuronmigrate is installed pytest finds the plugin by itself, and takes no second one.
        found = {each.value for each in entry_points(group="pytest11")}
        plugin = "neuronmigrate.runtime.pytest_plugin"
        named = [] if plugin in found else ["-p", plugin]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *named, *options],
            cwd=folder,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    @pytest.mark.nightly
    def test_off_without_its_option(self, tmp_path: Path) -> None:
        done = self.run(tmp_path)
        assert done.returncode == 1 and "1 failed" in done.stdout
        assert "neuronmigrate: running" not in done.stdout

    def test_option(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "--neuron-emulate")
        assert done.returncode == 0, done.stdout
        assert "neuronmigrate: running on emulated (CPU)" in done.stdout

    @pytest.mark.nightly
    def test_strict_alone(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "--neuron-strict")
        assert done.returncode == 0, done.stdout
        assert "neuronmigrate: running on emulated (CPU), strict" in done.stdout

    @pytest.mark.nightly
    def test_ini(self, tmp_path: Path) -> None:
        (tmp_path / "pytest.ini").write_text("[pytest]\nneuron_emulate = true\nneuron_strict = true\n")
        done = self.run(tmp_path)
        assert done.returncode == 0, done.stdout
        assert "emulated (CPU), strict" in done.stdout
