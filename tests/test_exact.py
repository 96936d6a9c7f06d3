"""`--exact` keeps what the old classes did by mistake; without it, that is said and not kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from neuronmigrate import registry
from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.project import Project
from tests.fixtures_lib import cases
from tests.on_cpu import run_on_cpu
from tests.tiny_models import save_sentence_encoder

EXACT = Settings(exact=True)
LOAD = 'model = {name}.from_pretrained("a", export=True, batch_size=1, {shapes})\n'


def _after(text: str, settings: Settings = EXACT, release: str = "") -> str:
    result = migrate("script.py", text.encode(), Project(given=release), settings)
    assert result.after is not None and not result.problems
    return result.after.decode()


@pytest.mark.parametrize(
    "name, shapes, call, kept",
    [
        (
            "NeuronModelForSequenceClassification",
            "sequence_length=8",
            "model(input_ids=ids, attention_mask=mask, labels=labels, return_dict=False)",
            "model(input_ids=ids.to(model.device), attention_mask=mask.to(model.device))",
        ),
        (
            "NeuronModelForSeq2SeqLM",
            "sequence_length=8, num_beams=2",
            "model.generate(ids, repetition_penalty=1.3, min_length=4)",
            "model.generate(ids.to(model.device), num_beams=2, max_length=8, do_sample=False)",
        ),
        (
            "NeuronModelForCausalLM",
            "sequence_length=8, num_cores=1",
            "model.generate(ids, repetition_penalty=1.3, max_new_tokens=4)",
            "model.generate(ids, max_new_tokens=4)",
        ),
        (
            "NeuronStableDiffusionPipeline",
            'height=512, width=512, auto_cast="none"',
            'model("a hill")',
            'from_pretrained("a", safety_checker=None, dtype=torch.float32)',
        ),
    ],
)
def test_what_had_no_effect_goes(name: str, shapes: str, call: str, kept: str) -> None:
    text = f"from optimum.neuron import {name}\n\n{LOAD.format(name=name, shapes=shapes)}{call}\n"
    assert kept in _after(text)
    assert kept not in _after(text, Settings())


def test_sampling_starts_from_seed_0() -> None:
    load = LOAD.format(name="NeuronModelForCausalLM", shapes="sequence_length=8, num_cores=1")
    text = f"from optimum.neuron import NeuronModelForCausalLM\n\n{load}model.generate(ids, do_sample=True)\n"
    assert "torch.manual_seed(0)\nmodel.generate(" in _after(text, release="0.1.0")
    assert "manual_seed" not in _after(text, release="0.3.0")


def test_embeddings_come_in_the_old_order(tmp_path: Path) -> None:
    """As modeling_sentence_transformers.py of 0.4.5 sorts texts and puts their embeddings back."""
    texts = ["w1", "w1 w2 w3 w4 w5", "w1 w2 w3", "w1 w2 w3 w4", "w1 w2"]
    folder = save_sentence_encoder(tmp_path / "encoder")
    text = f"""\
from optimum.neuron import NeuronSentenceTransformers

texts = {texts}
folder = {str(folder)!r}
model = NeuronSentenceTransformers.from_pretrained(folder, export=True, batch_size=2, sequence_length=16)
one = [model.encode(text) for text in texts]
many = model.encode(texts, padding=True)
print([next(at for at, each in enumerate(one) if (each - row).abs().max() < 1e-5) for row in many])
"""
    script = tmp_path / "script.py"
    order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
    for settings, found in ((EXACT, [order[at] for at in order]), (Settings(), list(range(len(texts))))):
        script.write_text(_after(text, settings))
        ran = run_on_cpu(script)
        assert ran.stdout.strip() == str(found), ran.stderr


@pytest.mark.nightly
def test_second_run_changes_nothing() -> None:
    families = {each.name.replace("-", "_") for each in registry.load() if each.tables}
    for case in cases("before"):
        if case.source.parent.name not in families:
            continue
        result = migrate("script.py", case.source.read_bytes(), Project.empty(), EXACT)
        assert not result.problems, case.source
        if result.after is not None:
            again = migrate("script.py", result.after, Project.empty(), EXACT)
            assert again.after in (None, result.after), case.source
