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
from neuronmigrate.training import hooks
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
TRAINING = frozenset(
    {"accelerator", "argparser", "trainer", "training.from_pretrained", "training_args", "trn_config"}
)
"""Tables of the training families."""
_INSERT = "it says what is to be written at every call, and is no argument"
_FIELD = "it is a field of the output"
_OF_THE_OBJECT = "it is a method or an attribute of the object, or stands in a call of one"
_INFERENCE = "the classes of inference share the table"
_HOOKS = FOLDER / "trainers" / "hooks.before.py"
_METHOD = "a method or an attribute, which fixtures/trainers/hooks.before.py overrides, calls or reads"
_METHODS = {
    "argparser": """
        parse_args_into_dataclasses parse_dict parse_json_file parse_yaml_file validate_args
    """,
    "trainer": """
        compute_loss create_accelerator_and_postprocess create_model_card create_optimizer
        create_optimizer_and_scheduler create_scheduler evaluate evaluation_loop get_batch_samples
        get_eval_dataloader get_test_dataloader get_train_dataloader log log_metrics
        maybe_log_train_step_metrics maybe_save_checkpoint mp_enabled num_examples num_tokens predict
        prediction_step prepare_args_for_precompilation prepare_for_precompilation
        report_and_save_summary_metrics save_metrics save_model save_model.output_dir save_state
        set_initial_training_values setup_training synchronize_hub_cache tp_enabled
        train.ignore_keys_for_eval train.resume_from_checkpoint train.trial train_step training_step
        trigger_on_step_middle_for_neuron_cache_callback validate_args
    """,
    "training_args": """
        dp_size mp_plugin neuron_cc_flags_model_type tp_plugin trn_config world_size_as_dp_size
        world_size_should_behave_as_dp_size
    """,
}
WITHOUT_FIXTURE: dict[str, Mapping[str, str]] = {
    "causal.get_neuron_config": dict.fromkeys(
        catalogue.rows("causal.get_neuron_config").keys() - ASKED, "`get_neuron_config` raised TypeError"
    ),
    "causal.generate": dict.fromkeys(
        ("(batched prompts)", "(speed)", "(when do_sample is not given)"), _INSERT
    ),
    "accelerator": {
        "_from_accelerator": "the state got it from the accelerator",
        **dict.fromkeys(
            [
                "accumulate",
                "autocast",
                "backward",
                "backward_for_xla_fsdp",
                "clip_grad_norm_",
                "clip_grad_norm_.postpone_clipping_to_optimizer_step",
                "clip_grad_norm_for_xla_fsdp",
                "gather",
                "gather.out_of_graph",
                "gather.sync",
                "gather_for_metrics",
                "gather_for_metrics.sync",
                "patch_model_for_neuron",
                "prepare",
                "prepare_data_loader",
                "prepare_data_loader.batches_per_execution",
                "prepare_data_loader.use_mp_device_loader",
                "prepare_model",
                "prepare_model_for_xla_fsdp",
                "prepare_optimizer",
                "prepare_scheduler",
                "save_state",
                "save_state.safe_serialization",
                "save_state_for_mp",
                "save_state_for_tp",
                "save_state_for_xla_fsdp",
                "wait_for_everyone",
            ],
            _OF_THE_OBJECT,
        ),
    },
    "training.from_pretrained": {
        "trn_config (2nd positional)": "a keyword is looked for; fixtures give it as second argument",
        **dict.fromkeys(
            [
                "configs",
                "controlnet_file_name",
                "decoder_file_name",
                "encoder_file_name",
                "file_name",
                "image_encoder_file_name",
                "library_name",
                "model_and_config_save_paths",
                "model_file_name",
                "model_id",
                "model_name_or_path",
                "model_save_dir",
                "neuron_config",
                "neuron_configs",
                "preprocessors",
                "text_encoder_2_file_name",
                "text_encoder_file_name",
                "transformer_file_name",
                "unet_file_name",
                "vae_decoder_file_name",
                "vae_encoder_file_name",
            ],
            _INFERENCE,
        ),
    },
    "trn_config": dict.fromkeys(
        [
            "auto_kv_size_multiplier",
            "device",
            "model",
            "model_parallelism_enabled",
            "num_key_value_heads",
            "parallelize_model",
            "return_orig_to_parallel",
            "should_parallelize",
        ],
        _OF_THE_OBJECT,
    ),
    "st.call": dict.fromkeys(("sentence_embedding", "token_embeddings"), _FIELD),
    "st.encode": {"(result)": _INSERT},
    **{table: dict.fromkeys(rows.split(), _METHOD) for table, rows in _METHODS.items()},
}
WITHOUT_FIXTURE["trainer"] = {
    **WITHOUT_FIXTURE["trainer"],
    "processsing_class": "of NeuronSFTTrainer in 0.4.0 and 0.4.1 alone, which belongs to another codemod",
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
        if table in CALLS | LOADS | TRAINING
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


@pytest.mark.parametrize("table", _METHODS)
def test_each_method_of_a_trainer_is_shown(table: str) -> None:
    text = _HOOKS.read_text("utf-8")
    names = [row.rpartition(".")[2] for row in _METHODS[table].split()]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_each_hook_is_shown() -> None:
    overridden = re.findall(r"^    def (\w+)\(", _HOOKS.read_text("utf-8"), re.MULTILINE)
    assert {*hooks.KEPT, *hooks.GONE} <= set(overridden)


def test_each_excuse_is_for_a_table() -> None:
    assert WITHOUT_FIXTURE.keys() <= {table for _, table in ROWS}
    assert {table for _, table in ROWS} == CALLS | LOADS | TRAINING


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
