"""The promises about a result, checked before it is written.

Each proof compares a file's bytes before and after and answers with what is wrong, one sentence each;
no answer means proven. What was already wrong before is never held against the result. A failed proof
is a fault of neuronmigrate: the engine turns the group that caused it into marks.
"""

from __future__ import annotations

import ast
import codecs
import io
import re
import sys
import tokenize
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from neuronmigrate import targets
from neuronmigrate.scan import ALWAYS, NEVER, Scan, Scanner, Weak

LineRange = tuple[int, int]
"""First and last line, both counted from 1 and both included."""

PEP_701 = (3, 12)
"""The Python from which an f-string may hold any expression."""

_MODULE = "<module>"
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")
_NEWLINE = re.compile(rb"\r\n|\r|\n")


@dataclass(frozen=True)
class Emitted:
    """What was put into a file."""

    imports: tuple[str, ...] = ()
    """Qualified names, such as `transformers.Trainer`, that new code imports or spells out."""
    keywords: tuple[tuple[str, str], ...] = ()
    """Qualified callables with a keyword that was put into a call of them."""


@dataclass(frozen=True)
class Leftover:
    """A name whose last reader went."""

    scope: str
    """Dotted path of the function; `<module>` outside of functions."""
    name: str
    line: int
    """Where it is bound, in the result."""
    kind: str
    """`import`, `value`, or `helper` for a new function or class."""

    def __str__(self) -> str:
        where = "" if self.scope == _MODULE else f" in {self.scope}"
        text = {
            "import": f"the import of `{self.name}`{where} is used by nothing any more",
            "value": f"`{self.name}`{where} is set but nothing reads it any more",
            "helper": f"`{self.name}`{where} was put in and nothing uses it",
        }[self.kind]
        return f"line {self.line}: {text}"


class Sides:
    """Both texts of a file with what several proofs need of them, worked out once and when asked."""

    def __init__(self, before: bytes, after: bytes, python: tuple[int, int] = (3, 10)) -> None:
        self.before = before
        self.after = after
        self.python = python
        self._scanner = Scanner()
        self._texts: dict[bytes, str] = {}
        self._trees: dict[bytes, ast.Module] = {}
        self._scans: dict[bytes, Scan] = {}
        self._too_new: dict[bytes, str] = {}

    def text(self, raw: bytes) -> str:
        """The decoded text with `\\n` line ends. Raises SyntaxError or ValueError if it cannot be decoded."""
        if raw not in self._texts:
            self._texts[raw] = decode(raw)
        return self._texts[raw]

    def tree(self, raw: bytes) -> ast.Module:
        """The syntax tree. Raises SyntaxError or ValueError if there is none."""
        if raw not in self._trees:
            text = self.text(raw)
            try:
                # The tree is the same; this only refuses what the oldest Python cannot read.
                self._trees[raw] = _parse(text, min(self.python, sys.version_info[:2]))
            except SyntaxError as error:
                self._trees[raw] = _parse(text, None)
                self._too_new[raw] = _say(error)
        return self._trees[raw]

    def too_new(self, raw: bytes) -> str:
        """What the oldest Python cannot read in it, or nothing. Raises as `tree` does."""
        self.tree(raw)
        return self._too_new.get(raw, "")

    def scan(self, raw: bytes) -> Scan:
        """What its names do. Raises SyntaxError or ValueError if it does not parse."""
        if raw not in self._scans:
            self._scans[raw] = self._scanner.scan(self.tree(raw), self.text(raw))
        return self._scans[raw]


