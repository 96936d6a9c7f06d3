"""What only the whole tree can tell, collected before any file is decided.

Files with a legacy marker say what they hand on: names that stand for legacy ones, what functions
return, what calls pass. Files that import from those join, until none is added. The answers are plain
data, so that workers can be given them. Nothing of the project is imported or executed.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from neuronmigrate import artefacts, launches, versions
from neuronmigrate.artefacts import Artefact
from neuronmigrate.config import Settings, UserError
from neuronmigrate.launches import Launch
from neuronmigrate.markers import has_marker
from neuronmigrate.versions import LegacyVersion

if TYPE_CHECKING:
    import libcst as cst

    from neuronmigrate.facts import ModuleFacts, Outside, ProjectFacts
    from neuronmigrate.names import Names
    from neuronmigrate.positions import Positions

_IMPORTS = re.compile(rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+import\b|import[ \t]+([\w., \t]+))", re.MULTILINE)
_OPTIMUM = re.compile(rb"\boptimum\.(?:exporters\.)?neuron\b")
_ATTRIBUTE = re.compile(rb"\.[ \t]*(\w+)")
_LARGEST = 5_000_000
"""Bytes up to which a file that is no source is searched for export commands."""
_ROUNDS = 4
"""How often facts are collected anew with what the others said; a longer chain of modules is lost."""


@dataclass(frozen=True)
class Project:
    """The facts of one project. Paths are posix paths relative to its root."""

    optimum: frozenset[str] = frozenset()
    """Files that use Optimum Neuron."""
    requirements: tuple[versions.Requirement, ...] = ()
    """What its files ask for."""
    given: str = ""
    """The release of optimum-neuron that a person said the code was written for."""
    chip: str = ""
    """`neuron` or `tpu`, for files that say nothing themselves; empty when no file says anything."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The name under which each file is imported."""
    roots: Mapping[str, str] = field(default_factory=dict)
    """The folder from which each file is imported."""
    joined: frozenset[str] = frozenset()
    """Files without a marker to which something legacy reaches."""
    taken: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """For files with a marker: the names that other files may take from them; `*` for all."""
    modules: tuple[tuple[str, ModuleFacts], ...] = ()
    """The facts of each module, with the folder from which it is imported."""
    artefacts: tuple[Artefact, ...] = ()
    """The compiled models that its files make or describe."""
    traces: tuple[Artefact, ...] = ()
    """The files that its scripts save traced models as."""
    constants: Mapping[str, str] = field(default_factory=dict)
    """Paths and names at the top of modules, where some script saves traced models."""
    launches: tuple[Launch, ...] = ()
    """The lines that start its scripts."""
    loads: Mapping[str, Artefact] = field(default_factory=dict)
    """What the loads are told whose models other files may use, by `path:line`."""

    @classmethod
    def empty(cls) -> Project:
        """A project of which nothing is known."""
        return cls()

    def notices(self, paths: Iterable[str]) -> tuple[str, ...]:
        """The legacy release that each of these files is taken to be written for, said once."""
        told = [self.legacy_of(path).notice for path in paths if path in self.optimum]
        return tuple(dict.fromkeys(told))

    def concerns(self, path: str) -> bool:
        """Whether a file without a marker still has to be looked at."""
        return path in self.joined

    def told(self, facts: Mapping[str, ModuleFacts]) -> Project:
        """The project with what these files say."""
        modules = tuple((self.roots[name], each) for name, each in facts.items())
        return dataclasses.replace(self, modules=modules)

    def legacy_of(self, path: str) -> LegacyVersion:
        """The release of optimum-neuron that a file was written for."""
        return versions.legacy_version(versions.near(self.requirements, path), self.given)

    def launches_of(self, path: str) -> tuple[Launch, ...]:
        """The lines that start a script."""
        name = PurePosixPath(path).name
        return tuple(each for each in self.launches if each.script == name)

    def compiled(self, folder: str, path: str) -> tuple[Artefact, ...]:
        """What is said about the compiled files in a folder or repository that a file loads.

        Where several projects share a tree, those that stand nearest to the file speak.
        """
        return _nearest(self.artefacts, folder, path)

    def traces_beside(self, path: str) -> tuple[Artefact, ...]:
        """The traced models that scripts in the folder of a file save."""
        folder = PurePosixPath(path).parent
        return tuple(each for each in self.traces if PurePosixPath(each.place).parent == folder)

    def builds(self, name: str) -> bool:
        """Whether a module of the project has this name: a script builds what it traces with it."""
        root = name.partition(".")[0]
        word = re.compile(rf"(?<![\w.'\"]){re.escape(name)}(?![\w.'\"])")
        return any(word.search(each.checkpoint) for each in self.traces) and any(
            each.partition(".")[0] == root for each in self.names.values()
        )

    def traces_at(self, file: str, path: str) -> tuple[Artefact, ...]:
        """What is said about the file of a traced model that a file of the project loads.

        What is not known of either path stands as `*`.
        """
        return _nearest(self.traces, file, path, artefacts.alike)

    def module_name(self, path: str) -> str:
        """The absolute name under which a file is imported."""
        return self.names.get(path) or PurePosixPath(path).stem

    def facts_of(self, path: str) -> ProjectFacts:
        """What the other modules say, as seen from a file.

        Two folders that each hold a `model.py` are kept apart: a file means the one it stands with.
        """
        root = self.roots.get(path, "")
        if root not in self._facts:
            self._facts[root] = self._seen_from(root)
        return self._facts[root]

    def leads_to_legacy(self, target: str, path: str) -> bool:
        """Whether a name imported from another module of the project may stand for a legacy one."""
        return target in self.leading(path)

    def leading(self, path: str) -> frozenset[str]:
        """The names of the project behind which something legacy may stand, as seen from a file."""
        root = self.roots.get(path, "")
        if root not in self._leading:
            self._leading[root] = _leading(self.facts_of(path))
        return self._leading[root]

    def imported_elsewhere(self, path: str, name: str) -> bool:
        """Whether another module of the project may take a name from this one."""
        taken = self.taken.get(path, frozenset())
        return name in taken or "*" in taken

    @cached_property
    def _facts(self) -> dict[str, ProjectFacts]:
        return {}

    @cached_property
    def _leading(self) -> dict[str, frozenset[str]]:
        return {}

    def _seen_from(self, root: str) -> ProjectFacts:
        from neuronmigrate.facts import ProjectFacts

        own = {facts.module: facts for home, facts in self.modules if home == root}
        foreign: dict[str, list[ModuleFacts]] = {}
        for home, facts in self.modules:
            if home != root and facts.module not in own:
                foreign.setdefault(facts.module, []).append(facts)
        alone = [found[0] for found in foreign.values() if len(found) == 1]
        return ProjectFacts([*own.values(), *alone])

    def __getstate__(self) -> dict[str, object]:
        # What is worked out from the rest is not sent to the workers.
        return {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}

    def __setstate__(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)


