"""The catalogue knows every legacy name in every spelling, and says something a person can do."""

from __future__ import annotations

import keyword
import re
import subprocess
import sys

import pytest

from neuronmigrate import catalogue, targets
from neuronmigrate.catalogue import wording

LEGACY = [
    "optimum.neuron",
    "optimum.neuron.NeuronTrainer",
    "optimum.neuron.nobody.knows.this",
    "optimum.exporters.neuron.main_export",
    "optimum.commands.export.neuronx.NeuronxExportCommand",
    "torch_xla",
    "torch_xla.core.xla_model.mark_step",
    "torch_neuron.trace",
    "torch.neuron.trace",
    "torch.neuron.experimental.neuron_cores_context",
    "torch_neuronx.trace",
    "torch_neuronx.xla_impl.ops.nki_jit",
    "torch_neuronx.nobody_knows_this",
    "neuronx_distributed.parallel_layers.layers.ColumnParallelLinear",
    "neuronx_distributed_inference.models.config.NeuronConfig",
    "transformers_neuronx.LlamaForSampling",
    "libneuronxla.neuron_cc_cache",
    "neuronxcc.nki.language.load",
    "torch.classes.neuron.Runtime",
    "torch.ops.neuron.forward",
    "transformers.utils.is_torch_xla_available",
]

NOT_LEGACY = [
    "torch",
    "torch.neuron",
    "torch.neuron.synchronize",
    "torch.neuron.nobody_knows_this",
    "torch_neuronx",
    "torch_neuronx.nki_op",
    "torch_neuronx.profiling",
    "torch_neuronx.profiling.ProfileMode.DEVICE",
    "torch_neuronx.nki.language.add",
    "torch_neuronx.__version__",
    "torch_xlarge",
    "optimum",
    "optimum.onnxruntime.ORTModel",
    "optimum.neuronal",
    "transformers.Trainer",
    "neuron.h",
]


@pytest.mark.parametrize("name", LEGACY)
def test_legacy_names(name: str) -> None:
    assert catalogue.is_legacy(name)
    assert catalogue.touches_legacy(name)
    entry = catalogue.nearest(name)
    assert entry is not None
    assert entry.advice and entry.reason
    assert name == entry.name or name.startswith(f"{entry.name}.")


@pytest.mark.parametrize("name", NOT_LEGACY)
def test_other_names(name: str) -> None:
    assert not catalogue.is_legacy(name)


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("torch", True),
        ("torch_neuronx", True),
        ("torch.neuron", True),
        ("torch.ops", True),
        ("optimum", True),
        ("optimum.exporters", True),
        ("transformers", True),
        ("transformers.utils", True),
        ("torch.nn", False),
        ("optimum.onnxruntime", False),
        ("transformers.Trainer", False),
        ("numpy", False),
        ("torch_neuronx.nki_op", False),
    ],
)
def test_names_above_legacy_ones(name: str, below: bool) -> None:
    assert catalogue.touches_legacy(name) is below


def test_every_name_is_legacy_or_shared_with_the_native_stack() -> None:
    shared = {"torch.neuron", "torch_neuronx", "torch_neuronx.__version__", "optimum.commands"}
    for name in catalogue._data()["names"]:
        other = name.startswith(("optimum.commands.env", "optimum.commands.register.register_export"))
        assert catalogue.is_legacy(name) or name in shared or other, name


def test_the_inventory_is_there() -> None:
    data = catalogue._data()
    assert len(data["names"]) > 4500
    assert len(data["variables"]) > 180
    assert len(data["arguments"]) == 29
    for root in catalogue.roots:
        assert catalogue.nearest(root) is not None, root


def test_every_text_is_a_clause_that_can_be_acted_on() -> None:
    data = catalogue._data()
    for kind, action, _, reason, advice, *_ in data["rows"]:
        text = data["texts"][advice]
        assert text and text[0].islower() and text[-1] not in ".;,", text
        assert len(text) < 200, text
        assert not re.search(
            r"\b(MANUAL|INSERT|REWRITE|DROP|SHIM|see table|not reviewed|section \d)\b", text
        ), text
        assert action in {"keep", "rename", "rewrite", "drop", "insert", "manual"}
        assert data["texts"][reason] or kind in {"variable", "command", "package", "flag"}
    for rows in data["arguments"].values():
        for action, _, note, *_ in rows.values():
            assert action in {"keep", "rename", "rewrite", "drop", "insert", "manual"}
            assert not re.search(r"\b(MANUAL|INSERT|REWRITE|DROP|SHIM|see table)\b", note), note


