"""What `explain` prints: a codemod's own description, or what becomes of a legacy name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from neuronmigrate.config import UserError
from neuronmigrate.report.view import Line

if TYPE_CHECKING:
    from neuronmigrate.catalogue import Argument, Entry
    from neuronmigrate.codemod import Codemod


def explained(name: str, codemods: Sequence[Codemod]) -> Iterator[Line]:
    """The lines. Raises UserError when nobody knows the name."""
    for codemod in codemods:
        if name.replace("_", "-") == codemod.name:
            yield from _codemod(codemod)
            return
    yield from _legacy(name, codemods)


def _codemod(codemod: Codemod) -> Iterator[Line]:
    yield ((codemod.name, "bold"),)
    for line in codemod.doc.splitlines():
        yield ((line, ""),)
    if codemod.claimed:
        yield ()
        yield (("Legacy names:", "bold"),)
        for name in sorted(codemod.claimed):
            yield ((f"  {name}", ""),)


def _legacy(name: str, codemods: Sequence[Codemod]) -> Iterator[Line]:
    from neuronmigrate import catalogue

    found = catalogue.explain(name)
    if not found.entries:
        near = "".join(f"\n  {each}" for each in found.suggestions)
        raise UserError(
            f"{name}: no codemod or legacy name is called so"
            + (f"; is it one of\n{near[1:]}" if near else "")
        )
    owners = {claimed: codemod.name for codemod in codemods for claimed in codemod.claimed}
    first = True
    for entry, names in _by_entry(found.entries):
        if not first:
            yield ()
        first = False
        yield from _entry(entry, names, owners, name)
    for label, arguments in found.arguments:
        yield ()
        yield ((f"Arguments of {label}", "bold"),)
        yield from _arguments(arguments)
    if found.suggestions:
        yield ()
        yield (("Similar names: ", "bold"), (", ".join(found.suggestions), ""))


def _by_entry(entries: Sequence[tuple[str, Entry]]) -> Iterator[tuple[Entry, list[str]]]:
    """Paths of one thing are told together."""
    told: dict[tuple[object, ...], tuple[Entry, list[str]]] = {}
    for name, entry in entries:
        key = (entry.kind, entry.action, entry.native, entry.reason, entry.advice, entry.detail)
        told.setdefault(key, (entry, []))[1].append(name)
    yield from told.values()


def _entry(entry: Entry, names: Sequence[str], owners: dict[str, str], asked: str) -> Iterator[Line]:
    span = f", {entry.first} to {entry.last}" if entry.first and entry.last else ""
    yield ((names[0], "bold"), (f"  {entry.kind}{span}", "dim"))
    if not entry.exact:
        yield ((f"  {asked} itself is not known; this is what holds for the names around it", ""),)
    if len(names) > 1:
        yield ((f"  also {', '.join(names[1:])}", ""),)
    native = f" -> {', '.join(entry.native)}" if entry.native else ""
    yield (("  becomes  ", "dim"), (f"{entry.action}{native}", ""))
    if entry.reason:
        yield (("  because  ", "dim"), (entry.reason, ""))
    if entry.advice:
        yield (("  to do    ", "dim"), (entry.advice, ""))
    if entry.detail:
        yield (("  details  ", "dim"), (entry.detail, ""))
    codemods = sorted({owners[name] for name in (*names, asked) if name in owners})
    if codemods:
        yield (("  codemod  ", "dim"), (", ".join(codemods), ""))


def _arguments(arguments: Sequence[Argument]) -> Iterator[Line]:
    if not arguments:
        yield (("  none are known", ""),)
        return
    widths = [max(len(getattr(one, part)) for one in arguments) for part in ("name", "action")]
    for one in arguments:
        native = "" if one.native in ("", "same") else f" -> {one.native}"
        note = f"; {one.note}" if one.note else ""
        yield (
            (f"  {one.name:<{widths[0]}}", "bold"),
            (f"  {one.action:<{widths[1]}}{native}{note}".rstrip(), ""),
        )
