"""Decide, then apply: from the bytes of one file to its result.

Every codemod reads the original tree and answers with findings and groups of edits. Then the groups
that hold are applied in one pass, the imports are settled, and the result is proven before anybody
may write it. A group that cannot be applied whole, or whose result fails a proof, becomes marks.
"""

from __future__ import annotations

import ast
import dataclasses
import os
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from neuronmigrate import apply, catalogue, directives, edits, folding, layout, proof, registry, versions
from neuronmigrate.apply import Comment
from neuronmigrate.codemod import Codemod
from neuronmigrate.config import Settings
from neuronmigrate.edits import Edit, Statement
from neuronmigrate.flow import Flow
from neuronmigrate.imports import Settler, imported_name
from neuronmigrate.lossless import Restorer
from neuronmigrate.markers import has_marker as has_marker
from neuronmigrate.names import Binding, Kind, Names, dotted_name
from neuronmigrate.parsing import parse
from neuronmigrate.plan import Finding, GroupRecord, Numerics, Place, Problem, Result, State, Trouble
from neuronmigrate.positions import Positions
from neuronmigrate.project import Project
from neuronmigrate.rows import decide_row
from neuronmigrate.site import Answer, Group, Site, Use

LEGACY_IMPORT = "legacy-import"
"""Name under which the engine reports what became of an import."""

_FAULT = "its result failed a check of neuronmigrate, which is a fault of the tool"


def migrate(path: str, raw: bytes, project: Project, settings: Settings) -> Result:
    """What becomes of one file. Raises nothing: what goes wrong is a problem of the result."""
    if not has_marker(raw) and not project.concerns(path):
        return Result(path)
    try:
        return _File(path, raw, project, settings).result()
    except _Unreadable as error:
        problem = Problem(Trouble.PARSE, Place(path, error.line, error.column), error.message)
        return Result(path, raw, problems=(problem,))
    except RecursionError:
        if os.environ.get("NEURONMIGRATE_DEBUG"):
            raise
        problem = Problem(Trouble.PARSE, Place(path, 1), "the code is nested too deeply to be read")
        return Result(path, raw, problems=(problem,))
    except Exception as error:
        if os.environ.get("NEURONMIGRATE_DEBUG"):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({where.filename.rpartition('/')[2]}:{where.lineno})"
        problem = Problem(Trouble.INTERNAL, Place(path, 1), f"internal error: {text}")
        return Result(path, raw, problems=(problem,))


class _Unreadable(Exception):
    """The file is not Python that can be parsed."""

    def __init__(self, message: str, line: int, column: int = 1) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column


@dataclass
class _Built:
    """One way of applying groups: the bytes that come of it and what they hold."""

    after: bytes
    answers: list[Answer] = field(default_factory=list)
    emitted: tuple[str, ...] = ()
    removed: frozenset[cst.CSTNode] = frozenset()
    touched: tuple[cst.CSTNode, ...] = ()
    instead: dict[str, set[str]] = field(default_factory=dict)


