"""What `neuronmigrate run --observe` says about a program, line by line."""

from __future__ import annotations

import json
import sys
import traceback
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from neuronmigrate.report import observation as printer
from neuronmigrate.runtime.observation import Observation, Rank, Seen, combine
from neuronmigrate.runtime.observe import Observer
from neuronmigrate.runtime.places import Place
from neuronmigrate.targets import operators
from tests.runtime.running import run, script

PROGRAM = """\
import torch

device = torch.device("neuron")
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(device)
forgotten = torch.nn.Sequential(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in (1, 2, 3, 3):
    batch = torch.ones(rows, 4).to(device)
    loss = model(batch).square().mean()  # forward
    loss.backward()  # backward
    optimizer.step()
    if loss.item() > 1e6:  # item
        raise SystemExit("diverged")
print(loss)  # print
host = batch.cpu()  # copy
back = batch.to("cpu")  # copy again
picked = batch[batch > 0]  # mask
where = torch.nonzero(batch)  # nonzero
twice = torch.ones(3, dtype=torch.float64, device=device) * 2  # float64
ids = torch.arange(3, device=device) + 1  # int64
ordered = torch.sort(batch)  # sort
forgotten(torch.ones(1, 4))  # forgotten
forgotten(torch.ones(1, 4))  # forgotten again
with torch.no_grad():
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(batch)  # compiled
whole = torch.compile(model, backend="neuron", dynamic=False)
for rows in (1, 2, 2):
    whole(torch.ones(rows, 4).to(device)).sum().backward()  # whole
"""


@dataclass
class Report:
    """The report of PROGRAM and what was printed."""

    document: dict[str, Any]
    stdout: str
    stderr: str

    def at(self, marker: str) -> list[dict[str, Any]]:
        """The notes on the line with a marker."""
        number = 1 + next(at for at, line in enumerate(PROGRAM.splitlines()) if line.endswith(f"# {marker}"))
        return [note for note in self.document["notes"] if note["line"] == number]

    def one(self, marker: str, kind: str) -> dict[str, Any]:
        (note,) = [note for note in self.at(marker) if note["kind"] == kind]
        return note

    def cost(self, marker: str) -> dict[str, Any]:
        (line,) = [line for line in self.document["lines"] if line["source"].endswith(f"# {marker}")]
        return line  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("observed")
    report = folder / "report.json"
    # A warning of torch about us would be an error.
    flags = ["-W", "error::UserWarning"]
    done = run("--observe", "--report", report, script(folder, PROGRAM), flags=flags)
    assert done.returncode == 0, done.stderr
    return Report(json.loads(report.read_bytes())["observation"], done.stdout, done.stderr)


def test_totals(seen: Report) -> None:
    document = seen.document
    assert document["emulated"] is True and document["table"] == operators.DATED
    assert document["calls"] == sum(line["calls"] for line in document["lines"])
    assert document["distinct"] == sum(line["distinct"] for line in document["lines"])
    assert 0 < document["once"] < document["distinct"] < document["calls"]
    distinct = [line["distinct"] for line in document["lines"]]
    assert distinct == sorted(distinct, reverse=True)


def test_each_shape_counts_once_on_the_line_that_had_it_first(seen: Report) -> None:
    forward = seen.cost("forward")
    # Two linear layers, ReLU, square and mean: three shapes of each, though there were four rounds.
    assert forward["distinct"] == 15 and forward["calls"] == 20
    first, *rest = forward["varied"]
    assert first["operation"] == "aten::addmm" and len(first["shapes"]) == 6
    assert first["shapes"][0] == "[8] float32 x [1, 4] float32 x [4, 8] float32"
    assert [len(each["shapes"]) for each in rest] == [3, 3, 3]


def test_backward_counts_for_the_line_that_asked_for_it(seen: Report) -> None:
    backward = seen.cost("backward")
    assert backward["distinct"] >= 9
    # The next best: no line at all, which would be a thread that was lost.
    assert all(line["path"].endswith("program.py") for line in seen.document["lines"])


def test_the_host_waits(seen: Report) -> None:
    assert seen.one("item", "host-sync")["count"] == 4
    assert seen.one("item", "host-sync")["what"] == "value"
    assert seen.one("copy", "host-sync")["count"] == 1
    assert seen.one("copy again", "host-sync")["what"] == "copy"
    assert [note["what"] for note in seen.at("print")] == ["print"]


