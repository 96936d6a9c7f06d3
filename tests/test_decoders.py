"""What a load of a decoder becomes depends on the release it was written for.

The expectations are the table of optimum-neuron's own defaults: `modeling_decoder.py` at 0.0.17, 0.1.0,
0.2.0 and 0.3.0, `models/inference/modeling_utils.py` from 0.4.1 on.
"""

from __future__ import annotations

import pytest

from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.plan import Finding, State
from neuronmigrate.project import Project
from tests.texts import on_one_line

EXPORTED = 'model = NeuronModelForCausalLM.from_pretrained("{name}", export=True, num_cores=1)'
ASKED = """\
config = NeuronModelForCausalLM.get_neuron_config("{name}", tensor_parallel_size=1)
model = NeuronModelForCausalLM.export("{name}", neuron_config=config, load_weights=True)"""
CONSTRUCTED = """\
from optimum.neuron.models.inference.backend.config import NxDNeuronConfig
config = NxDNeuronConfig(tp_degree=1)
model = NeuronModelForCausalLM.export("{name}", neuron_config=config, load_weights=True)"""
GREEDY = "GenerationConfig.from_model_config(model.config)"
LLAMA = "meta-llama/Llama-3.2-1B"


def rewritten(load: str, release: str, name: str = LLAMA, call: str = "") -> tuple[str, Finding]:
    """The text that comes of a load, and what is said about it."""
    source = f"from optimum.neuron import NeuronModelForCausalLM\n{load.format(name=name)}\n{call}\n"
    result = migrate("load.py", source.encode(), Project(given=release), Settings())
    assert result.after is not None and not result.problems
    about = [each for each in result.findings if each.found.endswith((".export", ".from_pretrained"))]
    return on_one_line(result.after.decode()), about[-1]


@pytest.mark.parametrize(
    ("load", "release", "dtype", "greedy"),
    [
        (EXPORTED, "0.0.17", "torch.float32", False),
        (EXPORTED, "0.1.0", "torch.float32", False),
        (EXPORTED, "0.2.0", "torch.bfloat16", True),
        (EXPORTED, "0.3.0", "torch.bfloat16", True),
        (ASKED, "0.2.0", "torch.float32", True),
        (ASKED, "0.4.0", "torch.float32", True),
        (ASKED, "0.4.1", '"auto"', True),
        (ASKED, "0.4.5", '"auto"', True),
        (CONSTRUCTED, "0.2.0", "torch.bfloat16", True),
        (CONSTRUCTED, "0.4.5", "torch.bfloat16", True),
    ],
)
def test_defaults_of_each_release(load: str, release: str, dtype: str, greedy: bool) -> None:
    after, finding = rewritten(load, release)
    assert f'dtype={dtype}, device_map="neuron")' in after
    assert (GREEDY in after) is greedy
    assert 'model.generation_config.cache_implementation = "static"' in after
    assert finding.state is State.FIXED


def test_a_release_that_did_not_know_the_spelling_is_not_assumed() -> None:
    after, finding = rewritten(EXPORTED, "")
    assert "dtype=torch.bfloat16" in after and GREEDY in after
    assert finding.state is State.REVIEW and "0.3.0" in finding.todo
    after, finding = rewritten(EXPORTED, "", name="mistralai/Mistral-7B-v0.1")
    assert "dtype=torch.float32" in after and GREEDY not in after
    assert finding.state is State.REVIEW and "0.1.0" in finding.todo


def test_a_release_that_no_longer_exported_while_loading_is_said() -> None:
    after, finding = rewritten(EXPORTED, "0.4.2")
    assert "dtype=torch.bfloat16" in after and GREEDY in after
    assert finding.state is State.REVIEW and "0.4.0" in finding.todo


def test_what_does_not_depend_on_the_release_needs_no_look() -> None:
    after, finding = rewritten(CONSTRUCTED, "")
    assert "dtype=torch.bfloat16" in after and GREEDY in after
    assert finding.state is State.FIXED


@pytest.mark.parametrize(
    ("name", "greedy"), [("Qwen/Qwen2.5-0.5B", False), ("ibm/granite-3b", False), (LLAMA, True)]
)
def test_older_backend_of_0_2_0(name: str, greedy: bool) -> None:
    after, _ = rewritten(EXPORTED, "0.2.0", name=name)
    assert (GREEDY in after) is greedy


@pytest.mark.parametrize(
    ("release", "said"),
    [("0.0.17", "other random numbers"), ("0.0.20", "seed 0 at each call"), ("0.4.5", "256 tokens")],
)
def test_sampling_is_told_as_it_was(release: str, said: str) -> None:
    load = EXPORTED if release < "0.2" else ASKED
    _, finding = rewritten(load, release, call="model.generate(ids, do_sample=True, max_length=20)")
    assert finding.state is State.REVIEW and said in finding.todo
    _, finding = rewritten(load, release, call="model.generate(ids, do_sample=False, max_length=20)")
    assert finding.state is State.FIXED


@pytest.mark.parametrize(("release", "cores"), [("0.0.17", "2 cores"), ("0.3.0", "all cores")])
def test_cores_by_default_are_said(release: str, cores: str) -> None:
    _, finding = rewritten(EXPORTED.replace(", num_cores=1", ""), release)
    assert finding.state is State.REVIEW and cores in finding.todo
