"""The comments by which people and neuronmigrate talk to each other."""

from __future__ import annotations

import textwrap

import pytest

from neuronmigrate import directives
from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.plan import Result, State
from neuronmigrate.project import Project

HEAD = "import torch_xla.core.xla_model as xm\n"


def run(body: str, *, comment_reviews: bool = False) -> Result:
    settings = Settings(comment_reviews=comment_reviews)
    return migrate("train.py", (HEAD + textwrap.dedent(body)).encode(), Project.empty(), settings)


def states(result: Result) -> list[tuple[str, str]]:
    return [(finding.codemod, finding.state.value) for finding in result.findings]


def after(result: Result) -> str:
    assert not result.problems
    assert result.after is not None
    return result.after.decode()


@pytest.mark.parametrize(
    "body",
    [
        "xm.mark_step()  # neuronmigrate: ignore[lazy-step]\n",
        "xm.mark_step()  # neuronmigrate: ignore\n",
        "xm.mark_step()  # neuronmigrate: ignore[other, lazy-step]\n",
        "# neuronmigrate: ignore[lazy-step]\nxm.mark_step()\n",
        "# neuronmigrate: ignore[lazy-step]\n# because it is measured\nxm.mark_step()\n",
        "xm.mark_step(\n    # neuronmigrate: ignore[lazy-step]\n)\n",
        "# neuronmigrate: ignore-file\nxm.mark_step()\n",
    ],
)
def test_an_ignored_statement_stays(body: str) -> None:
    result = run(body)
    assert result.after is None
    assert not [each for each in result.findings if each.state is not State.NOTE]


@pytest.mark.parametrize(
    "body",
    [
        "xm.mark_step()  # neuronmigrate: ignore[xla-device]\n",
        "xm.mark_step()\n# neuronmigrate: ignore\nprint(1)\n",
        'print("# neuronmigrate: ignore")\nxm.mark_step()\n',
        "# neuronmigrate: ignore\n\nxm.mark_step()\n",
    ],
)
def test_another_statement_does_not(body: str) -> None:
    assert "mark_step" not in after(run(body))


def test_an_unused_ignore_is_told() -> None:
    result = run("xm.mark_step()\nprint(1)  # neuronmigrate: ignore[lazy-step]\n")
    assert ("ignore", "note") in states(result)


def test_an_ignore_inside_a_group_leaves_the_whole_group() -> None:
    result = migrate(
        "serve.py",
        textwrap.dedent(
            """\
            from optimum.neuron import NeuronModelForSequenceClassification

            model = NeuronModelForSequenceClassification.from_pretrained(
                "id", export=True
            )  # neuronmigrate: ignore[traced-models]
            print(model(input_ids=ids).logits)
            """
        ).encode(),
        Project.empty(),
        Settings(),
    )
    assert not result.problems
    assert result.after is None


def test_a_mark_is_not_left_twice() -> None:
    first = after(run("xm.reduce_scatter(1, 2)\n"))
    assert first.count("TODO(neuronmigrate)") == 1
    again = migrate("train.py", first.encode(), Project.empty(), Settings())
    assert again.after is None


def test_a_mark_that_a_person_changed_stays() -> None:
    text = "# TODO(neuronmigrate): [legacy-name] ask Ann before this is touched\nxm.reduce_scatter(1, 2)\n"
    assert run(text).after is None


def test_a_fix_takes_its_own_mark_away() -> None:
    result = run(
        "# what it does\n# TODO(neuronmigrate): [lazy-step] could not be done\nxm.mark_step()\nx = 1\n"
    )
    assert after(result) == "# what it does\nx = 1\n"


def test_a_mark_of_another_codemod_stays() -> None:
    result = run("# TODO(neuronmigrate): [xla-device] something else\nprint(xm.get_ordinal())\n")
    assert "[xla-device] something else" in after(result)


def test_a_mark_counts_until_it_is_deleted() -> None:
    result = run("# TODO(neuronmigrate): [legacy-name] look at it\nprint(1)\nxm.mark_step()\n")
    assert ("legacy-name", "marked") in states(result)
    assert "look at it\nprint(1)" in after(result)


def test_reviews_are_left_as_comments_when_asked_for_and_count_until_deleted() -> None:
    body = "import time\n\ndef f():\n    t = time.time()\n    xm.mark_step()\n    print(time.time() - t)\n"
    text = after(run(body, comment_reviews=True))
    assert "# REVIEW(neuronmigrate): [lazy-step]" in text
    assert "REVIEW" not in after(run(body))
    again = migrate("train.py", text.encode(), Project.empty(), Settings(comment_reviews=True))
    assert again.after is None
    assert states(again) == [("lazy-step", "review")]


def test_one_comment_says_what_several_codemods_say() -> None:
    said = directives.todo([("a", "why", "do"), ("b", "why", "do"), ("b", "else", "do that")])
    assert said == "# TODO(neuronmigrate): [a, b] why; do; else; do that"
    mark = directives.mark(said)
    assert mark is not None and mark.names == ("a", "b")