def test_shapes_that_values_decide(seen: Report) -> None:
    assert "mask" in seen.one("mask", "data-dependent-shape")["why"]
    assert seen.one("nonzero", "data-dependent-shape")["what"] == "nonzero"


def test_64_bits(seen: Report) -> None:
    wide = [note for note in seen.at("float64") if note["kind"] == "float64"]
    assert "mul" in [note["what"] for note in wide]
    assert seen.one("int64", "int64")["count"] >= 1
    assert not [note for note in seen.at("forward") if note["kind"] in ("float64", "int64")]


def test_operations_that_run_on_the_cpu(seen: Report) -> None:
    note = seen.one("sort", "runs-on-cpu")
    assert note["what"] == "sort" and note["why"] == operators.ON_CPU["sort"]


def test_a_module_that_was_left_on_the_cpu(seen: Report) -> None:
    note = seen.one("forgotten", "cpu-placement")
    assert note["what"] == "Sequential"
    assert note["why"] == "its parameters are on the CPU, and so are its inputs"
    assert seen.one("forgotten again", "cpu-placement")["count"] == 1
    assert len([each for each in seen.document["notes"] if each["kind"] == "cpu-placement"]) == 2


def test_a_compiled_module_is_traced_as_ever(seen: Report) -> None:
    # A third row count was seen before, so the compiled forward adds nothing, and it did run in full.
    assert seen.cost("compiled")["distinct"] == 0 and seen.cost("compiled")["calls"] == 3
    assert [note["kind"] for note in seen.at("compiled")] == []


def test_compiled_graphs_count_as_graphs(seen: Report) -> None:
    # Forward and backward of two shapes.
    assert seen.document["graphs"] == 4
    # The linear layers and ReLU three times, and their gradients.
    assert seen.document["in_graphs"] > 3 * 3
    # Beside the graphs: sum, its gradient, and what accumulates gradients.
    assert seen.cost("whole")["distinct"] < seen.cost("forward")["distinct"]
    assert "4 graphs of torch.compile" in seen.stderr


def test_the_text(seen: Report) -> None:
    lines = seen.stderr.splitlines()
    start = lines.index("neuronmigrate: observed on the emulated neuron device (CPU)")
    text = "\n".join(lines[start:])
    assert f"{seen.document['calls']:,} operations, {seen.document['distinct']:,} distinct" in text
    for title in printer.SECTIONS.values():
        assert title in text
    assert "program.py:9  15 distinct in 20 calls" in text
    assert seen.stdout.startswith("tensor(") and "neuronmigrate" not in seen.stdout


# The observer by itself


@pytest.fixture
def observer() -> Iterator[Observer]:
    observer = Observer()
    observer.begin(emulated=False)
    yield observer
    observer.end()


def test_modules_are_as_before_when_nobody_watches() -> None:
    before = torch.nn.Module.__dict__["_call_impl"]
    observer = Observer()
    observer.begin(emulated=False)
    assert torch.nn.Module.__dict__["_call_impl"] is not before
    observer.end()
    observer.end()
    assert torch.nn.Module.__dict__["_call_impl"] is before


