"""What becomes of diffusion pipelines where it depends on the release, or on what is around them."""

from __future__ import annotations

import pytest

from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.plan import Result, State
from neuronmigrate.project import Project

LOAD = """\
from optimum.neuron import {name}

pipe = {name}.from_pretrained("a/model", export=True, height=512, width=512{more})
{call}
"""


def rewritten(source: str, release: str = "") -> Result:
    result = migrate("script.py", source.encode(), Project(given=release), Settings())
    assert not result.problems
    return result


def after(
    more: str = "",
    call: str = 'pipe("a cat")',
    release: str = "",
    name: str = "NeuronStableDiffusionXLPipeline",
) -> tuple[str, str]:
    """The last line of the result, and what is said about the load."""
    result = rewritten(LOAD.format(name=name, more=more, call=call), release)
    assert result.after is not None
    said = [each.message for each in result.findings if "from_pretrained" in each.found]
    return result.after.decode().splitlines()[-1], " ".join(said)


@pytest.mark.parametrize(
    ("release", "more", "off"),
    [
        ("0.0.8", ", device_ids=[0]", False),
        ("0.0.9", "", True),
        ("0.0.9", ", dynamic_batch_size=True", False),
        ("0.0.9", ", device_ids=[0, 1]", False),
        ("0.0.14", "", False),
        ("0.0.14", ", device_ids=[0]", True),
        ("0.0.14", ", device_ids=[0], dynamic_batch_size=True", False),
        ("0.0.15", ", device_ids=[0]", False),
        ("0.0.15", ', data_parallel_mode="none"', True),
        ("0.0.28", "", False),
        ("0.0.28", ', data_parallel_mode="unet"', False),
        ("0.0.28", ', data_parallel_mode="all"', True),
        ("0.2.0", ', data_parallel_mode="all", dynamic_batch_size=True', False),
        ("0.2.0", ', data_parallel_mode="none"', True),
        ("0.3.0", ', data_parallel_mode="none"', False),
        ("0.4.5", ', data_parallel_mode="all"', False),
    ],
)
def test_guidance_that_never_ran_stays_off(release: str, more: str, off: bool) -> None:
    line, said = after(more, release=release)
    assert line == f'pipe("a cat", height=512, width=512{", guidance_scale=1.0" if off else ""})'
    assert ("no guidance ran before" in said) is off


def test_guidance_of_a_call_that_never_ran() -> None:
    mode = ', data_parallel_mode="all"'
    line, said = after(mode, 'pipe("a cat", guidance_scale=7.5)', "0.2.0")
    assert line == 'pipe("a cat", guidance_scale=1.0, height=512, width=512)'
    assert "`guidance_scale=` had no effect before" in said
    line, said = after(mode, 'pipe("a cat", guidance_scale=0.0)', "0.2.0")
    assert line == 'pipe("a cat", guidance_scale=0.0, height=512, width=512)'
    assert "guidance_scale" not in said


def test_pipelines_without_a_unet_decide_about_guidance_by_themselves() -> None:
    line, _ = after(', data_parallel_mode="none"', release="0.2.0", name="NeuronPixArtAlphaPipeline")
    assert line == 'pipe("a cat", height=512, width=512)'


def test_fast_unets_take_guidance_as_an_input() -> None:
    more = ', data_parallel_mode="all", unet_id="latent-consistency/lcm-sdxl"'
    line, _ = after(more, 'pipe("a cat", guidance_scale=8.0)', "0.2.0")
    assert line == 'pipe("a cat", guidance_scale=8.0, height=512, width=512)'


def test_a_size_that_an_instance_may_change_is_said() -> None:
    source = (
        "from optimum.neuron import NeuronStableDiffusionXLPipeline as P\n\n\n"
        "class Painter:\n"
        "    def __init__(self, size):\n"
        "        self.size = size\n"
        '        self.pipe = P.from_pretrained("a/b", export=True, height=self.size, width=512)\n\n'
        "    def paint(self, prompt):\n"
        "        return self.pipe(prompt).images\n"
    )
    said = [each.todo for each in rewritten(source).findings if each.state is State.REVIEW]
    assert not any("read anew" in each for each in said)
    changed = rewritten(source + "\n    def grow(self):\n        self.size = 1024\n")
    said = [each.todo for each in changed.findings if each.state is State.REVIEW]
    assert any("`self.size` is read anew at each call" in each for each in said)


def test_ignored_keywords_in_a_dictionary_are_said() -> None:
    line, said = after(call='pipe(**{"prompt": "a cat", "cross_attention_kwargs": {"scale": 0.5}})')
    assert '"cross_attention_kwargs"' in line
    assert "`cross_attention_kwargs` was ignored before, and acts now" in said


def test_a_mode_of_an_unknown_release_is_said() -> None:
    _, said = after(', data_parallel_mode="none"')
    assert "before release 0.3.0 `data_parallel_mode=" in said
    _, said = after(', data_parallel_mode="none"', release="0.4.5")
    assert "before release 0.3.0" not in said
    _, said = after(", data_parallel_mode=options.mode", release="0.1.0")
    assert "where `options.mode` is none or all, guidance was off" in said


@pytest.mark.parametrize(
    ("release", "more", "dtype"),
    [
        ("0.0.9", "", "float32"),
        ("0.0.10", "", "bfloat16"),
        ("0.4.5", "", "bfloat16"),
        ("0.4.5", ", auto_cast=None", "float32"),
        ("0.4.5", ', auto_cast_type="fp16"', "float16"),
        ("0.4.5", ', torch_dtype="float32"', "float32"),
    ],
)
def test_the_dtype_follows_the_release_and_the_cast(release: str, more: str, dtype: str) -> None:
    result = rewritten(
        LOAD.format(name="NeuronStableDiffusionXLPipeline", more=more, call='pipe("a cat")'), release
    )
    assert f"dtype=torch.{dtype})".encode() in (result.after or b"")


def test_a_folder_that_is_given_from_outside_leaves_the_size_to_a_person() -> None:
    result = rewritten(
        "import os\n\n"
        "from optimum.neuron import NeuronStableDiffusionXLPipeline as P\n\n"
        'pipe = P.from_pretrained(os.environ["MODEL_DIR"])\n'
        'pipe("a cat")\n'
    )
    (review,) = [each for each in result.findings if each.state is State.REVIEW]
    assert "its calls need the size it was compiled for" in review.todo
    assert (result.after or b"").endswith(b'.to("neuron")\npipe("a cat")\n')


def test_a_pipeline_of_which_only_one_size_fits_the_call() -> None:
    result = rewritten(
        "from optimum.neuron import NeuronStableDiffusionXLPipeline as P\n\n\n"
        "def make(big):\n"
        '    return P.from_pretrained("a/b", export=True, height=1024 if big else 512, width=512)\n\n\n'
        'make(True)("a cat")\n'
    )
    (mark,) = [each for each in result.findings if each.state is State.MARKED]
    assert "the compiled `height=1024 if big else 512` is not known there" in mark.why
