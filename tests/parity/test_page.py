"""The page of a comparison."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import torch

from neuronmigrate.parity.comparing import compare
from neuronmigrate.parity.comparison import Blame, Comparison, Culprit, Status
from neuronmigrate.report import comparison
from tests.parity.recordings import Written, written

_VOID = {"meta", "br", "line", "polyline"}


class _Page(HTMLParser):
    """Takes a page apart; raises AssertionError where an element is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.words.append(data.strip())


def _recorded(folder: Path, error: float) -> Comparison:
    def write(scale: float) -> object:
        def act(made: Written) -> None:
            for call in ("train 0", "train 1"):
                made.tensor("inner output", "Net#0/first", torch.ones(4) * (1 + scale), call)
                made.tensor("output", "Net#0", torch.ones(4) * (1 + scale), call)
            for step in range(3):
                made.scalar("loss", "loss", str(step), 1.0 / (1 + step) + scale, "float32")

        return act

    first = written(folder / "first", write(0.0))  # type: ignore[arg-type]
    second = written(folder / "second", write(error))  # type: ignore[arg-type]
    return compare(first, second, labels=("<b>old</b>.py", "new.py"))


def _page(found: Comparison) -> tuple[str, _Page]:
    text = "\n".join("".join(piece for piece, _ in line) for line in comparison.html([found]))
    return text, _Page(text)


def test_a_page_of_what_diverged(tmp_path: Path) -> None:
    found = _recorded(tmp_path, 0.25)
    assert found.status is Status.DIVERGED
    text, page = _page(found)
    assert "<b>old</b>.py" in page.words
    assert "<b>" not in text
    curves = [attributes["points"] for tag, attributes in page.seen if tag == "polyline"]
    assert len(curves) == 2
    assert all(points and len(points.split()) == 3 for points in curves)
    cells = [attributes for tag, attributes in page.seen if tag == "td" and "title" in attributes]
    assert len(cells) == 4
    assert all("diverged" in str(attributes["title"]) for attributes in cells)
    # It needs nothing beside it.
    assert not any({"src", "href"} & attributes.keys() for _, attributes in page.seen)


def test_a_page_of_what_is_equal(tmp_path: Path) -> None:
    _, page = _page(_recorded(tmp_path, 0.0))
    assert "Differences" not in page.words
    assert page.words.count("diverged") == 0


def test_the_hunk_stands_on_the_page(tmp_path: Path) -> None:
    culprit = Culprit("old.py", 7, 9, "x = a < b\n", "x = a > b\n", ("lazy-step",))
    found = replace(_recorded(tmp_path, 0.25), blame=Blame((culprit,), 5))
    _, page = _page(found)
    assert "old.py:7, written by lazy-step" in page.words
    assert "- x = a < b" in page.words
    assert "+ x = a > b" in page.words
    lines = ["".join(piece for piece, _ in line) for line in comparison.text([found])]
    assert "  old.py:7: written by lazy-step" in lines
