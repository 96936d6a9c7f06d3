"""The heads whose loss is a mean are those of the installed Transformers."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from neuronmigrate.training.losses import COUNTED_MODELS, MEAN_HEADS, MEAN_MODELS, Scale, scale_of


def _losses() -> Iterator[tuple[str, bool, bool]]:
    """Each class of Transformers that computes a loss: its name, and whether its forward takes `**kwargs` and
    hands them on to a loss that may divide by `num_items_in_batch`."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.origin is not None
    for path in sorted(Path(spec.origin).parent.glob("models/*/modeling_*.py")):
        for owner in ast.parse(path.read_text("utf-8")).body:
            if not isinstance(owner, ast.ClassDef):
                continue
            for method in owner.body:
                if isinstance(method, ast.FunctionDef) and method.name == "forward":
                    names = {arg.arg for arg in method.args.args}
                    if names & {"labels", "start_positions"}:
                        yield owner.name, method.args.kwarg is not None, _counts(method)


def _counts(forward: ast.FunctionDef) -> bool:
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("loss_function")
        and any(keyword.arg in (None, "num_items_in_batch") for keyword in node.keywords)
        for node in ast.walk(forward)
    )


@pytest.mark.nightly
def test_the_table_is_that_of_transformers() -> None:
    found = {name: (open_, counts) for name, open_, counts in _losses()}
    counting = {name for name, (_, counts) in found.items() if counts}
    # ForCTCLoss takes the number and does not read it.
    headed = {name for name in found if name.endswith(MEAN_HEADS) and not name.endswith("ForCTC")}
    assert headed & counting == COUNTED_MODELS
    assert found.keys() >= MEAN_MODELS
    assert not MEAN_MODELS & counting
    assert not [name for name in headed | MEAN_MODELS if not found[name][0]], "each takes **kwargs"
    # The others of these names, of which two are parts of larger models.
    settled = {name for name in found if scale_of(name) is Scale.SETTLED and not name.endswith("Answering")}
    assert settled - counting == {"BlipTextLMHeadModel", "ClvpForCausalLM"}


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("BertForSequenceClassification", Scale.MEAN),
        ("T5ForConditionalGeneration", Scale.MEAN),
        ("AutoModelForMaskedLM", Scale.MEAN),
        ("ViTForImageClassification", Scale.SETTLED),
        ("AutoModelForQuestionAnswering", Scale.SETTLED),
        ("LlamaForCausalLM", Scale.SETTLED),
        ("LlavaForConditionalGeneration", Scale.UNKNOWN),
        ("BertForPreTraining", Scale.UNKNOWN),
    ],
)
def test_scales(name: str, scale: Scale) -> None:
    assert scale_of(name) is scale
