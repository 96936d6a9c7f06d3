"""What only the whole tree can tell: what modules hand on, and the release they were written for."""

from __future__ import annotations

import pickle
import textwrap
from pathlib import Path

import pytest

from neuronmigrate import files, run
from neuronmigrate.config import Settings, UserError
from neuronmigrate.plan import Report
from neuronmigrate.project import Project, collect

LOAD = """\
from optimum.neuron import NeuronModelForSequenceClassification


def load(name):
    return NeuronModelForSequenceClassification.from_pretrained(name, export=True)
"""
USE = """\
from load import load

model = load("id")
print(model(input_ids=ids).logits)
"""


def write(root: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), "utf-8")


def collected(root: Path, settings: Settings | None = None) -> Project:
    settings = settings or Settings()
    tree = files.discover([root], settings, root=root)
    return collect(root, tree.telling, settings)


def rewritten(root: Path) -> tuple[Report, dict[str, str]]:
    report = run.run(files.discover([root], Settings(), root=root), Settings(), run.engine())
    assert not report.problems
    return report, {
        result.path: result.after.decode() for result in report.results if result.after is not None
    }


def test_a_model_that_another_module_loads(tmp_path: Path) -> None:
    write(tmp_path, {"load.py": LOAD, "use.py": USE})
    assert collected(tmp_path).concerns("use.py")
    _, after = rewritten(tmp_path)
    assert "model(input_ids=ids.to(model.device)).logits" in after["use.py"]
    assert "AutoModelForSequenceClassification" in after["load.py"]


def test_a_model_that_is_handed_to_another_module(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "main.py": LOAD + "\n\nimport scoring\n\nscoring.score(load('id'), rows)\n",
            "scoring.py": "def score(model, rows):\n    return [model(**row).logits for row in rows]\n",
        },
    )
    _, after = rewritten(tmp_path)
    assert "model.device" in after["scoring.py"]


def test_a_name_that_another_module_hands_on(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pkg/__init__.py": "",
            "pkg/device.py": "import torch_xla.core.xla_model as xm\n\nhere = xm.xla_device()\n",
            "pkg/train.py": "from .device import xm\n\nxm.mark_step()\nprint(1)\n",
            "top.py": "from pkg.device import xm as lazy\n\nlazy.mark_step()\nprint(2)\n",
        },
    )
    _, after = rewritten(tmp_path)
    assert "mark_step" not in after["pkg/train.py"]
    assert "mark_step" not in after["top.py"]
    # Others still import the name from there.
    assert "TODO(neuronmigrate): [legacy-import]" in after["pkg/device.py"]


def test_two_folders_with_a_module_of_one_name(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "old/load.py": LOAD,
            "old/use.py": USE,
            "new/load.py": "def load(name):\n    return print\n",
            "new/use.py": USE,
        },
    )
    _, after = rewritten(tmp_path)
    assert set(after) == {"old/load.py", "old/use.py"}


def test_a_module_that_only_sounds_alike_does_not_join(tmp_path: Path) -> None:
    write(
        tmp_path, {"load.py": LOAD, "use.py": "from other.load import load\n\nprint(load('id')(x).logits)\n"}
    )
    project = collected(tmp_path)
    assert not project.concerns("use.py")


def test_a_file_that_does_not_parse_stops_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"load.py": LOAD, "use.py": USE, "old.py": "import torch_xla\nprint 'neuron'\n"})
    assert collected(tmp_path).concerns("use.py")


def test_the_release_is_that_of_the_nearest_folder(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "requirements.txt": "optimum-neuron==0.4.3\n",
            "a/train.py": LOAD,
            "b/requirements.txt": "optimum-neuron[neuronx]==0.0.28\n",
            "b/train.py": LOAD,
        },
    )
    project = collected(tmp_path)
    assert str(project.legacy_of("a/train.py").release) == "0.4.3"
    assert str(project.legacy_of("b/train.py").release) == "0.0.28"
    assert project.notices(["a/train.py"]) == ("optimum-neuron 0.4.3, from requirements.txt:1",)
    given = collected(tmp_path, Settings(from_version="0.1.0"))
    assert str(given.legacy_of("b/train.py").release) == "0.1.0"


def test_a_release_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="abc"):
        collected(tmp_path, Settings(from_version="abc"))


def test_workers_get_it_as_plain_data(tmp_path: Path) -> None:
    write(tmp_path, {"load.py": LOAD, "use.py": USE})
    project = collected(tmp_path)
    assert project.facts_of("use.py").knows("load.load")
    again = pickle.loads(pickle.dumps(project))
    assert again == project
    assert again.leads_to_legacy("load.load", "use.py")


def test_tpu_code_is_left_alone_aloud(tmp_path: Path) -> None:
    step = "import torch_xla.core.xla_model as xm\n\nxm.mark_step()\n"
    text = "import os\n" + step + "os.environ['PJRT_DEVICE'] = 'TPU'\n"
    write(tmp_path, {"train.py": text, "step.py": step})
    report, after = rewritten(tmp_path)
    assert not after
    assert [(finding.codemod, finding.state.value) for finding in report.findings] == [("tpu", "note")] * 2
    settings = Settings(tpu=True)
    forced = run.run(files.discover([tmp_path], settings, root=tmp_path), settings, run.engine())
    assert all("mark_step" not in (result.after or b"mark_step").decode() for result in forced.results)


def test_files_of_kinds_that_are_not_read_are_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "train.py": "print(1)\n",
            "run.sh": "neuron_parallel_compile torchrun train.py\n",
            "requirements.txt": "optimum-neuron==0.4.5\n",
            "setup.cfg": "[metadata]\nname = mine\n",
            "deploy/Dockerfile": "RUN pip install torch-xla\n",
        },
    )
    report, _ = rewritten(tmp_path)
    said = "3 files hold legacy names, of kinds that are not read yet: "
    assert report.notices == (
        said + "deploy/Dockerfile, requirements.txt, run.sh",
        "run.sh:1: `neuron_parallel_compile` is gone: write `torchrun train.py`",
    )