def prove(
    before: bytes,
    after: bytes,
    *,
    python: tuple[int, int] = (3, 10),
    emitted: Emitted = Emitted(),
    edited: Sequence[LineRange] = (),
    inserted: Sequence[int] | None = None,
    kept: Iterable[str] = (),
    instead: Mapping[str, Collection[str]] | None = None,
) -> tuple[str, ...]:
    """Check every promise about one result and return what is broken; nothing means proven.

    `python` is the oldest Python the code has to run on. `edited` are the lines of the original that
    edits may change. `inserted` are lines of the original before which new lines may stand (one more
    than the last line: at the end); without it new lines may stand anywhere. `kept` are names that may
    be left without a reader. `instead` maps new names to the old ones whose place they took.
    """
    sides = Sides(before, after, python)
    faults = [*layout(before, after), *untouched(before, after, edited, inserted)]
    try:
        unreadable = unprovable(sides)
        if unreadable:
            return (unreadable,)
        broken = compiles(sides)
        faults += broken
        if not broken:
            faults += unbound(sides, instead)
            allowed = set(kept)
            faults += [str(item) for item in leftovers(sides) if item.name not in allowed]
            faults += doubled_imports(sides)
            faults += known(sides, emitted)
    except RecursionError:
        faults.append("the code is nested too deeply to be checked")
    return tuple(faults)


def unprovable(sides: Sides) -> str:
    """Why the Python that runs neuronmigrate cannot check this file at all, or nothing."""
    try:
        sides.tree(sides.before)
    except (SyntaxError, ValueError, LookupError) as error:
        running = "{}.{}".format(*sys.version_info)
        return f"Python {running}, which runs neuronmigrate, cannot read the original: {_say(error)}"
    return ""


def decode(raw: bytes) -> str:
    """Decode a source file as Python does and make every line end `\\n`.

    Raises SyntaxError for an unknown encoding, ValueError for bytes that are not in it.
    """
    text = raw.decode(_encoding(raw))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def compiles(sides: Sides) -> list[str]:
    """The result compiles, here and as far as can be told on the oldest Python it has to run on."""
    try:
        text = sides.text(sides.after)
        sides.tree(sides.after)
        _compile(text)
    except (SyntaxError, ValueError, LookupError) as error:
        if _compile_fault(sides.text(sides.before)) == _say_where(error):
            return []
        return [f"the result does not compile: {_say(error)}"]
    faults = []
    too_new = sides.too_new(sides.after)
    if too_new and not sides.too_new(sides.before):
        faults.append("the result is not Python {}.{}: {}".format(*sides.python, too_new))
    if sides.python < PEP_701:
        old: set[str] | None = None
        for line, field, reason in old_fstring_faults(text):
            if old is None:
                old = {item for _, item, _ in old_fstring_faults(sides.text(sides.before))}
            if field not in old:
                faults.append(f"line {line}: {reason} in an f-string needs Python 3.12: {field}")
    return faults


def unbound(sides: Sides, instead: Mapping[str, Collection[str]] | None = None) -> list[str]:
    """No name is read that was bound before and no longer is, or only on some paths.

    `instead` tells for a new name which old ones it took the place of: it may be bound as weakly.
    """
    before, after = sides.scan(sides.before), sides.scan(sides.after)
    faults = []
    for key, weak in sorted(after.weak.items(), key=lambda item: (item[1].line, item[0])):
        scope, name = key
        places = [before.weak.get((scope, each)) for each in (instead or {}).get(name, (name,))]
        old = min(filter(None, places), key=lambda each: each.level, default=Weak(ALWAYS, 0))
        if weak.level >= min(old.level, before.weak.get(key, old).level):
            continue
        if scope == "__all__":
            faults.append(f"`{name}` is listed in __all__ but nothing binds it any more")
            continue
        where = "" if scope == _MODULE else f" in {scope}"
        if weak.level > NEVER:
            how = "is bound on some paths only"
        elif (scope, name) in after.bound or (_MODULE, name) in after.bound:
            how = "is used before it is bound"
        else:
            how = "is not bound by anything"
        faults.append(f"line {weak.line}: `{name}`{where} {how}")
    return faults


