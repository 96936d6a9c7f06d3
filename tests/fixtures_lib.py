"""The fixtures of the codemods, and what the engine makes of them.

A folder of `fixtures/` is named after a codemod. `before.py` is rewritten to `after.py` with the findings
of `report.txt`; further cases are `<case>.before.py` and so on. `keep.py` holds look-alikes that stay as
they are; what is said about them, if anything, is in `keep_report.txt`. A first line `# runs`, or
`# runs on 2 processes`, says that the after side is executed and has to print what the hand-written
`plain.py` prints. A line `# written for optimum-neuron 0.1.0` stands for the project's pin of that release,
a line `# rewritten with --exact` for that option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from neuronmigrate.config import Settings
from neuronmigrate.engine import migrate
from neuronmigrate.plan import Finding, Numerics, Result
from neuronmigrate.project import Project
from tests.on_cpu import Completed, run_on_cpu

FOLDER = Path(__file__).parent.parent / "fixtures"
_RUNS = re.compile(r"# runs(?: on (\d+) processes)?\n")
_EXACT = re.compile(rb"^# rewritten with --exact\r?$", re.MULTILINE)
_RELEASE = re.compile(rb"^# written for optimum-neuron ([\d.]+)\r?$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    """One file of a fixture folder that the engine gets to see, and its siblings."""

    source: Path
    kind: str
    """`before` or `keep`."""

    @property
    def id(self) -> str:
        return f"{self.source.parent.name}/{self.source.name.removesuffix('.py')}"

    @property
    def after(self) -> Path:
        return self._sibling("after.py")

    @property
    def plain(self) -> Path:
        return self._sibling("plain.py")

    @property
    def report(self) -> Path:
        return self._sibling("report.txt" if self.kind == "before" else "keep_report.txt")

    @property
    def processes(self) -> int:
        """How many processes execute the after side; none when it is not executed."""
        runs = _RUNS.match(self.source.read_text("utf-8"))
        return int(runs[1] or 1) if runs else 0

    def _sibling(self, name: str) -> Path:
        return self.source.with_name(self.source.name.removesuffix(f"{self.kind}.py") + name)


def folders() -> list[Path]:
    """The fixture folders of codemods, whole projects aside."""
    return sorted(each for each in FOLDER.iterdir() if each.is_dir() and each.name != "scripts")


def cases(kind: str) -> list[Case]:
    """All cases of a kind, `before` or `keep`, by folder and name."""
    found = [path for folder in folders() for path in sorted(folder.glob(f"*{kind}.py"))]
    return [Case(path, kind) for path in found if re.fullmatch(rf"(\w+\.)?{kind}\.py", path.name)]


def rewritten(raw: bytes, path: str = "script.py") -> Result:
    """What the engine makes of a file that stands alone."""
    release = _RELEASE.search(raw)
    settings = Settings(exact=bool(_EXACT.search(raw)))
    return migrate(path, raw, Project(given=release[1].decode() if release else ""), settings)


@cache
def result_of(case: Case) -> Result:
    """What the engine makes of a case."""
    return rewritten(case.source.read_bytes())


@cache
def run_of(script: Path, processes: int = 1, arguments: tuple[str, ...] = ()) -> Completed:
    """What a script printed and computed; several tests look at the same run.

    Environment variables are those of the first call.
    """
    return run_on_cpu(script, *arguments, processes=processes)


def report_of(result: Result) -> str:
    """All findings, one line each, in a form that only changes when what is said changes."""
    return "".join(f"{_line(finding)}\n" for finding in result.findings)


def _line(finding: Finding) -> str:
    changes = [each.value for each in finding.numerics if each is not Numerics.SAME]
    numerics = f" ({', '.join(changes)})" if changes else ""
    return (
        f"{finding.place.line}:{finding.place.column} {finding.state.value} [{finding.codemod}] "
        f"{finding.found}: {finding.message}{numerics}"
    )
