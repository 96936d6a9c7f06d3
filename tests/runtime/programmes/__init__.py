"""The programmes that the emulated device must run as the CPU does.

A programme is a module with one function `run(device)`: a small program as a user of the library
writes it, with a tiny random model built from a configuration, no network, and `device` in the places
where a user names the device. It runs in an empty folder, with the generators seeded, and returns what
it computed: tensors, where they stand, and numbers and lists that json can hold. At least one tensor
must stand on the device, or nothing was shown. The results on the emulated device must equal those on
the CPU bit for bit; no programme is excepted.

A new programme is one new file; the folder tells when it runs:

    programmes/              in plain pytest, one process
    programmes/nightly/      with `-m nightly`
    programmes/wrong/        programmes with a mistake: test_wrong_programmes.py says what each is told
    two_processes/           in plain pytest, two processes with the environment that torchrun gives them
    two_processes/nightly/
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Programme:
    """A programme by the name of its module."""

    name: str

    @property
    def processes(self) -> int:
        return 2 if ".two_processes." in self.name else 1

    @property
    def title(self) -> str:
        return self.name.rpartition(".")[2]


def programmes(folder: str) -> list[Programme]:
    """The programmes of a folder of tests/runtime, sorted by name."""
    package = f"tests.runtime.{folder.replace('/', '.')}"
    files = sorted((ROOT / folder).glob("[a-z]*.py"))
    return [Programme(f"{package}.{file.stem}") for file in files]
