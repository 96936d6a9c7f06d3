"""The settings of a run: `[tool.neuronmigrate]` of the nearest pyproject.toml, then the options."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

OLDEST = (3, 7)
"""No older Python can be asked for: emitted code is Python 3 with its f-strings."""
TABLE = "tool.neuronmigrate"


class UserError(ValueError):
    """Something a user asked for that cannot be done. Its text is all that is shown; the exit code is 2."""


@dataclass(frozen=True)
class Exclude:
    """Files to leave out, as one line of a .gitignore that stands in the folder `base`."""

    pattern: str
    base: str


@dataclass(frozen=True)
class Settings:
    """Everything a run can be told, frozen before the first file is read."""

    from_version: str = ""
    """Release of optimum-neuron that the code was written for; empty: read it from the project."""
    python: tuple[int, int] = (3, 10)
    """Oldest Python that the rewritten code has to run on."""
    tpu: bool = False
    """Rewrite torch_xla code that looks as if it ran on a TPU."""
    compile: bool = False
    """Add torch.compile where the legacy class compiled by itself."""
    comment_reviews: bool = False
    """Leave a REVIEW comment on each statement that needs a look."""
    exact: bool = False
    """Write the twin of old behaviour that was a fault, where there is one."""
    shim: bool = False
    """Import longer helpers from neuronmigrate.runtime instead of writing them into each file."""
    exclude: tuple[Exclude, ...] = ()
    """Files to leave out when folders are searched."""
    strict: bool = False
    """Exit with 1 when something was marked."""
    allow_dirty: bool = False
    """Change files that git could not bring back."""
    codemods: Path | None = None
    """Folder of own codemods. Only the command line can name it: codemods are code that runs."""
    sources: tuple[tuple[str, str], ...] = ()
    """Where each value that is not a default came from: `pyproject.toml:7` or `--tpu`."""

    def source_of(self, name: str) -> str:
        """Where the value of a field came from; `default` when nobody set it."""
        return dict(self.sources).get(name, "default")

    def described(self) -> dict[str, dict[str, object]]:
        """Each value with its source, for the report."""
        shown: dict[str, dict[str, object]] = {}
        for field in fields(self):
            if field.name == "sources":
                continue
            value: object = getattr(self, field.name)
            if field.name == "python":
                value = ".".join(map(str, self.python))
            elif field.name == "exclude":
                value = [one.pattern for one in self.exclude]
            elif isinstance(value, Path):
                value = str(value)
            shown[field.name.replace("_", "-")] = {"value": value, "source": self.source_of(field.name)}
        return shown


# What may stand in the table: key -> the type it must have.
KEYS: dict[str, str] = {
    "from-version": 'a release such as "0.0.28"',
    "python": 'a version such as "3.10"',
    "exclude": "a list of patterns",
    "tpu": "true or false",
    "compile": "true or false",
    "comment-reviews": "true or false",
    "strict": "true or false",
    "allow-dirty": "true or false",
    "exact": "true or false",
    "shim": "true or false",
}


def load(start: Path, options: Mapping[str, object] | None = None) -> Settings:
    """The settings for code at or below `start`, a resolved path.

    `options` are the values given on the command line, by field name; a value of None was not given.
    Raises UserError, with file and line, for a table with an unknown key or a value of the wrong type.
    """
    values: dict[str, object] = {}
    sources: dict[str, str] = {}
    for path in _pyprojects(start):
        document = _read_toml(path)
        if document is None:
            continue
        tool = document.get("tool")
        if "python" not in values and (floor := _python_floor(document)):
            values["python"] = floor
            sources["python"] = f"{path}:{_line(path, 'requires-python', 'project')}"
        if isinstance(tool, dict) and "neuronmigrate" in tool:
            table = tool["neuronmigrate"]
            if not isinstance(table, dict):
                raise UserError(f"{path}:1: [{TABLE}] has to be a table")
            for key, value in table.items():
                if key == "parity":
                    continue  # `pairs` reads it
                where = f"{path}:{_line(path, key, TABLE)}"
                name, checked = _checked(key, value, where, path.parent)
                values[name] = checked
                sources[name] = where
            break
    for name, value in (options or {}).items():
        if value is None or value in ((), []):
            continue
        option = ("--no-" if value is False else "--") + name.replace("_", "-")
        if name == "exclude":
            assert isinstance(value, (list, tuple))
            given = tuple(Exclude(str(pattern), os.getcwd()) for pattern in value)
            before = values.get("exclude", ())
            assert isinstance(before, tuple)
            values[name] = before + given
            sources[name] = f"{sources[name]}, {option}" if name in sources else option
            continue
        if name == "from_version":
            value = _release(value, option)
        values[name] = value
        sources[name] = option
    # Each value was checked above by its key, which the type of a dictionary cannot say.
    return Settings(**values, sources=tuple(sorted(sources.items())))  # type: ignore[arg-type]


@dataclass(frozen=True)
class ParityPair:
    """A legacy script and its migrated twin, as [[tool.neuronmigrate.parity.pairs]] names them."""

    before: Path
    after: Path
    arguments: tuple[str, ...] = ()
    devices: int | None = None
    from_version: str | None = None
    report: Path | None = None
    data: tuple[Path, ...] = ()
    where: str = ""
    """File and line of the table."""


_PAIR_KEYS = ("before", "after", "arguments", "devices", "from-version", "report", "data")


def parity_pairs(start: Path) -> tuple[ParityPair, ...]:
    """The pairs of the nearest pyproject.toml that has a table [tool.neuronmigrate].

    Paths are relative to its folder. Raises UserError, with file and line, where there is no pair or a value
    of the wrong type.
    """
    table = f"{TABLE}.parity"
    for path in _pyprojects(start):
        document = _read_toml(path) or {}
        tool = document.get("tool")
        ours = tool.get("neuronmigrate") if isinstance(tool, dict) else None
        if not isinstance(ours, dict):
            continue
        parity = ours.get("parity", {})
        where = f"{path}:{_line(path, 'pairs', table)}"
        pairs = parity.get("pairs") if isinstance(parity, dict) else None
        if not isinstance(pairs, list) or not pairs:
            raise UserError(f"{where}: [{table}] has no pairs; each is a table with before and after")
        for key in parity.keys() - {"pairs"}:
            raise UserError(f"{path}:{_line(path, key, table)}: [{table}] has no key {key}; known is pairs")
        return tuple(_pair(pair, where, path.parent) for pair in pairs)
    raise UserError(f"{start}: no pyproject.toml with a table [{table}] here or above")


def _pair(pair: object, where: str, folder: Path) -> ParityPair:
    if not isinstance(pair, dict):
        raise UserError(f"{where}: a pair has to be a table with before and after, not {_shown(pair)}")
    for key in pair.keys() - set(_PAIR_KEYS):
        raise UserError(f"{where}: a pair has no key {key}; known are {', '.join(_PAIR_KEYS)}")
    for key in ("before", "after", "report", "from-version"):
        value = pair.get(key, None if key in ("report", "from-version") else "")
        if value is not None and (not isinstance(value, str) or not value):
            raise UserError(f"{where}: {key} of a pair has to be a text, not {_shown(value)}")
    lists = {}
    for key in ("arguments", "data"):
        texts = pair.get(key, [])
        if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
            raise UserError(f"{where}: {key} of a pair have to be a list of texts, not {_shown(texts)}")
        lists[key] = tuple(texts)
    devices = pair.get("devices")
    if devices is not None and (not isinstance(devices, int) or isinstance(devices, bool) or devices < 1):
        raise UserError(f"{where}: devices of a pair has to be a number of processes, not {_shown(devices)}")
    release = pair.get("from-version")
    return ParityPair(
        before=folder / pair["before"],
        after=folder / pair["after"],
        arguments=lists["arguments"],
        devices=devices,
        from_version=None if release is None else _release(release, f"{where}: from-version"),
        report=folder / pair["report"] if "report" in pair else None,
        data=tuple(folder / each for each in lists["data"]),
        where=where,
    )


def _pyprojects(start: Path) -> list[Path]:
    """The pyproject.toml files that may speak for `start`: nearest first, none above its repository."""
    found = []
    folder = start if start.is_dir() else start.parent
    for place in (folder, *folder.parents):
        candidate = place / "pyproject.toml"
        if candidate.is_file():
            found.append(candidate)
        if (place / ".git").exists():
            break
    return found


def _read_toml(path: Path) -> dict[str, object] | None:
    """The document, or None when it is broken and does not speak of neuronmigrate."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return tomllib.loads(raw.decode("utf-8-sig").replace("\r\n", "\n"))
    except ValueError as error:
        # Also a UnicodeDecodeError. Somebody else's broken file is not ours to complain about.
        if b"neuronmigrate" not in raw:
            return None
        at = re.search(r"line (\d+)", str(error))
        raise UserError(f"{path}:{at[1] if at else 1}: is not valid TOML: {error}") from error


