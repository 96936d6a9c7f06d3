"""Releases that run on the native device: which torch goes with which torch-neuronx, and since when the
Hugging Face libraries know `neuron`; by hand.

As of November 2026. `docs` are pages of the AWS Neuron documentation, release 2.33, read in October 2026.
"""

from __future__ import annotations

from dataclasses import dataclass

DATED = "2026-11"

PYTHONS = ((3, 12), (3, 13), (3, 14))
"""docs: release notes of TorchNeuron. Each family has wheels for these, on Linux x86_64."""

CHIPS = ("trn2", "trn3")
"""docs: every page of TorchNeuron. PyTorch/XLA stays the only way on the chips below."""
LEGACY_CHIPS = ("inf1", "inf2", "trn1")

BESIDE = {
    "nki": "torch_neuronx imports it as it loads",
    "neuronx-cc": "it compiles every operation",
}
"""docs: quickstart. Distributions that torch-neuronx does not work without."""

LEFTOVERS = {
    "libneuronxla": "the plugin of torch_xla",
    "neuronx-distributed": "works on torch_xla only",
    "neuronx-distributed-inference": "works on torch_xla only",
    "optimum-neuron": "works on torch_xla only, and wants Transformers 4",
    "torch-neuron": "for Inf1 only; it puts another module into torch.neuron",
    "transformers-neuronx": "ended with release 2.26 of the SDK",
}
"""Distributions of the legacy stack, besides torch-xla and torch-neuronx itself."""


@dataclass(frozen=True)
class Floor:
    """Since which release a library runs on the device."""

    first: str
    """The first that knows the device; empty if it need not."""
    floor: str
    """The oldest that neuronmigrate writes code for."""
    because: str
    """What an older one lacks, and where that is known from."""


FLOORS: dict[str, Floor] = {
    "accelerate": Floor("1.13.0", "1.15", "no dynamo backend `neuron` before (its pull request 4097)"),
    "diffusers": Floor("0.39.0", "0.40", "no device `neuron` before 0.39 (its pull request 13289)"),
    "transformers": Floor(
        "5.0", "5.24", "Transformers 4 has no `neuron`; generate() keeps inputs on the CPU since pull 46590"
    ),
    "trl": Floor("", "1.16", "pads to multiples of 128 on the device since then (trainer configurations)"),
}
