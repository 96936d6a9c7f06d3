"""From files to results, and from results back to files."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from neuronmigrate import files
from neuronmigrate.config import Settings, UserError, common_folder
from neuronmigrate.files import Source, Tree
from neuronmigrate.plan import Place, Problem, Report, Result, Trouble

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

    from neuronmigrate.journal import Journal, Unit
    from neuronmigrate.project import Project

POOL_FROM = 500_000
"""Bytes to rewrite, from which several processes are faster than one: each takes half a second to start."""
UNREAD_LIMIT = 5_000_000
"""Bytes up to which a file of a kind that is not read is searched for legacy names."""
_LEGACY_WORDS = re.compile(
    rb"torch[-_]xla|optimum[-.]neuron|optimum\[neuron|optimum-cli (?:export )?neuron|neuron_parallel_compile|"
    rb"\bxla_spawn\.py|"
    rb"transformers[-_]neuronx|neuronx[-_]distributed|neuronx-cc|\bXLA_USE_BF16|\bXLA_DOWNCAST_BF16|NEURON_CC_FLAGS"
)
LISTED = 20
"""Files that an error message names."""


class Facts(Protocol):
    """What this module needs to know of a project; it is pickled for the workers."""

    def notices(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Facts about the project that hold for these files, as sentences."""

    def concerns(self, path: str) -> bool:
        """Whether a file without a marker still has to be looked at."""


FactsT = TypeVar("FactsT", bound=Facts)


@dataclass(frozen=True)
class Engine(Generic[FactsT]):
    """The parts that decide. All three are functions of a module, so that workers find them."""

    has_marker: Callable[[bytes], bool]
    collect: Callable[[Path, Sequence[Path], Settings], FactsT]
    migrate: Callable[[str, bytes, FactsT, Settings], Result]


def engine() -> Engine[Project]:
    """The real parts. They are imported when they are needed: most runs end with the marker filter."""
    from neuronmigrate.markers import has_marker

    return Engine(has_marker, _collect, _migrate)


def _collect(root: Path, paths: Sequence[Path], settings: Settings) -> Project:
    from neuronmigrate.project import collect

    return collect(root, paths, settings)


def _migrate(path: str, raw: bytes, project: Project, settings: Settings) -> Result:
    from neuronmigrate.engine import migrate

    return migrate(path, raw, project, settings)


Progress = Callable[[int, int], None]
"""Told how many files are done, and of how many."""


# Deciding


def run(
    tree: Tree,
    settings: Settings,
    parts: Engine[FactsT],
    *,
    jobs: int = 1,
    progress: Progress = lambda done, total: None,
) -> Report:
    """What would become of each file of a tree. Nothing is written, and no file stops the others."""
    results = [_trouble(problem) for problem in tree.problems]
    results += [Result(finding.place.path, findings=(finding,)) for finding in tree.findings]
    work: dict[Source, bytes] = {}
    for source in tree.sources:
        raw = _read(source, results)
        if raw is not None and parts.has_marker(raw):
            work[source] = raw
    notices = tree.notices
    whole = tree
    if tree.sources and not tree.whole:
        whole = files.discover([tree.root], settings, root=tree.root)
    if work or _any_marker(whole, tree, parts):
        facts = parts.collect(tree.root, whole.telling, settings)
        for source in tree.sources:
            if source not in work and facts.concerns(source.name):
                raw = _read(source, results)
                if raw is not None:
                    work[source] = raw
        notices += facts.notices(source.name for source in work)
        results += _decide(work, facts, settings, parts, jobs, progress)
    results.sort(key=lambda result: result.path.split("/"))
    notices += _not_read_yet(tree)
    return Report(tuple(results), len(tree.sources), tuple(dict.fromkeys(notices)))