class _File:
    """One file on its way through the engine."""

    def __init__(self, path: str, raw: bytes, project: Project, settings: Settings) -> None:
        self.path = path
        self.raw = raw
        self.project = project
        self.settings = settings
        self.module = _parse(raw)
        self.names = Names(
            self.module,
            module_name=project.module_name(path),
            is_package=path.endswith("__init__.py"),
            exports=project.facts_of(path).exports,
        )
        self.positions = Positions(self.module)
        self.restorer = Restorer(raw, self.module, self.positions.code)
        self.ignores = directives.ignores(self.positions.code)
        self._start()

    def _start(self) -> None:
        """Look at the file with nothing decided yet."""
        flow = Flow(self.names, self.project.facts_of(self.path))
        self.site = Site(
            self.path, self.module, self.names, flow, self.positions, self.project, self.settings
        )

    def result(self, *, second: bool = False) -> Result:
        """Decide, apply and prove."""
        whole = next((ignore for ignore in self.ignores if ignore.whole_file and not ignore.names), None)
        if whole is not None:
            return Result(self.path, self.raw)
        signs = () if self.settings.tpu else self._tpu_signs()
        if signs:
            return self._left_alone(signs)
        folded = self._decide()
        self._refuse_conflicts()
        built, problems = self._proven(second=second)
        if folded is not None and folded.refused:
            # Without it nothing goes, and whatever would have gone needs an answer of its own.
            fault = [each for each in problems if folded.refused == _FAULT]
            self._start()
            self._decide(fold=False)
            self._refuse_conflicts()
            built, problems = self._proven(second=second)
            problems = [*fault, *problems]
        findings = self._findings(built)
        groups = tuple(self._record(group) for group in self.site.groups)
        after = None if built.after == self.raw else built.after
        return Result(self.path, self.raw, after, tuple(findings), groups, tuple(problems))

    def _proven(self, *, second: bool) -> tuple[_Built, list[Problem]]:
        """The result of what was decided, without the groups that break a proof."""
        built = self._build()
        faults = self._faults(built, second_run=not second)
        return self._without_culprits(faults, second_run=not second) if faults else (built, [])

    def _tpu_signs(self) -> tuple[str, ...]:
        """Why this is code for a TPU; empty when it is not, or uses nothing of torch_xla."""
        if not any(imported_name(each).partition(".")[0] == "torch_xla" for each in self.names.imports):
            return ()
        chip = versions.chip_of(self.raw, self.path)
        if chip == "neuron" or (not chip and self.project.chip != "tpu"):
            return ()
        return versions.tpu_signs(self.raw, self.path) or ("what the other files of the project say",)

    def _left_alone(self, signs: tuple[str, ...]) -> Result:
        alias = next(
            each.node for each in self.names.imports if imported_name(each).partition(".")[0] == "torch_xla"
        )
        why = f"this is code for a TPU, by {', '.join(signs[:3])}; it is left alone unless --tpu is given"
        finding = Finding("tpu", State.NOTE, self._place(alias), "torch_xla", why)
        return Result(self.path, self.raw, findings=(finding,))

    # Decide

    def _decide(self, *, fold: bool = True) -> Group | None:
        """Let every codemod answer. Answers with the group of what is folded, if anything is."""
        site = self.site
        codemods = registry.load(self.settings.codemods)
        owners = {name: codemod for codemod in codemods for name in codemod.claimed}
        site.uses = tuple(self._uses(owners))
        folded = None
        if fold:
            for codemod in codemods:
                site.codemod = codemod.name
                folding.know_rows(site, codemod.symbols)
                for know in codemod.known_handlers:
                    know(site)
            folded = folding.fold(site)
            if site.gone:
                self._look_again(owners)
        by_codemod: dict[str, list[Use]] = {}
        for use in site.uses:
            if not use.stored and use.claim in owners:
                by_codemod.setdefault(owners[use.claim].name, []).append(use)
        answered: set[Use] = set()
        for codemod in codemods:
            site.codemod = codemod.name
            for use in by_codemod.get(codemod.name, ()):
                if use in site.settled or self._is_alias(use, codemod):
                    continue
                before = site.count
                if use.ambiguous:
                    site.mark(
                        use.whole,
                        use.name,
                        f"`{use.binding.name}` stands for {use.ambiguous} here",
                        "keep the branch for the native device and drop the other",
                    )
                elif use.claim in codemod.symbols:
                    decide_row(site, use, codemod.symbols[use.claim])
                else:
                    codemod.use_handlers[use.claim](site, use)
                if site.count != before:
                    answered.add(use)
            for kind, handler in codemod.node_handlers:
                for node in site.nodes(kind):
                    handler(site, node)
            for site_handler in codemod.site_handlers:
                site_handler(site)
        for codemod in codemods:
            if codemod.rest_handler is None:
                continue
            site.codemod = codemod.name
            for use in site.uses:
                if use in answered or use in site.settled:
                    continue
                if use.claim in owners and self._is_alias(use, owners[use.claim]):
                    continue
                if use.claim not in owners and use.alias:
                    continue  # the assignment that gives it this name is marked
                codemod.rest_handler(site, use)
        if site.gone:
            self._take_back(folded)
        return folded

    def _look_again(self, owners: dict[str, Codemod]) -> None:
        """See what names stand for without the code that goes."""
        site = self.site
        settled = {use.node for use in site.settled}
        self.names.leave_out(site.gone)
        site.flow = Flow(self.names, self.project.facts_of(self.path))
        site.uses = tuple(self._uses(owners))
        site.settled = {use for use in site.uses if use.node in settled}

    def _take_back(self, folded: Group | None) -> None:
        """Take back what others than `folded` decided about code that it takes out."""

        def stays(answer: Answer) -> bool:
            return self.site.gone.isdisjoint([answer.node, *self.names.ancestors(answer.node)])

        self.site.answers[:] = filter(stays, self.site.answers)
        for group in [each for each in self.site.groups if each is not folded]:
            left = list(filter(stays, group.answers))
            if group.answers and not left:
                self.site.groups.remove(group)
            group.answers[:] = left

    def _is_alias(self, use: Use, codemod: Codemod) -> bool:
        """Whether a use only gives the name another name: `step = xm.mark_step`. Remembers it if so."""
        if use.call is not None or use.stored:
            return False
        assign = self.names.parent(use.chain)
        if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
            return False
        target = assign.targets[0].target
        if not isinstance(target, cst.Name) or target.value in self.site.exported:
            return False
        binding = self.names.bound_by(target)[0]
        readers = self.names.references(binding)
        if not readers:
            return False
        twin = codemod.twins.get(use.claim)
        if twin is not None and all(twin in self.names.names_of(each).names for each in readers):
            return False  # a branch gives the name to the native twin: here it gets that as well
        at_top = binding.scope is self.names.module_scope
        if at_top and self.project.imported_elsewhere(self.path, binding.name):
            return False
        self.site.aliases[assign] = (binding, use)
        return True

    def _uses(self, owners: dict[str, Codemod]) -> Iterable[Use]:
        """Every use of a legacy name, imports aside, in the order of the text."""
        found = [use for head in self._heads() for use in self._use(head, owners)]
        for string in self.names.annotation_strings():
            for chain, resolved in string.names:
                legacy = sorted(name for name in resolved.names if catalogue.is_legacy(name))
                if legacy and string.bindings:
                    claim = next((each for each in _prefixes(legacy[0]) if each in owners), legacy[0])
                    found.append(
                        Use(
                            node=string.node,
                            chain=string.node,
                            name=legacy[0],
                            claim=claim,
                            certain=resolved.certain,
                            binding=next(
                                (b for b in string.bindings if catalogue.touches_legacy(b.target)),
                                string.bindings[0],
                            ),
                            call=None,
                            quoted=edits.code_of(chain),
                        )
                    )
        return sorted(found, key=lambda use: self.positions.span(use.node))

    def _heads(self) -> Iterable[cst.Name]:
        """The names that may lead to a legacy one: imports, what is assigned from them, and `self`."""
        names = self.names
        leading = {
            binding.name
            for binding in names.imports
            if catalogue.touches_legacy(binding.target)
            or self.project.leads_to_legacy(binding.target, self.path)
        }
        grown = True
        while grown:
            grown = False
            for binding in names.bindings:
                root = dotted_name(binding.value).partition(".")[0] if binding.value else ""
                if root in leading and binding.name not in leading and binding.kind is Kind.ASSIGN:
                    leading.add(binding.name)
                    grown = True
        if any(
            dotted_name(store.value).partition(".")[0] in leading for store in names.stores if store.value
        ):
            leading |= {"self", "cls"}
        return [head for name in sorted(leading) for head in names.loads(name)]

    def _use(self, head: cst.Name, owners: dict[str, Codemod]) -> Iterable[Use]:
        names = self.names
        chain: cst.BaseExpression = head
        links = [chain]
        parent = names.parent(chain)
        while isinstance(parent, cst.Attribute) and parent.value is chain:
            chain = parent
            links.append(chain)
            parent = names.parent(chain)
        resolved = names.names_of(chain)
        legacy = sorted(name for name in resolved.names if catalogue.is_legacy(name))
        bindings = names.bindings_at(head)
        if not legacy or not bindings:
            return
        stored = isinstance(parent, cst.AssignTarget) or (
            isinstance(parent, (cst.AugAssign, cst.AnnAssign)) and parent.target is chain
        )
        if stored and not (isinstance(chain, cst.Attribute) and names.names_of(chain.value).names):
            # `self.step = xm.mark_step` gives an attribute of our own a legacy value.
            return
        name = claim = legacy[0]
        node = chain
        for back, each in enumerate(_prefixes(name)):
            if each in owners:
                if back < len(links):
                    claim, node = each, links[-1 - back]
                break
        twin = owners[claim].twins.get(claim, "") if claim in owners else ""
        others = sorted(resolved.names - {name, twin})
        only_twin = not others and twin in resolved.names
        yield Use(
            node=node,
            chain=chain,
            name=name,
            claim=claim,
            certain=resolved.certain
            or (only_twin and all(names.names_of_binding(each).certain for each in bindings)),
            binding=self._brought_by(bindings),
            alias=all(each.kind is Kind.ASSIGN for each in bindings),
            call=parent if isinstance(parent, cst.Call) and parent.func is chain else None,
            stored=stored,
            ambiguous=" or ".join(f"`{each}`" for each in [name, *others]) if others else "",
            twin=only_twin,
        )

    def _brought_by(self, bindings: Sequence[Binding]) -> Binding:
        """The import behind one of these bindings, through other names for it; else the first of them."""
        binding = next((each for each in bindings if each.target), bindings[0])
        for _ in range(10):
            root: cst.BaseExpression | None = binding.value
            while isinstance(root, cst.Attribute):
                root = root.value
            further = self.names.bindings_at(root) if isinstance(root, cst.Name) else ()
            if binding.target or not further:
                break
            binding = next((each for each in further if each.target), further[0])
        return binding

    def _refuse_conflicts(self) -> None:
        plan = [edit for group in self.site.groups if not group.refused for edit in group.edits]
        for node in apply.conflicts(plan):
            for group in self.site.groups:
                if any(getattr(edit, "old", None) is node for edit in group.edits):
                    group.refuse("two rewrites want to change this place")
        for group in self.site.groups:
            for answer in group.answers:
                if self._ignored(answer.node, answer.codemod):
                    group.refuse("an ignore comment stands on a part of it")

    def _ignored(self, node: cst.CSTNode, codemod: str) -> bool:
        if not self.ignores:
            return False
        first, last = self._lines(self.site.statement(node))
        for ignore in self.ignores:
            inside = first <= ignore.line <= last
            above = ignore.own_line and self._comment_block_ends(ignore.line) == first - 1
            if ignore.covers(codemod) and (ignore.whole_file or inside or above):
                ignore.used.add(codemod if ignore.names else "*")
                return True
        return False

    def _comment_block_ends(self, line: int) -> int:
        lines = self.positions.code.splitlines()
        while line < len(lines) and lines[line].lstrip().startswith("#"):
            line += 1
        return line

    def _lines(self, statement: cst.CSTNode) -> tuple[int, int]:
        """First and last line of a statement; of a compound one, of its header."""
        span = self.positions.span(statement)
        body = getattr(statement, "body", None)
        if isinstance(body, cst.IndentedBlock) and body.body:
            return span.line, max(span.line, self.positions.span(body.body[0]).line - 1)
        return span.line, span.end_line

    # Apply

    def _build(self, only: Sequence[Group] | None = None) -> _Built:
        """Apply the groups that hold, or only some of them."""
        chosen = [
            group for group in self.site.groups if not group.refused and (only is None or group in only)
        ]
        answers = self._answers(chosen)
        plan: list[Edit] = [edit for group in chosen for edit in group.edits]
        plan += self._helpers(chosen, plan)
        idle: list[Edit] = []
        while self.site.aliases:
            # Which aliases are idle shows only once the edits are in, and one can hold up another.
            tree = self._apply([*plan, *idle], {}, {})
            more = self._idle_aliases(self._names(tree), [*plan, *idle])
            if not more:
                break
            idle += more
        plan += idle
        gone: set[cst.CSTNode] = {edit.old for edit in idle if isinstance(edit, edits.ReplaceStatement)}
        answers += self._alias_answers(gone)
        comments, uncomment = self._comments(answers, plan)
        released = self.site.released.union(*(group.releases for group in chosen))
        if not (plan or comments or uncomment or released):
            return _Built(self.raw, answers)
        tree = self._apply(plan, comments, uncomment)
        names = self._names(tree)
        touched = tuple(apply.touched(plan))
        used = {use.binding.node for use in self.site.uses} | released
        settler = Settler(
            tree,
            names,
            self.site.refs,
            self.site.fresh_names,
            is_legacy=lambda binding: binding.node in released or self._is_legacy_import(binding),
            removable=lambda binding: binding.node in used and binding.node not in self.site.kept_imports,
        )
        settled = settler.settle()
        fitted = layout.fit(settled.tree, self.module, self.positions.__contains__)
        after = self._with_newline(self.restorer.restore(fitted))
        return _Built(
            after, answers, settled.emitted, settled.removed, (*touched, *settled.touched), settled.instead
        )

    def _with_newline(self, after: bytes) -> bytes:
        """Give the last line its newline back when the line below it, which had none, went."""
        if self.raw.endswith((b"\n", b"\r")) or after.endswith((b"\n", b"\r")):
            return after
        newline = self.module.default_newline.encode()
        last = after.rpartition(newline)[2]
        if (
            last
            and last != self.raw.rpartition(newline)[2]
            and newline + last + newline in newline + self.raw
        ):
            return after + newline
        return after

    def _helpers(self, chosen: Sequence[Group], edited: Sequence[Edit]) -> list[Edit]:
        """The helpers that these groups call, above the first statement that may need them."""
        plan: list[Edit] = []
        keys = dict.fromkeys(key for group in chosen for key in group.helpers)
        if not keys:
            return plan
        # The call may stand in code that another group takes away.
        names = self._names(self._apply(edited, {}, {}))
        called = {key for key in keys if names.loads(self.site.helpers[key].name.value)}
        called |= {key for key in keys if any(self._calls(other, key) for other in called)}
        gone: set[cst.CSTNode] = {
            each.old for each in edited if isinstance(each, edits.ReplaceStatement) and not each.new
        }
        for key in filter(called.__contains__, keys):
            callers = {
                self._top(node)
                for group in chosen
                if key in group.helpers
                for node in apply.touched(group.edits)
            }
            body = self.module.body
            first = next(
                index
                for index, statement in enumerate(body)
                if statement in callers or isinstance(statement, (cst.FunctionDef, cst.ClassDef))
            )
            # Below the imports, which is where people look for functions.
            imports = [index for index, each in enumerate(body[:first]) if _is_import(each)]
            below = imports[-1] + 1 if imports else first
            statement = next(each for each in body[below:] if not _is_gone(each, gone))
            assert isinstance(statement, Statement)
            plan.append(edits.Insert(statement, self.site.helpers[key].code))
        return plan

    def _calls(self, helper: str, other: str) -> bool:
        """Whether one helper calls another."""
        name = m.Name(self.site.helpers[other].name.value)
        return helper != other and any(m.findall(line, name) for line in self.site.helpers[helper].code)

    def _top(self, node: cst.CSTNode) -> cst.CSTNode:
        """The statement of the module that holds a node."""
        top = node
        for around in self.names.ancestors(node):
            if around is self.module:
                break
            top = around
        return top

    def _apply(
        self,
        plan: Sequence[Edit],
        comments: dict[cst.CSTNode, list[Comment]],
        uncomment: dict[cst.CSTNode, list[str]],
    ) -> cst.Module:
        return apply.apply(
            self.module, self.names.parent, plan, comments, uncomment, self.positions.__contains__
        )

    def _names(self, tree: cst.Module) -> Names:
        return Names(
            tree,
            module_name=self.names.module_name,
            is_package=self.path.endswith("__init__.py"),
            exports=self.project.facts_of(self.path).exports,
        )

    def _idle_aliases(self, names: Names, plan: Sequence[Edit]) -> list[Edit]:
        """Assignments such as `step = xm.mark_step` that nothing reads once the edits are in."""
        gone = {edit.old for edit in plan if not isinstance(edit, edits.Insert)}
        idle: list[Edit] = []
        for assign, (binding, _) in self.site.aliases.items():
            if assign in gone or names.parent(binding.node) is None:
                continue
            fresh = next(iter(names.bound_by(binding.node)), None)
            if fresh is not None and not names.references(fresh):
                idle.append(edits.ReplaceStatement(assign))
        return idle

    def _alias_answers(self, idle: set[cst.CSTNode]) -> list[Answer]:
        """What became of the assignments that only rename a legacy name."""
        answers = []
        for assign, (binding, use) in self.site.aliases.items():
            if assign in idle:
                state, why, todo = State.FIXED, f"nothing reads `{binding.name}` any more", ""
            else:
                state, why = State.MARKED, f"`{binding.name}` is still used as another name for it"
                todo = "call the legacy name where it is used, so that each call can be rewritten"
            answers.append(Answer(assign, LEGACY_IMPORT, state, use.name, why, todo, Numerics.SAME))
        return answers

    def _answers(self, chosen: Sequence[Group]) -> list[Answer]:
        """All answers, with those of a group that does not hold turned into marks."""
        answers = []
        for answer in self.site.answers:
            if not self._ignored(answer.node, answer.codemod):
                answers.append(answer)
        for group in self.site.groups:
            for answer in group.answers:
                if group in chosen:
                    answers.append(answer)
                elif not self._ignored(answer.node, answer.codemod):
                    why = f"left as it was: {group.refused or 'the rewrite around it did not hold'}"
                    todo = answer.by_hand or answer.todo or f"by hand: {answer.why}"
                    answers.append(dataclasses.replace(answer, state=State.MARKED, why=why, todo=todo))
        return answers

    def _comments(
        self, answers: Iterable[Answer], plan: Sequence[Edit]
    ) -> tuple[dict[cst.CSTNode, list[Comment]], dict[cst.CSTNode, list[str]]]:
        """The comments to put above statements and those to take away."""
        marks: dict[cst.CSTNode, list[tuple[str, str, str]]] = {}
        reviews: dict[cst.CSTNode, list[tuple[str, str, str]]] = {}
        answered: dict[cst.CSTNode, set[str]] = {}
        about: dict[cst.CSTNode, cst.CSTNode] = {}
        apart = self._apart(plan)
        for answer in answers:
            place = self._line_of(answer.node, apart)
            answered.setdefault(place, set()).add(answer.codemod)
            if answer.state is State.MARKED and answer.comment:
                marks.setdefault(place, []).append((answer.codemod, answer.why, answer.todo))
                about.setdefault(place, answer.node)
            elif answer.state is State.REVIEW and self.settings.comment_reviews:
                reviews.setdefault(place, []).append((answer.codemod, "", answer.todo))
                about.setdefault(place, answer.node)
        comments: dict[cst.CSTNode, list[Comment]] = {}
        uncomment: dict[cst.CSTNode, list[str]] = {}
        for place, parts in reviews.items():
            comments.setdefault(place, []).append((directives.todo(parts, "REVIEW"), about[place]))
        for place in dict.fromkeys([*marks, *answered]):
            wanted = directives.todo(marks[place]) if place in marks else ""
            names = {name for name, _, _ in marks.get(place, ())}
            statement = self.site.statement(place)
            standing = self._standing(statement)
            same = next((line for line, mark in standing if set(mark.names) == names and names), "")
            if place is not statement:
                same = ""
            for line, mark in standing:
                if line != same and (names or answered[place] & set(mark.names)):
                    uncomment.setdefault(statement, []).append(line)
            if wanted and not same:
                comments.setdefault(place, []).append((wanted, about[place]))
        return comments, uncomment

    def _apart(self, plan: Sequence[Edit]) -> dict[cst.CSTNode, cst.CSTNode]:
        """For small statements whose line comes apart: the first of those that share a line afterwards."""
        going = {edit.old: edit for edit in plan if isinstance(edit, edits.ReplaceStatement)}
        apart: dict[cst.CSTNode, cst.CSTNode] = {}
        for old in going:
            line = self.names.parent(old)
            if not isinstance(line, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
                continue
            new = [each for small in line.body if small in going for each in going[small].new]
            is_line = isinstance(line, cst.SimpleStatementLine)
            if not new or (not is_line and all(isinstance(each, cst.SimpleStatementLine) for each in new)):
                continue
            first: cst.CSTNode | None = None
            for small in line.body:
                if small in going or not is_line:
                    apart[small] = small
                    first = first if small in going and not going[small].new else None
                else:
                    first = apart[small] = first or small
        return apart

    def _line_of(self, node: cst.CSTNode, apart: dict[cst.CSTNode, cst.CSTNode]) -> cst.CSTNode:
        """What a comment about a node stands above: a statement, or a small one that gets its own line."""
        if apart:
            for around in (node, *self.names.ancestors(node)):
                if around in apart:
                    return apart[around]
                if isinstance(around, Statement):
                    break
        return self.site.statement(node)

    def _standing(
        self, statement: Statement, kinds: Sequence[str] = ("TODO",)
    ) -> list[tuple[str, directives.Mark]]:
        """Comments of an earlier run above a statement."""
        lines = list(getattr(statement, "leading_lines", ()))
        if self.module.body and statement is self.module.body[0]:
            lines = [*self.module.header, *lines]
        found = []
        for line in lines:
            if line.comment is not None:
                mark = directives.mark(line.comment.value)
                if mark is not None and mark.kind in kinds:
                    found.append((line.comment.value, mark))
        return found

    # Prove

    def _faults(self, built: _Built, *, second_run: bool) -> tuple[str, ...]:
        if built.after == self.raw:
            return ()
        edited = []
        for node in built.touched:
            if node not in self.positions:
                continue
            around = node if isinstance(node, Statement) else self.site.statement(node)
            edited.append(self._edited_lines(around))
            if not isinstance(node, Statement):
                # `else: call()` stands below the header of the statement that it belongs to.
                span = self.positions.span(node)
                first, last = span.line, span.end_line
                edited.append((self.restorer.original_line(first), self.restorer.original_line(last)))
        foreign = tuple(name for name in built.emitted if not self.site.project.builds(name))
        faults = list(
            proof.prove(
                self.raw,
                built.after,
                python=self.settings.python,
                emitted=proof.Emitted(foreign, tuple(self.site.keywords)),
                edited=edited,
                kept=self.site.kept_names | self._kept_imports(),
                instead=built.instead,
            )
        )
        if not faults and second_run:
            faults += self._second_run(built.after)
        return tuple(faults)

    def _is_legacy_import(self, binding: Binding) -> bool:
        """Whether an import brings in a legacy name, straight or through another module of the project."""
        if catalogue.is_legacy(imported_name(binding)):
            return True
        behind = self.project.facts_of(self.path).exports(binding.target)
        return behind is not None and behind.certain and all(map(catalogue.is_legacy, behind.names))

    def _kept_imports(self) -> set[str]:
        """Names of legacy imports that stay on purpose, with or without a reader."""
        return {each.name for each in self.names.imports if each.node in self.site.kept_imports}

    def _edited_lines(self, statement: Statement) -> tuple[int, int]:
        first, last = self._lines(statement)
        span = self.positions.span(statement)
        if isinstance(statement, (cst.SimpleStatementLine, cst.Try)) or statement in self.site.rebuilt:
            last = span.end_line + len(getattr(_last_block(statement), "footer", ()))
        first -= len(getattr(statement, "leading_lines", ()))
        lines = self.positions.code.splitlines()
        while last < len(lines) and not lines[last].strip():
            last += 1  # blank lines below a statement that goes may go with it
        return self.restorer.original_line(first), self.restorer.original_line(last)

    def _second_run(self, after: bytes) -> list[str]:
        """What another run over the result would still change."""
        again = _File(self.path, after, self.project, self.settings).result(second=True)
        # What was refused here is refused again.
        unread = [problem for problem in again.problems if problem.kind is not Trouble.PROOF]
        if unread:
            return [f"the result cannot be read again: {unread[0].message}"]
        if again.after is None:
            return []
        old, new = after.splitlines(), again.after.splitlines()
        line = next(
            (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
        )
        return [f"a second run would change line {line + 1} of the result"]

    def _without_culprits(self, faults: tuple[str, ...], *, second_run: bool) -> tuple[_Built, list[Problem]]:
        """Leave out the groups that break a proof, and say so."""
        holding: list[Group] = []
        problems: list[Problem] = []
        for group in [group for group in self.site.groups if not group.refused]:
            own = self._faults(self._build([*holding, group]), second_run=False)
            if own:
                problems.append(self._proof_problem(group, own))
            else:
                holding.append(group)
        for group in self.site.groups:
            if group not in holding:
                group.refuse(_FAULT)
        built = self._build()
        left = self._faults(built, second_run=second_run)
        if left:
            # Not even marks hold: nothing is written.
            problems.append(Problem(Trouble.PROOF, Place(self.path, 1), "; ".join(left)))
            built = dataclasses.replace(built, after=self.raw)
        elif not problems:
            problems.append(Problem(Trouble.PROOF, Place(self.path, 1), "; ".join(faults)))
        return built, problems

    def _proof_problem(self, group: Group, faults: tuple[str, ...]) -> Problem:
        place = self._place(group.answers[0].node) if group.answers else Place(self.path, 1)
        return Problem(
            Trouble.PROOF, place, f"the rewrite by {group.codemod} was not written: {'; '.join(faults)}"
        )

    # Report

    def _findings(self, built: _Built) -> list[Finding]:
        findings = [
            Finding(
                answer.codemod,
                answer.state,
                self._place(answer.node),
                answer.found,
                answer.why,
                answer.todo,
                answer.group.name if answer.group and not answer.group.refused else "",
                (answer.numerics,),
            )
            for answer in built.answers
        ]
        told = {answer.node for answer in built.answers if answer.codemod == LEGACY_IMPORT}
        for node in built.removed - told:
            if node in self.positions:
                name = next((imported_name(b) for b in self.names.imports if b.node is node), "")
                if any(each == name or each.startswith(f"{name}.") for each in built.emitted):
                    continue  # new code needs it, and has it again
                findings.append(
                    Finding(LEGACY_IMPORT, State.FIXED, self._place(node), name, "nothing uses it any more")
                )
        findings += self._directive_findings(built)
        return sorted(findings, key=lambda finding: (finding.place, finding.codemod))

    def _directive_findings(self, built: _Built) -> list[Finding]:
        """What is to be said about the comments that people and earlier runs left."""
        findings = []
        for ignore in self.ignores:
            for name in ignore.unused:
                what = "this ignore comment" if name == "*" else f"the ignore of `{name}`"
                place = Place(self.path, self.restorer.original_line(ignore.line))
                why = f"{what} silences nothing"
                findings.append(Finding("ignore", State.NOTE, place, "neuronmigrate: ignore", why))
        if "(neuronmigrate):" not in self.positions.code:
            return findings
        answered: dict[cst.CSTNode, set[str]] = {}
        for answer in built.answers:
            answered.setdefault(self.site.statement(answer.node), set()).add(answer.codemod)
        for statement in [node for node in self.positions if isinstance(node, Statement)]:
            for text, mark in self._standing(statement, ("TODO", "REVIEW")):
                names = ", ".join(mark.names)
                # Some places are only known by what was rewritten around them: the comment is what is left.
                if mark.kind == "REVIEW" or not answered.get(statement, set()) & set(mark.names):
                    state = State.REVIEW if mark.kind == "REVIEW" else State.MARKED
                    todo = "delete this comment once it is done"
                    findings.append(Finding(names, state, self._place(statement), text, mark.text, todo))
        return findings

    def _place(self, node: cst.CSTNode) -> Place:
        span = self.positions.span(node)
        line = self.restorer.original_line
        return Place(self.path, line(span.line), span.column, line(span.end_line), span.end_column)

    def _record(self, group: Group) -> GroupRecord:
        lines = {self._lines(self.site.statement(node))[0] for node in apply.touched(group.edits)}
        return GroupRecord(
            group.name,
            tuple(dict.fromkeys(answer.codemod for answer in group.answers)) or (group.codemod,),
            not group.refused,
            group.refused,
            tuple(dict.fromkeys(answer.numerics for answer in group.answers)),
            tuple(sorted(self.restorer.original_line(line) for line in lines)),
        )


def _prefixes(name: str) -> Iterable[str]:
    """A dotted name and the names around it, the longest first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _parse(raw: bytes) -> cst.Module:
    try:
        return parse(raw)
    except cst.ParserSyntaxError as error:
        raise _explained(raw, error.message, error.raw_line, error.raw_column) from None
    except (SyntaxError, LookupError, ValueError) as error:
        raise _explained(raw, str(error), 1, 0) from None


def _explained(raw: bytes, message: str, line: int, column: int) -> _Unreadable:
    """Python's own words for what is wrong: LibCST often names the line after the fault."""
    try:
        ast.parse(raw)
    except SyntaxError as error:
        return _Unreadable(error.msg, error.lineno or 1, error.offset or 1)
    except (ValueError, RecursionError) as error:
        return _Unreadable(str(error), line, column + 1)
    return _Unreadable(message, line, column + 1)


def _last_block(statement: cst.CSTNode) -> cst.CSTNode | None:
    """The block that a statement ends with."""
    while isinstance(statement, cst.If) and statement.orelse is not None:
        statement = statement.orelse
    return getattr(statement, "body", None)


def _is_import(statement: cst.CSTNode) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], (cst.Import, cst.ImportFrom)
    )


def _is_gone(statement: cst.CSTNode, gone: set[cst.CSTNode]) -> bool:
    return isinstance(statement, cst.SimpleStatementLine) and gone.issuperset(statement.body)