class Broken(torch.nn.Module):
    """Raises as it runs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError(f"{x.shape}")


def test_no_frame_of_ours_is_in_a_traceback(observer: Observer) -> None:
    with pytest.raises(ValueError) as raised:
        Broken()(torch.ones(1))
    files = {Path(frame.filename).name for frame in traceback.extract_tb(raised.value.__traceback__)}
    assert files == {"test_observe.py", "module.py"}


def test_modules_elsewhere_and_without_parameters_are_no_news(observer: Observer) -> None:
    torch.nn.Linear(2, 2, device="meta")(torch.ones(1, 2, device="meta"))
    torch.nn.ReLU()(torch.ones(1))
    assert observer.observation().notes == ()
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
    (note,) = observer.observation().notes
    assert note.place.path == __file__ and note.what == "Linear"


def test_parts_of_a_module_that_was_left_behind_are_no_news(observer: Observer) -> None:
    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.nn.Linear(2, 2)

        def forward(self, given: torch.Tensor) -> object:
            return self.part(given)

    Whole()(torch.ones(1, 2))
    assert [note.what for note in observer.observation().notes] == ["Whole"]


def test_jit_and_export_do_not_mind(observer: Observer) -> None:
    module = torch.nn.Linear(2, 2)
    given = torch.ones(1, 2)
    exported = torch.export.export(module, (given,))
    assert torch.equal(exported.module()(given), module(given))


def test_operations_are_counted_by_shape_and_dtype() -> None:
    observer = Observer()
    a, b = torch.ones(2, device="meta"), torch.ones(3, device="meta")
    for tensors in ((a, a), (a, a), (b, a), ([a, b],), (a, a.to(torch.bfloat16))):
        observer.see("aten::add.Tensor", tensors, {})
    observer.see("aten::mul.Tensor", (a, 2), {"out": b})
    found = observer.observation()
    assert (found.calls, found.distinct, found.once) == (6, 5, 4)
    assert [line.calls for line in found.lines] == [5, 1]
    (varied,) = found.lines[0].varied
    assert varied.operation == "aten::add.Tensor"
    assert varied.shapes == (
        "[2] float32 x [2] float32",
        "[3] float32 x [2] float32",
        "[2] float32 x [3] float32",
        "[2] float32 x [2] bfloat16",
    )
    assert found.lines[1].varied == ()


def test_what_is_made_out_of_numbers_counts_by_its_shape() -> None:
    observer = Observer()
    for size, dtype in (([2], None), ([2], None), ([3], None), ([3], torch.float64)):
        observer.see("aten::ones", (size,), {"dtype": dtype})
    for end in (4, 5):
        observer.see("aten::arange", (end,), {})
    observer.see("aten::_to_copy", (torch.ones(2, device="meta"),), {"dtype": torch.float64})
    found = observer.observation()
    assert (found.calls, found.distinct) == (7, 6)
    ones, arange = found.lines[0].varied[0], found.lines[1].varied[0]
    assert ones.shapes == ("[2]", "[3]", "[3] float64")
    assert arange.shapes == ("[4]", "[5]")
    assert [note.what for note in found.of("float64")] == ["ones", "_to_copy"]


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("aten::uniform_", "runs-on-cpu", "uniform_"),
        ("aten::atan2.out", "runs-on-cpu", "atan2"),
        ("aten::index_fill_.int_Scalar", "runs-on-cpu", "index_fill_"),
        ("aten::scatter_reduce.two_out", "runs-on-cpu", "scatter_reduce"),
        ("aten::unique_dim", "data-dependent-shape", "unique_dim"),
        ("aten::masked_select", "data-dependent-shape", "masked_select"),
        ("aten::repeat_interleave.Tensor", "data-dependent-shape", "repeat_interleave"),
    ],
)
def test_names_in_every_form_are_found_in_the_tables(name: str, kind: str, what: str) -> None:
    observer = Observer()
    observer.see(name, (torch.ones(2, device="meta"),), {})
    assert [note.what for note in observer.observation().of(kind)] == [what]


def test_common_operations_are_no_news() -> None:
    observer = Observer()
    a, ids = torch.ones(2, 2, device="meta"), torch.ones(2, dtype=torch.int32, device="meta")
    for name in ("aten::mm", "aten::add.Tensor", "aten::index_select", "aten::softmax.int"):
        observer.see(name, (a, a), {})
    observer.see("aten::index.Tensor", (a, [ids]), {})
    observer.see("aten::_to_copy", (a,), {"dtype": torch.bfloat16, "device": None})
    assert observer.observation().notes == ()
    assert observer.observation().calls == 6


def test_long_lists_are_cut_short() -> None:
    observer = Observer()
    for rows in (1, 2):
        observer.see("aten::_foreach_add_.List", ([torch.ones(rows, device="meta")] * 300,), {})
    (line,) = observer.observation().lines
    assert line.varied[0].shapes[0].endswith("x [1] float32 and 296 more")


def test_the_real_package_is_asked_for_its_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("torch_neuronx")
    package.get_fallback_ops = lambda: ["aten::sort", "aten::sort", "aten::acos"]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_neuronx", package)
    notes = Observer().observation().of("runs-on-cpu")
    assert [(note.what, note.count) for note in notes] == [("aten::sort", 2), ("aten::acos", 1)]


# Several processes

RANKS = """\
import os, signal, sys
import torch
import torch.distributed as dist

dist.init_process_group("neuron")
rank = dist.get_rank()
total = torch.ones(2, device="neuron") + 1  # both
dist.all_reduce(total)  # sum
if rank == 0:
    print(total.tolist())  # first
else:
    print(torch.ones(3, device="neuron").mul(2).sum().shape)  # second
