"""Ways in which the same program can stand in a file, as functions from its clean text to bytes.

Clean text is ASCII, has `\\n` between lines and after the last one, and indents by four spaces.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

Encode = Callable[[str], bytes]

BOM = b"\xef\xbb\xbf"
LINE_END = re.compile(rb"\r\n|\r|\n")


def split_lines(raw: bytes) -> list[bytes]:
    """The lines of a file as Python counts them, without their ends."""
    return LINE_END.split(raw)


def _joined_by(*ends: str) -> Encode:
    """Each line ends by the next of these, from the first on again when they are used up."""

    def encode(text: str) -> bytes:
        lines = text.split("\n")
        last = lines.pop()
        return ("".join(map("".join, zip(lines, itertools.cycle(ends), strict=False))) + last).encode()

    return encode


def _indented_by(*levels: str) -> Encode:
    """Each level of indentation is written in its own way."""

    def indent(match: re.Match[str]) -> str:
        return "".join(levels[level % len(levels)] for level in range(len(match[0]) // 4))

    return lambda text: re.sub(r"(?m)^(?:    )+", indent, text).encode()


def _with(before: str = "", after: str = "", encoding: str = "utf-8") -> Encode:
    return lambda text: (before + text + after).encode(encoding)


def _between_definitions(line: str) -> Encode:
    """Put a line above each class and function that stands at the margin."""
    return lambda text: re.sub(r"(?m)^(?=(?:def|class) )", line, text).encode()


def _without_final_newline(text: str) -> bytes:
    return text.rstrip("\n").encode()


def _blanks_after_each_line(text: str) -> bytes:
    return text.replace("\n", "  \t\n").encode()


def _huge_line(text: str) -> bytes:
    return f"{text}keep_row = [{', '.join(['0.125'] * 8_000)}]\n".encode()


def _long_file(text: str) -> bytes:
    return (text + "".join(f"keep_{number} = {number}\n" for number in range(1500))).encode()


def _deep_blocks(text: str) -> bytes:
    """The whole program twelve blocks deep."""
    levels = 12
    heads = "".join("    " * level + "if True:\n" for level in range(levels))
    return (heads + re.sub(r"(?m)^(?=.)", "    " * levels, text)).encode()


def _bom(encode: Encode) -> Encode:
    return lambda text: BOM + encode(text)


VARIANTS: dict[str, Encode] = {
    "backslash-at-the-end": _with(after="keep_end = 1 + \\\n    2\n"),
    "backslash-at-the-end-without-newline": _with(after="keep_end = 1 + \\\n    2"),
    "blank-last-lines": _with(after="\n\n\n"),
    "blank-last-lines-crlf": lambda text: _joined_by("\r\n")(text + "\n\n\n"),
    "blanks-after-each-line": _blanks_after_each_line,
    "bom": _bom(str.encode),
    "bom-and-cookie": _bom(_with("# -*- coding: utf-8 -*-\n")),
    "bom-crlf": _bom(_joined_by("\r\n")),
    "comment-last-without-newline": _with(after="# keep the end"),
    "cookie-iso-8859-15": _with("# coding: iso-8859-15\nkeep_price = '5 \u20ac'\n", encoding="iso-8859-15"),
    "cookie-latin-1": _with(
        "# -*- coding: latin-1 -*-\n# keep caf\xe9\nkeep_name = 'na\xefve'\n", encoding="latin-1"
    ),
    "cookie-latin-1-crlf": lambda text: _joined_by("\r\n")(
        "# vim: set fileencoding=latin-1 :\n" + text
    ).replace(b"keep_", b"keep_\xe9"),
    "cookie-utf-8": _with("# -*- coding: utf-8 -*-\n# keep \u4e2d\u6587\n"),
    "cr": _joined_by("\r"),
    "crlf": _joined_by("\r\n"),
    "crlf-without-final-newline": lambda text: _joined_by("\r\n")(text.rstrip("\n")),
    "deep-blocks": _deep_blocks,
    "form-feed-before-definitions": _between_definitions("\f"),
    "form-feed-lines": _between_definitions("\f\n"),
    "huge-line": _huge_line,
    "indented-by-one": _indented_by(" "),
    "indented-by-tabs": _indented_by("\t"),
    "indented-in-mixed-ways": _indented_by("  ", "\t", "     "),
    "long-file": _long_file,
    "mixed-line-ends": _joined_by("\n", "\r\n", "\n", "\r"),
    "mixed-lf-and-crlf": _joined_by("\r\n", "\n", "\n"),
    "no-final-newline": _without_final_newline,
    "non-ascii": _with("keep_\u5f62\u72b6 = '\U0001f680 e\u0301 \u05d0'  # keep \u00fc\n"),
    "plain": str.encode,
    "shebang": _with("#!/usr/bin/env python3\n"),
    "shebang-and-cookie": _with(
        "#!/usr/bin/env python3\n# coding: latin-1\nkeep_name = 'na\xefve'\n", encoding="latin-1"
    ),
    # Only Python's own line ends count; str.splitlines() would split at each of these as well.
    "separators-in-comments": _with(
        "# keep a\u2028b\u2029c\x85d\x0be\x1cf\nkeep_text = 'a\u2028b\x85c'\n", "# keep \x1d\u2028 last\n"
    ),
    "whitespace-last-line": _with(after="\n    \n"),
    "whitespace-last-line-without-newline": _with(after="\n    "),
    "whitespace-only-tail-crlf": lambda text: _joined_by("\r\n")(text) + b"\r\n  \t\r\n\t",
}
"""The same program, written in other bytes. All of them are Python that compiles."""

NOTHING_TO_DO: dict[str, bytes] = {
    "empty": b"",
    "only-bom": BOM,
    "only-newline": b"\n",
    "only-blanks": b"  \n\t\n   ",
    "only-form-feed": b"\f",
    "only-comments": b"# torch_xla is not used here\n# import torch_xla",
    "only-docstring": b'"""Replaces xm.mark_step() of torch_xla.core.xla_model."""',
    "only-cookie": b"# -*- coding: latin-1 -*-\n# xla_device \xe9\n",
    # No byte sequence of it says anything legacy, so nobody asks what it is.
    "utf-16": "import torch_xla\n".encode("utf-16"),
    "only-pass": b"pass  # optimum.neuron\r\n",
}
"""Files with little or nothing in them; where they name something legacy, it is no code."""


def _sum(terms: int) -> bytes:
    return b"import torch_xla\ntotal = " + b" + ".join([b"1"] * terms) + b"\n"


FAR_TOO_DEEP = _sum(10_000)
"""LibCST's parser takes the whole process down on this."""

UNREADABLE: dict[str, bytes] = {
    "not-utf-8": b"import torch_xla\nname = '\xe9'\n",
    "not-the-named-encoding": b"# coding: ascii\nimport torch_xla\nname = '\xe9'\n",
    "nul": b"import torch_xla\nname = '\x00'\n",
    "python-2": b'import torch_xla\nprint "done"\n',
    "unclosed": b"import torch_xla\nxm.mark_step(\n",
    "unknown-encoding": b"# coding: klingon\nimport torch_xla\n",
    "too-deep": _sum(1_500),
    "too-deep-for-python": _sum(3_500),
    "notebook-magic": b"import torch_xla\n%pip install torch-neuronx\n",
}
"""Files that name something legacy and cannot be read as Python: one problem each, and no write."""
