"""Code as tests compare it."""

from __future__ import annotations

import re


def on_one_line(code: str) -> str:
    """The code with what stands in brackets over several lines on one, as where a line has room."""
    code = re.sub(r"([(\[{])\n\s+", r"\1", code)
    code = re.sub(r",\n\s*([)\]}])", r"\1", code)
    return re.sub(r",\n\s+", ", ", code)