def run_bytes(raw: bytes, settings: Settings, parts: Engine[FactsT]) -> Report:
    """What would become of one text that is no file; it is called `-`."""
    if not parts.has_marker(raw):
        return Report((Result("-", raw),), 1)
    facts = parts.collect(Path.cwd(), [], settings)
    result = parts.migrate("-", raw, facts, settings)
    return Report((dataclasses.replace(result, before=raw),), 1, facts.notices(["-"]))


def _not_read_yet(tree: Tree) -> tuple[str, ...]:
    """Say which scripts, notebooks and requirement files hold legacy names: nothing is written in them yet.

    Of those that start scripts the lines are named that do not act natively.
    """
    found: list[str] = []
    lines: list[str] = []
    for path in tree.unread:
        try:
            raw = path.read_bytes() if path.is_file() and path.stat().st_size < UNREAD_LIMIT else b""
        except OSError:
            continue
        if _LEGACY_WORDS.search(raw):
            name = path.relative_to(tree.root).as_posix() if path.is_relative_to(tree.root) else str(path)
            found.append(name)
            from neuronmigrate.launches import legacy_lines

            lines += legacy_lines(name, raw)
    if not found:
        return ()
    shown = ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    count = "1 file holds" if len(found) == 1 else f"{len(found)} files hold"
    more = (f"{len(lines) - LISTED} more lines like these",) if len(lines) > LISTED else ()
    return (f"{count} legacy names, of kinds that are not read yet: {shown}", *lines[:LISTED], *more)


def _any_marker(whole: Tree, tree: Tree, parts: Engine[FactsT]) -> bool:
    """Whether another file of the project can give a meaning to one that has no marker of its own."""
    looked_at = set(tree.sources)
    unheard: list[Result] = []
    for source in whole.sources:
        if source not in looked_at:
            raw = _read(source, unheard)
            if raw is not None and parts.has_marker(raw):
                return True
    return False


def _read(source: Source, results: list[Result]) -> bytes | None:
    try:
        return files.read(source.location)
    except files.Unreadable as error:
        results.append(_trouble(Problem(Trouble.READ, Place(source.name, 1), str(error))))
        return None


def _trouble(problem: Problem) -> Result:
    return Result(problem.place.path, problems=(problem,))


def _decide(
    work: dict[Source, bytes],
    facts: FactsT,
    settings: Settings,
    parts: Engine[FactsT],
    jobs: int,
    progress: Progress,
) -> Iterator[Result]:
    if jobs > 1 and len(work) > 1 and sum(map(len, work.values())) >= POOL_FROM:
        yield from _in_processes(work, facts, settings, parts, min(jobs, len(work)), progress)
        return
    for done, (source, raw) in enumerate(work.items()):
        progress(done, len(work))
        yield parts.migrate(source.name, raw, facts, settings)
    progress(len(work), len(work))


def _in_processes(
    work: dict[Source, bytes],
    facts: FactsT,
    settings: Settings,
    parts: Engine[FactsT],
    jobs: int,
    progress: Progress,
) -> Iterator[Result]:
    """Share the work among processes. One that dies costs the file it was at, and nothing else."""
    # The largest first: a large one that comes last would leave the others idle.
    waiting = deque(sorted(work, key=lambda source: len(work[source]), reverse=True))
    suspects: deque[Source] = deque()
    while waiting or suspects:
        # After a death, those that were under way are tried one at a time, to find the culprit.
        queue, width = (suspects, 1) if suspects else (waiting, jobs)
        with _pool(width, facts, settings, parts) as pool:
            if pool is None:
                for source in (*suspects, *waiting):
                    yield parts.migrate(source.name, work[source], facts, settings)
                return
            running: dict[Future[Result], Source] = {}
            for result in _drain(pool, queue, width, running):
                yield result
                progress(len(work) - len(waiting) - len(suspects) - len(running), len(work))
            if not running:
                continue
            lost = list(running.values())
            if width == 1 and len(lost) == 1:
                place = Place(lost[0].name, 1)
                message = "internal error: the process that worked on this file died"
                yield Result(place.path, problems=(Problem(Trouble.INTERNAL, place, message),))
            else:
                suspects.extend(lost)


