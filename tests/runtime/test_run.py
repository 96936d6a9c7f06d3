"""`neuronmigrate run`: the script is run as by Python itself, with the device there."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import packaging
import pytest

from neuronmigrate import cli
from neuronmigrate.config import UserError
from neuronmigrate.runtime import launch
from neuronmigrate.runtime.launch import Orders
from neuronmigrate.runtime.places import Place
from tests.runtime.running import others, plain, run, script
from tests.tiny_models import save_classifier
from tests.trees import HOME, write

# As by Python itself


def test_a_script_sees_what_it_sees_without_us(tmp_path: Path) -> None:
    program = script(
        tmp_path / "folder",
        """\
        import json, sys, warnings
        print(json.dumps([__name__, __file__, sys.argv, sys.path, sys.flags.optimize, sys.warnoptions]))
        print(sorted(name for name in globals() if not name.startswith("__")))
        print("torch" in sys.modules, "typer" in sys.modules)
        print("to stderr", file=sys.stderr)
        sys.exit(7)
        """,
    )
    arguments = ["--strict", "-m", "x", "--", "--devices=2"]
    ours, theirs = run(program, *arguments), plain(program, *arguments)
    assert ours.returncode == theirs.returncode == 7
    assert ours.stdout == theirs.stdout
    assert others(ours.stderr) == theirs.stderr == "to stderr\n"
    assert "did not import torch" in ours.stderr
    assert '0, ["error"]' not in ours.stdout
    flagged = run(program, flags=["-O", "-W", "error"])
    assert '1, ["error"]' in flagged.stdout, flagged.stderr


def test_a_module_is_run_as_python_does(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "package/__init__.py": b"",
            "package/tool.py": b"import sys\nprint(__name__, __package__, sys.argv, sys.path[0])\n",
        },
    )
    ours = run(
        "-m", "package.tool", "--flag", cwd=tmp_path, env={"PYTHONPATH": str(launch.STARTUP.parents[2])}
    )
    theirs = plain("-m", "package.tool", "--flag", cwd=tmp_path)
    assert ours.returncode == theirs.returncode == 0
    assert ours.stdout == theirs.stdout


def test_a_folder_is_run_as_python_does(tmp_path: Path) -> None:
    write(tmp_path, {"tool/__main__.py": b"import sys, other\nprint(__name__, sys.argv, other.__file__)\n"})
    write(tmp_path, {"tool/other.py": b""})
    ours, theirs = run(tmp_path / "tool", "x"), plain(tmp_path / "tool", "x")
    assert ours.returncode == theirs.returncode == 0
    assert ours.stdout == theirs.stdout


@pytest.mark.parametrize(
    "text",
    [
        "def inner():\n    raise ValueError('broken')\ninner()\n",
        "import sys\nsys.exit('a message')\n",
        "x = (\n",
        "import nothing_of_that_name\n",
    ],
)
def test_errors_are_told_without_frames_of_ours(tmp_path: Path, text: str) -> None:
    program = script(tmp_path, text)
    ours, theirs = run(program), plain(program)
    assert ours.returncode == theirs.returncode == 1
    assert others(ours.stderr) == theirs.stderr


def test_the_environments_own_sitecustomize_still_acts(tmp_path: Path) -> None:
    write(tmp_path, {"own/sitecustomize.py": b"import sys\nsys.customized = __file__\n"})
    program = script(tmp_path, "import sys\nprint(sys.customized, sys.path)\n")
    own = {"PYTHONPATH": str(tmp_path / "own")}
    ours, theirs = run(program, env=own), plain(program, env=own)
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout == theirs.stdout


def test_other_accelerators_are_out_of_sight(tmp_path: Path) -> None:
    variables = launch.environment(
        Orders(("a.py",)), {"CUDA_VISIBLE_DEVICES": "0", "A": "b", "PYTHONPATH": "p"}
    )
    assert variables["CUDA_VISIBLE_DEVICES"] == ""
    assert variables["USE_TORCH_XLA"] == "0"
    assert variables["A"] == "b"
    assert variables["PYTHONPATH"].endswith("startup:p")
    assert not launch.environment(Orders(("a.py",)), {})["PYTHONPATH"].endswith(":")


def test_orders_travel() -> None:
    orders = Orders(("-m", "module", "ä"), True, True, "/r.json", True, "0.4.5")
    assert Orders.from_text(orders.to_text()) == orders


def test_the_program_is_told_from_what_it_starts() -> None:
    orders = Orders(("train.py", "--lr", "1"))
    assert launch.is_program(orders, ["python", "-u", "train.py", "--lr", "1"])
    assert not launch.is_program(orders, ["python", "other.py"])
    assert not launch.is_program(orders, ["python", "-c", "from multiprocessing.spawn import spawn_main"])
    for devices, expected in ((None, True), (1, True), (2, False)):
        assert launch.is_program(orders, launch.command(orders, devices)) is expected


def test_a_missing_legacy_package_is_explained(tmp_path: Path) -> None:
    program = script(tmp_path, "import torch_xla.core.xla_model as xm\n")
    ours, theirs = run(program), plain(program)
    assert ours.returncode == theirs.returncode == 1
    assert ours.stderr.startswith(theirs.stderr)
    assert "`neuronmigrate check` names what is left to migrate" in ours.stderr
    assert "did not import torch" not in ours.stderr


# What cannot be run


def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> str:
    monkeypatch.setattr(sys, "argv", ["neuronmigrate", "run", *map(str, arguments)])
    assert cli.main() == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


def test_what_cannot_be_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = script(tmp_path, "")
    wrong: list[tuple[list[str | Path], str]] = [
        ([tmp_path / "none.py"], "none.py: there is no such script"),
        ([tmp_path], "has no __main__.py"),
        (["--devices", "0", program], "--devices: 0"),
        (["--report", tmp_path / "no" / "r.json", program], "there is no such folder"),
        (["--legacy", "--observe", program], "--legacy: an old script has no neuron device"),
        (["--from-version", "0.4.5", program], "--from-version: only --legacy"),
        (["--legacy", "--from-version", "9.9", program], "--from-version: optimum-neuron 9.9"),
    ]
    for arguments, words in wrong:
        assert words in refused(monkeypatch, capsys, *arguments)


def installed(folder: Path, **packages: str) -> Path:
    """A folder in which these packages are installed, as far as their metadata tell."""
    for name, version in packages.items():
        text = f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        write(folder, {f"{name}-{version}.dist-info/METADATA": text.encode()})
    return folder


@pytest.mark.parametrize(
    ("packages", "emulate", "words"),
    [
        ({}, False, r"torch is not installed.*neuronmigrate\[runtime\]"),
        ({"torch": "2.9.0"}, False, "torch 2.9.0 is installed"),
        ({"torch": "2.13.0", "torch_neuronx": "2.13.3.0"}, True, "torch-neuronx 2.13.3.0 is installed"),
        ({"torch": "2.13.0", "torch_neuronx": "2.13.3.0"}, False, ""),
        ({"torch": "2.13.0+cpu"}, True, ""),
    ],
)
def test_an_environment_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: dict[str, str], emulate: bool, words: str
) -> None:
    program = script(tmp_path, "")
    folder = installed(tmp_path / "site", **packages)
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(sys, "path", [str(folder)])
    orders = Orders((str(program),))
    if words:
        with pytest.raises(UserError, match=words):
            launch.check(orders, emulate=emulate, devices=None)
    else:
        launch.check(orders, emulate=emulate, devices=None)


def test_an_old_script_needs_torch_too(tmp_path: Path) -> None:
    program = script(tmp_path, "")
    site = tmp_path / "site"
    site.mkdir()
    (site / "packaging").symlink_to(Path(packaging.__file__).parent)
    code = (
        "import sys\n"
        f"sys.path += [{str(site)!r}, {str(HOME)!r}]\n"
        "from neuronmigrate.runtime import launch\n"
        f"launch.check(launch.Orders(({str(program)!r},), legacy=True), emulate=False, devices=None)\n"
    )
    # A Python that sees no installed package but that one.
    done = plain("-S", "-c", code, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "UserError: --legacy: torch is not installed, and the stand-ins compute with it"
    )


# With the device

CHILDREN = """\
    import json
    import subprocess
    import sys

    def in_child():
        import torch
        return torch.ones(2, device="neuron").sum().item()

    if __name__ == "__main__":
        import concurrent.futures
        import multiprocessing

        import torch
        from torch.utils.data import DataLoader

        x = torch.arange(6.0, device="neuron").reshape(2, 3)
        print(x.device, (x @ x.T).tolist())
        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
            print(pool.submit(in_child).result())
        code = "import torch; print(torch.zeros(1, device='neuron').device)"
        print(subprocess.run([sys.executable, "-c", code], stdout=-1, text=True, check=True).stdout.strip())
        print([row.tolist() for row in DataLoader(torch.arange(2.0), num_workers=1)])
    """


def test_the_device_is_there_in_the_program_and_in_what_it_starts(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run("--report", report, script(tmp_path, CHILDREN))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "neuron:0 [[5.0, 14.0], [14.0, 50.0]]",
        "2.0",
        "neuron:0",
        "[[0.0], [1.0]]",
    ]
    # One process speaks for all.
    assert done.stderr.count("neuronmigrate: running on emulated (CPU)") == 1
    document = json.loads(report.read_bytes())
    assert document["selection"]["backend"] == "emulated (CPU)"
    assert document["touched"] and document["observation"] is None
    assert document["target"] == [str(tmp_path / "program.py")]


def test_several_devices_are_several_processes(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """\
        import os, sys
        import torch
        rank, world = os.environ["RANK"], os.environ["WORLD_SIZE"]
        with open(f"{sys.argv[1]}/{rank}", "w") as file:
            print(world, torch.neuron.device_count(), torch.ones(1, device="neuron").item(), file=file)
        """,
    )
    report = tmp_path / "report.json"
    done = run("--devices", "2", "--report", report, program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2 2 1.0\n"] * 2
    assert done.stderr.count("neuronmigrate: running on") == 1
    assert json.loads(report.read_bytes())["selection"]["devices"] == 2


def test_a_program_that_leaves_everything_on_the_cpu_is_told_so(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """\
        import sys
        import torch
        model = torch.nn.Linear(2, 2)
        print(model(torch.ones(1, 2)).shape)
        if len(sys.argv) > 1:
            raise SystemExit(sys.argv[1])
        """,
    )
    done = run(program)
    assert done.returncode == 0 and "nothing ran on the neuron device" in done.stderr
    assert done.stdout == "torch.Size([1, 2])\n"


def test_a_batch_left_on_the_cpu_is_refused_on_its_line(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """\
        import torch
        model = torch.nn.Linear(2, 2).to("neuron")
        model(torch.ones(1, 2))
        """,
    )
    done = run(program)
    assert done.returncode == 1
    assert f'File "{program}", line 3' in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "neuron" in last and "cpu" in last and ".to(" in last
    assert "nothing ran on the neuron device" not in done.stderr


def test_a_group_without_its_processes_is_explained(tmp_path: Path) -> None:
    done = run(script(tmp_path, 'import torch\ntorch.distributed.init_process_group("neuron")\n'))
    assert done.returncode == 1
    assert done.stderr.endswith("`neuronmigrate run --devices N` starts its processes\n")


@pytest.fixture(scope="module")
def placed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, object]], str]:
    """What is said about a program whose models stay on the CPU: its notes and its stderr."""
    folder = tmp_path_factory.mktemp("placed")
    save_classifier(folder / "model")
    program = script(
        folder,
        """\
        import sys
        from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline
        model = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], device_map="auto")  # 3
        model(**AutoTokenizer.from_pretrained(sys.argv[1])("a fine film", return_tensors="pt"))  # 4
        classify = pipeline("text-classification", model=sys.argv[1], device=0)  # 5
        classify("a dull film")  # 6
        good = pipeline("text-classification", model=sys.argv[1], device="neuron")
        good("a dull film")
        """,
    )
    report = folder / "report.json"
    done = run("--observe", "--report", report, program, folder / "model")
    assert done.returncode == 0, done.stderr
    notes = json.loads(report.read_bytes())["observation"]["notes"]
    return [note for note in notes if note["kind"] == "cpu-placement"], done.stderr


def test_models_that_stay_on_the_cpu_are_named_with_their_lines(
    placed: tuple[list[dict[str, object]], str],
) -> None:
    notes, stderr = placed
    assert [(note["line"], note["what"]) for note in notes] == [
        (3, "device_map='auto'"),
        (4, "BertForSequenceClassification"),
        (6, "BertForSequenceClassification"),
    ]
    assert 'device_map="neuron"' in stderr and 'pipeline(device="neuron")' in stderr


@pytest.mark.nightly
def test_a_migrated_script_of_the_fixtures_leaves_nothing_on_the_cpu(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    model = save_classifier(tmp_path / "model")
    program = HOME / "fixtures" / "scripts" / "classify" / "after" / "classify.py"
    texts = ["a fine film", "this long film was dull"]
    done = run("--observe", "--report", report, program, *texts, env={"MODEL_DIR": str(model)})
    assert done.returncode == 0, done.stderr
    assert [line.split(maxsplit=2)[2] for line in done.stdout.splitlines()] == texts
    observation = json.loads(report.read_bytes())["observation"]
    kinds = {note["kind"] for note in observation["notes"]}
    assert "host-sync" in kinds and "cpu-placement" not in kinds
    dearest = observation["lines"][0]
    # Two texts of different lengths: every operation on tokens came in two shapes.
    assert "model(**inputs" in dearest["source"] and dearest["varied"]


# Old scripts


def test_an_old_script_runs_on_stand_ins(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        """\
        import torch
        import torch_xla.core.xla_model as xm
        x = torch.ones(2, device=xm.xla_device())
        xm.mark_step()
        print((x + 1).tolist())
        raise SystemExit(3)
        """,
    )
    report = tmp_path / "report.json"
    done = run("--legacy", "--report", report, program)
    assert done.returncode == 3, done.stderr
    assert done.stdout == "[2.0, 2.0]\n"
    assert "stub reference" in done.stderr and "mark_step" in done.stderr
    document = json.loads(report.read_bytes())
    assert document["legacy"]["used"]["torch_xla.core.xla_model.mark_step"] == 1
    assert document["selection"] is None


def test_an_old_script_without_a_stand_in_ends_with_2(tmp_path: Path) -> None:
    done = run("--legacy", script(tmp_path, "\nimport neuronx_distributed.parallel_layers\n"))
    assert done.returncode == 2
    assert "program.py:2: neuronx_distributed is a legacy name without a stand-in" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_of_an_old_script_is_its_own(tmp_path: Path) -> None:
    program = script(tmp_path, "raise KeyError('x')\n")
    ours, theirs = run("--legacy", program), plain(program)
    assert ours.returncode == theirs.returncode == 1
    assert ours.stderr.startswith(theirs.stderr)


# Guards


def guarded(strict: bool) -> tuple[types.ModuleType, list[tuple[Place, str, str]]]:
    """Transformers' own check of device maps under guard, in a module of its own."""
    from transformers.integrations.accelerate import check_and_set_device_map

    from neuronmigrate.runtime import guards

    module = types.ModuleType("modeling_utils")
    module.check_and_set_device_map = check_and_set_device_map  # type: ignore[attr-defined]
    told: list[tuple[Place, str, str]] = []
    guards._guard_device_map(module, lambda *what: told.append(what), strict)
    return module, told


def test_an_automatic_device_map_is_told() -> None:
    module, told = guarded(strict=False)
    assert module.check_and_set_device_map("auto") == "auto"
    ((place, what, why),) = told
    assert place.path == __file__ and "check_and_set_device_map" in place.source
    assert what == "device_map='auto'" and 'device_map="neuron"' in why
    assert str(module.check_and_set_device_map("cpu")) == "{'': device(type='cpu')}"
    assert module.check_and_set_device_map(None) is None
    assert len(told) == 1


def test_an_automatic_device_map_is_refused_when_strict() -> None:
    module, told = guarded(strict=True)
    with pytest.raises(ValueError, match="device_map='balanced'"):
        module.check_and_set_device_map("balanced")
    assert not told


def test_another_transformers_is_left_alone() -> None:
    from neuronmigrate.runtime import guards

    module = types.ModuleType("modeling_utils")
    guards._guard_device_map(module, lambda *what: None, True)
    assert not hasattr(module, "check_and_set_device_map")
