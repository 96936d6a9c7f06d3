"""Where settings come from, and what is said about wrong ones."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from neuronmigrate.config import Exclude, Settings, UserError, common_folder, floor_of, load
from tests.trees import write


def configured(root: Path, text: str) -> Settings:
    write(root, {"pyproject.toml": text})
    return load(root)


def test_nothing_set(tmp_path: Path) -> None:
    assert load(tmp_path) == Settings()
    assert load(tmp_path).source_of("tpu") == "default"


def test_every_key(tmp_path: Path) -> None:
    settings = configured(
        tmp_path,
        """\
[tool.neuronmigrate]
from-version = "0.0.28"
python = "3.9"
exclude = ["third_party/", "*_pb2.py"]
tpu = true
compile = true
comment-reviews = true
strict = true
allow-dirty = true
exact = true
shim = true
""",
    )
    base = str(tmp_path)
    assert settings == Settings(
        from_version="0.0.28",
        python=(3, 9),
        exclude=(Exclude("third_party/", base), Exclude("*_pb2.py", base)),
        tpu=True,
        compile=True,
        comment_reviews=True,
        strict=True,
        allow_dirty=True,
        exact=True,
        shim=True,
        sources=settings.sources,
    )
    assert settings.source_of("python") == f"{tmp_path / 'pyproject.toml'}:3"
    assert settings.source_of("shim") == f"{tmp_path / 'pyproject.toml'}:11"
    assert settings.described()["python"] == {"value": "3.9", "source": settings.source_of("python")}
    assert pickle.loads(pickle.dumps(settings)) == settings


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("[tool.neuronmigrate]\ntpuu = true\n", 2, "no key tpuu, did you mean tpu?"),
        ("[tool.neuronmigrate]\nwhatever = 1\n", 2, "no key whatever; known are allow-dirty, "),
        ("[tool.neuronmigrate]\n\n'tpu' = 1\n", 3, "tpu has to be true or false, not 1"),
        ("[tool.neuronmigrate]\nstrict = 'yes'\n", 2, 'strict has to be true or false, not "yes"'),
        ("[tool.neuronmigrate]\npython = 3.10\n", 2, 'python has to be a version such as "3.10", not 3.1'),
        ("[tool.neuronmigrate]\npython = '2.7'\n", 2, "python has to be a version"),
        ("[tool.neuronmigrate]\npython = '3.6'\n", 2, "python has to be 3.7 or newer"),
        ("[tool.neuronmigrate]\nfrom-version = '>=0.0.28'\n", 2, "has to be a release such as 0.0.28"),
        ("[tool.neuronmigrate]\nfrom-version = true\n", 2, "has to be a release such as 0.0.28, not true"),
        ("[tool.neuronmigrate]\nexclude = 'a'\n", 2, "exclude has to be a list of patterns"),
        ("[tool.neuronmigrate]\nexclude = ['a', 1]\n", 2, "exclude has to be a list of patterns"),
        ("[tool.neuronmigrate]\ncodemods = 'mine'\n", 2, "on the command line only"),
        ("[tool.neuronmigrate]\r\n\r\ntpu = 0\r\n", 3, "tpu has to be"),
        ("# tpu = 1\n[tool.other]\ntpu = true\n[tool.neuronmigrate]\ntpu = 1\n", 5, "tpu has to be"),
        ("[tool]\nneuronmigrate.tpu = 1\n", 2, "tpu has to be"),
        ("[tool]\nneuronmigrate = {shim = true, tpu = 1}\n", 2, "tpu has to be"),
        ("tool.neuronmigrate.tpu = 1\n", 1, "tpu has to be"),
        ("[tool]\nneuronmigrate = 1\n", 1, "has to be a table"),
        ("[project]\nname = 'a'\n[tool.neuronmigrate]\ntpu = \n", 4, "is not valid TOML"),
    ],
)
def test_wrong_settings_name_file_and_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        configured(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'pyproject.toml'}:{line}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_broken_file_of_somebody_else(tmp_path: Path) -> None:
    assert configured(tmp_path, "[project\n") == Settings()


def test_byte_order_mark(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": b"\xef\xbb\xbf[tool.neuronmigrate]\r\ntpu = true\r\n"})
    assert load(tmp_path).tpu


def test_nearest_table_wins(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pyproject.toml": "[tool.neuronmigrate]\ntpu = true\nshim = true\n",
            "a/pyproject.toml": "[tool.neuronmigrate]\ncompile = true\n",
            "a/b/pyproject.toml": "[project]\nname = 'b'\n",
            "a/b/code.py": "",
        },
    )
    settings = load(tmp_path / "a" / "b" / "code.py")
    assert settings.compile and not settings.tpu and not settings.shim


def test_nothing_above_the_repository_counts(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": "[tool.neuronmigrate]\ntpu = true\n", "repo/.git/HEAD": "x"})
    assert not load(tmp_path / "repo").tpu


@pytest.mark.parametrize(
    ("text", "floor"),
    [
        ("[project]\nrequires-python = '>=3.9'\n", (3, 9)),
        ("[project]\nrequires-python = '>=3.12,<3.14'\n", (3, 12)),
        ("[project]\nrequires-python = '>=2.7'\n", (3, 7)),
        ("[project]\nrequires-python = '<4'\n", (3, 10)),
        ("[project]\nrequires-python = 3\n", (3, 10)),
        ("[project]\nname = 'a'\n", (3, 10)),
        ("[tool.poetry.dependencies]\npython = '^3.8'\n", (3, 8)),
        ("[project]\nrequires-python = '>=3.8'\n[tool.neuronmigrate]\npython = '3.11'\n", (3, 11)),
    ],
)
def test_oldest_python_is_read_from_the_project(tmp_path: Path, text: str, floor: tuple[int, int]) -> None:
    assert configured(tmp_path, text).python == floor


def test_oldest_python_of_the_nearest_project(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "pyproject.toml": "[project]\nrequires-python = '>=3.12'\n[tool.neuronmigrate]\ntpu = true\n",
            "a/pyproject.toml": "[project]\nrequires-python = '>=3.8'\n",
        },
    )
    settings = load(tmp_path / "a")
    assert settings.python == (3, 8) and settings.tpu
    assert settings.source_of("python") == f"{tmp_path / 'a' / 'pyproject.toml'}:2"


@pytest.mark.parametrize(
    ("specifier", "floor"),
    [
        (">=3.9", (3, 9)),
        (" >= 3.9 , != 3.9.1, < 4 ", (3, 9)),
        ("~=3.8.1", (3, 8)),
        ("==3.11.*", (3, 11)),
        (">3.8", (3, 8)),
        ("~3.9", (3, 9)),
        ("^2.7 || ^3.8", (3, 8)),
        ("3.10", (3, 10)),
        (">=3", (3, 7)),
        ("<3.13", None),
        ("!=3.9", None),
        ("", None),
        ("nonsense", None),
    ],
)
def test_floor(specifier: str, floor: tuple[int, int] | None) -> None:
    assert floor_of(specifier) == floor


def test_options_come_last(tmp_path: Path) -> None:
    write(tmp_path, {"pyproject.toml": "[tool.neuronmigrate]\ntpu = true\nexclude = ['a']\nstrict = true\n"})
    options = {"tpu": False, "from_version": "v0.0.21", "strict": None, "exclude": ["b"], "shim": None}
    settings = load(tmp_path, options)
    assert not settings.tpu and settings.strict and not settings.shim
    assert settings.from_version == "0.0.21"
    assert [one.pattern for one in settings.exclude] == ["a", "b"]
    assert settings.source_of("tpu") == "--no-tpu"
    assert settings.source_of("from_version") == "--from-version"
    assert settings.source_of("exclude") == f"{tmp_path / 'pyproject.toml'}:3, --exclude"
    assert settings.source_of("strict") == f"{tmp_path / 'pyproject.toml'}:4"


def test_wrong_release_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--from-version: has to be a release"):
        load(tmp_path, {"from_version": "newest"})


def test_common_folder(tmp_path: Path) -> None:
    write(tmp_path, {"a/b/x.py": "", "a/c/y.py": ""})
    assert common_folder([tmp_path / "a/b/x.py", tmp_path / "a/c"]) == tmp_path / "a"
    assert common_folder([tmp_path / "a/b/x.py"]) == tmp_path / "a/b"
