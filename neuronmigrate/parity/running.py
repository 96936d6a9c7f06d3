"""Runs scripts to record them, one or both sides of a migration.

A script runs in a Python of its own, prepared by neuronmigrate.runtime as for `neuronmigrate run`.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from neuronmigrate.config import UserError
from neuronmigrate.runtime.launch import Orders, check, command, environment

if TYPE_CHECKING:
    from neuronmigrate.parity.comparison import Comparison

RECORDER = Path(__file__).with_name("recorder.py")


@dataclass(frozen=True)
class Choices:
    """How to record; the fields of the recorder's options that a user can set."""

    seed: int | None = None
    dropout: str = "keep"
    order: str = "keep"
    calls: int = 3
    elements: int = 1 << 16
    megabytes: int = 512
    resume: bool = False
    initial: Path | None = None
    steps: int = 0
    """Optimizer steps after which the script is ended; 0 for none."""

    def orders(self, out: Path) -> dict[str, object]:
        """As the processes of the run take them."""
        return {
            "out": str(out),
            "seed": self.seed,
            "dropout": self.dropout,
            "order": self.order,
            "calls": self.calls,
            "elements": self.elements,
            "megabytes": self.megabytes,
            "resume": self.resume,
            "steps": self.steps,
            "initial": "" if self.initial is None else str(self.initial.absolute()),
        }


ALIGNED = Choices(seed=0, dropout="replay", order="replay")
"""How `parity run` records: what is random comes out the same on both sides."""


def record(
    target: Sequence[str],
    out: Path,
    choices: Choices,
    *,
    legacy: bool = False,
    release: str | None = None,
    strict: bool = False,
    devices: int | None = None,
    mixed: bool = False,
    cwd: Path | None = None,
    quiet: bool = False,
    timeout: float | None = None,
) -> int:
    """Run a script and record it into a folder; the script's exit code, or torchrun's.

    With `quiet` what the script prints goes to standard error. Raises UserError if the run cannot work, the
    folder holds something else, or the script is not over after `timeout` seconds; then it is stopped with
    all its processes.
    """
    orders = recording_orders(
        target, out, choices, legacy=legacy, release=release, strict=strict, devices=devices, mixed=mixed
    )
    sys.stdout.flush()
    stdout = sys.stderr.fileno() if quiet else None
    arguments, variables = command(orders, devices), environment(orders, os.environ)
    # A group of its own, so that torchrun's processes end with it.
    with subprocess.Popen(
        arguments, env=variables, cwd=cwd, stdout=stdout, start_new_session=True
    ) as process:
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise UserError(f"{target[0]}: is not over after {timeout:g} seconds, and was stopped") from None
        finally:
            if process.poll() is None:
                _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


def recording_orders(
    target: Sequence[str],
    out: Path,
    choices: Choices,
    *,
    legacy: bool = False,
    release: str | None = None,
    strict: bool = False,
    devices: int | None = None,
    mixed: bool = False,
) -> Orders:
    """The orders of a run that is recorded, and its folder. Raises UserError if the run cannot work."""
    orders = Orders(
        target=tuple(target),
        strict=strict,
        legacy=legacy,
        release=release,
        mixed=mixed,
        record=choices.orders(out.absolute()),
    )
    check(orders, emulate=False, devices=devices)
    _need_torch()
    for name, given, known in (
        ("--dropout", choices.dropout, ("keep", "replay", "off")),
        ("--order", choices.order, ("keep", "replay")),
    ):
        if given not in known:
            raise UserError(f"{name}: {given} is none of {', '.join(known)}")
    _check_folder(out, choices.resume)
    if choices.initial is not None and not any(choices.initial.glob("rank0.run*.jsonl")):
        raise UserError(f"{choices.initial}: holds no recording")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{out}: cannot be made: {error.strerror}") from error
    return orders


def _need_torch() -> None:
    for name in ("torch", "safetensors"):
        if importlib.util.find_spec(name) is None:
            raise UserError(f"parity needs {name}: pip install 'neuronmigrate[runtime]'")


def _check_folder(out: Path, resume: bool) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out}: is no folder")
    entries = list(out.iterdir())
    recorded = any(each.name.startswith("rank") and each.suffix == ".jsonl" for each in entries)
    if recorded and not resume:
        raise UserError(f"{out}: holds a recording; --resume goes on with it, or name another folder")
    if entries and not recorded:
        raise UserError(f"{out}: holds something that is no recording")