dist.barrier()
dist.destroy_process_group()
if "kill" in sys.argv and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _ranks(folder: Path, *arguments: str) -> tuple[int, dict[str, Any], str]:
    program = script(folder, RANKS)
    report = folder / "report.json"
    kept = folder / "temporary"
    kept.mkdir()
    options = ("--observe", "--devices", "2", "--report", report)
    done = run(*options, program, *arguments, env={"TMPDIR": str(kept)})
    assert not [*kept.glob("neuronmigrate-*")], done.stderr
    return done.returncode, json.loads(report.read_bytes()), done.stderr


def test_each_rank_is_observed(tmp_path: Path) -> None:
    code, document, said = _ranks(tmp_path)
    assert code == 0, said
    assert document["selection"]["devices"] == 2
    seen = document["observation"]
    zero, one = seen["ranks"]
    assert (zero["rank"], one["rank"], seen["silent"]) == (0, 1, [])
    assert one["own"] >= 2 > zero["own"]
    assert zero["calls"] + one["calls"] == seen["calls"]
    assert seen["distinct"] == zero["distinct"] + one["own"]
    marked = {line["source"].rpartition("# ")[2]: line for line in seen["lines"]}
    assert marked["both"]["calls"] == 4 and marked["both"]["distinct"] == 2 and marked["both"]["ranks"] == []
    assert marked["second"]["ranks"] == [1]
    (copied,) = [note for note in seen["notes"] if note["source"].endswith("# first")]
    assert copied["kind"] == "host-sync" and copied["ranks"] == [0]
    assert (
        f"rank 1: {one['calls']} operations, {one['distinct']} distinct, {one['own']} of them on no" in said
    )
    assert "(rank 1)  print(torch.ones(3" in said and said.count("observed on the emulated") == 1


@pytest.mark.nightly
def test_a_rank_that_was_killed_is_named(tmp_path: Path) -> None:
    code, document, said = _ranks(tmp_path, "kill")
    assert code == 1
    assert document["observation"]["silent"] == [1]
    assert "rank 1: killed before the end, what was seen is lost" in said


def test_ranks_together() -> None:
    here, there = Place("a.py", 1), Place("a.py", 2)
    add, mul = ("aten::add", ("[2] float32",)), ("aten::mul", ("[2] float32",))
    wait = ("host-sync", there, "value", "why")
    first = Seen(True, ((add, 3, here),), ((here, 3),), ((*wait, 2),), 1, 4)
    second = Seen(True, ((add, 1, here), (mul, 1, there)), ((here, 1), (there, 1)), (), 1, 4)
    assert Seen.from_text(second.to_text()) == second and Seen.from_text(first.to_text()) == first
    both = combine({0: first, 1: second}, silent=[2])
    assert (both.calls, both.distinct, both.once, both.graphs, both.in_graphs) == (5, 2, 1, 2, 8)
    assert both.ranks == (Rank(0, 3, 1, 0, 1, 4), Rank(1, 2, 2, 1, 1, 4)) and both.silent == (2,)
    assert [(line.place, line.calls, line.ranks) for line in both.lines] == [(here, 4, ()), (there, 1, (1,))]
    assert [note.ranks for note in both.notes] == [(0,)]
    page = printer.page(both)
    assert "rank 2: killed before the end" in page and "<td>1 (rank 1)</td>" in page
    alone = combine({0: first})
    assert alone.ranks == () and [line.ranks for line in alone.lines] == [()]


def test_nothing_seen_is_said() -> None:
    lines = [
        "".join(piece for piece, _ in line) for line in printer.text(Observation(True, 0, 0, 0, 0, 0, (), ()))
    ]
    assert lines[1:] == ["nothing ran on it"]


def test_a_line_has_its_text() -> None:
    here = Place(__file__, 1)
    assert here.source == '"""What `neuronmigrate run --observe` says about a program, line by line."""'
    assert Place("", 0).source == "" and str(here).endswith("test_observe.py:1")


def test_a_page_shows_all_of_it_and_runs_nothing() -> None:
    observer = Observer()
    for rows in range(20):
        observer.see("aten::<sort>", (torch.ones(rows, device="meta"),), {})
    observation = observer.observation()
    page = printer.page(observation)
    assert page.startswith("<!doctype html>") and "<script" not in page
    assert page.count("<tr>") >= 1 + len(observation.lines)
    assert f"{observation.distinct:,} distinct" in page
    assert "aten::<sort>" not in page