def _drain(
    pool: ProcessPoolExecutor,
    queue: deque[Source],
    width: int,
    running: dict[Future[Result], Source],
) -> Iterator[Result]:
    """Work until the queue is empty, or until a process dies; `running` is what is lost then.

    A worker reads its file itself. While Python 3.10 sends more than a pipe holds, it does not see
    that the receiver has died, and waits for ever.
    """
    from concurrent.futures import FIRST_COMPLETED, wait
    from concurrent.futures.process import BrokenProcessPool

    ahead = 1 if width == 1 else width + 1
    while queue or running:
        try:
            while queue and len(running) < ahead:
                source = queue[0]
                running[pool.submit(_work, source)] = source
                queue.popleft()
        except BrokenProcessPool:
            pass  # seen again below, in the futures
        if not running:
            return
        finished, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in finished:
            try:
                result = future.result()
            except BrokenProcessPool:
                continue
            except Exception as error:
                # What a worker answered could not be sent.
                place = Place(running[future].name, 1)
                message = f"internal error: {type(error).__name__}: {error}"
                result = Result(place.path, problems=(Problem(Trouble.INTERNAL, place, message),))
            del running[future]
            yield result
        if any(future in running for future in finished):
            return


@contextmanager
def _pool(
    jobs: int, facts: FactsT, settings: Settings, parts: Engine[FactsT]
) -> Iterator[ProcessPoolExecutor | None]:
    """Processes at work, or None where no process can be started."""
    import multiprocessing
    import tempfile
    from concurrent.futures import ProcessPoolExecutor

    # A new interpreter looks for its first imports in the current folder, which is the scanned project's.
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        try:
            try:
                pool = ProcessPoolExecutor(
                    jobs,
                    mp_context=multiprocessing.get_context("spawn"),
                    initializer=_begin_work,
                    initargs=(parts.migrate, facts, settings),
                )
            except (ImportError, NotImplementedError, OSError):
                # No semaphores: a Python built without them cannot import `multiprocessing.synchronize`, the
                # pool raises NotImplementedError where the system allows too few, and a sandbox without
                # shared memory answers with an OSError. The files are then done one by one.
                yield None
                return
            try:
                yield pool if _alive(pool) else None
            finally:
                # Nobody waits for what is under way, least of all after Ctrl-C. And where one has died,
                # another that was just starting is not told by the pool, which then waits for it forever.
                pool.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.kill()
                pool.shutdown()
        finally:
            os.chdir(here)


def _alive(pool: ProcessPoolExecutor) -> bool:
    """Whether a process starts at all; a script without a main guard, for one, cannot be imported again."""
    from concurrent.futures.process import BrokenProcessPool

    try:
        pool.submit(os.getpid).result()
    except BrokenProcessPool:
        return False
    return True


_worker: Callable[[Source], Result]


def _begin_work(
    migrate: Callable[[str, bytes, FactsT, Settings], Result], facts: FactsT, settings: Settings
) -> None:
    import signal

    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def worker(source: Source) -> Result:
        troubles: list[Result] = []
        raw = _read(source, troubles)
        return troubles[0] if raw is None else migrate(source.name, raw, facts, settings)

    _worker = worker


def _work(source: Source) -> Result:
    return _worker(source)


# Writing


def write(report: Report, tree: Tree, settings: Settings) -> tuple[Report, Unit | None]:
    """Put the results in the place of the files, as one unit of the journal.

    A file that cannot be written is a problem of the returned report and stops no other. Raises
    UserError, before anything is written, when git could not bring a file back or no journal is kept.
    """
    from neuronmigrate.journal import Change, State, journal_of

    changed = [result for result in report.results if result.changed]
    if not changed:
        return report, None
    journal = journal_of(tree.root)
    failed: dict[str, Problem] = {}
    with journal.locked():
        if not settings.allow_dirty:
            refuse_unsafe(changed, tree.root, journal)
        unit = journal.begin([Change(one.path, one.before, one.after or b"") for one in changed])
        for entry, result in zip(unit.entries, changed, strict=True):
            try:
                path = tree.root / result.path
                files.replace(path, result.before, result.after or b"", temporary=entry.temporary)
            except files.Unwritable as error:
                failed[result.path] = Problem(Trouble.WRITE, Place(result.path, 1), str(error))
        unit.save(State.DONE)
    return _with_problems(report, failed), unit