@dataclass(frozen=True)
class Pair:
    """A legacy script and its migrated twin."""

    before: Path
    after: Path
    arguments: tuple[str, ...] = ()
    devices: int | None = None
    """Processes of each side; None: two if the old side starts a process group, else one."""
    release: str | None = None
    legacy: bool | None = None
    """Whether the old side runs on stand-ins; None: if it holds a legacy name."""
    report: Path | None = None
    """report.json of the rewrite, for what its codemods declared; None: that of the last rewrite, if it
    wrote the new side."""
    numerics: frozenset[str] | None = None
    """What was declared, where it is known already."""
    choices: Choices = field(default=ALIGNED)
    keep: Path | None = None
    """Folder for the two recordings; None: they are removed."""
    factor: float = 1.0
    """Times all tolerances."""
    bisect: bool = False
    """Whether the hunk is searched for that brings a difference in."""
    timeout: float | None = None
    """Seconds that a side may take."""
    data: tuple[Path, ...] = ()
    """Files and folders that both sides find in their working folders under their own names."""


def compare(
    first: Path, second: Path, reference: Path | None, report: Path | None, factor: float
) -> Comparison:
    """Compare two recordings, by the folders they are in.

    Raises UserError for a folder without a recording, or where torch is missing.
    """
    _need_torch()
    from neuronmigrate.parity import comparing
    from neuronmigrate.parity.recording import read
    from neuronmigrate.parity.tolerance import Policy

    return comparing.compare(
        read(first),
        read(second),
        Policy(numerics=numerics_of(report), factor=factor),
        reference=None if reference is None else read(reference),
        labels=(str(first), str(second)),
    )


def run(pair: Pair) -> Comparison:
    """Record both sides with all that is random aligned, and compare them.

    Each side runs in a fresh folder, its arguments as they stand. Raises UserError if a side cannot be run.
    """
    from neuronmigrate.parity import comparing
    from neuronmigrate.parity.comparison import Status
    from neuronmigrate.parity.recording import read
    from neuronmigrate.parity.tolerance import Policy

    _need_torch()
    for script in (pair.before, pair.after):
        if not script.is_file():
            raise UserError(f"{script}: there is no such script")
    for path in pair.data:
        if not path.exists():
            raise UserError(f"--data: {path}: there is no such file or folder")
        if [each.name for each in pair.data].count(path.name) > 1:
            raise UserError(f"--data: {path}: another one is called {path.name} as well")
    policy = Policy(numerics=declared(pair), factor=pair.factor)
    with tempfile.TemporaryDirectory(prefix="neuronmigrate-") as folder:
        kept = pair.keep.absolute() if pair.keep else Path(folder)
        devices = pair.devices
        if devices is None and asks_for_group(pair.before):
            devices = 2
        started = time.monotonic()
        before, code = _side(pair, kept, "before", devices)
        between = time.monotonic()
        after, other = _side(pair, kept, "after", devices)
        seconds = max(between - started, time.monotonic() - between)
        labels = str(pair.before), str(pair.after)
        first = read(before)
        found = comparing.compare(first, read(after), policy, labels=labels, aligned=aligned(pair, devices))
        if code != other and not (found.first.error or found.second.error):
            reason = f"{labels[0]} ended with exit code {code}, {labels[1]} with {other}"
            found = replace(found, status=Status.NOT_COMPARABLE, reason=reason)
        elif code and code == other:
            found = replace(found, notes=(*found.notes, f"both sides ended with exit code {code}"))
        if any("FileNotFoundError" in side.error for side in (found.first, found.second)):
            note = (
                "each side runs in a fresh folder: --data NAME links what the scripts read by a relative path"
            )
            found = replace(found, notes=(*found.notes, note))
        if pair.bisect and found.status is Status.DIVERGED:
            from neuronmigrate.parity.isolate import blame

            return replace(found, blame=blame(pair, first, found, policy, devices, seconds))
        return found


def _side(pair: Pair, folder: Path, name: str, devices: int | None) -> tuple[Path, int]:
    """Record one side in a working folder of its own: the recording, and the script's exit code."""
    script = pair.before if name == "before" else pair.after
    legacy = name == "before" and (is_legacy(script) if pair.legacy is None else pair.legacy)
    out = folder / name
    with tempfile.TemporaryDirectory(prefix="neuronmigrate-") as cwd:
        link(pair.data, Path(cwd))
        code = record(
            [str(script.resolve()), *pair.arguments],
            out,
            pair.choices,
            legacy=legacy,
            release=pair.release if legacy else None,
            devices=devices,
            cwd=Path(cwd),
            quiet=True,
            timeout=pair.timeout,
        )
    if not any(out.glob("rank*.jsonl")):
        raise UserError(
            f"{script}: ended with exit code {code} before it imported torch: nothing was recorded"
        )
    return out, code