def leftovers(sides: Sides) -> list[Leftover]:
    """Imports, values and new helpers that nothing reads in the result, though something did before."""
    before, after = sides.scan(sides.before), sides.scan(sides.after)
    found = [
        Leftover(scope, name, line, "import")
        for (scope, name), line in after.unused_imports.items()
        if (scope, name) not in before.unused_imports
    ]
    found += [
        Leftover(scope, name, line, "value")
        for (scope, name), line in after.unread.items()
        if (scope, name) not in before.unread
    ]
    found += [
        Leftover(scope, name, line, "helper")
        for (scope, name), line in after.uncalled.items()
        if (scope, name) not in before.bound
    ]
    return sorted(found, key=lambda item: (item.line, item.name))


def doubled_imports(sides: Sides) -> list[str]:
    """No block imports one name twice that did not do so before."""
    old = sides.scan(sides.before).doubled
    return [
        f"line {line}: `{name}` is imported twice"
        for (scope, name), line in sides.scan(sides.after).doubled.items()
        if (scope, name) not in old
    ]


def known(sides: Sides, emitted: Emitted) -> list[str]:
    """Each name and keyword that was put in exists in the libraries it is for."""
    trusted = {"neuronmigrate", *sys.stdlib_module_names}
    imported = sides.scan(sides.before).roots | trusted
    faults = []
    for name in emitted.imports:
        exists = targets.exists(name)
        if exists is False:
            faults.append(f"`{name}` was put in and does not exist")
        elif exists is None and not _own(name, imported):
            faults.append(f"`{name}` was put in, and it is not known to exist")
    for name, keyword in emitted.keywords:
        accepted = targets.accepts(name, keyword)
        if accepted is False:
            faults.append(f"`{keyword}=` was put into a call of `{name}`, which does not take it")
        elif accepted is None and not _own(name, imported):
            faults.append(f"`{keyword}=` was put into a call of `{name}`, which is not known to take it")
    return faults


def _own(name: str, imported: set[str]) -> bool:
    """Whether a name is of the standard library, or of a package that the file used before."""
    root = name.partition(".")[0]
    return root in imported and root not in {*targets.LIBRARIES, "torch_neuronx"}


def untouched(
    before: bytes,
    after: bytes,
    edited: Sequence[LineRange],
    inserted: Sequence[int] | None = None,
) -> list[str]:
    """Lines outside of the edited statements are the same bytes, in the same order."""
    # The byte order mark is not of the first line, above which something may have come to stand.
    if before.startswith(codecs.BOM_UTF8) and after.startswith(codecs.BOM_UTF8):
        before, after = before[len(codecs.BOM_UTF8) :], after[len(codecs.BOM_UTF8) :]
    lines = _LINE.findall(before)
    free: set[int] = set()
    for first, last in edited:
        free.update(range(first, last + 1))
    if inserted is None:
        return _untouched_anywhere(lines, _LINE.findall(after), free)
    breaks = set(inserted)
    position = 0
    line = 1
    while line <= len(lines):
        if line in free:
            line += 1
            continue
        first = line
        while line <= len(lines) and line not in free and (line == first or line not in breaks):
            line += 1
        stretch = b"".join(lines[first - 1 : line - 1])
        at_start = first == 1 and first not in breaks
        at_end = line > len(lines) and line not in breaks
        found = _find_stretch(after, stretch, position, at_start=at_start, at_end=at_end)
        if found < 0:
            changed = _first_difference(lines[first - 1 : line - 1], after[position:])
            return [f"line {first + changed} of the original changed, though nothing edits it"]
        position = found + len(stretch)
    if lines and len(lines) not in free and len(lines) + 1 not in breaks and position != len(after):
        return ["something was added after the last line"]
    return []