def test_the_data_were_made_with_the_present_wording() -> None:
    texts = set(catalogue._data()["texts"])
    for table in (wording.ROWS, wording.MODULES):
        for key, text in table.items():
            assert text in texts, f"{key}: run the generator again"
    notes = {row[2] for rows in catalogue._data()["arguments"].values() for row in rows.values()}
    for (table_name, argument), (_, _, note) in wording.ARGUMENT_OVERRIDES.items():
        assert note in notes, f"{table_name} {argument}: run the generator again"


@pytest.mark.parametrize(
    ("name", "action", "native"),
    [
        (
            "optimum.neuron.NeuronModelForSequenceClassification",
            "rewrite",
            "transformers.AutoModelForSequenceClassification",
        ),
        (
            "optimum.neuron.modeling.NeuronModelForSequenceClassification",
            "rewrite",
            "transformers.AutoModelForSequenceClassification",
        ),
        ("optimum.neuron.NeuronTrainer", "rewrite", "transformers.Trainer"),
        ("optimum.neuron.trainers.transformers.NeuronTrainer", "rewrite", "transformers.Trainer"),
        ("optimum.neuron.models.training.LlamaForCausalLM", "rewrite", "transformers.LlamaForCausalLM"),
        ("torch_xla.device_count", "rename", "torch.accelerator.device_count"),
    ],
)
def test_lookup(name: str, action: str, native: str) -> None:
    entry = catalogue.lookup(name)
    assert entry is not None
    assert (entry.action, entry.exact) == (action, True)
    assert native in entry.native


def test_two_classes_of_one_name_are_told_apart() -> None:
    inference = catalogue.lookup("optimum.neuron.NeuronModelForCausalLM")
    training = catalogue.lookup("optimum.neuron.models.training.NeuronModelForCausalLM")
    assert inference is not None and training is not None
    assert "trn_config" in training.advice and "trn_config" not in inference.advice


def test_lookup_is_exact_and_nearest_is_not() -> None:
    assert catalogue.lookup("torch_xla.runtime.nobody") is None
    entry = catalogue.nearest("torch_xla.runtime.nobody")
    assert entry is not None
    assert (entry.name, entry.exact) == ("torch_xla.runtime", False)
    assert catalogue.nearest("numpy.array") is None


def test_what_nobody_listed_is_not_told_to_remove_an_import() -> None:
    for name in ("torch_xla.core.xla_model.nobody", "torch_xla.nobody", "torch_neuronx.nobody"):
        entry = catalogue.nearest(name)
        assert entry is not None
        assert "import once" not in entry.advice


def test_arguments() -> None:
    loading = catalogue.arguments("optimum.neuron.NeuronModelForSequenceClassification.from_pretrained")
    assert loading["export"].action == "drop"
    assert loading["sequence_length"].action == "drop"
    assert "tokenizer call alone" in loading["sequence_length"].note
    assert loading["torch_dtype"].native == "dtype="
    trainer = catalogue.arguments("optimum.neuron.NeuronTrainingArguments")
    assert trainer["per_device_train_batch_size"].default == "1"
    assert catalogue.arguments("optimum.neuron.NeuronTrainingArguments.__init__") == trainer
    assert catalogue.arguments("torch_xla.sync") == {}
    assert catalogue.arguments("nobody.knows") == {}


def test_a_class_without_a_table_has_no_arguments_and_does_not_raise() -> None:
    assert catalogue.arguments("optimum.neuron.utils.DTYPE_MAPPER") == {}


@pytest.mark.parametrize(
    ("name", "action"),
    [
        ("XLA_USE_BF16", "rewrite"),
        ("NEURON_CC_FLAGS", "rewrite"),
        ("NEURON_COMPILE_CACHE_URI", "rename"),
        ("NEURON_RT_DBG_ANYTHING", "keep"),
        ("NEURON_RT_STOCHASTIC_ROUNDING_EN", "keep"),
        ("CUSTOM_CACHE_REPO", "drop"),
    ],
)
def test_variables(name: str, action: str) -> None:
    entry = catalogue.env(name)
    assert entry is not None
    assert entry.action == action


