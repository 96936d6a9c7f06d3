"""A process of `neuronmigrate run`: before its program, as it imports torch, and at its end."""

from __future__ import annotations

import atexit
import json
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from neuronmigrate.runtime import guards
from neuronmigrate.runtime.after_import import after_import
from neuronmigrate.runtime.launch import VARIABLE, Orders, is_program
from neuronmigrate.runtime.places import Place

if TYPE_CHECKING:
    from neuronmigrate.runtime import legacy
    from neuronmigrate.runtime.activation import Activation
    from neuronmigrate.runtime.observe import Observer

SCHEMA = 1


def begin() -> None:
    """Prepare this process for its program. torch is not imported here: the program may never ask for it."""
    orders = Orders.from_text(os.environ[VARIABLE])
    session = Session(orders, is_program(orders, sys.orig_argv))
    # It runs the program's functions, with what the program imports.
    spawned = "--multiprocessing-fork" in sys.orig_argv
    if not orders.legacy:
        after_import("torch", session.torch_is_there)
    elif session.program or spawned:
        session.stand_in()
    if orders.record is not None and (session.program or spawned):
        # After the device: what is recorded runs on it.
        after_import("torch", session.record)
    if session.speaks:
        atexit.register(session.end)


def _mix(torch: types.ModuleType) -> None:
    from neuronmigrate.runtime.legacy import mixed

    mixed.install()


class Session:
    """One process of the run."""

    def __init__(self, orders: Orders, program: bool) -> None:
        self.orders = orders
        self.program = program
        """Whether this process runs the program, and is not one that the program started."""
        self.activation: Activation | None = None
        self.observer: Observer | None = None
        self.touched_device = False
        self.legacy: legacy.Session | None = None

    @property
    def speaks(self) -> bool:
        """Whether this is the process whose words stand for all: the program's, of rank 0."""
        return self.program and os.environ.get("RANK", "0") == "0"

    def torch_is_there(self, torch: types.ModuleType) -> None:
        """Bring the device about, right after the program's `import torch`."""
        from neuronmigrate.runtime import Backend, UnsupportedTorch, activate

        try:
            self.activation = activate(strict=self.orders.strict, quiet=not self.speaks)
        except (UnsupportedTorch, RuntimeError) as error:
            fail(str(error))
        emulated = self.activation.selection.backend is Backend.EMULATED
        if emulated and sys.platform == "darwin":
            from neuronmigrate.runtime.emulated import touch

            # Accelerate and Transformers look for it before they look for neuron.
            touch.replace(torch.backends.mps, "is_available", lambda: False, "no other accelerator")
        if not self.program:
            return
        if self.orders.observe:
            from neuronmigrate.runtime.observe import Observer

            self.observer = Observer()
            self.observer.begin(emulated=emulated)
        if emulated:
            self._notice_first_use()
        if self.activation.selection.backend is not Backend.CPU:
            guards.install(self._warn, strict=self.orders.strict)

    def _warn(self, place: Place, what: str, why: str) -> None:
        """Something stays on the CPU."""
        if self.observer is not None:
            self.observer.note_placement(place, what, why)
        elif self.speaks:
            say(f"warning: {place}: {what}: {why}")

    def stand_in(self) -> None:
        """Let the program find stand-ins for the legacy packages."""
        from neuronmigrate.runtime import legacy

        self.legacy = legacy.activate(release=self.orders.release)
        if self.orders.mixed:
            after_import("torch", _mix)
        usual = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
            message = legacy.explain(error) if isinstance(error, Exception) else None
            if message is None:
                usual(kind, error, trace)
                return
            print(message, file=sys.stderr)
            # Python takes the exit code from here.
            raise SystemExit(2)

        sys.excepthook = hook

    def record(self, torch: types.ModuleType) -> None:
        """Record what the program computes."""
        from neuronmigrate.parity import recorder

        assert self.orders.record is not None
        options = recorder.Options(**self.orders.record)  # type: ignore[arg-type]  # as they were written
        recorder.begin(options, {"device": self._device()}, spawned=not self.program)

    def _device(self) -> str:
        """Where the program computes, in the words of every report."""
        if self.legacy is not None:
            return f"stand-ins for optimum-neuron {self.legacy.release} on the CPU: a stub reference"
        return "cpu" if self.activation is None else self.activation.selection.backend.value

    def _notice_first_use(self) -> None:
        """Learn whether anything ever runs on the device, at no cost once it did."""
        from neuronmigrate.runtime.emulated import fallback

        def first(name: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
            self.touched_device = True
            fallback.take_out(first)

        fallback.observers.append(first)

    def end(self) -> None:
        """Say and write down what was seen. Runs as the program ends, however it ends."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, ImportError) and not self.orders.legacy:
            _explain(error)
        if self.observer is not None:
            from neuronmigrate.report import observation, terminal

            self.observer.end()
            terminal.emit(observation.text(self.observer.observation()), sys.stderr)
        elif self.legacy is not None:
            print(*self.legacy.summary(), sep="\n", file=sys.stderr)
        elif error is not None:
            pass  # a traceback stands there; what did not run is not the news
        elif self.activation is None:
            say("the program did not import torch: there was nothing to do")
        elif self.activation.touched and not self.touched_device:
            say(
                "nothing ran on the neuron device: the program left everything on the CPU; "
                "`neuronmigrate run --observe` says where"
            )
        if self.orders.report is not None:
            self._write(Path(self.orders.report))

    def _write(self, path: Path) -> None:
        from neuronmigrate import __version__
        from neuronmigrate.files import create

        activation, observer = self.activation, self.observer
        document = {
            "schema": SCHEMA,
            "tool": {"name": "neuronmigrate", "version": __version__},
            "target": list(self.orders.target),
            "selection": None if activation is None else activation.selection.as_json(),
            "touched": []
            if activation is None
            else [{"part": each.part, "because": each.because} for each in activation.touched],
            "observation": None if observer is None else observer.observation().as_json(),
            "legacy": None if self.legacy is None else self.legacy.data(),
        }
        content = (json.dumps(document, indent=2) + "\n").encode("ascii")
        if path.suffix == ".html" and observer is not None:
            from neuronmigrate.report import observation

            content = observation.page(observer.observation()).encode()
        try:
            create(path, content)
        except OSError as error:
            say(f"{path}: the report cannot be written: {error.strerror}")


def _explain(error: ImportError) -> None:
    """Say what a missing legacy package means for the program that ended with it."""
    from neuronmigrate import catalogue

    if error.name is not None and catalogue.is_legacy(error.name):
        say(
            f"{error.name} belongs to the legacy stack: `neuronmigrate check` names what is left to migrate, "
            "`neuronmigrate run --legacy` runs an old script"
        )


def say(message: str) -> None:
    """One line to people; stdout is the program's."""
    print(f"neuronmigrate: {message}", file=sys.stderr)


def fail(message: str) -> NoReturn:
    """Leave: what was asked for cannot be brought about. Raises SystemExit."""
    say(f"error: {message}")
    raise SystemExit(2)
