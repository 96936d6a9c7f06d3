"""`--compile` compiles what a load gives, in place, and changes no number."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronmigrate import registry
from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.plan import State
from neuronmigrate.project import Project
from tests.fixtures_lib import FOLDER, cases, run_of
from tests.on_cpu import run_on_cpu

COMPILED = Settings(compile=True)
CALL = '.compile(backend="neuron", dynamic=False)'
LOADS = """\
from optimum.neuron import {name}

model = {name}.from_pretrained("a", export=True, batch_size=1, {shapes})
"""


@pytest.mark.parametrize(
    "name, shapes, line",
    [
        ("NeuronModelForSequenceClassification", "sequence_length=8", f"model{CALL}"),
        ("NeuronStableDiffusionPipeline", "height=512, width=512", f"model.unet{CALL}"),
        ("NeuronFluxPipeline", "height=512, width=512", f"model.transformer{CALL}"),
    ],
)
def test_line(name: str, shapes: str, line: str) -> None:
    raw = LOADS.format(name=name, shapes=shapes).encode()
    result = migrate("script.py", raw, Project.empty(), COMPILED)
    assert result.after is not None and not result.problems
    assert result.after.decode().rstrip().endswith(line)
    plain = migrate("script.py", raw, Project.empty(), Settings()).after
    assert plain is not None and b".compile(" not in plain


@pytest.mark.parametrize(
    "name, shapes",
    [("NeuronModelForCausalLM", "sequence_length=8"), ("NeuronModelForSeq2SeqLM", "sequence_length=8")],
)
def test_generate_is_left_alone(name: str, shapes: str) -> None:
    raw = LOADS.format(name=name, shapes=shapes).encode()
    result = migrate("script.py", raw, Project.empty(), COMPILED)
    assert result.after is not None and b".compile(" not in result.after


def test_second_run_changes_nothing() -> None:
    families = {each.name.replace("-", "_") for each in registry.load() if each.tables}
    for case in cases("before"):
        if case.source.parent.name not in families:
            continue
        result = migrate("script.py", case.source.read_bytes(), Project.empty(), COMPILED)
        assert not result.problems, case.source
        if result.after is not None:
            again = migrate("script.py", result.after, Project.empty(), COMPILED)
            assert again.after in (None, result.after), case.source


def test_it_computes_the_same(tmp_path: Path) -> None:
    case = next(
        each for each in cases("before") if each.source == FOLDER / "traced_models" / "forward.before.py"
    )
    result = migrate("script.py", case.source.read_bytes(), Project.empty(), COMPILED)
    assert result.after is not None and CALL.encode() in result.after
    assert any(each.state is State.REVIEW and "compiled anew" in each.todo for each in result.findings)
    script = tmp_path / "script.py"
    script.write_bytes(result.after)
    ran = run_on_cpu(script)
    assert ran.stdout == run_of(case.after, 1).stdout
    assert ran.stdout.strip()
