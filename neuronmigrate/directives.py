"""The comments by which people and neuronmigrate talk to each other.

`# neuronmigrate: ignore[name, other]` on a statement or on the line above silences those codemods
there, `# neuronmigrate: ignore` all of them, and `# neuronmigrate: ignore-file` the whole file. Marks
are `# TODO(neuronmigrate): [name] text`, reviews `# REVIEW(neuronmigrate): [name] text`.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, field

_IGNORE = re.compile(r"#\s*neuronmigrate:\s*(ignore-file|ignore)\b(?:\[([^\]]*)\])?")
_OURS = re.compile(r"#\s*(TODO|REVIEW)\(neuronmigrate\):\s*\[([^\]]*)\]\s*(.*)")


@dataclass(eq=False)
class Ignore:
    """One comment that silences codemods."""

    line: int
    names: frozenset[str]
    """The codemods it silences; empty for all."""
    own_line: bool
    whole_file: bool
    used: set[str] = field(default_factory=set)

    def covers(self, codemod: str) -> bool:
        return not self.names or codemod in self.names

    @property
    def unused(self) -> list[str]:
        """What it names in vain."""
        if not self.names:
            return [] if self.used else ["*"]
        return sorted(self.names - self.used)


@dataclass(frozen=True)
class Mark:
    """One comment that neuronmigrate left."""

    kind: str
    """`TODO` or `REVIEW`."""
    names: tuple[str, ...]
    text: str


def ignores(text: str) -> list[Ignore]:
    """Every ignore comment of a module; strings that look like one are none."""
    if "neuronmigrate:" not in text:
        return []
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
            if token.type == tokenize.COMMENT and (match := _IGNORE.match(token.string)):
                names = frozenset(_split(match[2] or ""))
                own_line = not token.line[: token.start[1]].strip()
                found.append(Ignore(token.start[0], names, own_line, match[1] == "ignore-file"))
    except (tokenize.TokenError, SyntaxError):
        pass  # what parses with LibCST and not with tokenize has no comments we can trust
    return found


def mark(comment: str) -> Mark | None:
    """Read a comment that neuronmigrate may have left."""
    match = _OURS.match(comment)
    return None if match is None else Mark(match[1], tuple(_split(match[2])), match[3])


def todo(parts: Iterable[tuple[str, str, str]], kind: str = "TODO") -> str:
    """The one comment for what several codemods say about one statement.

    `parts` are names of codemods with the reason and what to do; what is said twice is written once.
    """
    said = list(parts)
    names = ", ".join(dict.fromkeys(name for name, _, _ in said))
    advice: dict[str, dict[str, None]] = {}
    for _, why, what in said:
        advice.setdefault(why, {}).update({what: None} if what else {})
    written: set[str] = set()
    texts = []
    for why, found in advice.items():
        fresh = [each for each in found if each not in written]
        written.update(fresh)
        texts += [each for each in [why, *fresh] if each]
    return f"# {kind}(neuronmigrate): [{names}] {'; '.join(texts)}"


def _split(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]
