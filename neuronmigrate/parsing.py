"""The one door to LibCST's parser."""

from __future__ import annotations

import ast
import warnings

import libcst as cst


def parse(raw: bytes) -> cst.Module:
    """The tree of a file.

    Raises what LibCST's parser raises, ValueError for a null byte, and RecursionError for code that is
    nested too deeply. Python's own parser is asked about that first: it gives up in time, where LibCST's
    runs out of stack, which ends the process, or takes minutes.
    """
    if b"\0" in raw:
        # In a string or a comment LibCST takes it; Python never does.
        raise ValueError("source code cannot contain null bytes")
    try:
        with warnings.catch_warnings():
            # A wrong escape in the user's string is not for us to report.
            warnings.simplefilter("ignore")
            ast.parse(raw)
    except MemoryError as error:
        raise RecursionError("nested too deeply") from error
    except SyntaxError as error:
        if "too many nested" in str(error.msg):
            raise RecursionError("nested too deeply") from error
    module = cst.parse_module(raw)
    if raw.endswith(b"\r") and not module.has_trailing_newline and module.body:
        # LibCST does not take a lone carriage return at the end for a newline.
        module = module.with_changes(has_trailing_newline=True)
    return module
