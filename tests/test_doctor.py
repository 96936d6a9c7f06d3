"""`neuronmigrate doctor`: what it says about machines, and about this one."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from neuronmigrate.config import UserError
from neuronmigrate.doctor import Check, Diagnosis, Level, Machine, diagnose
from neuronmigrate.report import diagnosis as printer
from neuronmigrate.targets import architectures, floors, operators
from tests.trees import HOME, write

NATIVE = {
    "torch": "2.14.0+cpu",
    "torch-neuronx": "2.14.3.0.1234",
    "nki": "0.7.0",
    "neuronx-cc": "2.28.7631.0",
    "transformers": "5.24.0",
    "accelerate": "1.15.0",
}


@pytest.fixture
def trn2(tmp_path: Path) -> Machine:
    """A Trn2 machine with everything as it should be, as far as files and metadata tell."""
    root = tmp_path / "root"
    write(
        root,
        {
            "dev/neuron0": b"",
            "dev/neuron1": b"",
            "dev/neuron_other": b"",
            "sys/devices/virtual/dmi/id/product_name": b"trn2.3xlarge\n",
            "tmp/unrelated": b"",
        },
    )
    return Machine(
        NATIVE, {"torch_neuronx": "torch-neuronx"}, {}, root, python=(3, 13), system="Linux x86_64"
    )


def said(machine: Machine, name: str, model: Path | None = None) -> list[Check]:
    return [check for check in diagnose(machine, model).checks if check.name == name]


def only(machine: Machine, name: str, model: Path | None = None) -> Check:
    (check,) = said(machine, name, model)
    return check


def test_a_machine_as_it_should_be_is_ready(trn2: Machine) -> None:
    found = diagnose(trn2)
    assert found.ready, found
    assert {check.level for check in found.checks} == {Level.OK, Level.NOTE}
    assert only(trn2, "hardware").found == "2 devices on trn2.3xlarge"
    assert only(trn2, "torch-neuronx").found == "2.14.3.0.1234, native"


def change(machine: Machine, packages: dict[str, str] | None = None, **fields: object) -> Machine:
    """The machine with other packages; an empty version takes one away."""
    merged = {**machine.packages, **(packages or {})}
    kept = {name: version for name, version in merged.items() if version}
    return dataclasses.replace(machine, packages=kept, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("packages", "name", "level", "words"),
    [
        ({"torch-neuronx": "2.9.0.2.15.32035"}, "torch-neuronx", Level.ERROR, "legacy"),
        ({"torch-neuronx": "1.13.1.1.13.0"}, "torch-neuronx", Level.ERROR, "legacy"),
        ({"torch-neuronx": ""}, "torch-neuronx", Level.ERROR, "torch-neuronx==2.14.*"),
        ({"torch-neuronx": "", "torch": "2.13.0"}, "torch-neuronx", Level.ERROR, "torch-neuronx==2.13.*"),
        ({"torch-neuronx": "2.13.3.0.9"}, "torch-neuronx", Level.ERROR, "torch-neuronx==2.14.*"),
        ({"torch": "2.9.0"}, "torch-neuronx", Level.ERROR, "torch==2.14.*"),
        ({"torch-neuronx": "0.1.0"}, "torch-neuronx", Level.WARNING, "beta"),
        ({"torch": "2.9.0"}, "torch", Level.ERROR, "2.13 and 2.14"),
        ({"torch": ""}, "torch", Level.ERROR, "not installed"),
        ({"nki": ""}, "nki", Level.ERROR, "as it loads"),
        ({"neuronx-cc": ""}, "neuronx-cc", Level.ERROR, "compiles"),
        ({"libtorch-neuronx-lite": "0.3"}, "libtorch-neuronx-lite", Level.ERROR, "of its own"),
        ({"torch-xla": "2.9.0"}, "torch-xla", Level.ERROR, "prefer it to the neuron device"),
        ({"optimum-neuron": "0.4.5"}, "optimum-neuron", Level.WARNING, "uninstall"),
        ({"transformers": "4.57.6"}, "transformers", Level.ERROR, "5.24 or newer"),
        ({"transformers": "5.10.0"}, "transformers", Level.WARNING, "5.24 or newer"),
        ({"accelerate": "1.12.0"}, "accelerate", Level.ERROR, "4097"),
        ({"accelerate": "1.14.0"}, "accelerate", Level.WARNING, "1.15 or newer"),
        ({"diffusers": "0.38.0"}, "diffusers", Level.ERROR, "0.40 or newer"),
        ({"trl": "0.24.0"}, "trl", Level.WARNING, "1.16 or newer"),
    ],
)
def test_packages(trn2: Machine, packages: dict[str, str], name: str, level: Level, words: str) -> None:
    machine = change(trn2, packages)
    check = only(machine, name)
    assert check.level is level
    assert words in f"{check.found} {check.todo}"
    assert diagnose(machine).ready is (level is not Level.ERROR)


def test_a_development_release_counts_as_its_release(trn2: Machine) -> None:
    machine = change(trn2, {"transformers": "5.24.0.dev0", "peft": "0.21.2", "trl": "unreadable"})
    assert "transformers 5.24.0.dev0" in only(machine, "libraries").found
    assert "peft 0.21.2" in only(machine, "libraries").found


def test_torch_xla_that_is_held_off_is_a_warning(trn2: Machine) -> None:
    machine = change(trn2, {"torch-xla": "2.9.0"}, variables={"USE_TORCH_XLA": "0"})
    check = only(machine, "torch-xla")
    assert check.level is Level.WARNING and "is set" in check.todo
    assert diagnose(machine).ready


@pytest.mark.parametrize("chip", ["inf2.xlarge", "trn1.32xlarge", "inf1.2xlarge"])
def test_chips_without_a_native_backend(trn2: Machine, chip: str) -> None:
    write(trn2.root, {"sys/devices/virtual/dmi/id/product_name": chip.encode()})
    check = only(trn2, "hardware")
    assert check.level is Level.ERROR and chip in check.found and "stay on torch-neuronx 2.9" in check.todo


def test_a_machine_without_a_device(trn2: Machine, tmp_path: Path) -> None:
    write(tmp_path / "bare", {"sys/devices/virtual/dmi/id/product_name": b"Standard PC (Q35 + ICH9, 2009)"})
    check = only(change(trn2, root=tmp_path / "bare"), "hardware")
    assert check == Check("hardware", Level.ERROR, "no /dev/neuron*", check.todo)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('[{"neuron_device": 0, "nc_count": 4}, {"neuron_device": 1, "nc_count": 4}]', "with 8 cores"),
        ('{"devices": [{"nc_count": 2}]}', "with 2 cores"),
        ("no JSON", "answers nothing that can be read"),
        ("[]", "2 devices on trn2.3xlarge"),
    ],
)
def test_what_the_drivers_tool_says(trn2: Machine, tmp_path: Path, answer: str, words: str) -> None:
    tool = tmp_path / "bin" / "neuron-ls"
    write(tool.parent, {tool.name: f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n".encode()})
    tool.chmod(0o755)
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    check = only(change(trn2, variables={"PATH": path}), "hardware")
    assert check.level is Level.OK and check.found.endswith(words)


def test_python_and_system(trn2: Machine) -> None:
    assert only(change(trn2, python=(3, 11)), "python").level is Level.ERROR
    assert only(change(trn2, system="Darwin arm64"), "python").level is Level.ERROR
    assert "3.12, 3.13 and 3.14" in only(change(trn2, python=(3, 15)), "python").todo


def test_variables_that_do_not_act_any_more(trn2: Machine) -> None:
    variables = {
        "XLA_USE_BF16": "1",
        "NEURON_CC_FLAGS": "--model-type transformer",
        "NEURON_COMPILE_CACHE_URL": "s3://bucket/cache",
        "LD_PRELOAD": "/usr/lib/libjemalloc.so",
        "ACCELERATE_TORCH_DEVICE": "neuron",
        "NEURON_RT_LOG_LEVEL": "INFO",
        "USE_TORCH_XLA": "0",
        "HOME": "/root",
    }
    machine = change(trn2, variables=variables)
    warned = {check.name: check.todo for check in diagnose(machine).checks if check.level is Level.WARNING}
    assert set(warned) == {"NEURON_CC_FLAGS", "NEURON_COMPILE_CACHE_URL", "XLA_USE_BF16"}
    assert "TORCH_NEURONX_NEFF_CACHE_DIR" in warned["NEURON_COMPILE_CACHE_URL"]
    assert diagnose(machine).ready
    old = change(trn2, variables={"LD_PRELOAD": "/opt/libneuron.so", "ACCELERATE_TORCH_DEVICE": "xla"})
    assert said(old, "LD_PRELOAD") and said(old, "ACCELERATE_TORCH_DEVICE")


def test_the_neff_cache(trn2: Machine, tmp_path: Path) -> None:
    assert "neff_cache (default), not there yet" in only(trn2, "neff cache").found
    name = "TORCH_NEURONX_NEFF_CACHE_DIR"
    there = change(trn2, variables={name: str(tmp_path)})
    assert only(there, "neff cache").found.startswith(f"{tmp_path}, ")
    file = change(trn2, variables={name: str(tmp_path / "root/tmp/unrelated/below")})
    assert only(file, "neff cache").level is Level.WARNING
    address = change(trn2, variables={name: "s3://bucket/cache"})
    assert only(address, "neff cache").level is Level.WARNING


def test_a_full_disk(trn2: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=10**8))
    assert only(trn2, "neff cache").level is Level.WARNING


def test_weights_of_64_bits(trn2: Machine, tmp_path: Path) -> None:
    model = config(tmp_path / "wide", model_type="llama", dtype="float64")
    assert "its weights are float64" in [each.found for each in said(trn2, "model", model)]


def test_emulation(trn2: Machine) -> None:
    assert "off" in only(trn2, "emulation").found
    bare = change(trn2, {"torch-neuronx": ""})
    assert only(bare, "emulation").level is Level.OK
    assert "not available" in only(change(bare, {"torch": "2.9.0"}), "emulation").found


# What `import torch` does, with the torch that is installed


def this_machine(variables: dict[str, str]) -> Machine:
    packages = {name: Machine.here().packages[name] for name in ("torch",)}
    return Machine(packages, {}, {**os.environ, **variables}, interpreter=sys.executable)


def test_torch_without_a_backend() -> None:
    assert only(this_machine({}), "backends") == Check("backends", Level.OK, "none")


def test_a_backend_that_fails_is_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "broken_backend.py": b"def load():\n    raise OSError('libnrt.so.1: cannot open')\n",
            "broken-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n",
            "broken-1.0.dist-info/entry_points.txt": b"[torch.backends]\nbroken = broken_backend:load\n",
        },
    )
    machine = this_machine({"PYTHONPATH": str(tmp_path)})
    check = only(machine, "backends")
    assert check.level is Level.ERROR
    assert "broken" in check.found and "leaves it out" in check.todo


def test_backends_that_are_switched_off(trn2: Machine) -> None:
    off = change(trn2, variables={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    check = only(off, "backends")
    assert check.level is Level.WARNING and check.found.startswith("torch-neuronx, not loaded")


def test_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    write(tmp_path, {"torch.py": b"raise ImportError('libc10.so: not found')\n"})
    check = only(this_machine({"PYTHONPATH": str(tmp_path)}), "backends")
    assert check.level is Level.ERROR
    assert "libc10.so: not found" in check.found and "install it anew" in check.todo


def test_nothing_is_imported_into_the_process_or_from_the_current_folder(tmp_path: Path) -> None:
    write(tmp_path, {"torch.py": b"open('executed', 'w')\n", "json.py": b"open('executed', 'w')\n"})
    program = (
        "import sys\n"
        "sys.argv = ['neuronmigrate', 'doctor', '--output-format', 'json']\n"
        "from neuronmigrate import cli\n"
        "code = cli.main()\n"
        "assert 'torch' not in sys.modules\n"
        "sys.exit(code)\n"
    )
    runner = tmp_path.parent / "runner.py"
    runner.write_text(program)
    done = subprocess.run(
        [sys.executable, str(runner)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(HOME)},
        capture_output=True,
        text=True,
    )
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    assert document["ready"] is (done.returncode == 0)
    names = [check["name"] for check in document["checks"]]
    assert names[:2] == ["python", "hardware"] and "torch" in names
    assert not (tmp_path / "executed").exists()


# Models


def config(folder: Path, **settings: object) -> Path:
    write(folder, {"config.json": json.dumps(settings).encode()})
    return folder


def test_a_known_model(trn2: Machine, tmp_path: Path) -> None:
    folder = config(tmp_path / "m", model_type="qwen3", architectures=["Qwen3ForCausalLM"])
    for path in (folder, folder / "config.json"):
        check = only(trn2, "model", path)
        assert check.level is Level.OK
        assert "docs:" in check.found and architectures.DATED in check.found


def test_a_model_nobody_spoke_of(trn2: Machine, tmp_path: Path) -> None:
    check = only(trn2, "model", config(tmp_path / "m", model_type="bert"))
    assert check.level is Level.NOTE and "get_fallback_ops" in check.todo


def test_a_diffusion_pipeline(trn2: Machine, tmp_path: Path) -> None:
    write(tmp_path / "m", {"model_index.json": b'{"_class_name": "StableDiffusionXLPipeline"}'})
    assert only(trn2, "model", tmp_path / "m").level is Level.OK


def test_models_that_will_not_work(trn2: Machine, tmp_path: Path) -> None:
    neuron = {"task": "text-generation", "checkpoint_id": "Qwen/Qwen3-0.6B"}
    compiled = config(tmp_path / "a", model_type="qwen3", neuron=neuron)
    levels = [check.level for check in said(trn2, "model", compiled)]
    assert levels == [Level.OK, Level.ERROR]
    assert said(trn2, "model", compiled)[1].todo == "start from Qwen/Qwen3-0.6B"
    assert not diagnose(trn2, compiled).ready
    artefact = config(tmp_path / "b", model_type="bert")
    write(artefact, {"model.neuron": b""})
    assert said(trn2, "model", artefact)[1].level is Level.ERROR
    odd = config(
        tmp_path / "c", model_type="llama", torch_dtype="float16", quantization_config={"quant_method": "awq"}
    )
    assert [check.found for check in said(trn2, "model", odd)[1:]] == [
        "quantised (awq)",
        "its weights are float16",
    ]


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (None, "No such file"),
        (b"{", "is not JSON"),
        (b"[]", "not a model's"),
        (b"{}", "neither `model_type`"),
    ],
)
def test_configurations_that_cannot_be_read(
    trn2: Machine, tmp_path: Path, raw: bytes | None, words: str
) -> None:
    folder = tmp_path / "m"
    write(folder, {} if raw is None else {"config.json": raw})
    with pytest.raises(UserError, match=r"config\.json") as raised:
        diagnose(trn2, folder / "config.json")
    assert words in str(raised.value)


# Printing


def test_the_text_fits_on_a_screen(trn2: Machine) -> None:
    machine = change(trn2, {"torch-xla": "2.9.0"}, variables={"XLA_USE_BF16": "\x1b[31m1"})
    lines = ["".join(piece for piece, _ in line) for line in printer.text(diagnose(machine))]
    assert len(lines) <= 24
    assert lines[-1] == "not ready to run on the native neuron device: 1 thing stands in the way"
    assert any(line.startswith("error   torch-xla ") for line in lines)
    ready = ["".join(piece for piece, _ in line) for line in printer.text(diagnose(trn2))]
    assert ready[-1] == "ready to run on the native neuron device"


def test_formats_are_checked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from neuronmigrate import cli

    monkeypatch.setattr(sys, "argv", ["neuronmigrate", "doctor", "--output-format", "yaml"])
    assert cli.main() == 2
    assert "yaml is none of text, json" in capsys.readouterr().err


def test_the_json(trn2: Machine) -> None:
    document = json.loads(
        "\n".join("".join(p for p, _ in line) for line in printer.json_lines(diagnose(trn2)))
    )
    assert document["schema"] == 1 and document["ready"] is True
    assert document["tables"] == max(floors.DATED, architectures.DATED)
    assert Diagnosis(
        tuple(Check(**{**each, "level": Level(each["level"])}) for each in document["checks"])
    ).ready


# The tables


def test_rows_have_sources() -> None:
    seen = [each for row in architectures.MODEL_TYPES.values() for each in row]
    seen += [each for row in architectures.PIPELINES.values() for each in row]
    sources = [each.source for each in seen] + list(operators.ON_CPU.values())
    assert all(source.partition(":")[0] in ("docs", "tests", "source", "reports") for source in sources)
    assert all(each.what for each in seen)
    for table in (architectures.MODEL_TYPES, architectures.PIPELINES, floors.FLOORS, floors.LEFTOVERS):
        assert list(table) == sorted(table)
    assert list(operators.ON_CPU) == sorted(operators.ON_CPU, key=lambda name: name.lstrip("_"))


def test_operators_exist() -> None:
    import torch

    names = {name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names()}
    bare = {name.partition(".")[0].rstrip("_") for name in names}
    for name in operators.ON_CPU:
        assert name.rstrip("_") in bare, name
    assert {name for name in operators.SHAPED_BY_DATA if "." not in name} <= {
        name.partition(".")[0] for name in names
    }
    assert "repeat_interleave.Tensor" in names
