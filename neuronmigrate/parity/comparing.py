"""Compares two recordings, and both with a reference."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from neuronmigrate.parity import configuration, measures, traces
from neuronmigrate.parity.comparison import (
    OUTCOMES,
    Comparison,
    Curve,
    Measures,
    Row,
    Setting,
    Status,
    worst,
)
from neuronmigrate.parity.recording import Key, Rank, Recording, Value, number
from neuronmigrate.parity.tolerance import Policy, coarser, is_float

INNER = ("inner input", "inner output")
# Where another shape is another result, and not only another way to compute it.
_SHAPED = ("batch", "initial weight", "gradient", "weight", "saved", "result", "tokens")
_LOST = ("loss", "gradient norm", "learning rate", "saved", "weight", "gradient")
"""Quantities that may not be missing on the second side: both sides record them wherever they are."""
_CURVES = ("loss", "gradient norm", "learning rate")
_RATIO = 2.0
"""How many times farther from the reference than the old side the new one may be."""
_DEVICE = re.compile(r"(cpu|xla|neuron)(?::(\d+))?")
# Results that tell the hour or the place and not what was computed.
_INCIDENTAL = re.compile(
    r"(?i)(^|_)(time|times|start|started|begin|begun|end|ended|elapsed|seconds|duration|latency|rate|throughput|"
    r"speed|date|pid|port|path|paths|dir|folder|file|files|filename|tmp|output_dir|host|hostname)(_|s?$)"
)


def compare(
    first: Recording,
    second: Recording,
    policy: Policy | None = None,
    *,
    reference: Recording | None = None,
    labels: tuple[str, str] = ("before", "after"),
    aligned: tuple[str, ...] = (),
) -> Comparison:
    """Compare two recordings; with a reference, say which of them is nearer to it."""
    policy = policy or Policy()
    sides = configuration.side(first, labels[0]), configuration.side(second, labels[1])
    settings = configuration.differences(first, second)
    policy = replace(policy, hardware=policy.hardware or any(map(_on_hardware, (first, second))))
    judged = _Judge(policy, reference)
    rows: list[Row] = []
    unmatched: list[tuple[str, str]] = []
    events = []
    for rank in sorted(first.ranks.keys() & second.ranks.keys()):
        a, b = first.ranks[rank], second.ranks[rank]
        names = _other_names(a, b)
        rows += judged.rank(a, b, names)
        unmatched += _unmatched(a, b, names)
    agreeing = _agreeing_steps(rows)
    for rank in sorted(first.ranks.keys() & second.ranks.keys()):
        events += traces.compare(first.ranks[rank], second.ranks[rank], policy.numerics, agreeing)
    rows += _missing(first, second, policy.numerics)
    found = Comparison(
        first=sides[0],
        second=sides[1],
        status=Status.EQUAL,
        reason="",
        settings=settings,
        rows=tuple(rows),
        events=tuple(events),
        curves=_curves(first, second),
        unmatched=tuple(unmatched),
        divergence=_divergence(rows),
        numerics=tuple(sorted(policy.numerics)),
        aligned=aligned,
        notes=tuple(_notes(first, second, settings)),
    )
    status, reason = _verdict(found, first, second)
    return replace(found, status=status, reason=reason)


def _on_hardware(recording: Recording) -> bool:
    return recording.first.head.get("device") in ("native", "xla (NEURON)")


# One process


@dataclass
class _Judge:
    policy: Policy
    reference: Recording | None

    def rank(self, a: Rank, b: Rank, names: Mapping[str, str]) -> list[Row]:
        """The rows of what both sides have."""
        scales = _scales(a, b)
        found = []
        theirs = {_renamed(key, names): value for key, value in b.by_key.items()}
        first_flips = _first_flips(a, theirs)
        still = _still(scales, a, b)
        drift = sum(rate for side in (a, b) for rate in _rates(side))
        noise = (
            max((scale for (what, _), scale in scales.items() if what == "gradient"), default=0.0) * 2.0**-23
        )
        for key, value in a.by_key.items():
            other = theirs.get(key)
            if other is None or value.quantity.startswith("score "):
                continue
            row = Row(
                value.quantity,
                a.number,
                value.name,
                value.text("call"),
                value.text("part"),
                value.step,
                value.order,
                Status.EQUAL,
                dtypes=(value.dtype, other.dtype),
                shapes=(value.shape, other.shape),
            )
            row = self._judge(row, value, other, scales.get((value.quantity, value.text("call")), 0.0))
            if row.quantity == "tokens" and row.status is Status.DIVERGED:
                row = _near_tie(row, a, theirs, first_flips.get(row.call, {}))
            if row.status is Status.DIVERGED and _drifts(row, still, drift):
                reason = "its gradients count as zero, and the optimizer moves it by their rounding"
                row = replace(row, status=Status.EXPLAINED, reason=reason)
            if row.status is Status.DIVERGED and _is_noise(row, noise):
                reason = "an optimizer's mean of gradients that count as zero"
                row = replace(row, status=Status.EXPLAINED, reason=reason)
            if self.reference is not None:
                row = self._third(row, value, other, names)
            found.append(row)
        return found

    def _judge(self, row: Row, a: Value, b: Value, scale: float) -> Row:
        if row.quantity == "result" and not (a.is_tensor and b.is_tensor):
            return self._result(row, a, b)
        if a.is_tensor != b.is_tensor:
            return _incomparable(row, "a tensor on one side and a number on the other")
        if row.shapes[0] != row.shapes[1]:
            reason = f"shapes {list(row.shapes[0])} and {list(row.shapes[1])}"
            if "part of" in a.fields or "part of" in b.fields:
                return _incomparable(row, f"{reason}: one process's part of a tensor")
            if "sharding" in self.policy.numerics:
                return _incomparable(row, f"{reason} (declared: sharding)")
            status = Status.DIVERGED if row.quantity in _SHAPED else Status.NOT_COMPARABLE
            return replace(row, status=status, reason=reason)
        dtype = coarser(*row.dtypes)
        same_dtype = row.dtypes[0] == row.dtypes[1]
        if a.is_tensor and same_dtype and a.fields.get("digest") == b.fields.get("digest"):
            return replace(row, measures=Measures(elements=_count(row.shapes[0])))
        if not a.kept or not b.kept:
            return _incomparable(row, "differs, and only its digest was kept")
        if not is_float(row.dtypes[0]) or not is_float(row.dtypes[1]):
            return self._exact(row, a, b)
        tolerance = self.policy.tolerance(dtype, row.step)
        floor = scale * 2.0**-23 if dtype == "float32" else 0.0
        x, y = a.tensor(), b.tensor()
        if x.shape != y.shape:
            return _incomparable(row, "samples of two sizes")
        found, passes = measures.measure(x, y, dtype, tolerance, floor)
        if row.quantity in ("logits", "first logits") and x.dim() >= 2 and x.shape[-1] >= 2:
            kl, top1, top5 = measures.logits(x, y)
            found = replace(found, kl=kl, top1=top1, top5=top5)
        row = replace(row, tolerance=tolerance, measures=found)
        if row.quantity == "saved" and not same_dtype and dtype == row.dtypes[1]:
            # Whoever loads it gets less than there was.
            declared = next((each for each in ("dtype", "format") if each in self.policy.numerics), "")
            status = Status.EXPLAINED if declared else Status.DIVERGED
            told = f"declared: {declared}" if declared else f"saved in {dtype}, and before in {row.dtypes[0]}"
            return replace(row, status=status, reason=told)
        if passes:
            equal = same_dtype and found.max_abs == 0 and not a.is_tensor
            return replace(row, status=Status.EQUAL if equal else Status.WITHIN)
        wider, declared = self.policy.declared(dtype, row.step)
        if declared and not found.nonfinite and found.needed <= wider:
            reason = f"declared: {declared}"
            return replace(row, status=Status.EXPLAINED, tolerance=wider, reason=reason)
        reason = f"{found.nonfinite} elements are finite on one side only" if found.nonfinite else ""
        return replace(row, status=Status.DIVERGED, reason=reason)

    def _exact(self, row: Row, a: Value, b: Value) -> Row:
        """Whole numbers: each has to be the same."""
        x, y = a.tensor(), b.tensor()
        if is_float(row.dtypes[0]) != is_float(row.dtypes[1]):
            if row.quantity in ("input", "inner input") and x.shape == y.shape and bool((x == y).all()):
                # A count that one side hands over as a float is the same count.
                return replace(row, status=Status.WITHIN)
            return replace(row, status=Status.DIVERGED, reason=f"{row.dtypes[0]} and {row.dtypes[1]}")
        wrong = int((x != y).sum()) if x.shape == y.shape else x.numel()
        if not wrong and "sampled" not in a.fields:
            # Another width of whole numbers holds the same.
            return replace(row, status=Status.EQUAL)
        agreement = None
        if row.quantity == "tokens" and x.dim() == 2:
            agreement = sum(measures.prefix(x, y)) / max(1, y.numel())
        found = Measures(elements=int(x.numel()), outliers=wrong / max(1, x.numel()), agreement=agreement)
        reason = f"{wrong} of {x.numel()} elements differ"
        return replace(row, status=Status.DIVERGED, reason=reason, measures=found)

    def _result(self, row: Row, a: Value, b: Value) -> Row:
        old, new = (each.tensor().tolist() if each.is_tensor else each.fields.get("value") for each in (a, b))
        tolerance = self.policy.tolerance("float32", row.step)
        wider, declared = self.policy.declared("float32", row.step)
        status, reason = alike(old, new, tolerance)
        if status is Status.DIVERGED and declared and alike(old, new, wider)[0].fine:
            status, reason = Status.EXPLAINED, f"declared: {declared}"
        if status is Status.DIVERGED and _INCIDENTAL.search(row.name):
            status, reason = Status.NOT_COMPARABLE, "by its name it tells an hour or a place"
        return replace(row, status=status, reason=reason, tolerance=tolerance)

    def _third(self, row: Row, a: Value, b: Value, names: Mapping[str, str]) -> Row:
        assert self.reference is not None
        rank = self.reference.ranks.get(row.rank)
        c = rank.by_key.get(a.key) if rank else None
        if c is None or not (a.kept and b.kept and c.kept) or row.shapes[0] != row.shapes[1]:
            return row
        if not all(is_float(each.dtype) for each in (a, b, c)):
            return row
        x, y, z = (each.tensor().double() for each in (a, b, c))
        if x.shape != z.shape or y.shape != z.shape:
            return row
        size = float(z.norm()) or 1.0
        row = replace(row, reference=(float((x - z).norm()) / size, float((y - z).norm()) / size))
        ratio = row.ratio
        if row.status is Status.DIVERGED and ratio is not None and ratio <= _RATIO:
            reason = f"{ratio:.2g} times as far from the reference as the first side"
            return replace(row, status=Status.EXPLAINED, reason=reason)
        return row


def _incomparable(row: Row, reason: str) -> Row:
    return replace(row, status=Status.NOT_COMPARABLE, reason=reason)


def _count(shape: Iterable[int]) -> int:
    product = 1
    for each in shape:
        product *= each
    return product


def _scales(*ranks: Rank) -> dict[tuple[str, str], float]:
    """The largest value of a quantity in a call: what is small beside its rounding is noise."""
    found: dict[tuple[str, str], float] = {}
    for value in itertools.chain.from_iterable(rank.values for rank in ranks):
        if value.quantity in ("gradient", *INNER):
            key = value.quantity, value.text("call")
            found[key] = max(found.get(key, 0.0), value.largest)
    return found


def _still(scales: Mapping[tuple[str, str], float], *ranks: Rank) -> frozenset[str]:
    """Parameters whose gradients all count as zero: that of the bias of a key makes no difference."""
    found: dict[str, bool] = {}
    for value in itertools.chain.from_iterable(rank.values for rank in ranks):
        if value.quantity == "gradient" and value.dtype == "float32":
            noise = scales.get((value.quantity, value.text("call")), 0.0) * 2.0**-23
            name = value.name.partition("/")[2]
            found[name] = found.get(name, True) and value.largest <= noise
    return frozenset(name for name, zero in found.items() if name and zero)


def _rates(rank: Rank) -> list[float]:
    """Learning rates of all steps, of the group whose is the highest."""
    found: dict[str, float] = {}
    for value in rank.values:
        if value.quantity == "learning rate":
            call = value.text("call")
            found[call] = max(found.get(call, 0.0), number(value.fields.get("value")))
    return list(found.values())


def _drifts(row: Row, still: frozenset[str], drift: float) -> bool:
    """Whether a weight is no farther apart than steps of the optimizer with gradients of noise bring it."""
    if row.quantity not in ("weight", "saved") or row.measures is None or row.measures.max_abs > drift:
        return False
    name = row.name.partition("/")[2] if row.quantity == "weight" else row.part
    return any(name == each or name.endswith(f".{each}") for each in still)


_MOMENT = re.compile(r"(?:.*\.)?state\.\d+\.(?P<name>exp_avg|exp_avg_sq|momentum_buffer)")
"""Where `Optimizer.state_dict` keeps a mean of the gradients of a parameter, or of their squares."""


def _is_noise(row: Row, noise: float) -> bool:
    """Whether what an optimizer saved is apart by no more than the rounding of the largest gradient."""
    named = _MOMENT.fullmatch(row.part) if row.quantity == "saved" else None
    if named is None or row.measures is None:
        return False
    return row.measures.max_abs <= (noise**2 if named["name"] == "exp_avg_sq" else noise)


def alike(old: object, new: object, tolerance: float, scale: float = 0.0) -> tuple[Status, str]:
    """How two values of plain data came out: numbers by a tolerance or by their last printed digit.

    `scale` is the root mean square of the list that a number stands in, as for the elements of a tensor.
    """
    if isinstance(old, bool) or isinstance(new, bool) or old is None or new is None:
        same = old is new
        return (Status.EQUAL, "") if same else (Status.DIVERGED, f"{_short(old)} and {_short(new)}")
    if isinstance(old, int | float) and isinstance(new, int | float):
        if old == new:
            return Status.EQUAL, ""
        if isinstance(old, int) and isinstance(new, int):
            return Status.DIVERGED, f"{old} and {new}"
        away = abs(old - new)
        # What was rounded on one side only is no rounded number: 8.5 may be the whole of it.
        size = max(abs(old), abs(new))
        if away <= tolerance * (size + max(size, scale)) or away <= 1.01 * min(
            _last_place(old), _last_place(new)
        ):
            return Status.WITHIN, ""
        return Status.DIVERGED, f"{_short(old)} and {_short(new)}"
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return Status.DIVERGED, f"{len(old)} and {len(new)} entries"
        scale = min(_scale_of(old), _scale_of(new))
        return _worst_of(alike(a, b, tolerance, scale) for a, b in zip(old, new, strict=True))
    if isinstance(old, dict) and isinstance(new, dict):
        if old.keys() != new.keys():
            return Status.DIVERGED, "other keys"
        return _worst_of(alike(value, new[key], tolerance) for key, value in old.items())
    if old == new:
        return Status.EQUAL, ""
    if isinstance(old, str) and isinstance(new, str) and _on_its_device(old, new):
        return Status.EXPLAINED, f"names of the device: {old} and {new}"
    return Status.DIVERGED, f"{_short(old)} and {_short(new)}"


def _scale_of(values: Sequence[object]) -> float:
    """Root mean square of a list of floats; 0 for one that holds something else."""
    numbers = [value for value in values if isinstance(value, float) and math.isfinite(value)]
    if not numbers or len(numbers) < len(values):
        return 0.0
    top = max(map(abs, numbers))
    return top * math.sqrt(sum((value / top) ** 2 for value in numbers) / len(numbers)) if top else 0.0


def _on_its_device(old: str, new: str) -> bool:
    """Whether two texts name the device of each side; a new side on the CPU is not on its device."""
    first, second = _DEVICE.fullmatch(old), _DEVICE.fullmatch(new)
    if first is None or second is None or second[1] != "neuron":
        return False
    return first[2] == second[2] or None in (first[2], second[2])


def _worst_of(found: Iterable[tuple[Status, str]]) -> tuple[Status, str]:
    return max(found, key=lambda each: each[0].severity, default=(Status.EQUAL, ""))


def _last_place(value: float) -> float:
    """One unit of the last digit of a number that was rounded for people; 0 for one that was not."""
    digits = repr(value).partition(".")[2]
    return 10.0 ** -len(digits) if "e" not in digits and len(digits) <= 6 else 0.0


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Generation


def _first_flips(a: Rank, theirs: Mapping[Key, Value]) -> dict[str, dict[int, int]]:
    """Of each generation, the rows whose tokens differ, and where they begin to."""
    found: dict[str, dict[int, int]] = {}
    for value in a.by_key.values():
        other = theirs.get(value.key)
        if value.quantity != "tokens" or other is None or not (value.kept and other.kept):
            continue
        x, y = value.tensor(), other.tensor()
        if x.dim() == y.dim() == 2 and x.shape[0] == y.shape[0]:
            shortest = min(x.shape[1], y.shape[1])
            wrong = {row: at for row, at in enumerate(measures.prefix(x, y)) if at < shortest}
            found[value.text("call")] = wrong
    return found


def _near_tie(row: Row, a: Rank, theirs: Mapping[Key, Value], flips: Mapping[int, int]) -> Row:
    """Tokens that part where both were nearly as likely are explained: rounding decided.

    Each side's margin between the two tokens has to be at most twice the largest difference of the scores
    that both sides kept of that step.
    """
    if not flips or row.shapes[0][:1] != row.shapes[1][:1]:
        return row
    tokens = a.by_key["tokens", row.name, row.call, row.part].tensor()
    others = theirs["tokens", row.name, row.call, row.part].tensor()
    margins = []
    for line, at in flips.items():
        call = f"{row.call} {at}"
        scores = [_scores(side, call, line, len(tokens)) for side in (a.by_key, theirs)]
        old, new = int(tokens[line, at]), int(others[line, at])
        if not all(old in side and new in side for side in scores):
            return row
        shared = scores[0].keys() & scores[1].keys()
        error = max(abs(scores[0][each] - scores[1][each]) for each in shared)
        margin = max(scores[0][old] - scores[0][new], scores[1][new] - scores[1][old])
        size = max(abs(value) for value in scores[0].values())
        if margin > 2 * error or error > 0.05 * size:
            return row
        margins.append(margin)
    reason = f"a near tie: the first tokens that differ were {max(margins):.2g} apart in their logits"
    return replace(row, status=Status.EXPLAINED, reason=reason)


def _scores(values: Mapping[Key, Value], call: str, line: int, lines: int) -> dict[int, float]:
    """The highest scores of one row at one step, by token."""
    highest = values.get(("score values", "generate", call, ""))
    which = values.get(("score tokens", "generate", call, ""))
    if highest is None or which is None or not highest.kept or highest.shape[0] != lines:
        return {}
    numbers, tokens = highest.tensor()[line].tolist(), which.tensor()[line].tolist()
    return dict(zip(tokens, numbers, strict=True))


# Names


def _roots(rank: Rank) -> dict[str, float]:
    """The models of a process and their sizes, in the order of their first calls."""
    models = [each for each in rank.events if each["event"] == "model"]
    return {str(each.get("model")): number(each.get("elements", 0)) for each in models}


def _other_names(a: Rank, b: Rank) -> dict[str, str]:
    """The second side's models to the first side's, where the classes are called otherwise."""
    old, new = _roots(a), _roots(b)
    free = [name for name in old if name not in new]
    found = {}
    for name, size in new.items():
        if name in old:
            continue
        # Padding buffers and the like aside, a model has as many numbers under another name.
        same = next((each for each in free if old[each] == size), None)
        if same is not None:
            free.remove(same)
            found[name] = same
    return found


def _renamed(key: Key, names: Mapping[str, str]) -> Key:
    root, slash, rest = key[1].partition("/")
    return (key[0], f"{names[root]}{slash}{rest}", *key[2:]) if root in names else key


def _unmatched(a: Rank, b: Rank, names: Mapping[str, str]) -> list[tuple[str, str]]:
    theirs = {_renamed(key, names) for key in b.by_key}
    ours = set(a.by_key)
    found = []
    for which, keys in (("first", ours - theirs), ("second", theirs - ours)):
        for quantity, name, call, part in sorted(keys):
            if quantity not in INNER and not quantity.startswith("score "):
                text = f"{quantity} {name}{'.' if part else ''}{part} [{call}]"
                found.append((which, f"{text} on rank {a.number}" if a.number else text))
    return found


def _missing(first: Recording, second: Recording, numerics: frozenset[str]) -> list[Row]:
    """Rows for values that one side lacks although both sides record such values."""
    found = []
    for rank in sorted(first.ranks.keys() & second.ranks.keys()):
        counts = [_counts(side.ranks[rank]) for side in (first, second)]
        for quantity in _LOST:
            a, b = (each.get(quantity, 0) for each in counts)
            if a != b:
                reason = f"{a} of them on the first side, {b} on the second"
                status = Status.DIVERGED
                if quantity == "saved" and "format" in numerics:
                    status, reason = Status.EXPLAINED, f"{reason} (declared: format)"
                found.append(Row(quantity, rank, "all of them", "", "", 0, 1 << 60, status, reason))
    return found


def _counts(rank: Rank) -> dict[str, int]:
    found: dict[str, int] = {}
    for quantity, *_ in rank.by_key:
        found[quantity] = found.get(quantity, 0) + 1
    return found


# The whole


def _agreeing_steps(rows: Iterable[Row]) -> frozenset[int]:
    """Optimizer steps whose gradients agree on all processes; of later steps only the norms are there."""
    found: dict[int, bool] = {}
    for row in rows:
        if row.quantity in ("gradient", "gradient norm", "norm before clipping"):
            found[row.step] = found.get(row.step, True) and row.status.fine
    return frozenset(step for step, fine in found.items() if fine)


def _curves(first: Recording, second: Recording) -> tuple[Curve, ...]:
    found = []
    for rank in sorted(first.ranks.keys() & second.ranks.keys()):
        series: list[dict[tuple[str, str], list[float]]] = []
        for side in (first, second):
            points: dict[tuple[str, str], list[float]] = {}
            for value in side.ranks[rank].values:
                if value.quantity in _CURVES:
                    points.setdefault((value.quantity, value.name), []).append(
                        number(value.fields.get("value"))
                    )
            series.append(points)
        for key in series[0].keys() & series[1].keys():
            found.append(Curve(*key, rank, tuple(series[0][key]), tuple(series[1][key])))
    return tuple(sorted(found, key=lambda each: (each.rank, _CURVES.index(each.quantity), each.name)))


def _divergence(rows: Iterable[Row]) -> Row | None:
    """The first value in the order of the run that differs while what went into it agrees."""
    ordered = sorted(rows, key=lambda row: (row.order, row.rank))
    wrong = {
        (row.rank, row.name, row.call)
        for row in ordered
        if row.quantity in ("input", "inner input") and row.status is Status.DIVERGED
    }
    bad = [row for row in ordered if row.status is Status.DIVERGED]
    for row in bad:
        inputs = (row.rank, row.name, row.call) in wrong
        if not (row.quantity in ("output", "logits", "inner output") and inputs):
            return row
    return bad[0] if bad else None


def _notes(first: Recording, second: Recording, settings: Iterable[Setting]) -> Iterable[str]:
    for label, side in (("first", first), ("second", second)):
        for rank in side.ranks.values():
            for text in rank.notes:
                yield f"{label} side, rank {rank.number}: {text}"
    if any(traces.lone_reductions(rank) for rank in first.ranks.values()):
        yield "the first side reduces over processes, which takes two to show: --devices 2"
    if first.ranks.keys() != second.ranks.keys():
        yield f"ranks {sorted(first.ranks)} on the first side, {sorted(second.ranks)} on the second"


def _verdict(found: Comparison, first: Recording, second: Recording) -> tuple[Status, str]:
    """The status of the whole, and one sentence about it."""
    for side in (found.first, found.second):
        if side.error:
            return Status.NOT_COMPARABLE, f"{side.label} ended with {side.error}"
        if not side.complete:
            return Status.NOT_COMPARABLE, f"the recording of {side.label} is not whole"
    for setting in found.settings:
        if setting.breaks:
            return (
                Status.NOT_COMPARABLE,
                f"{setting.name} differs: {setting.first} and {setting.second}",
            )
    outcomes = [row for row in found.rows if row.quantity in OUTCOMES]
    judged = [row for row in outcomes if row.status is not Status.NOT_COMPARABLE]
    status = worst([row.status for row in judged] + [event.status for event in found.events])
    if status is Status.DIVERGED:
        return status, _why_diverged(found)
    if not judged:
        return Status.NOT_COMPARABLE, "the recordings have no value in common"
    inner = [row for row in found.rows if row.quantity in INNER and row.status is Status.DIVERGED]
    counted = f"{len(judged)} values"
    if inner:
        counted += f"; {len(inner)} inside of models differ and make no difference in what comes out"
        status = worst([status, Status.WITHIN])
    return status, counted


def _why_diverged(found: Comparison) -> str:
    events = [event for event in found.events if event.status is Status.DIVERGED]
    row = found.divergence
    if row is not None and row.status is Status.DIVERGED:
        needed = ""
        if row.measures is not None and row.measures.needed:
            needed = f": needs a tolerance of {row.measures.needed:.2g}, has {row.tolerance:.2g}"
        return f"first at {row.title}{needed or (': ' + row.reason if row.reason else '')}"
    event = events[0]
    told = f"{event.first or 'nothing'} against {event.second or 'nothing'}"
    return f"{event.event} at step {event.step}: {told}"