def test_unknown_variables_and_commands() -> None:
    assert catalogue.env("HOME") is None
    assert catalogue.command("ls -l") is None
    assert catalogue.command("") is None
    assert catalogue.command("pip install numpy") is None
    assert catalogue.flag("--nobody") is None


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("neuron_parallel_compile python train.py", "neuron_parallel_compile"),
        ("XLA_USE_BF16=1 torchrun --nproc_per_node 2 x.py", "torchrun"),
        ("optimum-cli export neuron --model gpt2 out/", "optimum-cli export neuron"),
        ("optimum-cli neuron cache lookup gpt2", "optimum-cli neuron cache lookup"),
        ("python3 -m torch_xla.distributed.xla_dist --tpu=x", "xla_dist"),
        ("python -m torch.distributed.launch x.py", "torch.distributed.launch"),
        ("/opt/bin/neuron-top", "neuron-top"),
        ("pip install -U 'torch-xla==2.5'", "torch-xla"),
        ("pip3 install optimum-neuron[neuronx]", "optimum-neuron"),
        ("accelerate launch --tpu x.py", "accelerate launch"),
    ],
)
def test_commands(line: str, name: str) -> None:
    entry = catalogue.command(line)
    assert entry is not None
    assert entry.name == name


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("optimum.neuron.NeuronTrainer", "optimum.neuron.NeuronTrainer"),
        ("NeuronTrainer", "optimum.neuron.NeuronTrainer"),
        ("xm.mark_step", "torch_xla.core.xla_model.mark_step"),
        ("xm.mark_step()", "torch_xla.core.xla_model.mark_step"),
        ("mark_step", "neuronx_distributed.utils.mark_step"),
        ("import torch_xla", "torch_xla"),
        ("NeuronModelForCTC.from_pretrained", "optimum.neuron.NeuronModelForCTC"),
        ("XLA_USE_BF16", "XLA_USE_BF16"),
        ("--auto-cast", "--auto-cast"),
        ("neuron_parallel_compile", "neuron_parallel_compile"),
        ("xr.nobody_knows", "torch_xla.runtime"),
        ("torch_xla.core.xla_model.nobody", "torch_xla.core.xla_model"),
    ],
)
def test_explain_takes_any_spelling(asked: str, name: str) -> None:
    explanation = catalogue.explain(asked)
    assert explanation.entries[0][0] == name


def test_explain_tells_arguments_once() -> None:
    explanation = catalogue.explain("NeuronModelForSequenceClassification")
    callables = [label for label, _ in explanation.arguments]
    assert len(callables) == len(set(callables))
    assert "optimum.neuron.NeuronModelForSequenceClassification.from_pretrained" in callables
    method = catalogue.explain("NeuronModelForSequenceClassification.from_pretrained")
    assert [label for label, _ in method.arguments] == [
        "optimum.neuron.NeuronModelForSequenceClassification.from_pretrained"
    ]
    train = catalogue.explain("NeuronTrainer.train")
    assert train.arguments[0][1][0].name == "train.resume_from_checkpoint"


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("NeuronTraner", "optimum.neuron.NeuronTrainer"),
        ("optimum.neuron.NeuronTraner", "optimum.neuron.NeuronTrainer"),
        ("XLA_UES_BF16", "XLA_USE_BF16"),
        ("neuron_paralel_compile", "neuron_parallel_compile"),
    ],
)
def test_explain_suggests_what_was_meant(asked: str, meant: str) -> None:
    explanation = catalogue.explain(asked)
    assert meant in explanation.suggestions
    assert not any(entry.exact for _, entry in explanation.entries)


def test_explain_of_nonsense_is_empty() -> None:
    assert catalogue.explain("qqqqqqqq").entries == ()
    assert catalogue.explain("").entries == ()


def test_names_can_be_written_in_code() -> None:
    for name in catalogue._data()["names"]:
        for part in name.split("."):
            assert part.isidentifier() and not keyword.iskeyword(part), name


def test_asking_whether_a_name_is_legacy_loads_no_data() -> None:
    code = (
        "from neuronmigrate import catalogue\n"
        "assert catalogue.is_legacy('torch_xla.sync') and not catalogue.is_legacy('torch.nn')\n"
        "assert catalogue._data.cache_info().currsize == 0\n"
        "import sys\n"
        "assert 'json' not in sys.modules and 'difflib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_counterpart_exists_in_the_target_libraries() -> None:
    for row in catalogue._data()["rows"]:
        for name in row[2]:
            if re.fullmatch(r"[A-Za-z_][\w.]*", name) and "." in name:
                assert targets.exists(name) is not False, name
