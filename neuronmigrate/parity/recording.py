"""Reads recordings. docs/parity.md describes their files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from neuronmigrate.config import UserError

if TYPE_CHECKING:
    import torch

FORMAT = 1
"""The newest layout that can be read."""

Key = tuple[str, str, str, str]
"""Quantity, name, call, part."""


@dataclass(frozen=True)
class Value:
    """One recorded tensor, number or result."""

    folder: Path
    fields: Mapping[str, object]
    order: int

    @property
    def key(self) -> Key:
        return self.quantity, self.name, self.text("call"), self.text("part")

    @property
    def quantity(self) -> str:
        return "result" if self.fields["kind"] == "result" else self.text("quantity")

    @property
    def name(self) -> str:
        return self.text("name")

    @property
    def step(self) -> int:
        step = self.fields.get("step", 0)
        return step if isinstance(step, int) else 0

    @property
    def dtype(self) -> str:
        return self.text("dtype")

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.fields.get("shape", ())
        return tuple(shape) if isinstance(shape, list) else ()

    @property
    def largest(self) -> float:
        """Largest absolute value of the whole tensor; 0 where it was not recorded."""
        return number(self.fields.get("largest", 0.0))

    @property
    def is_tensor(self) -> bool:
        return self.fields["kind"] == "tensor"

    @property
    def kept(self) -> bool:
        """Whether there is more than a digest."""
        return "file" in self.fields or not self.is_tensor

    def text(self, name: str) -> str:
        """A field that holds a text."""
        return str(self.fields.get(name, ""))

    def tensor(self) -> torch.Tensor:
        """The recorded elements. Raises UserError when the file lacks them."""
        import torch
        from safetensors import SafetensorError, safe_open

        if not self.is_tensor:
            return torch.tensor([number(self.fields.get("value"))], dtype=torch.float64)
        path = self.folder / self.text("file")
        try:
            with safe_open(path, framework="pt") as file:
                found: torch.Tensor = file.get_tensor(self.text("key"))
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: the tensor {self.text('key')} cannot be read: {error}") from error
        # What has the same bytes stands there once, in the shape of the first.
        return found if "sampled" in self.fields else found.reshape(self.shape)


@dataclass(frozen=True)
class Rank:
    """What one process recorded."""

    number: int
    head: Mapping[str, object]
    values: tuple[Value, ...]
    events: tuple[Mapping[str, object], ...]
    notes: tuple[str, ...]
    random: Mapping[str, Mapping[str, object]]
    ended: bool
    """Whether the end was recorded."""
    error: str = ""

    @cached_property
    def by_key(self) -> dict[Key, Value]:
        """The values by what they are; the first, if one comes twice."""
        found: dict[Key, Value] = {}
        for value in self.values:
            found.setdefault(value.key, value)
        return found


@dataclass(frozen=True)
class Recording:
    """All processes of one run."""

    folder: Path
    ranks: Mapping[int, Rank] = field(default_factory=dict)

    @property
    def first(self) -> Rank:
        return self.ranks[min(self.ranks)]

    @property
    def complete(self) -> bool:
        return all(rank.ended and not rank.error for rank in self.ranks.values())


def read(folder: Path) -> Recording:
    """Read a recording. Raises UserError, with file and line, for what is none or cannot be read."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such recording")
    files: dict[int, list[tuple[int, Path]]] = {}
    for path in folder.iterdir():
        named = re.fullmatch(r"rank(\d+)\.run(\d+)\.jsonl", path.name)
        if named:
            files.setdefault(int(named[1]), []).append((int(named[2]), path))
    if not files:
        raise UserError(f"{folder}: holds no recording (no file rank0.run0.jsonl)")
    ranks = {}
    for number_, runs in sorted(files.items()):
        paths = [path for _, path in sorted(runs)]
        ranks[number_] = _rank(number_, folder, paths)
    return Recording(folder, ranks)


def _rank(number: int, folder: Path, paths: list[Path]) -> Rank:
    head: Mapping[str, object] = {}
    values: list[Value] = []
    events: list[Mapping[str, object]] = []
    notes: list[str] = []
    random: dict[str, Mapping[str, object]] = {}
    ended = False
    error = ""
    for path in paths:
        for line in _lines(path):
            kind = line.get("kind")
            if kind == "recording":
                # A process that starts those of a group is no part of it, and has a recording of its own.
                if not head or _world(line) > _world(head):
                    head = line
                ended = False
            elif kind in ("tensor", "scalar", "result"):
                values.append(Value(folder, line, len(values) + len(events)))
            elif kind == "event" and "event" in line:
                events.append({**line, "order": len(values) + len(events)})
            elif kind == "note":
                notes.append(str(line.get("text")))
            elif kind == "random":
                random[str(line.get("at"))] = line
            elif kind == "end":
                ended = True
                error = str(line.get("error") or "")
    return Rank(number, head, tuple(values), tuple(events), tuple(notes), random, ended, error)


def _world(head: Mapping[str, object]) -> float:
    return number(head.get("world", 1))


def _lines(path: Path) -> Iterator[Mapping[str, object]]:
    try:
        lines = path.read_text("ascii").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    if not lines[0]:
        raise UserError(f"{path}: is empty: the run was stopped before it wrote a line")
    for place, text in enumerate(lines, 1):
        if not text:
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            if place == len(lines):
                return  # the recorder was stopped while it wrote
            raise UserError(f"{path}:{place}: is not json: {error}") from error
        if not isinstance(line, dict):
            raise UserError(f"{path}:{place}: is no line of a recording")
        if place == 1:
            layout = line.get("format")
            if line.get("kind") != "recording" or not isinstance(layout, int):
                raise UserError(f"{path}:1: is not the head of a recording")
            if layout > FORMAT:
                raise UserError(f"{path}:1: is layout {layout}; this neuronmigrate reads up to {FORMAT}")
        yield line


def number(value: object) -> float:
    """A recorded number; what is not finite is written as a text."""
    if isinstance(value, bool | int | float):
        return float(value)
    return float(value) if value in ("nan", "inf", "-inf") else float("nan")
