"""The report of a run: its one process writes it, or torchrun's for several that have left their parts."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from neuronmigrate.files import create
from neuronmigrate.runtime import observation as observed

if TYPE_CHECKING:
    from neuronmigrate.runtime.launch import Orders
    from neuronmigrate.runtime.observation import Observation, Seen


def write(path: Path, document: Mapping[str, object], observation: Observation | None) -> None:
    """Write the report file: HTML for a name that ends so, else JSON. Says so when it cannot be written."""
    from neuronmigrate.report import observation as printed

    if path.suffix == ".html" and observation is not None:
        content = printed.page(observation).encode()
    else:
        whole = {**document, "observation": None if observation is None else observation.as_json()}
        content = (json.dumps(whole, indent=2) + "\n").encode("ascii")
    try:
        create(path, content)
    except OSError as error:
        say(f"{path}: the report cannot be written: {error.strerror}")


def show(observation: Observation) -> None:
    """Print an observation for people."""
    from neuronmigrate.report import observation as printed
    from neuronmigrate.report import terminal

    terminal.emit(printed.text(observation), sys.stderr)


def leave(folder: Path, rank: int, document: Mapping[str, object], seen: Seen | None) -> None:
    """Leave the part of one rank for `gather`."""
    part = {"document": document, "seen": None if seen is None else seen.to_text()}
    create(folder / f"{rank}.json", json.dumps(part).encode("ascii"))


def gather(orders: Orders) -> None:
    """Report for all ranks together, after the last has ended, and take their folder away."""
    assert orders.gather is not None
    folder = Path(orders.gather)
    parts = {int(path.stem): json.loads(path.read_bytes()) for path in sorted(folder.glob("[0-9]*.json"))}
    shutil.rmtree(folder, ignore_errors=True)
    seen = {
        rank: observed.Seen.from_text(part["seen"])
        for rank, part in sorted(parts.items())
        if part["seen"] is not None
    }
    if parts and not seen:
        say("the program did not import torch: there was nothing to do")
    silent = tuple(rank for rank in range(orders.processes) if rank not in parts)
    observation = observed.combine(seen, silent) if seen else None
    if observation is not None:
        show(observation)
    elif silent:
        say("every process was killed before its end: what was seen is lost")
    if orders.report is not None and parts:
        write(Path(orders.report), parts[min(parts)]["document"], observation)


def say(message: str) -> None:
    """One line to people; stdout is the program's."""
    print(f"neuronmigrate: {message}", file=sys.stderr)
