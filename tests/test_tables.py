"""Every argument that the mapping of inference, or a table of a codemod, knows is shown by a fixture."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from neuronmigrate import catalogue, registry
from neuronmigrate.codemod import Codemod
from neuronmigrate.training.fields import FIELDS
from neuronmigrate.training.trl_fields import ORPO_FIELDS, SFT_FIELDS
from tests.fixtures_lib import FOLDER

CODEMODS = [codemod for codemod in registry.load() if codemod.tables]

METHODS = ("encode", "export", "from_pretrained", "generate", "get_export_config", "get_neuron_config")
"""Methods that have argument tables of their own in the catalogue."""
CALLS = frozenset(
    {"causal.generate", "diffusion.call", "seq2seq.generate", "st.call", "st.encode", "traced.call"}
)
"""Tables of calls of an object. One fixture of any family that has it will do; each load has to be shown."""

ASKED = frozenset(
    {
        "auto_cast_type",
        "batch_size",
        "config",
        "instance_type",
        "model_name_or_path",
        "num_cores",
        "prefill_chunk_size",
        "revision",
        "sequence_length",
        "tensor_parallel_size",
        "token",
        "torch_dtype",
    }
)
"""What `get_neuron_config` took in some release (0.2.0 to 0.4.5). The catalogue gives it one table with
`from_pretrained`; it raised TypeError for every other row of that."""
LOADS = frozenset(
    {"causal.from_pretrained", "causal.get_neuron_config", "diffusion.from_pretrained", "nxd_config"}
    | {"pipeline", "seq2seq.from_pretrained", "st.from_pretrained", "traced.from_pretrained"}
)
"""Tables of what loads models for inference, each family of which has to show its own."""
_INSERT = "it says what is to be written at every call, and is no argument"
_FIELD = "it is a field of the output"
WITHOUT_FIXTURE: dict[str, Mapping[str, str]] = {
    "causal.get_neuron_config": dict.fromkeys(
        catalogue.rows("causal.get_neuron_config").keys() - ASKED, "`get_neuron_config` raised TypeError"
    ),
    "causal.generate": dict.fromkeys(
        ("(batched prompts)", "(speed)", "(when do_sample is not given)"), _INSERT
    ),
    "st.call": dict.fromkeys(("sentence_embedding", "token_embeddings"), _FIELD),
    "st.encode": {"(result)": _INSERT},
}
"""By table of the catalogue: rows that no fixture gives, and why."""


@functools.cache
def _given(name: str) -> Mapping[str, frozenset[str]]:
    """The arguments in a codemod's fixtures, by the method that gets them; under `` those of any other call.

    `*` and `**` stand for arguments that are spread. Keys of dictionaries stand under `{}`: they may reach
    any call.
    """
    found: dict[str, set[str]] = defaultdict(set)
    folder: Path = FOLDER / name.replace("-", "_")
    for path in sorted(folder.glob("*before.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                given = found[last if last in METHODS else ""]
                given.update(keyword.arg or "**" for keyword in node.keywords)
                given.update("*" for arg in node.args if isinstance(arg, ast.Starred))
                if isinstance(node.func, ast.Name) and node.func.id == "dict":
                    found["{}"].update(keyword.arg or "**" for keyword in node.keywords)
            elif isinstance(node, ast.Dict):
                found["{}"].update(
                    ast.literal_eval(key) for key in node.keys if isinstance(key, ast.Constant)
                )
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                found["{}"].update(
                    [ast.literal_eval(node.slice)] if isinstance(node.slice, ast.Constant) else []
                )
    return {method: frozenset(names) for method, names in found.items()}


def _tables(codemod: Codemod) -> dict[str, set[str]]:
    """The catalogue's tables of what a codemod answers for, and the methods that have them."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in codemod.claimed:
        entry = catalogue.lookup(name)
        for method, table in entry.groups.items() if entry is not None else ():
            found[table].add(method if method in METHODS else "")
    return found


ROWS = sorted(
    {
        ("" if table in CALLS else codemod.name, table)
        for codemod in CODEMODS
        for table in _tables(codemod)
        if table in CALLS | LOADS
    }
)


def _is_shown(codemod: Codemod, table: str, row: str) -> bool:
    methods = _tables(codemod).get(table, set())
    given = frozenset[str]().union(*(_given(codemod.name).get(each, frozenset()) for each in methods))
    if methods and not row.startswith("*"):
        given |= _given(codemod.name).get("{}", frozenset())
    return re.sub(r"^(\*+).*", r"\1", row) in given


@pytest.mark.parametrize(("name", "table"), ROWS)
def test_each_row_of_the_mapping_is_shown(name: str, table: str) -> None:
    families = [codemod for codemod in CODEMODS if not name or codemod.name == name]
    rows = set(catalogue.rows(table))
    shown = {row for row in rows if any(_is_shown(codemod, table, row) for codemod in families)}
    excused = set(WITHOUT_FIXTURE.get(table, ()))
    assert excused <= rows, "an excuse for a row that the mapping has not"
    assert sorted(rows - shown - excused) == [], "no fixture gives these"
    if table != "causal.get_neuron_config":  # whose fixtures show that others are refused
        assert sorted(shown & excused) == [], "an excuse for a row that a fixture gives"


def test_each_excuse_is_for_a_table() -> None:
    assert WITHOUT_FIXTURE.keys() <= {table for _, table in ROWS}
    assert {table for _, table in ROWS} == CALLS | LOADS


@pytest.mark.parametrize("codemod", CODEMODS, ids=lambda codemod: codemod.name)
def test_each_argument_is_shown(codemod: Codemod) -> None:
    names = frozenset[str]().union(*(table.names for table in codemod.tables))
    shown = frozenset[str]().union(*_given(codemod.name).values())
    assert sorted(names - shown) == [], f"no case in fixtures/{codemod.name.replace('-', '_')} gives these"


_GIVEN = r"\b{0}=(?!=)|[\"']{0}[\"']\s*:|[\"']{0}[\"']\] = "
TRL = {
    "trl.SFTConfig": SFT_FIELDS.keys() - FIELDS.keys(),
    "trl.experimental.orpo.ORPOConfig": ORPO_FIELDS.keys() - FIELDS.keys(),
}


@pytest.mark.parametrize("native", TRL)
def test_each_field_of_trl_is_shown(native: str) -> None:
    """The fields that TRL's configurations have besides those of all training arguments."""
    folder = FOLDER / "trl_trainers"
    cases = [path for path in sorted(folder.glob("*before.py")) if native in _after(path)]
    text = "\n".join(path.read_text() for path in cases)
    missing = sorted(name for name in TRL[native] if not re.search(_GIVEN.format(name), text))
    assert not missing, "no case in fixtures/trl_trainers gives these"


def _after(before: Path) -> str:
    """The qualified names of TRL that the after side of a case imports, as one text."""
    text = before.with_name(before.name.replace("before.py", "after.py")).read_text()
    found = re.findall(r"^from (trl[.\w]*) import (.*)$", text, re.MULTILINE)
    return " ".join(f"{module}.{name}" for module, names in found for name in names.split(", "))
