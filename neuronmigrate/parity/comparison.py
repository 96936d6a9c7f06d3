"""What a comparison of two recordings says, as plain data.

`comparing` makes it, `neuronmigrate.report.parity` prints it, and `as_data` is its json.
"""

from __future__ import annotations

import enum
import math
from dataclasses import asdict, dataclass, field

SCHEMA = 1


class Status(str, enum.Enum):
    """How one quantity, or the whole, came out. The order is the order of severity."""

    EQUAL = "equal"
    """The same in every bit."""
    WITHIN = "within tolerance"
    EXPLAINED = "explained"
    """Over the tolerance, for a reason that is known and was declared."""
    NOT_COMPARABLE = "not comparable"
    DIVERGED = "diverged"

    @property
    def severity(self) -> int:
        """Place in the order."""
        return list(Status).index(self)

    @property
    def fine(self) -> bool:
        """Whether it says that the programs compute the same."""
        return self in (Status.EQUAL, Status.WITHIN, Status.EXPLAINED)


OUTCOMES = (
    "batch",
    "initial weight",
    "input",
    "output",
    "logits",
    "first logits",
    "tokens",
    "loss",
    "norm before clipping",
    "gradient",
    "gradient norm",
    "learning rate",
    "weight",
    "saved",
    "result",
)
"""Quantities that decide. The inputs and outputs of inner modules only say where a difference comes from."""


@dataclass(frozen=True)
class Measures:
    """How far two tensors are from each other. All are computed in float64."""

    elements: int = 0
    """Compared elements, those of a sample when it is one."""
    max_abs: float = 0.0
    max_rel: float = 0.0
    """Largest difference in relation to the element plus the root mean square of the tensor."""
    relative_l2: float = 0.0
    """Norm of the difference over the norm of the first side."""
    cosine: float = 1.0
    ulp: float = 0.0
    """Largest distance in units in the last place of the coarser dtype."""
    outliers: float = 0.0
    """Share of elements over the tolerance."""
    needed: float = 0.0
    """Smallest tolerance that would pass."""
    nonfinite: int = 0
    """Elements that are finite on one side only, or infinite with another sign."""
    kl: float | None = None
    """Largest Kullback-Leibler divergence of a row's softmax, of logits."""
    top1: float | None = None
    """Share of rows with the same highest logit."""
    top5: float | None = None
    """Share of the five highest that both have."""
    agreement: float | None = None
    """Share of equal tokens before the first difference of a row, of tokens."""


@dataclass(frozen=True)
class Row:
    """One recorded value on both sides."""

    quantity: str
    rank: int
    name: str
    call: str
    part: str
    step: int
    order: int
    """Place in the first side's recording."""
    status: Status
    reason: str = ""
    dtypes: tuple[str, str] = ("", "")
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    tolerance: float = 0.0
    measures: Measures | None = None
    reference: tuple[float, float] | None = None
    """Relative L2 distance of each side from the reference recording."""

    @property
    def title(self) -> str:
        """The value as people call it."""
        part = f".{self.part}" if self.part else ""
        call = f" [{self.call}]" if self.call else ""
        rank = f" on rank {self.rank}" if self.rank else ""
        return f"{self.quantity} {self.name}{part}{call}{rank}"

    @property
    def ratio(self) -> float | None:
        """How many times farther from the reference the second side is than the first."""
        if self.reference is None:
            return None
        old, new = self.reference
        return new / old if old else (1.0 if not new else math.inf)


@dataclass(frozen=True)
class EventDifference:
    """Something that one side did and the other did not, or did otherwise."""

    event: str
    rank: int
    step: int
    first: str
    """What the first side did; empty for nothing."""
    second: str
    status: Status
    reason: str = ""
    times: int = 1
    """How often it differs so; `step` is that of the first time."""


@dataclass(frozen=True)
class Setting:
    """A setting in which the recordings differ."""

    name: str
    first: str
    second: str
    breaks: bool = False
    """Whether no number can be judged under it."""


@dataclass(frozen=True)
class Curve:
    """A scalar over the steps of both sides."""

    quantity: str
    name: str
    rank: int
    first: tuple[float, ...]
    second: tuple[float, ...]

    @property
    def distance(self) -> float:
        """Largest difference at a step, in relation to the first side's mean absolute value."""
        pairs = [(a, b) for a, b in zip(self.first, self.second, strict=False) if math.isfinite(a - b)]
        scale = sum(abs(a) for a, _ in pairs) / len(pairs) if pairs else 0.0
        worst = max((abs(a - b) for a, b in pairs), default=0.0)
        return worst / scale if scale else worst


@dataclass(frozen=True)
class Side:
    """One recording, as it is told from the other."""

    label: str
    script: str
    device: str
    versions: dict[str, str]
    world: int
    complete: bool
    error: str = ""
    """What ended the script, if it did not end by itself."""


@dataclass(frozen=True)
class Culprit:
    """A hunk that brings a difference in."""

    path: str
    line: int
    """Where it begins in the old side, from 1."""
    new_line: int
    old: str
    new: str
    codemods: tuple[str, ...] = ()
    """The codemods that have a finding on its lines."""
    by_hand: bool = False
    """Whether the new side is another than neuronmigrate writes here."""


@dataclass(frozen=True)
class Blame:
    """What a search for the cause of a difference found."""

    culprits: tuple[Culprit, ...]
    """Hunks that turn a mixture which computes the same into one that does not."""
    runs: int
    """Mixtures of both sides that were run."""
    reason: str = ""
    """Why there is no culprit, or why there may be fewer."""


@dataclass(frozen=True)
class Comparison:
    """What came of two recordings."""

    first: Side
    second: Side
    status: Status
    reason: str
    """One sentence: why it is this status."""
    settings: tuple[Setting, ...] = ()
    rows: tuple[Row, ...] = ()
    events: tuple[EventDifference, ...] = ()
    curves: tuple[Curve, ...] = ()
    unmatched: tuple[tuple[str, str], ...] = ()
    """Values that only one side has: `first` or `second`, and what it is."""
    divergence: Row | None = None
    """The first value in the order of the run that differs while what went into it agrees."""
    numerics: tuple[str, ...] = ()
    """What the applied codemods declared that they do to the numbers."""
    aligned: tuple[str, ...] = ()
    """What was made the same on both sides before they ran."""
    notes: tuple[str, ...] = field(default=())
    blame: Blame | None = None
    """The hunks that bring the difference in, where they were searched for."""

    @property
    def exit_code(self) -> int:
        """0 the same, 1 diverged, 2 not comparable."""
        if self.status.fine:
            return 0
        return 1 if self.status is Status.DIVERGED else 2

    def by_quantity(self) -> dict[str, list[Row]]:
        """The rows of each quantity, in the order of the run."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.quantity, []).append(row)
        return found


def worst(statuses: list[Status]) -> Status:
    """The most severe of several; equal if there is none."""
    return max(statuses, key=lambda each: each.severity, default=Status.EQUAL)


def as_data(found: Comparison) -> dict[str, object]:
    """The comparison as json has it: enumerations as their texts, what is not finite as a text."""
    document = {"schema": SCHEMA, **asdict(found), "exit_code": found.exit_code}
    for curve, fields in zip(found.curves, document["curves"], strict=True):
        fields["distance"] = curve.distance
    for row, fields in zip(found.rows, document["rows"], strict=True):
        fields["ratio"] = row.ratio
    plain = _plain(document)
    assert isinstance(plain, dict)
    return plain


def _plain(value: object) -> object:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value