def _line(path: Path, key: str, table: str) -> int:
    """The line on which a key of a table is set; that of the table, or 1, when it is spelled oddly."""
    key_text = rf"""["']?{re.escape(key)}["']?"""
    dotted = re.compile(rf"(?:[\w.\"'-]+\.)?{key_text}\s*=")
    inline = re.compile(rf"(?:[\w.]+\.)?{re.escape(table.rpartition('.')[2])}\b.*\b{key_text}\s*=")
    header, at = "", 1
    for number, text in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
        line = text.strip()
        if line.startswith("["):
            header = re.sub(r"[\s\"']", "", line.strip("[]").partition("]")[0])
            at = number if header == table else at
        elif (header == table and dotted.match(line)) or (table.startswith(header) and inline.match(line)):
            return number
    return at


def _checked(key: str, value: object, where: str, folder: Path) -> tuple[str, object]:
    """The field and the value for a key of the table. Raises UserError."""
    if key not in KEYS:
        if key == "codemods":
            raise UserError(f"{where}: own codemods are named with --codemods on the command line only")
        import difflib

        near = difflib.get_close_matches(key, KEYS, n=1)
        hint = f", did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(KEYS))}"
        raise UserError(f"{where}: [{TABLE}] has no key {key}{hint}")
    name = key.replace("-", "_")
    wrong = UserError(f"{where}: {key} has to be {KEYS[key]}, not {_shown(value)}")
    if key == "exclude":
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise wrong
        return name, tuple(Exclude(one, str(folder)) for one in value)
    if key == "from-version":
        return name, _release(value, f"{where}: {key}")
    if key == "python":
        found = re.fullmatch(r"3\.(\d+)", value) if isinstance(value, str) else None
        if not found:
            raise wrong
        version = (3, int(found[1]))
        if version < OLDEST:
            raise UserError(f"{where}: python has to be {OLDEST[0]}.{OLDEST[1]} or newer, not {value}")
        return name, version
    if not isinstance(value, bool):
        raise wrong
    return name, value


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value)


