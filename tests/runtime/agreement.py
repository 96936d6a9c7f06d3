"""What the programmes computed on the emulated device, held against what they computed on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from _pytest.mark import ParameterSet

from tests.runtime.programmes import Programme, programmes
from tests.runtime.runner import EMULATED, Outcome, run_programmes

Outcomes: TypeAlias = dict[str, dict[str, list[Outcome]]]
"""Device -> programme -> one outcome a process."""


def parameters(folder: str) -> list[ParameterSet]:
    """The programmes of a folder, and the nightly ones below it, for pytest to parametrize."""
    return [
        *(pytest.param(each, id=each.title) for each in programmes(folder)),
        *(
            pytest.param(each, id=each.title, marks=pytest.mark.nightly)
            for each in programmes(f"{folder}/nightly")
        ),
    ]


def run_chosen(
    request: pytest.FixtureRequest, folder: Path, devices: Sequence[str] = ("cpu", EMULATED)
) -> Outcomes:
    """Run the programmes of this module's tests that this run of pytest has chosen."""
    calls = [getattr(item, "callspec", None) for item in request.session.items if item.path == request.path]
    return run_programmes([call.params["programme"] for call in calls if call is not None], folder, devices)


def check(outcomes: Outcomes, programme: Programme) -> None:
    """Fail unless a programme ran on both devices, in all its processes, and computed the same."""
    on_cpu, emulated = outcomes["cpu"][programme.name], outcomes[EMULATED][programme.name]
    assert len(on_cpu) == len(emulated) == programme.processes
    for expected, found in zip(on_cpu, emulated, strict=True):
        for outcome in (expected, found):
            if outcome.error:
                pytest.fail(f"{outcome.error}\n{outcome.stderr}", pytrace=False)
        if EMULATED not in found.devices.values():
            pytest.fail("no result stands on the device", pytrace=False)
        if set(found.devices) != set(expected.devices):
            pytest.fail(f"other results: {set(found.devices) ^ set(expected.devices)}", pytrace=False)
        if found.values != expected.values:
            pytest.fail(f"emulated: {found.values}\non the CPU: {expected.values}", pytrace=False)
        for name, tensor in found.tensors.items():
            _check_tensor(f"{programme.title}.{name}", tensor, expected.tensors[name])


def _check_tensor(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    """Fail unless two tensors hold the same bits."""
    if not _same_bits(found, expected):
        # For its message; it lets a sign of zero or of NaN pass.
        torch.testing.assert_close(
            found, expected, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{name}: {text}"
        )
        pytest.fail(f"{name}: the bits differ", pytrace=False)


def _same_bits(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    return torch.equal(found.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))