def layout(before: bytes, after: bytes) -> list[str]:
    """Encoding, byte order mark, kind of line ends and the missing last newline stay."""
    faults = []
    try:
        same = _encoding(before) == _encoding(after)
    except (SyntaxError, LookupError):
        same = before[:200] == after[:200]
    if not same:
        faults.append("the encoding changed")
    kinds = set(_NEWLINE.findall(before))
    if kinds and not set(_NEWLINE.findall(after)) <= kinds:
        faults.append("line ends of another kind came in")
    ends = (b"\n", b"\r")
    if before and after and before.endswith(ends) != after.endswith(ends):
        # Where the last line went, the one above it is the same line with its newline.
        last = _LINE.findall(after)[-1]
        if before.endswith(ends) or last not in _LINE.findall(before):
            faults.append("the newline at the end of the file came or went")
    return faults


def old_fstring_faults(text: str) -> Iterator[tuple[int, str, str]]:
    """Replacement fields that Python before 3.12 cannot read: line, the field's text, and why.

    The text is looked at as such, because a Python that cannot read it gives no tree, and one that can
    does not say what it used.
    """
    position = 0
    while True:
        match = _STRING_OR_COMMENT.search(text, position)
        if match is None:
            return
        prefix, quote = match["prefix"] or "", match["quote"]
        if quote is None:
            position = match.end()
        elif "f" in prefix.lower():
            faults: list[tuple[int, str, str]] = []
            position = _fstring(text, match.end(), quote, (quote,), faults)
            yield from faults
        else:
            position = _plain_string(text, match.end(), quote)


_STRING_OR_COMMENT = re.compile(
    r"#[^\n]*|(?:(?<!\w)(?P<prefix>[rRbBuUfFtT]{1,2}))?(?P<quote>\"\"\"|'''|\"|')"
)
_STRING_START = re.compile(r"(?P<prefix>[rRbBuUfFtT]{0,2})(?P<quote>\"\"\"|'''|\"|')")


_STRING_REST = {
    "'": re.compile(r"[^'\\\n]*(?:\\.[^'\\\n]*)*'?", re.DOTALL),
    '"': re.compile(r'[^"\\\n]*(?:\\.[^"\\\n]*)*"?', re.DOTALL),
    "'''": re.compile(r"[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*(?:''')?", re.DOTALL),
    '"""': re.compile(r'[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*(?:""")?', re.DOTALL),
}


def _plain_string(text: str, position: int, quote: str) -> int:
    """Position after the string whose first quote ends at `position`."""
    rest = _STRING_REST[quote].match(text, position)
    return rest.end() if rest else position


def _fstring(
    text: str, position: int, quote: str, quotes: tuple[str, ...], faults: list[tuple[int, str, str]]
) -> int:
    """Go through an f-string and return the position after it. `quotes` are those of all around it."""
    while position < len(text):
        character = text[position]
        if character == "\\":
            position += 2
        elif text.startswith(quote, position):
            return position + len(quote)
        elif text.startswith("{{", position):
            position += 2
        elif character == "{":
            position = _replacement_field(text, position, quote, quotes, faults)
        elif character == "\n" and len(quote) == 1:
            return position
        else:
            position += 1
    return position


