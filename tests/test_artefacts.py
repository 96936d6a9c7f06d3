"""What a project says about the compiled models that it makes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from neuronmigrate import files, run
from neuronmigrate.artefacts import from_commands, from_script
from neuronmigrate.config import Settings
from neuronmigrate.plan import State
from tests.test_project import collected, rewritten, write
from tests.texts import on_one_line

SERVE = """\
from optimum.neuron import NeuronModelForSequenceClassification

model = NeuronModelForSequenceClassification.from_pretrained("compiled/bert")
"""


def said(path: str, text: str) -> list[tuple[str, str]]:
    return [(made.folder, made.checkpoint) for made in from_commands(path, text.encode())]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("a.sh", "optimum-cli export neuron --model a/b --batch_size 1 out/", [("out/", "a/b")]),
        (
            "a.sh",
            "optimum-cli export neuron -m a/b \\\n  --sequence_length=128 \\\n  out  # done",
            [("out", "a/b")],
        ),
        ("a.sh", "M='a/b'\nO=/opt/out\noptimum-cli export neuron -m $M ${O} && ls", [("/opt/out", "a/b")]),
        ("a.sh", "M=a/b\nM=c/d\noptimum-cli export neuron -m $M out", []),
        ("a.sh", "optimum-cli export neuron -m ${M:-a/b} out", []),
        ("a.sh", "# optimum-cli export neuron -m a/b out", []),
        ("a.sh", "optimum-cli export neuron --unknown 1 -m a/b out", []),
        ("a.sh", "optimum-cli export neuron --help", []),
        ("a.sh", "optimum-cli export onnx -m a/b out", []),
        ("a.sh", "python -m optimum.exporters.neuron --model a/b out", [("out", "a/b")]),
        ("Makefile", "M := a/b\nall:\n\toptimum-cli export neuron -m $(M) out", [("out", "a/b")]),
        ("Dockerfile", 'RUN ["optimum-cli", "export", "neuron", "-m", "a/b", "out"]', [("out", "a/b")]),
        ("Dockerfile", "ENV M a/b\nRUN optimum-cli export neuron -m $M out", [("out", "a/b")]),
        ("job.yaml", 'run: "optimum-cli export neuron -m a/b -O2 out"', [("out", "a/b")]),
        ("README.md", "```\n$ optimum-cli export neuron -m a/b out\n```", [("out", "a/b")]),
        ("a.py", 'os.system("optimum-cli export neuron -m a/b out")', [("out", "a/b")]),
        ("a.py", 'run(["optimum-cli", "export", "neuron", "-m", name, "out"])', []),
        ("a.py", 'NAME = "a/b"\nrun(f"optimum-cli export neuron -m {NAME} out")', [("out", "a/b")]),
        ("a.py", 'run(f"optimum-cli export neuron -m {name} {out}")', []),
        ("a.py", "run('optimum-cli export neuron -m a/b \"out\"')", [("out", "a/b")]),
    ],
)
def test_commands(path: str, text: str, expected: list[tuple[str, str]]) -> None:
    assert said(path, text) == expected


def test_the_options_of_a_command() -> None:
    command = (
        "optimum-cli export neuron --model a/b --auto_cast all --batch_size 4 "
        "--lora_model_ids x y --lora_scales 0.5 --task t o"
    )
    [made] = from_commands("a.sh", command.encode())
    assert dict(made.options) == {
        "auto_cast": "'all'",
        "batch_size": "4",
        "lora_model_ids": "['x', 'y']",
        "lora_scales": "0.5",
        "task": "'t'",
    }
    assert not made.unseen
    assert made.place == "a.sh:1"


@pytest.mark.parametrize("option", ["--auto_cast $CAST", "--lora_model_ids x $SECOND"])
def test_an_option_that_is_known_when_it_runs(option: str) -> None:
    [made] = from_commands("a.sh", f"optimum-cli export neuron --model a/b {option} --task t o".encode())
    assert made.unseen


def test_a_command_in_a_notebook_reads_the_variables_of_its_cells() -> None:
    cells = [
        {"cell_type": "code", "source": ['MODEL_ID = "a/b"\n']},
        {"cell_type": "code", "source": ["!optimum-cli export neuron \\\n", "  -m {MODEL_ID} ./out\n"]},
    ]
    [made] = from_commands("n.ipynb", json.dumps({"cells": cells}).encode())
    assert (made.folder, made.checkpoint, made.place) == ("./out", "a/b", "n.ipynb:cell 1:1")
    assert from_commands("n.ipynb", b"optimum-cli {") == ()


SCRIPT = """\
import os
from optimum.neuron import NeuronModelForMaskedLM as Model, pipeline
from optimum.exporters.neuron import main_export

NAME = "a/b"
FOLDER = os.path.join("out", "mlm")
cast = {"auto_cast": "all", "auto_cast_type": "bf16"}


def main():
    model = Model.from_pretrained(NAME, export=True, batch_size=1, **cast)
    model.save_pretrained(FOLDER)
    model.push_to_hub(FOLDER, repository_id="me/b-neuronx")


