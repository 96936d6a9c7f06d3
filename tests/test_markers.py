"""The filter in front lets everything through that has to be seen."""

from __future__ import annotations

import pytest

from neuronmigrate import catalogue
from neuronmigrate.markers import has_marker


@pytest.mark.parametrize("root", [*catalogue.roots, *sorted(catalogue.SINGLE)])
def test_every_legacy_package_has_a_marker(root: str) -> None:
    assert has_marker(b"from " + root.encode() + b" import x\n")


@pytest.mark.parametrize(
    "name", [name for name in catalogue.variables() if "XLA" in name or "NEURON" in name]
)
def test_variables_that_name_the_stack_have_a_marker(name: str) -> None:
    assert has_marker(b"os.environ['" + name.rstrip("*").encode() + b"'] = '1'\n")


@pytest.mark.parametrize(
    "text",
    [
        b"torch.device('xla')",
        b'tensor.to("xla:1")',
        b"dist.init_process_group('xla')",
        b"from optimum import neuron",
        b"is_tpu_available()",
        b"TrainiumTrainer",
        b"trainium_args",
    ],
)
def test_markers(text: bytes) -> None:
    assert has_marker(text)


@pytest.mark.parametrize(
    "text", [b"", b"the optimum of f", b"import torch\n", b"lax = relax\n", b"from optimum import x"]
)
def test_no_markers(text: bytes) -> None:
    assert not has_marker(text)
