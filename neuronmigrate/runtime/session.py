"""A process of `neuronmigrate run`: before its program, as it imports torch, and at its end."""

from __future__ import annotations

import atexit
import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from neuronmigrate.runtime import guards, reports
from neuronmigrate.runtime.after_import import after_import
from neuronmigrate.runtime.launch import VARIABLE, Orders, is_program, starts_programs
from neuronmigrate.runtime.places import Place
from neuronmigrate.runtime.reports import say

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
    if session.speaks or (session.program and orders.gather is not None):
        atexit.register(session.end)
    elif orders.gather is not None and starts_programs(orders, sys.orig_argv):
        atexit.register(reports.gather, orders)


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
        if self.speaks and isinstance(error, Exception) and not self.orders.legacy:
            _explain(error)
        if self.observer is not None:
            self.observer.end()
        if self.orders.gather is not None:
            rank = int(os.environ.get("RANK", "0"))
            seen = None if self.observer is None else self.observer.seen()
            reports.leave(Path(self.orders.gather), rank, self._document(), seen)
            return
        observation = None if self.observer is None else self.observer.observation()
        if observation is not None:
            reports.show(observation)
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
            reports.write(Path(self.orders.report), self._document(), observation)

    def _document(self) -> dict[str, object]:
        """The report of this process, without what was observed."""
        from neuronmigrate import __version__

        activation = self.activation
        return {
            "schema": SCHEMA,
            "tool": {"name": "neuronmigrate", "version": __version__},
            "target": list(self.orders.target),
            "selection": None if activation is None else activation.selection.as_json(),
            "touched": []
            if activation is None
            else [{"part": each.part, "because": each.because} for each in activation.touched],
            "legacy": None if self.legacy is None else self.legacy.data(),
        }


def _explain(error: Exception) -> None:
    """Say what to do about the error that ended the program, where its own words do not."""
    from neuronmigrate import catalogue

    # torch's own words (torch/distributed/rendezvous.py) name a variable that torchrun sets.
    if isinstance(error, ValueError) and "env:// rendezvous: environment variable" in str(error):
        say("the program joins a process group: `neuronmigrate run --devices N` starts its processes")
    elif isinstance(error, ImportError) and error.name is not None and catalogue.is_legacy(error.name):
        say(
            f"{error.name} belongs to the legacy stack: `neuronmigrate check` names what is left to migrate, "
            "`neuronmigrate run --legacy` runs an old script"
        )


def fail(message: str) -> NoReturn:
    """Leave: what was asked for cannot be brought about. Raises SystemExit."""
    say(f"error: {message}")
    raise SystemExit(2)