def link(data: Collection[Path], folder: Path) -> None:
    """Put links to files and folders into a working folder."""
    for path in data:
        (folder / path.name).symlink_to(path.absolute(), target_is_directory=path.is_dir())


def aligned(pair: Pair, devices: int | None) -> tuple[str, ...]:
    """What was made the same for both sides, in words."""
    said = []
    if pair.choices.seed is not None:
        said.append(f"Python, numpy and torch seeded with {pair.choices.seed} before the script began")
    if pair.choices.order == "replay":
        said.append("shuffled loaders without a generator shuffle by the seed and a count of epochs")
    if pair.choices.dropout == "replay":
        said.append("dropout masks drawn from the seed and a count of calls")
    if pair.choices.dropout == "off":
        said.append("no dropout")
    said.append(f"{devices or 1} process{'es' if (devices or 1) > 1 else ''} for each side")
    return tuple(said)


def is_legacy(script: Path) -> bool:
    """Whether a script, or a module beside it, imports a legacy package.

    A file that cannot be parsed is none: running it tells what is wrong with it.
    """
    from neuronmigrate import catalogue

    for path in [script, *script.parent.glob("*.py")]:
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        if any(catalogue.is_legacy(name) for node in ast.walk(tree) for name in _names(node)):
            return True
    return False


def _names(node: ast.AST) -> list[str]:
    """Names of other packages that a node has: what it imports, and attributes of torch_neuronx."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    if (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "torch_neuronx"
    ):
        return [f"torch_neuronx.{node.attr}"]
    return []


def asks_for_group(script: Path) -> bool:
    """Whether a script, or a module beside it, is made for several processes that it does not start.

    It starts a process group, which one process alone cannot, or the processes that torchrun starts natively.
    """
    asks = False
    for path in [script, *script.parent.glob("*.py")]:
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name in ("mp.spawn", "multiprocessing.spawn", "torch.multiprocessing.spawn"):
                    return False
                asks |= "init_process_group" in name or (_spawns(name) and not _is_one(node))
    return asks


def _spawns(name: str) -> bool:
    """Whether a function started the processes of torch_xla."""
    return name in ("xmp.spawn", "torch_xla.launch") or name.endswith("xla_multiprocessing.spawn")


def _is_one(call: ast.Call) -> bool:
    given = [each.value for each in call.keywords if each.arg == "nprocs"] or call.args[2:3]
    return any(isinstance(each, ast.Constant) and each.value == 1 for each in given)


def declared(pair: Pair) -> frozenset[str]:
    """What the rewrite that made the new side declared that it does to the numbers."""
    if pair.numerics is not None:
        return pair.numerics
    folders = {pair.before.resolve().parent, pair.after.resolve().parent}
    if pair.report is not None:
        return numerics_of(pair.report, folders)
    from neuronmigrate.journal import find_last

    last = find_last(pair.after.resolve().parent)
    report = None if last is None else last[1].folder / "report.json"
    return numerics_of(report, folders) if report is not None and report.is_file() else frozenset()


def numerics_of(report: Path | None, folders: Collection[Path] = ()) -> frozenset[str]:
    """What the rewrites of a report.json declared: of the files in some folders, or of all files.

    Raises UserError when it is no report.
    """
    if report is None:
        return frozenset()
    try:
        document = json.loads(report.read_bytes())
        root = Path(document["root"])
        found: set[str] = set()
        for each in document["files"]:
            if not folders or (root / each["path"]).resolve().parent in folders:
                found |= set(map(str, each["numerics"]))
    except OSError as error:
        raise UserError(f"{report}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{report}: is not the report of a rewrite") from error
    return frozenset(found - {"same"})


def configured(start: Path, common: Pair) -> list[Pair]:
    """The pairs of [tool.neuronmigrate.parity] that hold for a folder.

    What the configuration does not say is as in `common`. Raises UserError, with file and line, where
    there is no pair or one names a script that is not there.
    """
    from neuronmigrate.config import parity_pairs

    found = []
    for pair in parity_pairs(start):
        for script in (pair.before, pair.after):
            if not script.is_file():
                raise UserError(f"{pair.where}: {script}: there is no such script")
        for path in pair.data:
            if not path.exists():
                raise UserError(f"{pair.where}: {path}: there is no such file or folder")
        found.append(
            replace(
                common,
                before=pair.before,
                after=pair.after,
                arguments=pair.arguments,
                devices=common.devices if pair.devices is None else pair.devices,
                release=pair.from_version or common.release,
                report=pair.report or common.report,
                data=pair.data or common.data,
            )
        )
    return found