def collect(root: Path, paths: Sequence[Path], settings: Settings) -> Project:
    """Read the whole project: its sources, and what else may say something about it.

    A file that cannot be read says nothing; whoever rewrites it reports it.

    Raises UserError when `settings.from_version` is not a release.
    """
    try:
        versions.legacy_version((), settings.from_version)
    except ValueError as error:
        raise UserError(str(error)) from None
    found: list[versions.Requirement] = []
    sources: dict[str, bytes] = {}
    code = [path for path in paths if path.suffix in (".py", ".pyi")]
    for path in [*code, *_requirement_files(root, code)]:
        name = _relative(root, path)
        raw = _read(path)
        if raw is None or name in sources:
            continue
        if name.endswith((".py", ".pyi")):
            sources[name] = raw
        if versions.reads(name):
            found += versions.requirements(name, raw)
    marked = {name for name, raw in sources.items() if has_marker(raw)}
    chip = versions.chip_of_project(versions.chip_of(sources[name], name) for name in sorted(marked))
    names, roots = _module_names(sources)
    optimum = frozenset(name for name in marked if _OPTIMUM.search(sources[name]))
    project = Project(optimum, tuple(found), settings.from_version, chip, names, roots)
    imports = _Imports.of(project, sources)
    joined, modules = _facts(project, sources, marked, imports)
    taken = {name: _taken(project.names[name], name, imports, sources) for name in marked | joined}
    made = _artefacts(root, sources, optimum, paths) if optimum else ()
    started = _launches(root, paths) if optimum else ()
    tracers = sorted(name for name in marked if artefacts.may_trace(sources[name]))
    constants = _constants(names, imports, sources) if tracers else {}
    # What builds a model for `torch.jit` says so: natively it is built without.
    joined |= {
        home
        for name in tracers
        for home in imports.homes.get(name, ())
        if b"torchscript" in sources[home] and home.endswith(".py")
    }
    modules_of_own = frozenset(names.values())
    traces = tuple(
        made
        for name in tracers
        for made in artefacts.from_traces(name, sources[name], constants, names[name], modules_of_own)
    )
    shared = sorted(optimum & imports.importers.keys())
    loads = {load.place: load for name in shared for load in artefacts.loads_of(name, sources[name])}
    return dataclasses.replace(
        project,
        joined=joined - marked,
        taken=taken,
        modules=modules,
        artefacts=made,
        launches=started,
        traces=traces,
        constants=constants if traces else {},
        loads=loads,
    )


