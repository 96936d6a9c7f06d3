"""How far two values may be apart, and why.

The tolerance of a dtype is that of `torch.testing.assert_close` (torch/testing/_comparison.py,
`_DTYPE_PRECISIONS`), for float32 its absolute one. A difference is measured in relation to the element plus
the root mean square of the tensor, so one number does what its two do for values around 1.
"""

from __future__ import annotations

from dataclasses import dataclass

BY_DTYPE = {"float64": 1e-7, "float32": 1e-5, "float16": 1e-3, "bfloat16": 1.6e-2}
"""From the finest to the coarsest."""
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}

OUTLIERS = 1e-5
"""Share of elements that may be over the tolerance, up to FAR times: two of a million fail no good kernel."""
FAR = 10.0

REORDERED = 8.0
"""Times the tolerance that a declared change of the order of sums may need."""
RECAST = 4.0
"""Times bfloat16's tolerance that a declared change of the dtype may need: each layer rounds anew."""
HARDWARE = {"float64": 1e-3, "float32": 2e-2, "float16": 2e-2, "bfloat16": 5e-2}
"""Where one side ran on a Neuron device: its matrix products may be rounded to bfloat16."""
LONGEST = 100.0
"""Times the tolerance at most that differences may grow to by training."""


@dataclass(frozen=True)
class Policy:
    """What holds for one comparison."""

    numerics: frozenset[str] = frozenset()
    """What the applied codemods declared."""
    hardware: bool = False
    """Whether a side ran on a Neuron device."""
    factor: float = 1.0
    """Times all tolerances, as the user asked for."""

    def tolerance(self, dtype: str, step: int = 0) -> float:
        """For values of a dtype after so many optimizer steps, each of which adds as much again."""
        table = HARDWARE if self.hardware else BY_DTYPE
        base = table.get(dtype, table["float32"])
        return base * min(1.0 + step, LONGEST) * self.factor

    def declared(self, dtype: str, step: int = 0) -> tuple[float, str]:
        """The tolerance under what was declared, and the declaration; 0 if nothing bears on it."""
        if "dtype" in self.numerics and dtype in BY_DTYPE:
            return RECAST * self.tolerance("bfloat16", step), "dtype"
        if "reordered" in self.numerics:
            return REORDERED * self.tolerance(dtype, step), "reordered"
        return 0.0, ""


def coarser(first: str, second: str) -> str:
    """The dtype of two with the larger rounding; one that is no float counts as the finest."""
    order = list(BY_DTYPE)
    places = [order.index(each) if each in order else -1 for each in (first, second)]
    return first if places[0] >= places[1] else second


def is_float(dtype: str) -> bool:
    """Whether values of a dtype are judged by a tolerance."""
    return dtype in BY_DTYPE or dtype.startswith(("float8", "complex"))