def _replacement_field(
    text: str, start: int, quote: str, quotes: tuple[str, ...], faults: list[tuple[int, str, str]]
) -> int:
    """Go through `{...}` that begins at `start`; return the position after it."""
    position, depth = start + 1, 0
    inner: list[tuple[int, str, str]] = []
    reasons: list[str] = []

    def done(end: int) -> int:
        if reasons:
            line = text.count("\n", 0, start) + 1
            faults.append((line, text[start:end], reasons[0]))
        faults.extend(inner)
        return end

    while position < len(text):
        character = text[position]
        string = _STRING_START.match(text, position)
        if string is not None and not (string["prefix"] and _in_word(text[position - 1])):
            nested = string["quote"]
            if any(outer[0] == nested[0] and (len(outer) == 1 or len(nested) == 3) for outer in quotes):
                reasons.append("the same quote")
            if "f" in string["prefix"].lower():
                end = _fstring(text, string.end(), nested, (*quotes, nested), inner)
            else:
                end = _plain_string(text, string.end(), nested)
            held = text[string.end() : end]
            if "\\" in held:
                reasons.append("a backslash")
            body = held[: -len(nested)]
            if any(outer in body for outer in quotes):
                reasons.append("the same quote")
            if "\n" in held and len(quotes[0]) == 1:
                reasons.append("a line break")
            position = end
            continue
        if character == "\\":
            reasons.append("a backslash")
        elif character == "#":
            reasons.append("a comment")
            position = text.find("\n", position)
            if position < 0:
                return done(len(text))
            continue
        elif character == "\n" and any(len(outer) == 1 for outer in quotes):
            reasons.append("a line break")
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            if depth == 0:
                return done(position + 1)
            depth -= 1
        elif character == "!" and depth == 0 and text[position + 1 : position + 2] == "=":
            position += 1
        elif character == ":" and depth == 0:
            # The format specification: text again, with fields of its own.
            position += 1
            while position < len(text) and text[position] != "}":
                if text.startswith(quote, position) or (text[position] == "\n" and len(quote) == 1):
                    return done(position)
                if text[position] == "{":
                    position = _replacement_field(text, position, quote, quotes, inner)
                else:
                    position += 1
            return done(position + 1)
        position += 1
    return done(position)


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _encoding(raw: bytes) -> str:
    if raw.startswith(codecs.BOM_UTF8):
        return "utf-8-sig"
    first = _LINE.match(raw)
    second = _LINE.match(raw, first.end()) if first else None
    head = b"".join(part.group().rstrip(b"\r\n") + b"\n" for part in (first, second) if part)
    try:
        return tokenize.detect_encoding(io.BytesIO(head).readline)[0]
    except SyntaxError:
        # Either the cookie is unknown, or the lines are not UTF-8; the latter is said when decoding.
        if b"coding" in head:
            raise
        return "utf-8"


def _parse(text: str, version: tuple[int, int] | None) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text, feature_version=version)


def _compile(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compile(text, "<result>", "exec", dont_inherit=True)


def _compile_fault(text: str) -> str:
    try:
        _compile(text)
    except (SyntaxError, ValueError) as error:
        return _say_where(error)
    return ""


def _say(error: Exception) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f"line {error.lineno}: {error.msg}"
    return str(error)


def _say_where(error: Exception) -> str:
    """The fault without its line, which an edit above it may have moved."""
    text = (error.text or "").strip() if isinstance(error, SyntaxError) else ""
    return f"{getattr(error, 'msg', error)}: {text}"


def _untouched_anywhere(lines: list[bytes], result: list[bytes], free: set[int]) -> list[str]:
    position, count = 0, len(result)
    for number, line in enumerate(lines, 1):
        if number in free:
            continue
        while position < count and result[position] != line:
            position += 1
        if position == count:
            return [f"line {number} of the original changed or moved, though nothing edits it"]
        position += 1
    return []


def _find_stretch(after: bytes, stretch: bytes, position: int, *, at_start: bool, at_end: bool) -> int:
    if at_start:
        return 0 if after.startswith(stretch) and _line_end(after, len(stretch)) else -1
    if at_end:
        start = len(after) - len(stretch)
        fits = start >= position and after.endswith(stretch) and _line_end(after, start)
        return start if fits else -1
    while True:
        found = after.find(stretch, position)
        if found < 0 or (_line_end(after, found) and _line_end(after, found + len(stretch))):
            return found
        position = found + 1


def _line_end(raw: bytes, position: int) -> bool:
    """Whether a line ends just before this position."""
    if position in (0, len(raw)):
        return True
    if raw[position - 1 : position] == b"\r":
        return raw[position : position + 1] != b"\n"
    return raw[position - 1 : position] == b"\n"


def _first_difference(lines: list[bytes], rest: bytes) -> int:
    """Index of the first of these lines that does not follow; the best guess at what changed."""
    text = b"".join(lines[:1])
    start = rest.find(text)
    if start < 0:
        return 0
    for index, line in enumerate(lines):
        if not rest.startswith(line, start):
            return index
        start += len(line)
    return 0