def _artefacts(
    root: Path, sources: Mapping[str, bytes], optimum: Iterable[str], paths: Sequence[Path]
) -> tuple[Artefact, ...]:
    """The compiled models that scripts and commands make, and those that stand in the tree."""
    found: list[Artefact] = []
    for name in sorted(optimum):
        found += artefacts.from_script(name, sources[name])
        found += artefacts.from_configurations(root, name, sources[name])
    for path in paths:
        name = _relative(root, path)
        raw = sources[name] if name in sources else _read(path, _LARGEST)
        found += artefacts.from_commands(name, raw or b"")
    return tuple(dict.fromkeys(found))


def _nearest(
    found: Iterable[Artefact],
    folder: str,
    path: str,
    fits: Callable[[str, str], bool] = artefacts.same,
) -> tuple[Artefact, ...]:
    """Those about a folder or file that stand nearest to the file that loads it."""
    said = [each for each in found if fits(each.folder, folder)]
    # What is known to be the same speaks before what may be.
    said = [each for each in said if artefacts.same(each.folder, folder)] or said
    here = PurePosixPath(path).parent.parts
    near = {each: _shared(here, PurePosixPath(each.place).parent.parts) for each in said}
    return tuple(each for each in said if near[each] == max(near.values()))


def _launches(root: Path, paths: Sequence[Path]) -> tuple[Launch, ...]:
    """The lines that start scripts, in whatever file of the tree."""
    found: list[Launch] = []
    for path in paths:
        if launches.reads(path.name):
            found += launches.from_text(_relative(root, path), _read(path, _LARGEST) or b"")
    return tuple(found)


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """How many folders two paths share."""
    return next(
        (depth for depth, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def _requirement_files(root: Path, paths: Sequence[Path]) -> list[Path]:
    """Files beside and above the sources that may say which releases are used."""
    folders = {root}
    for path in paths:
        for folder in path.parents:
            if folder in folders or not folder.is_relative_to(root):
                break
            folders.add(folder)
    folders |= {folder / name for folder in list(folders) for name in ("requirements", "docker")}
    found: list[Path] = []
    for folder in sorted(folders):
        try:
            found += sorted(each for each in folder.iterdir() if versions.reads(each.name) and each.is_file())
        except OSError:
            continue
    return found


def _relative(root: Path, path: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return path.as_posix()


def _read(path: Path, largest: int = 0) -> bytes | None:
    try:
        if not path.is_file() or (largest and path.stat().st_size > largest):
            return None
        return path.read_bytes()
    except OSError:
        return None


# Module names.


def _module_names(sources: Mapping[str, bytes]) -> tuple[dict[str, str], dict[str, str]]:
    """The name under which each file is imported, and the folder it is imported from."""
    packages = {str(PurePosixPath(name).parent) for name in sources if name.endswith("__init__.py")}
    asked: set[str] = set()
    for raw in sources.values():
        for match in _IMPORTS.finditer(raw):
            for part in (match[1] or match[2] or b"").split(b","):
                words = part.split()
                if words:
                    asked.add(words[0].decode("utf-8", "replace"))
    names: dict[str, str] = {}
    roots: dict[str, str] = {}
    dotted_asked = {each for each in asked if "." in each}
    for name in sources:
        path = PurePosixPath(name)
        folder = path.parent
        while str(folder) in packages and str(folder) != ".":
            folder = folder.parent
        # Folders without an `__init__.py` are packages too when somebody imports through them.
        for outer in [*reversed(folder.parents), folder]:
            if not dotted_asked.isdisjoint(accumulate(_dotted(path, outer).split("."), "{}.{}".format)):
                folder = outer
                break
        names[name], roots[name] = _dotted(path, folder), str(folder)
    return names, roots


def _dotted(path: PurePosixPath, folder: PurePosixPath) -> str:
    parts = list(path.relative_to(folder).with_suffix("").parts)
    if parts and parts[-1] == "__init__":
        del parts[-1]
    return ".".join(parts)


# Facts.


@dataclass(frozen=True)
class _Imports:
    """Which file imports from which."""

    asked: Mapping[str, set[str]]
    """The modules, and the names of modules, that a file asks for."""
    homes: Mapping[str, set[str]]
    """The files of the project that a file imports from."""
    importers: Mapping[str, set[str]]

    @classmethod
    def of(cls, project: Project, sources: Mapping[str, bytes]) -> _Imports:
        asked = {name: _asked(raw, project.names[name], name) for name, raw in sources.items()}
        near = {(project.roots[name], project.names[name]): name for name in sources}
        anywhere: dict[str, list[str]] = {}
        for name in sources:
            anywhere.setdefault(project.names[name], []).append(name)
        homes: dict[str, set[str]] = {}
        importers: dict[str, set[str]] = {}
        for name, modules in asked.items():
            for module in modules:
                far = anywhere.get(module, ())
                home = near.get((project.roots[name], module)) or (far[0] if len(far) == 1 else name)
                if home != name:
                    homes.setdefault(name, set()).add(home)
                    importers.setdefault(home, set()).add(name)
        return cls(asked, homes, importers)


def _constants(names: Mapping[str, str], imports: _Imports, sources: Mapping[str, bytes]) -> dict[str, str]:
    """Paths and names at the top of modules that others import; none on which two modules disagree."""
    found: dict[str, set[str]] = {}
    for name in imports.importers:
        if not name.endswith(".pyi"):
            for qualified, text in artefacts.constants_of(names[name], sources[name]).items():
                found.setdefault(qualified, set()).add(text)
    return {qualified: texts.pop() for qualified, texts in found.items() if len(texts) == 1}


def _taken(module: str, name: str, imports: _Imports, sources: Mapping[str, bytes]) -> frozenset[str]:
    """The names that other files may take from a module."""
    found: set[str] = set()
    for importer in imports.importers.get(name, ()):
        asked = imports.asked[importer]
        below = {each[len(module) + 1 :] for each in asked if each.startswith(module + ".")}
        found |= {each.partition(".")[0] for each in below}
        if module in asked and not below:
            # Imported whole: any attribute that is read there may be one of it.
            found |= {each.decode("utf-8", "replace") for each in _ATTRIBUTE.findall(sources[importer])}
    return frozenset(found)


def _facts(
    project: Project, sources: Mapping[str, bytes], marked: set[str], imports: _Imports
) -> tuple[frozenset[str], tuple[tuple[str, ModuleFacts], ...]]:
    """The files that concern us and what each module says, until nothing is added.

    It begins with the files that import a legacy package. Those join that import a legacy thing from one
    that is in, and those to which one passes a legacy value.
    """
    from neuronmigrate import catalogue

    seeds = {name for name in marked if any(map(catalogue.touches_legacy, imports.asked[name]))}
    concerned = {name for name in seeds if name in imports.importers or name in imports.homes}
    if not concerned:
        return frozenset(marked), ()
    trees: dict[str, cst.Module] = {}
    whole: dict[str, ModuleFacts] = {}
    while True:
        for name in sorted(concerned - trees.keys()):
            tree = _parsed(sources[name])
            if tree is not None:
                trees[name] = tree
        whole = _settled(project, trees, whole)
        told = project.told(whole)
        more = _importers_of_legacy(told, whole, imports) | _given_legacy(told, whole, imports)
        if more <= concerned:
            return frozenset(marked | concerned), told.modules
        concerned |= more


def _importers_of_legacy(project: Project, told: Mapping[str, ModuleFacts], imports: _Imports) -> set[str]:
    """The files that import a legacy thing, or the whole module that has it, from one of these."""
    found = set()
    for name, facts in told.items():
        telling = {each for each in project.leading(name) if each.startswith(facts.module + ".")}
        if telling:
            ways = telling | {facts.module, f"{facts.module}.*"}
            whole = {facts.module, f"{facts.module}.*"}
            for importer in imports.importers.get(name, ()):
                asked = imports.asked[importer]
                by_name = any(each.startswith(facts.module + ".") for each in asked)
                if asked & telling or (asked & ways and not by_name) or f"{facts.module}.*" in asked & whole:
                    found.add(importer)
    return found


def _given_legacy(project: Project, told: Mapping[str, ModuleFacts], imports: _Imports) -> set[str]:
    """The files that define a function to which one of these passes a legacy value."""
    found = set()
    for name, facts in told.items():
        for call in facts.calls:
            if any(_is_legacy(value) for _, value in call.args):
                found |= {
                    home
                    for home in imports.homes.get(name, ())
                    if call.callee.startswith(project.names[home] + ".")
                }
    return found


def _asked(raw: bytes, module: str, name: str) -> set[str]:
    """The absolute modules that a file may import, `from a import b` as `a` and as `a.b`."""
    package = module if name.endswith("__init__.py") else module.rpartition(".")[0]
    found: set[str] = set()
    for match in _IMPORTS.finditer(raw):
        if match[1] is None:
            found |= {part.split()[0].decode() for part in match[2].split(b",") if part.split()}
            continue
        source = match[1].decode()
        dots = len(source) - len(source.lstrip("."))
        if dots:
            base = package.split(".")[: len(package.split(".")) - dots + 1]
            source = ".".join([*base, *filter(None, [source[dots:]])])
        found.add(source)
        rest = raw[match.end() :]
        end = rest.find(b")") if rest.lstrip(b" \t")[:1] == b"(" else rest.find(b"\n")
        names = re.findall(rb"[\w*]+", rest[: end if end >= 0 else len(rest)])
        found |= {f"{source}.{each.decode('utf-8', 'replace')}" for each in names}
    return found


def _settled(
    project: Project, trees: Mapping[str, cst.Module], before: Mapping[str, ModuleFacts]
) -> dict[str, ModuleFacts]:
    """What each module says, once it has heard what the others say."""
    from neuronmigrate.flow import Flow, module_facts
    from neuronmigrate.names import Names

    told = dict(before)
    written: dict[str, Positions] = {}
    for _ in range(_ROUNDS):
        known = project.told(told)
        last = dict(told)
        for name, tree in trees.items():
            facts = known.facts_of(name)
            if name in told and not _hears(told[name], facts):
                continue
            try:
                names = Names(
                    tree,
                    module_name=project.names[name],
                    is_package=name.endswith("__init__.py"),
                    exports=facts.exports,
                )
                told[name] = module_facts(names, Flow(names, facts), place=_placer(name, names, written))
            except Exception:
                # It says nothing then; whoever rewrites the file meets the fault again and reports it.
                if os.environ.get("NEURONMIGRATE_DEBUG"):
                    raise
        if told == last:
            break
    return told


def _hears(own: ModuleFacts, facts: ProjectFacts) -> bool:
    """Whether a module reads anything of the others, so that what they say matters to it."""
    return any(facts.knows(name) for name in own.reads) or any(
        call.callee.startswith(own.module + ".") for other in facts.modules.values() for call in other.calls
    )


def _leading(facts: ProjectFacts) -> frozenset[str]:
    """The names of the project behind which something legacy may stand."""
    from neuronmigrate import catalogue

    leading: set[str] = set()

    def add(module: str, name: str) -> None:
        leading.add(f"{module}.{name}")
        parts = module.split(".")
        leading.update(".".join(parts[:length]) for length in range(1, len(parts) + 1))

    for module in facts.modules.values():
        for name, resolved in module.exports.items():
            if any(catalogue.touches_legacy(each) for each in resolved.names):
                add(module.module, name)
        for table in (module.values, module.returns):
            for name, value in table.items():
                if _is_legacy(value):
                    add(module.module, name.partition(".")[0])
        for name, owner in module.classes.items():
            held = any(_is_legacy(value) for value in owner.attributes.values())
            if held or any(catalogue.is_legacy(base) for base in owner.bases):
                add(module.module, name)
    return frozenset(leading)


def _is_legacy(value: Outside) -> bool:
    from neuronmigrate import catalogue

    return any(catalogue.is_legacy(each.name.partition("(")[0]) for each in value.producers) or any(
        _is_legacy(part) for _, part in value.parts
    )


def _parsed(raw: bytes) -> cst.Module | None:
    import libcst as cst

    from neuronmigrate.parsing import parse

    try:
        return parse(raw)
    except (cst.ParserSyntaxError, SyntaxError, LookupError, ValueError, RecursionError):
        return None


def _placer(name: str, names: Names, written: dict[str, Positions]) -> Callable[[cst.CSTNode], str]:
    """Says where a node stands: with its line if a legacy name is called there, else by its file alone."""
    import libcst as cst

    from neuronmigrate import catalogue
    from neuronmigrate.positions import Positions

    def place(node: cst.CSTNode) -> str:
        called = names.names_of(node.func).names if isinstance(node, cst.Call) else ()
        if not any(map(catalogue.is_legacy, called)):
            return name
        if name not in written:
            written[name] = Positions(names.module)
        return f"{name}:{written[name].span(node).line}"

    return place
