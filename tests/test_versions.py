"""Releases and chips are told from text alone, wherever projects write them down."""

from __future__ import annotations

import json

import pytest
from packaging.version import Version

from neuronmigrate import versions
from neuronmigrate.versions import Requirement


def asked(path: str, text: str, package: str = "optimum-neuron") -> list[tuple[str, str]]:
    return [
        (found.specifier, found.source)
        for found in versions.requirements(path, text.encode())
        if found.package == package
    ]


PLACES = [
    ("requirements.txt", "numpy\noptimum-neuron==0.0.25\n", [("==0.0.25", "requirements.txt:2")]),
    (
        "requirements.txt",
        "optimum-neuron[neuronx] == 0.0.25 # pinned\n",
        [("==0.0.25", "requirements.txt:1")],
    ),
    ("requirements.txt", "optimum_neuron==0.0.25\r\n", [("==0.0.25", "requirements.txt:1")]),
    ("requirements.txt", "Optimum.Neuron==0.0.25", [("==0.0.25", "requirements.txt:1")]),
    ("requirements.txt", "# optimum-neuron==0.0.25\n", []),
    ("requirements.txt", "numpy # optimum-neuron==0.0.25\n", []),
    ("requirements.txt", "optimum-neuron\n", [("", "requirements.txt:1")]),
    (
        "requirements.txt",
        "optimum-neuron>=0.0.20,<0.1; python_version>'3.8'\n",
        [(">=0.0.20,<0.1", "requirements.txt:1")],
    ),
    ("requirements.txt", "optimum-neuronx-thing==1.0\nmy-optimum-neuron==2\n", []),
    (
        "requirements.txt",
        "optimum-neuron @ git+https://github.com/huggingface/optimum-neuron.git@v0.0.24\n",
        [("==0.0.24", "requirements.txt:1")],
    ),
    ("requirements-dev.in", "optimum-neuron~=0.0.25\n", [("~=0.0.25", "requirements-dev.in:1")]),
    ("requirements/train.txt", "optimum-neuron==0.2.0\n", [("==0.2.0", "requirements/train.txt:1")]),
    ("constraints.txt", "optimum-neuron===0.2.0\n", [("===0.2.0", "constraints.txt:1")]),
    (
        "pyproject.toml",
        '[project]\ndependencies = [\n  "optimum-neuron[neuronx]==0.3.0",\n]\n',
        [("==0.3.0", "pyproject.toml:3")],
    ),
    ("pyproject.toml", '[dependency-groups]\ntrain = ["optimum-neuron"]\n', [("", "pyproject.toml:2")]),
    (
        "pyproject.toml",
        '[tool.poetry.dependencies]\noptimum-neuron = "^0.0.25"\n',
        [("==0.0.25", "pyproject.toml:2")],
    ),
    (
        "pyproject.toml",
        '[tool.poetry.dependencies]\noptimum-neuron = "^0.2"\n',
        [(">=0.2,<0.3", "pyproject.toml:2")],
    ),
    (
        "pyproject.toml",
        '[tool.poetry.dependencies]\noptimum-neuron = "~0.2"\n',
        [("==0.2.*", "pyproject.toml:2")],
    ),
    (
        "pyproject.toml",
        'optimum-neuron = {extras = ["neuronx"], version = "0.0.24"}\n',
        [("==0.0.24", "pyproject.toml:1")],
    ),
    ("pyproject.toml", '[project\noptimum-neuron = "0.0.24"\n', [("==0.0.24", "pyproject.toml:2")]),
    ("Pipfile", '[packages]\noptimum-neuron = "==0.0.24"\n', [("==0.0.24", "Pipfile:2")]),
    ("Pipfile", '[packages]\noptimum-neuron = "*"\n', [("", "Pipfile:2")]),
    ("setup.cfg", "[options]\ninstall_requires =\n    optimum-neuron==0.1.0\n", [("==0.1.0", "setup.cfg:3")]),
    (
        "setup.py",
        'setup(\n  install_requires=["optimum-neuron==0.1.0", "torch"],\n)\n',
        [("==0.1.0", "setup.py:2")],
    ),
    (
        "environment.yml",
        "dependencies:\n  - pip:\n    - optimum-neuron==0.1.0\n",
        [("==0.1.0", "environment.yml:3")],
    ),
    ("environment.yml", "dependencies:\n  - optimum-neuron=0.1.0\n", [("==0.1.0", "environment.yml:2")]),
    ("Dockerfile", "RUN pip install \\\n    optimum-neuron \\\n    numpy\n", [("", "Dockerfile:2")]),
    ("Dockerfile", "RUN pip install optimum-neuron==0.0.25 && rm -r x\n", [("==0.0.25", "Dockerfile:1")]),
    (
        "docker/train.Dockerfile",
        "RUN pip install 'optimum-neuron==0.0.25'\n",
        [("==0.0.25", "docker/train.Dockerfile:1")],
    ),
    ("setup.sh", "python -m pip install -U optimum-neuron==0.0.25\n", [("==0.0.25", "setup.sh:1")]),
    ("setup.sh", "echo optimum-neuron\n", []),
    ("ci.yaml", "run: pip3 install optimum-neuron[neuronx]\n", [("", "ci.yaml:1")]),
    ("run.py", 'os.system("pip install optimum-neuron==0.0.25")\n', [("==0.0.25", "run.py:1")]),
    ("run.py", 'subprocess.run(["pip", "install", "optimum-neuron==0.0.25"])\n', [("==0.0.25", "run.py:1")]),
    ("run.py", 'NAME = "optimum-neuron"\nx = "optimum-neuron==0.1.0"\n', [("==0.1.0", "run.py:2")]),
    ("run.py", "import optimum.neuron\nfrom optimum.neuron import X\n", []),
    ("uv.lock", '[[package]]\nname = "optimum-neuron"\nversion = "0.0.27"\n', [("==0.0.27", "uv.lock:3")]),
    ("poetry.lock", '[[package]]\nname = "torch"\nversion = "2.1"\n', []),
    (
        "Pipfile.lock",
        '{"default": {\n "optimum-neuron": {\n  "hashes": ["x"],\n  "version": "==0.0.27"\n }}}',
        [("==0.0.27", "Pipfile.lock:4")],
    ),
    ("README.md", "pip install optimum-neuron==0.0.25\n", []),
    ("notes.txt", "optimum-neuron==0.0.25\n", []),
]


