"""Doing something after an import, whoever looks the module up before."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
from pathlib import Path

import pytest

from neuronmigrate.runtime.after_import import _watch as after_imports
from neuronmigrate.runtime.after_import import after_import
from tests.trees import write


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of a package that can be imported."""
    write(tmp_path, {"watched_package/__init__.py": b"", "watched_package/inner.py": b"ready = True\n"})
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("watched_package", "watched_package.inner"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return "watched_package.inner"


def test_it_is_done_once_after_the_import(package: str) -> None:
    seen: list[bool] = []
    before = list(sys.meta_path)
    after_import(package, lambda module: seen.append(module.ready))
    # Libraries look for a package before they import it.
    assert importlib.util.find_spec(package) is not None
    assert not seen
    module = importlib.import_module(package)
    assert seen == [True] and module.ready
    assert after_imports.waiting == {} and sys.meta_path == before
    importlib.reload(module)
    assert seen == [True]


def test_several_may_wait_for_one_module(package: str) -> None:
    seen: list[str] = []
    after_import(package, lambda module: seen.append("first"))
    after_import(package, lambda module: seen.append("second"))
    importlib.import_module(package)
    assert seen == ["first", "second"]


def test_it_is_done_at_once_for_a_module_that_is_there(package: str) -> None:
    module = importlib.import_module(package)
    seen: list[types.ModuleType] = []
    after_import(package, seen.append)
    assert seen == [module]


def test_a_module_that_is_not_there_is_not_there() -> None:
    name = "no_module_of_this_name"
    after_import(name, lambda module: None)
    try:
        assert importlib.util.find_spec(name) is None
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module(name)
    finally:
        after_imports.waiting.pop(name)