def _with_problems(report: Report, failed: dict[str, Problem]) -> Report:
    results = tuple(
        dataclasses.replace(result, after=None, problems=(*result.problems, failed[result.path]))
        if result.path in failed and result.changed
        else result
        for result in report.results
    )
    return dataclasses.replace(report, results=results)


def refuse_unsafe(changed: Sequence[Result], root: Path, journal: Journal) -> None:
    """Raise UserError if git could not bring back a file that is about to be changed.

    Content that is our own last result is no loss: undo has what was there before. Without a repository
    there is nothing to ask, and the journal alone has to do.
    """
    from neuronmigrate.git import GitError, Repository, Unsafe, repository_of
    from neuronmigrate.journal import fingerprint

    answers: dict[Repository, Unsafe] = {}
    ours: dict[str, str] | None = None
    refused = []
    for result in changed:
        path = root / result.path
        repository = repository_of(path.parent)
        if repository is None:
            continue
        if repository not in answers:
            try:
                answers[repository] = repository.unsafe()
            except GitError as error:
                raise UserError(f"nothing was written: {error}\n--allow-dirty goes on without git") from error
        reason = answers[repository].reason(path.relative_to(repository.root).as_posix())
        if reason:
            ours = journal.results() if ours is None else ours
            if ours.get(result.path) != fingerprint(result.before):
                refused.append(f"  {reason:<9}  {result.path}")
    if refused:
        more = [f"  and {len(refused) - LISTED} more"] if len(refused) > LISTED else []
        raise UserError(
            "nothing was written: git could not bring these files back\n"
            + "\n".join(refused[:LISTED] + more)
            + "\ncommit them first, or give --allow-dirty (`neuronmigrate undo` works in either case)"
        )


def copy(report: Report, tree: Tree, paths: Sequence[str], target: Path) -> Report:
    """Write the given paths, migrated, into a new folder; the files themselves stay as they are.

    Raises UserError when the folder holds something already.
    """
    real = [Path(path).resolve() for path in paths]
    base = common_folder(real)
    after = {tree.root / result.path: result.after for result in report.results if result.changed}
    # Listed before the first file is written: the new folder may lie inside the old one.
    found = list(files.everything(real, base))
    failed: dict[str, Problem] = {}
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UserError(f"{target}: is not empty; --output writes into a new folder")
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{target}: cannot be written: {error.strerror}") from error
    for name, path in found:
        try:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            _copy_one(path, target / name, base, after.get(path))
        except OSError as error:
            message = f"cannot be copied: {error.strerror or error}"
            shown = os.path.relpath(path, tree.root).replace(os.sep, "/")
            failed[shown] = Problem(Trouble.WRITE, Place(shown, 1), message)
    known = {result.path for result in report.results if result.changed}
    results = report.results + tuple(
        _trouble(problem) for name, problem in failed.items() if name not in known
    )
    return _with_problems(dataclasses.replace(report, results=results), failed)


def _copy_one(path: Path, target: Path, base: Path, after: bytes | None) -> None:
    mode = os.lstat(path).st_mode
    if stat.S_ISLNK(mode):
        link = os.readlink(path)
        if os.path.isabs(link) and base in Path(link).parents:
            # It has to lead into the copy, not back into the original.
            link = os.path.relpath(link, path.parent)
        os.symlink(link, target)
    elif after is not None:
        files.create(target, after, stat.S_IMODE(mode))
    elif stat.S_ISREG(mode):
        shutil.copyfile(path, target)
        shutil.copymode(path, target)