@pytest.mark.parametrize(("path", "text", "expected"), PLACES)
def test_places(path: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert asked(path, text) == expected


def test_notebooks() -> None:
    cells = [
        {"cell_type": "markdown", "source": ["pip install optimum-neuron==0.0.1"]},
        {
            "cell_type": "code",
            "source": ["# set up\n", "!pip install -q \\\n", "    optimum-neuron==0.0.24 \\\n", "    x"],
        },
        {"cell_type": "code", "source": "%pip install optimum[neuronx]"},
    ]
    text = json.dumps({"cells": cells})
    assert asked("a.ipynb", text) == [("==0.0.24", "a.ipynb:cell 1:3")]
    assert asked("a.ipynb", text, "optimum") == [("", "a.ipynb:cell 2:1")]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": 3}', '{"cells": [3, {"source": 4}]}'])
def test_broken_notebooks_say_nothing(text: str) -> None:
    assert versions.requirements("a.ipynb", text.encode()) == ()


def test_other_packages() -> None:
    text = "torch==2.1.2\ntorch-xla>=2.1\ntorch_neuronx==2.1.2.2.1.0\ntransformers==4.36.2\nneuronx-cc==2.*\n"
    found = {
        place.package: place.specifier for place in versions.requirements("requirements.txt", text.encode())
    }
    assert found == {
        "torch": "==2.1.2",
        "torch-xla": ">=2.1",
        "torch-neuronx": "==2.1.2.2.1.0",
        "transformers": "==4.36.2",
        "neuronx-cc": "==2.*",
    }
    places = versions.requirements("requirements.txt", text.encode())
    transformers = versions.release_of(places, "transformers")
    assert transformers is not None and transformers.release == Version("4.36.2")
    assert versions.release_of(places, "torch-xla") is None
    assert versions.release_of(places, "diffusers") is None


def place(
    spec: str, source: str = "requirements.txt:1", rank: int = 1, package: str = "optimum-neuron"
) -> Requirement:
    return Requirement(package, spec, source, rank)


@pytest.mark.parametrize(
    ("found", "release", "source", "assumed"),
    [
        ([place("==0.0.25")], "0.0.25", "requirements.txt:1", False),
        ([place("==0.0.24"), place("==0.0.25", "setup.py:2")], "0.0.25", "setup.py:2", False),
        ([place("==0.0.24"), place("==0.4.0", "Dockerfile:7", 2)], "0.0.24", "requirements.txt:1", False),
        ([place("==0.0.24"), place("==0.0.23", "uv.lock:9", 0)], "0.0.23", "uv.lock:9", False),
        ([place(">=0.0.20")], "0.4.5", "requirements.txt:1", True),
        ([place("~=0.0.20")], "0.0.28", "requirements.txt:1", True),
        ([place("<0.2")], "0.1.0", "requirements.txt:1", True),
        ([place("==0.2.*")], "0.2.2", "requirements.txt:1", True),
        ([place(">=0.0.20"), place("==0.0.21", "Dockerfile:1", 2)], "0.0.21", "Dockerfile:1", False),
        ([place("==0.5.0.dev1")], "0.5.0.dev1", "requirements.txt:1", False),
        ([place("")], "0.4.5", "requirements.txt:1", True),
        ([place(">=9")], "0.4.5", "requirements.txt:1", True),
        ([place("nonsense")], "0.4.5", "requirements.txt:1", True),
        ([place("==4.36", package="transformers")], "0.4.5", "", True),
        ([], "0.4.5", "", True),
    ],
)
def test_the_release_of_a_project(found: list[Requirement], release: str, source: str, assumed: bool) -> None:
    legacy = versions.legacy_version(found)
    assert (str(legacy.release), legacy.source, legacy.assumed) == (release, source, assumed)
    assert release in legacy.notice
    assert (source or "no file") in legacy.notice


def test_a_disagreement_is_told() -> None:
    legacy = versions.legacy_version([place("==0.0.25"), place("==0.0.24", "Dockerfile:7", 2)])
    assert legacy.notice == "optimum-neuron 0.0.25, from requirements.txt:1 (Dockerfile:7 says 0.0.24)"


def test_an_extra_of_optimum_asks_for_it_without_a_release() -> None:
    found = versions.requirements("requirements.txt", b"optimum[neuronx]==1.18\n")
    legacy = versions.legacy_version(found)
    assert (legacy.source, legacy.assumed) == ("requirements.txt:1", True)
    assert versions.legacy_version(versions.requirements("requirements.txt", b"optimum==1.18\n")).source == ""


def test_the_nearest_folder_holds_where_projects_share_a_tree() -> None:
    found = [
        place("==0.0.24", "a/requirements.txt:1"),
        place("==0.0.25", "b/requirements/train.txt:1"),
        place("", "c/requirements.txt:1"),
        place("==0.0.21", "Dockerfile:1", 2),
    ]
    for path, release in [
        ("a/x.py", "0.0.24"),
        ("b/src/x.py", "0.0.25"),
        ("c/x.py", "0.0.21"),
        ("x.py", "0.0.21"),
    ]:
        assert str(versions.legacy_version(versions.near(found, path)).release) == release
    assert versions.near(found[:2], "c/x.py") == tuple(found[:2])
    # A project that asks for it without a release does not take that of its neighbours.
    alone = versions.legacy_version(versions.near(found[:3], "c/x.py"))
    assert (alone.assumed, alone.source) == (True, "c/requirements.txt:1")


def test_what_a_person_says_holds() -> None:
    assert versions.legacy_version([place("==0.0.24")], "0.1.0").release == Version("0.1.0")
    with pytest.raises(ValueError, match="'newest' is not a release"):
        versions.legacy_version([], "newest")


def test_releases_are_in_order() -> None:
    parsed = [Version(release) for release in versions.RELEASES]
    assert parsed == sorted(parsed)
    assert len(parsed) == 40


@pytest.mark.parametrize(
    ("specifier", "floor"),
    [
        (">=3.8", (3, 8)),
        (">=3.8,<3.12", (3, 8)),
        ("~=3.9", (3, 9)),
        ("==3.10.*", (3, 10)),
        (">3.6", (3, 6)),
        ("<3.12", None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_python_floor(specifier: str, floor: tuple[int, int] | None) -> None:
    assert versions.python_floor(specifier) == floor


@pytest.mark.parametrize(
    ("text", "chip"),
    [
        ("os.environ['PJRT_DEVICE'] = 'TPU'\n", "tpu"),
        ("export PJRT_DEVICE=TPU\n", "tpu"),
        ("pip install torch_xla[tpu] -f https://x/libtpu-releases/index.html\n", "tpu"),
        ("python -m torch_xla.distributed.xla_dist --tpu=x\n", "tpu"),
        ("path = 'gs://bucket/data'\n", "tpu"),
        ("import torch_xla.runtime as xr\nxr.use_spmd()\n", "tpu"),
        ("if xm.xla_device_hw(d) == 'TPU':\n", "tpu"),
        ("# Trains on Cloud TPUs.\n", "tpu"),
        ("os.environ['PJRT_DEVICE'] = 'NEURON'\n", "neuron"),
        ("import torch_neuronx\n", "neuron"),
        ("from optimum.neuron import NeuronTrainer\n", "neuron"),
        ("os.environ['NEURON_CC_FLAGS'] = ''\n", "neuron"),
        ("# tuned for trn1.32xlarge\n", "neuron"),
        ("if hw == 'TPU': ...\nelif hw == 'NEURON': ...\n", "neuron"),
        ("import torch_xla.core.xla_model as xm\nxm.mark_step()\n", ""),
        ("from neuron import h\nneurons = 3\n", ""),
        ("output = tpu_like\n", ""),
    ],
)
def test_chips(text: str, chip: str) -> None:
    assert versions.chip_of(text.encode()) == chip


def test_the_name_of_a_file_is_a_sign() -> None:
    assert versions.chip_of(b"xm.mark_step()\n", "train_tpu.py") == "tpu"
    assert versions.chip_of(b"xm.mark_step()\n", "tpu/train.py") == "tpu"
    assert versions.chip_of(b"xm.mark_step()\n", "outputs/train.py") == ""


def test_signs_say_what_and_where_once() -> None:
    raw = b"import os\nos.environ['PJRT_DEVICE'] = 'TPU'\nx = 'gs://a'\ny = 'gs://a'\n"
    assert versions.tpu_signs(raw) == ("PJRT_DEVICE'] = 'TPU (line 2)", "gs://a (line 3)")
    assert versions.neuron_signs(b"x\nimport torch_neuronx\nimport torch_neuronx\n") == (
        "torch_neuronx (line 2)",
    )
    assert versions.tpu_signs(b"nothing") == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch_neuron\n", True),
        ("torch.neuron.trace(m, x)\n", True),
        ("pip install torch-neuron\n", True),
        ("ml.inf1.xlarge\n", True),
        ("import torch_neuronx\n", False),
        ("pip install torch-neuronx\n", False),
        ("torch.neuron.synchronize()\n", False),
        ("ml.inf2.xlarge\n", False),
    ],
)
def test_inf1(text: str, found: bool) -> None:
    assert bool(versions.inf1_signs(text.encode())) is found


def test_the_chip_of_a_project() -> None:
    assert versions.chip_of_project(["", "tpu", "neuron"]) == "neuron"
    assert versions.chip_of_project(["", "tpu"]) == "tpu"
    assert versions.chip_of_project([]) == ""


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("third_party/torch_xla/core/xla_model.py", "third_party/torch_xla"),
        ("torch_xla/__init__.py", "torch_xla"),
        ("src/optimum/neuron/trainers/x.py", "src/optimum/neuron"),
        ("examples/torch_xla/train.py", ""),
        ("src/optimum/train.py", ""),
        ("torch_xla.py", ""),
    ],
)
def test_vendored_packages(path: str, folder: str) -> None:
    packages = {
        "third_party/torch_xla/__init__.py",
        "torch_xla/__init__.py",
        "src/optimum/neuron/__init__.py",
    }
    assert versions.vendored(path, packages.__contains__) == folder
