"""The commands. Each parses its options, calls a function that returns data, and prints it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from neuronmigrate import __version__
from neuronmigrate.config import Settings, UserError

if TYPE_CHECKING:
    from neuronmigrate.codemod import Codemod
    from neuronmigrate.files import Tree
    from neuronmigrate.journal import Unit
    from neuronmigrate.parity.comparison import Comparison
    from neuronmigrate.plan import Report
    from neuronmigrate.report import Line

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Rich would cost a third of the time that --help may take.
    rich_markup_mode=None,
)
parity = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Whether a migrated program computes what the old one did.",
)
app.add_typer(parity, name="parity")

Paths = Annotated[list[str], typer.Argument(metavar="PATH", help="Files and folders; - is stdin.")]
FromVersion = Annotated[
    str | None,
    typer.Option(metavar="RELEASE", help="Release of optimum-neuron that the code was written for."),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Leave out what a line of a .gitignore would; repeatable."),
]
Tpu = Annotated[
    bool | None, typer.Option("--tpu/--no-tpu", help="Rewrite code that looks like TPU code too.")
]
Compile = Annotated[
    bool | None,
    typer.Option("--compile/--no-compile", help="Compile models of Optimum Neuron in place."),
]
CommentReviews = Annotated[
    bool | None,
    typer.Option("--comment-reviews/--no-comment-reviews", help="Comment each statement that needs a look."),
]
Exact = Annotated[
    bool | None,
    typer.Option(
        "--exact/--no-exact", help="Keep what the old classes did by mistake, where it can be written."
    ),
]
Shim = Annotated[
    bool | None,
    typer.Option(
        "--shim/--no-shim",
        help="Import longer helpers from neuronmigrate.runtime instead of writing them out.",
    ),
]
Codemods = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A folder of own codemods. They are run: name only your own."),
]
Jobs = Annotated[int, typer.Option(min=0, metavar="N", help="Processes at most; 0 is one for each CPU.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="Seed Python, numpy and torch before the script begins.")
]
Dropout = Annotated[
    str, typer.Option(metavar="HOW", help="keep, off, or replay: masks drawn the same on every device.")
]
Order = Annotated[
    str, typer.Option(metavar="HOW", help="keep, or replay: shuffled data in the same order everywhere.")
]
Calls = Annotated[
    int, typer.Option(min=1, metavar="N", help="Calls, steps and batches that are recorded in full.")
]
Elements = Annotated[
    int,
    typer.Option(min=16, metavar="N", help="Elements of a tensor that are kept; a sample of larger ones."),
]
Steps = Annotated[
    int, typer.Option(min=0, metavar="N", help="End the script after N optimizer steps.", show_default=False)
]
Devices = Annotated[
    int | None, typer.Option(metavar="N", help="Start N processes with torchrun, one for each device.")
]
RewriteReport = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="report.json of the rewrite: what its codemods do to the numbers."),
]
ParityFormat = Annotated[str, typer.Option(metavar="FORMAT", help="text, json or markdown.")]
Factor = Annotated[float, typer.Option(min=0.0, metavar="X", help="Times all tolerances.")]


def _known_format(name: str) -> str:
    from neuronmigrate.report import FORMATS

    if name not in FORMATS:
        raise typer.BadParameter(f"{name} is none of {', '.join(FORMATS)}")
    return name


def main() -> int:
    """Run the command line and return its exit code."""
    try:
        app(prog_name="neuronmigrate")
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except UserError as error:
        _complain(str(error))
    except KeyboardInterrupt:
        return 130
    except Exception:
        import traceback

        # Exit code 1 would say that something was found.
        traceback.print_exc()
        _complain(f"this is a bug of neuronmigrate {__version__}, please report it")
    return 2


def _print_version(asked: bool) -> None:
    if asked:
        from neuronmigrate.registry import digest

        print(f"neuronmigrate {__version__} (codemods {digest()})")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and leave."
        ),
    ] = False,
) -> None:
    """Move code from Optimum Neuron, torch_xla and legacy torch-neuronx to the native neuron device."""


@app.command()
def rewrite(
    paths: Paths,
    diff: Annotated[bool, typer.Option("--diff", help="Print a patch and write nothing.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a migrated copy into a new folder.")
    ] = None,
    allow_dirty: Annotated[
        bool | None,
        typer.Option("--allow-dirty/--no-allow-dirty", help="Change files that git could not bring back."),
    ] = None,
    strict: Annotated[
        bool | None, typer.Option("--strict/--no-strict", help="Exit with 1 if anything was marked.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the report, as JSON, to this file too.")
    ] = None,
    from_version: FromVersion = None,
    exclude: Exclude = None,
    tpu: Tpu = None,
    compile: Compile = None,
    comment_reviews: CommentReviews = None,
    exact: Exact = None,
    shim: Shim = None,
    codemods: Codemods = None,
    jobs: Jobs = 0,
    quiet: Quiet = False,
) -> None:
    """Rewrite what can be rewritten with certainty, mark the rest on its line.

    Exit code: 0 done, 1 something was marked and --strict was given, 2 something could not be read,
    written or proven.
    """
    if diff and output:
        raise UserError("--diff and --output: only one of them can be given")
    settings = _settings(
        paths,
        allow_dirty=allow_dirty,
        strict=strict,
        from_version=from_version,
        exclude=exclude,
        tpu=tpu,
        compile=compile,
        comment_reviews=comment_reviews,
        exact=exact,
        shim=shim,
        codemods=codemods,
    )
    from neuronmigrate.journal import journal_of
    from neuronmigrate.report import View, data, terminal, text

    piped = paths == ["-"]
    if piped and output:
        raise UserError("--output: stdin is rewritten to stdout")
    found, tree = _find(paths, settings, jobs, quiet)
    view = View(tree.root, "preview" if diff else "rewrite", settings)
    in_place = not (piped or diff or output)
    unit = None
    if in_place:
        found, unit = _write(found, tree, settings)
    elif output:
        from neuronmigrate.run import copy

        found = copy(found, tree, paths, output)
    _print_code(found, piped=piped, diff=diff)
    lines = text.errors(found, view) if quiet else text.open_ends(found, view)
    terminal.emit(lines, sys.stderr if piped or diff else sys.stdout)
    document = data.as_json(found, view)
    if in_place:
        journal = journal_of(tree.root)
        journal.keep_report(document, unit)
        if unit and not quiet:
            below = Path.cwd() in (tree.root, *tree.root.parents) and Path.cwd() != tree.root
            where = f" {tree.root.relative_to(Path.cwd())}" if below else ""
            _say(f"`neuronmigrate undo{where}` takes this back; report: {journal.folder / 'report.json'}")
    if report:
        _write_report(report, document)
    raise typer.Exit(_exit_code(found, found_matters=settings.strict, strict=True))


@app.command()
def undo(
    path: Annotated[
        Path, typer.Argument(metavar="[PATH]", help="A folder of the tree; else this one.")
    ] = Path("."),
) -> None:
    """Take the last run back as one unit, unless files were edited since.

    Exit code: 0 taken back, 2 nothing was changed, and it says why.
    """
    from neuronmigrate import journal
    from neuronmigrate.files import resolved

    unit = journal.undo(resolved([path])[0])
    _say(f"taken back: {len(unit.entries)} file{'s' * (len(unit.entries) != 1)} below {unit.root}")


@app.command()
def check(
    paths: Paths,
    output_format: Annotated[
        str, typer.Option(metavar="FORMAT", callback=_known_format, help="text, concise, json or github.")
    ] = "text",
    from_version: FromVersion = None,
    exclude: Exclude = None,
    tpu: Tpu = None,
    compile: Compile = None,
    comment_reviews: CommentReviews = None,
    exact: Exact = None,
    shim: Shim = None,
    codemods: Codemods = None,
    jobs: Jobs = 0,
    quiet: Quiet = False,
) -> None:
    """Say what rewrite would do and what is left to a person. Nothing is written.

    Exit code: 0 clean, 1 something was found, 2 error.
    """
    settings = _settings(
        paths,
        from_version=from_version,
        exclude=exclude,
        tpu=tpu,
        compile=compile,
        comment_reviews=comment_reviews,
        exact=exact,
        shim=shim,
        codemods=codemods,
    )
    from neuronmigrate.report import FORMATS, View, terminal, text

    found, tree = _find(paths, settings, jobs, quiet)
    view = View(tree.root, "check", settings)
    quieter = quiet and output_format in ("text", "concise")
    terminal.emit(text.errors(found, view) if quieter else FORMATS[output_format](found, view), sys.stdout)
    raise typer.Exit(_exit_code(found, found_matters=True))


@app.command("list")
def list_codemods(codemods: Codemods = None) -> None:
    """List the codemods, each with the first line of its description."""
    from neuronmigrate.report import terminal

    loaded = _load_codemods(codemods)
    width = max((len(codemod.name) for codemod in loaded), default=0)
    lines: list[Line] = [
        ((f"{codemod.name:<{width}}", "bold"), (f"  {codemod.doc.partition(chr(10))[0]}", ""))
        for codemod in loaded
    ]
    terminal.emit(lines, sys.stdout)


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A codemod, or a legacy name.")],
    codemods: Codemods = None,
) -> None:
    """Say what becomes of a legacy name and of each of its arguments, or what a codemod does."""
    from neuronmigrate.report import terminal
    from neuronmigrate.report.explain import explained

    terminal.emit(explained(name, _load_codemods(codemods)), sys.stdout)


@app.command()
def doctor(
    model: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A model's folder or config.json to look up too.")
    ] = None,
    output_format: Annotated[str, typer.Option(metavar="FORMAT", help="text or json.")] = "text",
) -> None:
    """Say whether this machine and environment are ready for the native neuron device, and what is not.

    Exit code: 0 ready, 1 something stands in the way, 2 error.
    """
    from neuronmigrate.doctor import Machine, diagnose
    from neuronmigrate.report import diagnosis, terminal

    if output_format not in diagnosis.FORMATS:
        raise UserError(f"--output-format: {output_format} is none of {', '.join(diagnosis.FORMATS)}")
    found = diagnose(Machine.here(), model)
    terminal.emit(diagnosis.FORMATS[output_format](found), sys.stdout)
    raise typer.Exit(int(not found.ready))


@app.command(
    "run",
    # What stands behind the script is the script's.
    context_settings={"allow_interspersed_args": False},
)
def run_script(
    target: Annotated[list[str], typer.Argument(metavar="SCRIPT", help="The script, then its arguments.")],
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as of `python -m`.")] = False,
    emulate: Annotated[
        bool,
        typer.Option("--emulate", help="Only on the emulated device: refuse where a real one is installed."),
    ] = False,
    devices: Annotated[
        int | None, typer.Option(metavar="N", help="Start N processes with torchrun, one for each device.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse what the hardware is reported to refuse.")
    ] = False,
    observe: Annotated[
        bool,
        typer.Option("--observe", help="Say at the end what will cost compilations, copies and waiting."),
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what ran and what was seen, as JSON.")
    ] = None,
    legacy: Annotated[
        bool, typer.Option("--legacy", help="Run an old script, with stand-ins for the legacy packages.")
    ] = False,
    from_version: FromVersion = None,
) -> None:
    """Run a script on the neuron device, or where there is none on an emulated one (on the CPU).

    Exit code: the script's; 2 if it cannot be run.
    """
    from neuronmigrate.runtime.launch import Orders, launch

    if from_version is not None and not legacy:
        raise UserError("--from-version: only --legacy stands in for a release")
    orders = Orders(
        target=("-m", *target) if module else tuple(target),
        strict=strict,
        observe=observe,
        report=None if report is None else str(report.absolute()),
        legacy=legacy,
        release=from_version,
    )
    raise typer.Exit(launch(orders, emulate=emulate, devices=devices))


@parity.command("recorder")
def print_recorder() -> None:
    """Print the recorder: one file that records where nothing but torch is installed."""
    from neuronmigrate.parity.running import RECORDER
    from neuronmigrate.report import terminal

    terminal.emit_bytes([RECORDER.read_bytes()], sys.stdout)


@parity.command("record", context_settings={"allow_interspersed_args": False})
def record(
    target: Annotated[list[str], typer.Argument(metavar="SCRIPT", help="The script, then its arguments.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the recording.")],
    legacy: Annotated[
        bool, typer.Option("--legacy", help="Run an old script, with stand-ins for the legacy packages.")
    ] = False,
    from_version: FromVersion = None,
    seed: Seed = None,
    dropout: Dropout = "keep",
    order: Order = "keep",
    calls: Calls = 3,
    elements: Elements = 1 << 16,
    steps: Steps = 0,
    megabytes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tensors of one process altogether.")
    ] = 512,
    initial: Annotated[
        Path | None, typer.Option(metavar="DIR", help="A recording whose initial weights are taken.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the recording in the folder.")] = False,
    devices: Devices = None,
) -> None:
    """Run a script and record what it computes.

    Exit code: the script's; 2 if it cannot be run.
    """
    from neuronmigrate.parity import running

    choices = running.Choices(seed, dropout, order, calls, elements, megabytes, resume, initial, steps)
    raise typer.Exit(
        running.record(target, out, choices, legacy=legacy, release=from_version, devices=devices)
    )


@parity.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Recording of the old side.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Recording of the new side.")],
    reference: Annotated[
        Path | None, typer.Option(metavar="C", help="Recording of a float32 run on a CPU.")
    ] = None,
    report: RewriteReport = None,
    output_format: ParityFormat = "text",
    tolerance: Factor = 1.0,
) -> None:
    """Compare two recordings.

    Exit code: 0 equal, within tolerance or explained, 1 diverged, 2 error or not comparable.
    """
    _check_parity_format(output_format)
    from neuronmigrate.parity import running

    found = running.compare(first, second, reference, report, tolerance)
    _print_parity([found], output_format)


@parity.command("run")
def run_pair(
    before: Annotated[Path | None, typer.Option(metavar="FILE", help="The old script.")] = None,
    after: Annotated[Path | None, typer.Option(metavar="FILE", help="The migrated script.")] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGUMENTS]", help="Arguments of both scripts.")
    ] = None,
    configured: Annotated[
        bool, typer.Option("--configured", help="Run the pairs of [tool.neuronmigrate.parity].")
    ] = False,
    devices: Devices = None,
    from_version: FromVersion = None,
    report: RewriteReport = None,
    output_format: ParityFormat = "text",
    tolerance: Factor = 1.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of both sides.")] = 0,
    dropout: Dropout = "replay",
    order: Order = "replay",
    calls: Calls = 3,
    elements: Elements = 1 << 16,
    steps: Steps = 0,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the recordings in this folder.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=1.0, metavar="SECONDS", help="Stop a side that takes longer.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Link a file or folder into the working folder of both sides."),
    ] = None,
    bisect: Annotated[
        bool,
        typer.Option("--bisect", help="Name the hunk that brings a difference in, by at most 24 more runs."),
    ] = False,
) -> None:
    """Run the old script, on stand-ins where it is legacy, and the migrated one, and compare them.

    Exit code: 0 equal, within tolerance or explained, 1 diverged, 2 error or not comparable.
    """
    _check_parity_format(output_format)
    from neuronmigrate.parity import running

    common = running.Pair(
        before or Path(),
        after or Path(),
        tuple(arguments or ()),
        devices=devices,
        release=from_version,
        report=report,
        choices=running.Choices(seed, dropout, order, calls, elements, steps=steps),
        keep=keep,
        factor=tolerance,
        bisect=bisect,
        timeout=timeout,
        data=tuple(data or ()),
    )
    if configured:
        if before or after or arguments:
            raise UserError("--configured: the pairs stand in pyproject.toml; no scripts are named here")
        for name, value in {"keep": keep, "data": data}.items():
            if value:
                raise UserError(f"--configured: --{name} is not of use here; it belongs to one pair")
        pairs = running.configured(Path.cwd().resolve(), common)
    elif before is None or after is None:
        raise UserError("--before and --after: both are needed, or --configured")
    else:
        pairs = [common]
    _print_parity([running.run(pair) for pair in pairs], output_format)


def _check_parity_format(name: str) -> None:
    from neuronmigrate.report import comparison

    if name not in comparison.FORMATS:
        raise UserError(f"--output-format: {name} is none of {', '.join(comparison.FORMATS)}")


def _print_parity(found: list[Comparison], output_format: str) -> None:
    """Print comparisons and leave with the exit code of the worst."""
    from neuronmigrate.report import comparison, terminal

    terminal.emit(comparison.FORMATS[output_format](found), sys.stdout)
    codes = [each.exit_code for each in found]
    raise typer.Exit(2 if 2 in codes else max(codes, default=0))


def _settings(paths: Sequence[str], **options: object) -> Settings:
    from neuronmigrate import config
    from neuronmigrate.files import resolved

    codemods = options.get("codemods")
    if isinstance(codemods, Path):
        options["codemods"] = resolved([codemods])[0]
        # A mistake in them is better told now than once for each file.
        _load_codemods(codemods)
    if "-" in paths:
        if len(paths) > 1:
            raise UserError("-: stdin cannot be mixed with files")
        return config.load(Path.cwd().resolve(), options)
    return config.load(config.common_folder(resolved(paths)), options)


def _load_codemods(folder: Path | None) -> tuple[Codemod, ...]:
    from neuronmigrate import registry

    if folder is None:
        return registry.load()
    if not folder.is_dir():
        raise UserError(f"{folder}: is not a folder of codemods")
    try:
        return registry.load(folder.resolve())
    except Exception as error:
        # Whatever the user's own code raises as it is loaded.
        raise UserError(f"{folder}: cannot be loaded: {type(error).__name__}: {error}") from error


def _find(paths: Sequence[str], settings: Settings, jobs: int, quiet: bool) -> tuple[Report, Tree]:
    from neuronmigrate import files, run

    if list(paths) == ["-"]:
        found = run.run_bytes(sys.stdin.buffer.read(), settings, run.engine())
        tree = files.Tree(Path.cwd())
    else:
        tree = files.discover(paths, settings)
        progress = _Progress(quiet)
        try:
            found = run.run(tree, settings, run.engine(), jobs=jobs or _processors(), progress=progress)
        finally:
            progress.clear()
    if not quiet:
        for notice in found.notices:
            _say(notice)
    return found, tree


def _write(found: Report, tree: Tree, settings: Settings) -> tuple[Report, Unit | None]:
    from neuronmigrate import run

    try:
        return run.write(found, tree, settings)
    except KeyboardInterrupt:
        _complain("interrupted; each file is whole, and `neuronmigrate undo` takes back what was written")
        raise


def _exit_code(found: Report, *, found_matters: bool, strict: bool = False) -> int:
    """2 for an error, 1 for findings: all but notes, or with `strict` only what was marked."""
    from neuronmigrate.plan import State

    if any(problem.legacy for problem in found.problems):
        return 2
    counted = {State.MARKED} if strict else set(State) - {State.NOTE}
    return int(found_matters and any(finding.state in counted for finding in found.findings))


def _print_code(found: Report, *, piped: bool, diff: bool) -> None:
    from neuronmigrate.report import diff as patches
    from neuronmigrate.report import terminal

    if diff:
        lines = patches.patch(found.results)
        terminal.emit_bytes(patches.coloured(lines) if terminal.in_colour(sys.stdout) else lines, sys.stdout)
    elif piped:
        for result in found.results:
            terminal.emit_bytes([result.before if result.after is None else result.after], sys.stdout)


def _write_report(path: Path, document: bytes) -> None:
    from neuronmigrate.files import create

    try:
        if path.exists() and not path.is_file():
            # A device or a pipe, such as /dev/stderr, is written to and not replaced.
            path.write_bytes(document)
        else:
            create(path.resolve(), document)
    except OSError as error:
        raise UserError(f"{path}: the report cannot be written: {error.strerror}") from error


def _processors() -> int:
    import os

    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Progress:
    """A counter on the terminal, for runs that take longer than a moment."""

    def __init__(self, quiet: bool) -> None:
        self.begun = time.monotonic()
        self.shown = False
        self.silent = quiet or not sys.stderr.isatty()

    def __call__(self, done: int, total: int) -> None:
        if not self.silent and time.monotonic() - self.begun > 1:
            self.shown = True
            print(f"\r{done}/{total} files", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _say(message: str) -> None:
    from neuronmigrate.report import terminal

    terminal.emit([((message, ""),)], sys.stderr)


def _complain(message: str) -> None:
    from neuronmigrate.report import terminal

    terminal.emit([(("neuronmigrate: error: ", "bold red"), (message, ""))], sys.stderr)
