"""What a comparison says of recordings whose differences are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuronmigrate.config import UserError
from neuronmigrate.parity.comparing import alike, compare
from neuronmigrate.parity.comparison import Comparison, Status, as_data
from neuronmigrate.parity.recording import Recording, read
from neuronmigrate.parity.tolerance import Policy
from neuronmigrate.report import comparison as printed
from tests.parity.recordings import Written, of_tensors, written


def _status(a: Recording, b: Recording, **policy: object) -> Status:
    return compare(a, b, Policy(**policy)).status  # type: ignore[arg-type]  # fields of Policy


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(
    st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=8),
    st.sampled_from([0.0, 1e-8, 1e-6, 1e-4, 1e-2]),
    st.sampled_from(["", "dtype", "reordered"]),
)
def test_sides_can_be_exchanged(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], away: float, numerics: str
) -> None:
    folder = tmp_path_factory.mktemp("recordings")
    tensor = torch.tensor(values)
    a = of_tensors(folder / "a", {"m": tensor})
    b = of_tensors(folder / "b", {"m": tensor + away})
    policy = Policy(frozenset([numerics] if numerics else []))
    assert compare(a, b, policy).status is compare(b, a, policy).status
    assert compare(a, a, policy).status is Status.EQUAL
    # A wider tolerance makes nothing worse.
    wider = compare(a, b, replace(policy, factor=10.0)).status
    assert wider.severity <= compare(a, b, policy).status.severity


def test_the_ladder(tmp_path: Path) -> None:
    value = torch.linspace(-1, 1, 50)
    a = of_tensors(tmp_path / "a", {"m": value})
    near = of_tensors(tmp_path / "near", {"m": value + 1e-6})
    off = of_tensors(tmp_path / "off", {"m": value * 1.002})
    assert _status(a, a) is Status.EQUAL
    assert _status(a, near) is Status.WITHIN
    assert _status(a, off) is Status.DIVERGED
    assert _status(a, off, numerics=frozenset(["dtype"])) is Status.EXPLAINED
    assert _status(a, off, numerics=frozenset(["format"])) is Status.DIVERGED
    assert _status(a, off, factor=200.0) is Status.WITHIN


def test_the_coarser_dtype_decides(tmp_path: Path) -> None:
    value = torch.linspace(-1, 1, 50)
    a = of_tensors(tmp_path / "a", {"m": value})
    b = of_tensors(tmp_path / "b", {"m": value.bfloat16()})
    found = compare(a, b)
    assert found.status is Status.WITHIN
    assert found.rows[0].dtypes == ("float32", "bfloat16")


def test_what_is_saved_keeps_its_dtype(tmp_path: Path) -> None:
    value = torch.linspace(-1, 1, 50)
    a = of_tensors(tmp_path / "a", {"m": value}, "saved")
    b = of_tensors(tmp_path / "b", {"m": value.bfloat16()}, "saved")
    assert _status(a, b) is Status.DIVERGED
    assert _status(b, a) is Status.WITHIN
    assert _status(a, b, numerics=frozenset(["format"])) is Status.EXPLAINED


def test_means_of_noise_in_a_saved_optimizer_count_as_zero(tmp_path: Path) -> None:
    def write(value: float, name: str) -> Callable[[Written], object]:
        def act(made: Written) -> None:
            made.tensor("gradient", "w", torch.full((4,), 100.0))
            made.tensor("saved", "save 0", torch.full((4,), value), part=f"optimizer.state.3.{name}")

        return act

    for name, small, large in (("exp_avg", 1e-6, 1e-4), ("exp_avg_sq", 1e-12, 1e-9)):
        for value, status in ((small, Status.EXPLAINED), (large, Status.DIVERGED)):
            folder = tmp_path / f"{name} {value}"
            a, b = written(folder / "a", write(value, name)), written(folder / "b", write(-value, name))
            assert _status(a, b) is status, (name, value)


def test_what_is_noise_beside_the_largest_gradient_counts_as_zero(tmp_path: Path) -> None:
    large = torch.full((4,), 100.0)
    noise = torch.full((4,), 1e-6)
    a = of_tensors(tmp_path / "a", {"w": large, "bias": noise}, "gradient")
    b = of_tensors(tmp_path / "b", {"w": large, "bias": -noise}, "gradient")
    assert _status(a, b) is Status.WITHIN
    alone = [of_tensors(tmp_path / n, {"bias": s * noise}, "gradient") for n, s in (("c", 1), ("d", -1))]
    assert _status(*alone) is Status.DIVERGED


def test_first_divergence_is_where_the_inputs_agree(tmp_path: Path) -> None:
    good, bad = torch.ones(4), torch.full((4,), 1.5)

    def write(made: Written, wrong: bool) -> None:
        value = bad if wrong else good
        made.tensor("input", "M#0", good, part="x")
        made.tensor("inner input", "M#0/a", good)
        made.tensor("inner output", "M#0/a", good)
        made.tensor("inner input", "M#0/b", good)
        made.tensor("inner output", "M#0/b", value)
        made.tensor("inner input", "M#0/c", value)
        made.tensor("inner output", "M#0/c", value)
        made.tensor("output", "M#0", value)

    a = written(tmp_path / "a", lambda made: write(made, False))
    b = written(tmp_path / "b", lambda made: write(made, True))
    found = compare(a, b)
    assert found.status is Status.DIVERGED
    assert found.divergence is not None
    assert found.divergence.name == "M#0/b"
    assert "M#0/b" in found.reason


def test_a_difference_inside_that_makes_none_outside(tmp_path: Path) -> None:
    def write(made: Written, value: float) -> None:
        made.tensor("inner output", "M#0/a", torch.tensor([value]))
        made.tensor("output", "M#0", torch.ones(1))

    a = written(tmp_path / "a", lambda made: write(made, 1.0))
    b = written(tmp_path / "b", lambda made: write(made, 2.0))
    found = compare(a, b)
    assert found.status is Status.WITHIN
    assert "make no difference" in found.reason


def test_models_of_other_classes_are_matched_by_their_size(tmp_path: Path) -> None:
    def write(made: Written, name: str) -> None:
        made.event("model", model=name, elements=7)
        made.tensor("output", f"{name}/layer", torch.ones(2))

    a = written(tmp_path / "a", lambda made: write(made, "Net#0"))
    b = written(tmp_path / "b", lambda made: write(made, "TopLevelTracedModule#0"))
    assert compare(a, b).status is Status.EQUAL


@pytest.mark.parametrize(
    ("quantity", "status"), [("output", Status.NOT_COMPARABLE), ("gradient", Status.DIVERGED)]
)
def test_shapes(tmp_path: Path, quantity: str, status: Status) -> None:
    a = of_tensors(tmp_path / "a", {"m": torch.ones(2, 3)}, quantity)
    b = of_tensors(tmp_path / "b", {"m": torch.ones(3, 2)}, quantity)
    assert compare(a, b).rows[0].status is status


@pytest.mark.parametrize(
    ("quantity", "number", "status"),
    [("input", 3.0, Status.WITHIN), ("input", 4.0, Status.DIVERGED), ("saved", 3.0, Status.DIVERGED)],
)
def test_a_count_as_a_float(tmp_path: Path, quantity: str, number: float, status: Status) -> None:
    a = of_tensors(tmp_path / "a", {"m": torch.tensor(3)}, quantity)
    b = of_tensors(tmp_path / "b", {"m": torch.tensor(number)}, quantity)
    assert compare(a, b).status is status


def test_the_same_numbers_in_two_shapes(tmp_path: Path) -> None:
    """They are kept once, and each is read in its own shape."""
    values = torch.arange(6.0)
    found = of_tensors(tmp_path, {"flat": values, "table": values.reshape(2, 3)})
    shapes = [tuple(value.tensor().shape) for value in found.first.values]
    assert shapes == [(6,), (2, 3)]


def _generated(made: Written, tokens: list[int], scores: list[list[float]]) -> None:
    made.tensor("tokens", "generate", torch.tensor([tokens]))
    for step, values in enumerate(scores):
        made.tensor("score values", "generate", torch.tensor([sorted(values, reverse=True)]), f"0 {step}")
        order = torch.tensor([values]).argsort(descending=True)
        made.tensor("score tokens", "generate", order, f"0 {step}")


def test_near_ties(tmp_path: Path) -> None:
    a = written(tmp_path / "a", lambda made: _generated(made, [0, 1], [[9.0, 1.0], [5.0, 5.001]]))
    tie = written(tmp_path / "b", lambda made: _generated(made, [0, 0], [[9.0, 1.0], [5.001, 5.0]]))
    wide = written(tmp_path / "c", lambda made: _generated(made, [0, 0], [[9.0, 1.0], [6.0, 5.001]]))
    assert compare(a, tie).status is Status.EXPLAINED
    found = compare(a, wide)
    assert found.status is Status.DIVERGED
    measures = next(row for row in found.rows if row.quantity == "tokens").measures
    assert measures is not None
    assert measures.agreement == 0.5


def test_three_ways(tmp_path: Path) -> None:
    reference = torch.linspace(-1, 1, 50)
    noise = torch.linspace(0, 1e-3, 50)
    exact = of_tensors(tmp_path / "c", {"m": reference})
    old = of_tensors(tmp_path / "a", {"m": reference + noise})
    new = of_tensors(tmp_path / "b", {"m": reference - noise})
    far = of_tensors(tmp_path / "d", {"m": reference + 9 * noise})
    assert compare(old, new).status is Status.DIVERGED
    found = compare(old, new, reference=exact)
    assert found.status is Status.EXPLAINED
    assert found.rows[0].ratio == pytest.approx(1, rel=1e-3)
    found = compare(old, far, reference=exact)
    assert found.status is Status.DIVERGED
    assert found.rows[0].ratio == pytest.approx(9, rel=1e-2)


def _with_losses(folder: Path, losses: list[float], head: dict[str, object] | None = None) -> Recording:
    def write(made: Written) -> None:
        for number, loss in enumerate(losses):
            made.scalar("loss", "loss", str(number), loss, "float32")

    return written(folder, write, head)


def test_losses(tmp_path: Path) -> None:
    a = _with_losses(tmp_path / "a", [1.0, 0.5, 0.25])
    assert compare(a, _with_losses(tmp_path / "b", [1.0, 0.5])).status is Status.DIVERGED
    found = compare(a, _with_losses(tmp_path / "c", [1.0, 0.5, 0.5]))
    assert found.status is Status.DIVERGED
    assert found.curves[0].distance == pytest.approx(0.25 / (1.75 / 3))
    broken = compare(a, _with_losses(tmp_path / "d", [1.0, float("nan"), 0.25]))
    assert broken.status is Status.DIVERGED
    json.dumps(as_data(broken), allow_nan=False)


def test_what_one_side_does_not_save(tmp_path: Path) -> None:
    a = of_tensors(tmp_path / "a", {"w": torch.ones(2), "b": torch.ones(1)}, "saved")
    b = of_tensors(tmp_path / "b", {"w": torch.ones(2)}, "saved")
    assert _status(a, b) is Status.DIVERGED
    assert _status(a, b, numerics=frozenset(["format"])) is Status.EXPLAINED


def test_nothing_is_judged_under_other_settings(tmp_path: Path) -> None:
    a = _with_losses(tmp_path / "a", [1.0], {"seed": 1})
    b = _with_losses(tmp_path / "b", [1.0], {"seed": 2})
    found = compare(a, b)
    assert found.status is Status.NOT_COMPARABLE
    assert found.exit_code == 2
    assert "seed" in found.reason


def test_a_run_that_did_not_end_is_not_comparable(tmp_path: Path) -> None:
    a = _with_losses(tmp_path / "a", [1.0])
    cut = tmp_path / "cut"
    _with_losses(cut, [1.0])
    file = cut / "rank0.run0.jsonl"
    # As if it was killed while it wrote the last line.
    file.write_text(file.read_text("ascii")[:-9], "ascii")
    found = compare(a, read(cut))
    assert found.status is Status.NOT_COMPARABLE
    assert "not whole" in found.reason


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        (1, 1, Status.EQUAL),
        (1, 2, Status.DIVERGED),
        (1.0, 1.000001, Status.WITHIN),
        (0.1234, 0.1235, Status.WITHIN),
        (0.1234, 0.1236, Status.DIVERGED),
        (0.12345678, 0.12355678, Status.DIVERGED),
        (8.47422981262207, 8.5, Status.DIVERGED),
        (0.85, 0.8501, Status.WITHIN),
        (0.85, 0.8502, Status.DIVERGED),
        ([1.0, "a"], [1.0, "a"], Status.EQUAL),
        ([1.0], [1.0, 2.0], Status.DIVERGED),
        ({"a": 1}, {"a": True}, Status.DIVERGED),
        ({"a": 1}, {"b": 1}, Status.DIVERGED),
        (None, 0, Status.DIVERGED),
        ("positive", "negative", Status.DIVERGED),
        # What is small beside the others of a list is judged as in a tensor.
        ([1.0, 1.23456789e-5], [1.0, 1.23556789e-5], Status.WITHIN),
        ([1, 1.23456789e-5], [1, 1.23556789e-5], Status.DIVERGED),
        # A device is named by its own name, and a new side on the CPU is not on its device.
        ("cpu", "neuron", Status.EXPLAINED),
        ("xla:0", "neuron:0", Status.EXPLAINED),
        ("xla:0", "cpu", Status.DIVERGED),
        ("neuron:0", "neuron:1", Status.DIVERGED),
    ],
)
def test_plain_results(old: object, new: object, status: Status) -> None:
    assert alike(old, new, 1e-5)[0] is status


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rank0.run0.jsonl", "", "is empty"),
        ("rank0.run0.jsonl", '{"kind": "event"}\n', "jsonl:1: is not the head"),
        ("rank0.run0.jsonl", '{"kind": "recording", "format": 99}\n', "jsonl:1: is layout 99"),
        ("rank0.run0.jsonl", '{"kind": "recording", "format": 1}\n{,\n{}\n', "jsonl:2: is not json"),
        ("other.txt", "", "holds no recording"),
    ],
)
def test_what_is_no_recording(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path)


def test_a_tensor_file_that_is_gone(tmp_path: Path) -> None:
    a = of_tensors(tmp_path / "a", {"m": torch.ones(2)})
    b = of_tensors(tmp_path / "b", {"m": torch.zeros(2)})
    next((tmp_path / "b").glob("*.safetensors")).unlink()
    with pytest.raises(UserError, match="cannot be read"):
        compare(a, b)


def _printed(found: Comparison, name: str) -> str:
    return "\n".join("".join(piece for piece, _ in line) for line in printed.FORMATS[name]([found]))


def test_what_is_printed(tmp_path: Path) -> None:
    a = of_tensors(tmp_path / "a", {"m|`x`": torch.ones(2)}, "gradient")
    b = of_tensors(tmp_path / "b", {"m|`x`": torch.zeros(2)}, "gradient")
    found = compare(a, b)
    text = _printed(found, "text")
    assert text.startswith("diverged")
    assert "first divergence" in text
    document = json.loads(_printed(found, "json"))
    assert document[0]["status"] == "diverged"
    assert document[0]["rows"][0]["measures"]["max_abs"] == 1
    assert "m\\|\\`x\\`" in _printed(found, "markdown")


@pytest.mark.parametrize(
    ("gradient", "moved", "status"),
    [
        (1e-9, 1e-3, Status.EXPLAINED),
        (1e-3, 1e-3, Status.DIVERGED),
        # Farther than the steps of both sides bring it.
        (1e-9, 1e-1, Status.DIVERGED),
    ],
)
def test_a_weight_without_a_gradient_drifts(
    tmp_path: Path, gradient: float, moved: float, status: Status
) -> None:
    def write(weight: float) -> Recording:
        def act(made: Written) -> None:
            made.tensor("gradient", "Net#0/key.bias", torch.full((4,), gradient))
            made.tensor("gradient", "Net#0/out.weight", torch.ones(4))
            made.scalar("learning rate", "group 0", "0", 1e-2)
            made.tensor("weight", "Net#0/key.bias", torch.full((4,), weight))

        return written(tmp_path / str(weight), act)

    found = compare(write(0.0), write(moved))
    assert found.status is status
    assert [row.status for row in found.rows if row.quantity == "weight"] == [status]