def given(name, folder):
    model = Model.from_pretrained(name, export=True)
    model.save_pretrained(folder)


class Holder:
    def load(self):
        self.model = Model.export("c/d")

    def save(self):
        self.model.save_pretrained(save_directory="held")


main_export("e/f", output="exported", compiler_kwargs={"auto_cast": "matmul"})
filler = pipeline("fill-mask", "g/h", export=True)
filler.model.save_pretrained(f"{FOLDER}-pipe")
Model.from_pretrained("i/j").save_pretrained("compiled-before")
"""


def test_scripts() -> None:
    made = {each.folder: each for each in from_script("c.py", SCRIPT.encode())}
    assert {folder: each.checkpoint for folder, each in made.items()} == {
        "exported": "e/f",
        "held": "c/d",
        "me/b-neuronx": "a/b",
        "out/mlm": "a/b",
        "out/mlm-pipe": "g/h",
    }
    assert dict(made["out/mlm"].options)["auto_cast_type"] == "'bf16'"
    assert dict(made["exported"].options)["auto_cast"] == "'matmul'"
    assert made["out/mlm"].place == "c.py:11"
    assert from_script("c.py", b"main_export(") == ()
    assert from_script("c.py", b"model.save_pretrained('x')") == ()


def loaded(root: Path) -> tuple[str, State, str]:
    """What became of SERVE: the new text, its state and its message."""
    write(root, {"serve.py": SERVE})
    report, after = rewritten(root)
    [finding] = [
        each
        for each in report.findings
        if each.place.path == "serve.py" and each.found.endswith("from_pretrained")
    ]
    return on_one_line(after.get("serve.py", "")), finding.state, finding.message


def test_a_folder_that_a_script_of_the_project_fills(tmp_path: Path) -> None:
    compile_script = SCRIPT.replace('os.path.join("out", "mlm")', '"./compiled/bert/"')
    write(tmp_path, {"tools/compile.py": compile_script})
    after, state, message = loaded(tmp_path)
    assert state is State.REVIEW
    # It was compiled with bf16 arithmetic.
    assert 'from_pretrained("a/b", dtype=torch.bfloat16, device_map="neuron")' in after
    assert "tools/compile.py:11 compiled" in message


def test_a_folder_that_a_command_fills(tmp_path: Path) -> None:
    write(tmp_path, {"README.md": "    optimum-cli export neuron --model a/b compiled/bert\n"})
    after, state, message = loaded(tmp_path)
    assert state is State.REVIEW
    assert 'from_pretrained("a/b", dtype=torch.float32, device_map="neuron")' in after
    assert "README.md:1 compiled" in message


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        (
            "neuron_config.json",
            {"checkpoint_id": "a/b", "checkpoint_revision": "f00"},
            '"a/b", revision="f00", dtype',
        ),
        (
            "config.json",
            {"neuron": {"auto_cast": "all", "auto_cast_type": "bf16"}, "_name_or_path": "a/b"},
            "bfloat16",
        ),
        ("config.json", {"neuron": {"checkpoint_id": "a/b"}, "_name_or_path": "c/d"}, '"a/b", dtype'),
    ],
)
def test_a_folder_that_stands_in_the_tree(
    tmp_path: Path, file: str, content: dict[str, object], expected: str
) -> None:
    write(tmp_path, {f"compiled/bert/{file}": json.dumps(content)})
    after, state, _ = loaded(tmp_path)
    assert state is State.REVIEW
    assert expected in after


def test_a_folder_of_which_two_things_are_said(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "a.sh": "optimum-cli export neuron --model a/b compiled/bert\n",
            "b.sh": "optimum-cli export neuron --model c/d compiled/bert\n",
        },
    )
    _, state, message = loaded(tmp_path)
    assert state is State.MARKED
    assert "`a/b` (a.sh:1), `c/d` (b.sh:1)" in message


def test_the_nearest_of_several_projects_speaks(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "one/make.sh": "optimum-cli export neuron --model a/b compiled/bert\n",
            "two/make.sh": "optimum-cli export neuron --model c/d compiled/bert\n",
            "one/serve.py": SERVE,
        },
    )
    _, after = rewritten(tmp_path)
    assert '"a/b"' in after["one/serve.py"]


def test_a_folder_of_which_nothing_is_said(tmp_path: Path) -> None:
    # Ordinary weights, and a command whose output is another folder.
    write(
        tmp_path,
        {
            "compiled/bert/config.json": '{"_name_or_path": "what/it-was-trained-from"}',
            "a.sh": "optimum-cli export neuron --model a/b compiled/bert2\n",
        },
    )
    _, state, message = loaded(tmp_path)
    assert state is State.MARKED
    assert "compiled files" in message


def test_a_project_without_legacy_code_is_not_searched(tmp_path: Path) -> None:
    write(tmp_path, {"a.sh": "optimum-cli export neuron --model a/b out\n", "a.py": "import torch_xla\n"})
    tree = files.discover([tmp_path], Settings(), root=tmp_path)
    assert run.run(tree, Settings(), run.engine()).findings
    assert collected(tmp_path).artefacts == ()
