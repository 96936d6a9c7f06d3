"""Operations that are known to run on the host's CPU when a program runs on the native device; by hand.

As of November 2026. The operator table that the AWS documentation points to was not to be had, so this is
what was seen, and on early releases: one that is missing here may run on the CPU, and one that stands here
may have got a kernel. On the device itself `torch_neuronx.get_fallback_ops()` tells.

- `source`: an early copy of the package's own source and tests, older than the release
- `reports`: notes of people who used a beta on Trn2, in public repositories of 2026
"""

from __future__ import annotations

DATED = "2026-11"

_EQUIFORMER = "reports: get_fallback_ops() of an Equiformer (github.com/Pidem/equiformer-trainium)"
_RANDOM = "source: its test of random numbers expects the failure; they take from the CPU's generator, too"

ON_CPU: dict[str, str] = {
    "acos": _EQUIFORMER,
    "atan2": _EQUIFORMER,
    "index_fill": _EQUIFORMER,
    "linalg_cross": _EQUIFORMER,
    "normal": _RANDOM,
    "randn": _RANDOM,
    "repeat_interleave": _EQUIFORMER,
    "_scaled_mm": "reports: runs on the host at 690 ms for 512 x 512 (an operator benchmark on Trn2)",
    "scatter_reduce": _EQUIFORMER,
    "sort": _EQUIFORMER,
    "uniform": _EQUIFORMER,
}
"""By name of the aten operation, without overload and without the `_` of the form in place."""

SHAPED_BY_DATA = {
    "_unique": "the number of different values",
    "_unique2": "the number of different values",
    "bincount": "the largest value",
    "masked_select": "the number of true elements",
    "nonzero": "the number of elements that are not zero",
    "repeat_interleave.Tensor": "the sum of the repeats",
    "unique_consecutive": "the number of runs",
    "unique_dim": "the number of different rows",
}
"""aten operations whose result has a shape that the values decide, and what it depends on. PyTorch marks them
`dynamic_output_shape` (torch/_tag.py, native_functions.yaml); `index` with a bool mask is another."""