def _release(value: object, where: str) -> str:
    if isinstance(value, str) and re.fullmatch(r"v?\d+(\.\d+)*((a|b|rc|\.dev|\.post)\d+)?", value):
        return value.removeprefix("v")
    raise UserError(f"{where}: has to be a release such as 0.0.28, not {_shown(value)}")


def _python_floor(document: Mapping[str, object]) -> tuple[int, int] | None:
    """The oldest Python that a project says it runs on, from [project] or from Poetry's table."""
    project = document.get("project")
    if isinstance(project, dict) and isinstance(project.get("requires-python"), str):
        return floor_of(project["requires-python"])
    entry: object = document
    for key in ("tool", "poetry", "dependencies", "python"):
        entry = entry.get(key) if isinstance(entry, dict) else None
    return floor_of(entry) if isinstance(entry, str) else None


def floor_of(specifier: str) -> tuple[int, int] | None:
    """The lower bound of a version specifier, not below OLDEST; None when it has none.

    >>> floor_of(">=3.9,<4")
    (3, 9)
    """
    bounds = []
    for part in re.split(r"[,|]+", specifier):
        found = re.fullmatch(r"\s*(>=|>|~=|===?|\^|~)?\s*(\d+)(?:\.(\d+))?[\w.*+!-]*\s*", part)
        if found:
            bounds.append((int(found[2]), int(found[3] or 0)))
    return max(*bounds, OLDEST) if bounds else None


def common_folder(paths: Sequence[Path]) -> Path:
    """The deepest folder that holds all paths, which are resolved."""
    folders = [path if path.is_dir() else path.parent for path in paths]
    try:
        return Path(os.path.commonpath(folders)) if folders else Path.cwd()
    except ValueError:
        # Different drives: there is no folder that holds them all.
        return folders[0]
