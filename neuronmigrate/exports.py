"""Export commands that a program runs: `os.system("optimum-cli export neuron --model a out/")`.

What they put into a folder was read by whatever loaded it, and the native device reads the original
checkpoint: `hf download` puts that there (the command of huggingface_hub 1.x).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import libcst as cst

from neuronmigrate import artefacts, edits
from neuronmigrate.site import Site

_RUNNERS = frozenset({"os.popen", "os.system", "shlex.split"}) | {
    f"subprocess.{name}" for name in ("Popen", "call", "check_call", "check_output", "getoutput", "run")
}
_WORD = re.compile(r"(?:[^\s\"']|\"[^\"]*\"|'[^']*')+")
_OPEN = re.compile(r"[\\;&|<>$`{}#\n]")
"""What a command may hold that is more than words."""
_ID = re.compile(r"\w[\w.-]*(?:/[\w.-]+)?")
_HOLE = 0xE000
"""The first of the characters that stand for expressions in a command, from a range without meaning."""


@dataclass(frozen=True)
class Export:
    """An export command, and the one that puts the original in the place of its output."""

    found: str
    """The name of the command."""
    new: cst.BaseExpression
    known: bool
    """Whether what is exported is certainly the id of a repository."""


def exported(site: Site, node: cst.BaseExpression) -> Export | None:
    """The export that a string or a list of words runs; None where it is no such command as a whole."""
    arg = site.parent(node)
    call = site.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or arg is not call.args[0] or site.name_of(call.func) not in _RUNNERS:
        return None
    if isinstance(node, cst.List):
        return _listed(node)
    return _written(node)


def _listed(node: cst.List) -> Export | None:
    """A command that is a list of words."""
    items = [each.value for each in node.elements]
    if any(isinstance(each, cst.StarredElement) for each in node.elements):
        return None
    words = [_text(item) or chr(_HOLE + at) for at, item in enumerate(items)]
    told = _told(words)
    if told is None:
        return None
    model, output, revision = told
    new = [edits.string("hf"), edits.string("download"), items[words.index(model)]]
    new += [edits.string("--local-dir"), items[words.index(output)]]
    new += [edits.string("--revision"), items[words.index(revision)]] if revision else []
    elements = [cst.Element(each) for each in new]
    return Export(" ".join(words[:3]), node.with_changes(elements=elements), _is_known(model))


def _written(node: cst.BaseExpression) -> Export | None:
    """A command that is a text."""
    pieces = _pieces(node)
    if pieces is None:
        return None
    holes = [piece for piece in pieces if not isinstance(piece, str)]
    text = "".join(
        piece if isinstance(piece, str) else chr(_HOLE + holes.index(piece)) for piece in pieces
    ).strip()
    if _OPEN.search(text):
        return None
    words = _WORD.findall(text)
    told = _told([re.sub(r"[\"']", "", word) for word in words])
    if told is None:
        return None
    model, output, revision = told
    raw = {re.sub(r"[\"']", "", word): word for word in words}
    line = f"hf download {raw[model]} --local-dir {raw[output]}"
    line += f" --revision {raw[revision]}" if revision else ""
    return Export(" ".join(words[:3]), _string(line, holes), _is_known(model))


def _told(words: Sequence[str]) -> tuple[str, str, str] | None:
    """What a command exports, where to, and the revision of it."""
    if len(words) < 3 or words[:2] != ["optimum-cli", "export"] or words[2] not in ("neuron", "neuronx"):
        return None
    told = artefacts.exported_by(words[3:])
    # A folder that is written out holds the original already.
    return told if told is None or _is_known(told[0]) or _has_hole(told[0]) else None


def _is_known(model: str) -> bool:
    """Whether a checkpoint is certainly the id of a repository."""
    return _ID.fullmatch(model) is not None and not _has_hole(model)


def _has_hole(text: str) -> bool:
    return any(_HOLE <= ord(each) < _HOLE + 256 for each in text)


def _pieces(node: cst.BaseExpression) -> list[str | cst.FormattedStringExpression] | None:
    """The texts and expressions of a string, in their order."""
    if isinstance(node, cst.ConcatenatedString):
        parts = [_pieces(node.left), _pieces(node.right)]
        return None if None in parts else [piece for part in parts if part for piece in part]
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return [value] if isinstance(value, str) else None
    if isinstance(node, cst.FormattedString):
        return [
            part.value if isinstance(part, cst.FormattedStringText) else part
            for part in node.parts
            if isinstance(part, (cst.FormattedStringText, cst.FormattedStringExpression))
        ]
    return None


def _string(line: str, holes: Sequence[cst.FormattedStringExpression]) -> cst.BaseExpression:
    """A text with expressions in it."""
    quote: Literal["'", '"'] = "'" if '"' in line else '"'
    if not any(chr(_HOLE + at) in line for at in range(len(holes))):
        return cst.SimpleString(f"{quote}{line}{quote}")
    parts: list[cst.BaseFormattedStringContent] = []
    for piece in re.split(f"([{chr(_HOLE)}-{chr(_HOLE + len(holes))}])", line):
        at = ord(piece) - _HOLE if len(piece) == 1 else -1
        if 0 <= at < len(holes):
            parts.append(holes[at])
        elif piece:
            parts.append(cst.FormattedStringText(piece))
    return cst.FormattedString(parts, start=f"f{quote}", end=quote)


def _text(node: cst.BaseExpression) -> str:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else ""
    return value if isinstance(value, str) else ""
