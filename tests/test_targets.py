"""The index of the target libraries answers rightly, and is that of the installed releases."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from neuronmigrate import targets
from neuronmigrate.targets import generate, keywords, neuron

ROOT = Path(__file__).parent.parent

EXISTING = """
torch torch.device torch.bfloat16 torch.zeros torch.Tensor.to torch.nn.Linear.to torch.compile torch.autocast
torch.inference_mode torch.nn.functional.pad torch.accelerator.synchronize torch.utils._pytree.tree_map_only
torch.distributed.get_rank torch.distributed.all_gather_single torch.distributed.ReduceOp.SUM
torch.distributed.device_mesh.init_device_mesh torch.distributed.fsdp.fully_shard
torch.distributed.algorithms._checkpoint.checkpoint_wrapper.checkpoint_wrapper torch.neuron.synchronize
torch_neuronx.get_fallback_ops
transformers.AutoModelForSequenceClassification transformers.trainer.Trainer transformers.Trainer.train
transformers.BertModel.from_pretrained transformers.GPT2LMHeadModel.generate
transformers.GenerationConfig.from_model_config transformers.distributed.DistributedConfig
transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
accelerate.PartialState.is_main_process accelerate.utils.gather_object
diffusers.StableDiffusionPipeline.from_pretrained trl.SFTConfig trl.experimental.orpo.ORPOConfig
peft.get_peft_model sentence_transformers.SentenceTransformer.encode
"""

MISSING = """
torch.devise torch.nn.functional.padd torch.distributed.get_ranks torch.Tensor.xla
transformers.NeuronTrainer transformers.Trainer.train_step transformers.is_torch_tpu_available
transformers.nonsense.Trainer accelerate.NeuronAccelerator diffusers.NeuronStableDiffusionPipeline
trl.ORPOConfig peft.NeuronPeftModel sentence_transformers.NeuronSentenceTransformers
"""

UNKNOWN = """
numpy.array os.environ torch.neuron.nobody_knows torch_neuronx.nobody_knows torch.cuda.nobody_knows
transformers.models.bert.modeling_bert.BertModel
"""


@pytest.mark.parametrize("name", EXISTING.split())
def test_names_that_exist(name: str) -> None:
    assert targets.exists(name) is True


@pytest.mark.parametrize("name", MISSING.split())
def test_names_that_do_not(name: str) -> None:
    assert targets.exists(name) is False


@pytest.mark.parametrize("name", UNKNOWN.split())
def test_names_that_are_not_described(name: str) -> None:
    assert targets.exists(name) is None


LOADING = (
    "dtype device_map revision token cache_dir force_download local_files_only trust_remote_code subfolder "
    "attn_implementation config distributed_config num_labels"
)


@pytest.mark.parametrize("keyword", LOADING.split())
@pytest.mark.parametrize(
    "owner", ["transformers.AutoModelForSequenceClassification", "transformers.BertForSequenceClassification"]
)
def test_loading_takes_its_own_keywords(owner: str, keyword: str) -> None:
    assert targets.accepts(f"{owner}.from_pretrained", keyword) is True


@pytest.mark.parametrize(
    "owner", ["transformers.AutoModel", "transformers.BertModel", "diffusers.StableDiffusionPipeline"]
)
@pytest.mark.parametrize("keyword", ["export", "batch_size", "sequence_length", "auto_cast", "neuron_config"])
def test_loading_refuses_the_legacy_ones(owner: str, keyword: str) -> None:
    assert targets.accepts(f"{owner}.from_pretrained", keyword) is False


@pytest.mark.parametrize(
    ("name", "keyword", "answer"),
    [
        ("transformers.AutoModel.from_pretrained", "nobody_knows", None),
        ("transformers.TrainingArguments", "average_tokens_across_devices", True),
        ("transformers.TrainingArguments", "overwrite_output_dir", False),
        ("transformers.Seq2SeqTrainingArguments", "predict_with_generate", True),
        ("transformers.Seq2SeqTrainingArguments", "optim", True),
        ("transformers.Trainer", "processing_class", True),
        ("transformers.Trainer", "tokenizer", False),
        ("transformers.Trainer.train", "resume_from_checkpoint", True),
        ("transformers.pipeline", "device", True),
        ("transformers.pipeline", "batch_size", True),
        ("transformers.GPT2LMHeadModel.generate", "max_new_tokens", True),
        ("transformers.AutoModelForCausalLM.generate", "max_new_tokens", True),
        ("trl.SFTConfig", "max_length", True),
        ("trl.SFTConfig", "learning_rate", True),
        ("trl.SFTConfig", "max_seq_length", False),
        ("torch.zeros_like", "device", True),
        ("torch.zeros_like", "devise", False),
        ("torch.device", "type", True),
        ("torch.compile", "dynamic", True),
        ("torch.autocast", "dtype", True),
        ("torch.Tensor.to", "non_blocking", True),
        ("torch.optim.AdamW", "lr", True),
        ("torch.optim.AdamW", "learning_rate", False),
        ("torch.distributed.init_process_group", "backend", True),
        ("torch.neuron.set_device", "device", True),
        ("torch.neuron.memory_stats", "device", None),
        ("diffusers.StableDiffusionPipeline.from_pretrained", "dtype", True),
        ("diffusers.StableDiffusionPipeline.__call__", "height", True),
        ("sentence_transformers.SentenceTransformer", "device", True),
        ("sentence_transformers.SentenceTransformer.encode", "convert_to_tensor", True),
        ("peft.LoraConfig", "r", True),
        ("peft.LoraConfig", "rank", False),
        ("accelerate.Accelerator", "mixed_precision", True),
        ("accelerate.Accelerator", "autocast_backend", False),
        ("numpy.zeros", "dtype", None),
        ("transformers.nonsense", "dtype", None),
    ],
)
def test_keywords(name: str, keyword: str, answer: bool | None) -> None:
    assert targets.accepts(name, keyword) is answer


def test_parameters_can_be_shown() -> None:
    assert targets.parameters("transformers.set_seed") == ("seed", "deterministic")
    assert targets.parameters("torch.nobody_knows") is None
    assert targets.parameters("numpy.zeros") is None
    assert targets.parameters("torch.bfloat16") is None


def test_only_the_library_that_was_asked_for_is_read_and_none_is_imported() -> None:
    code = (
        "import sys\n"
        "from neuronmigrate import targets\n"
        "assert targets.exists('trl.SFTConfig')\n"
        "assert targets._library.cache_info().currsize == 1\n"
        "assert targets.accepts('trl.SFTConfig', 'optim')\n"
        "assert targets._library.cache_info().currsize == 2, 'the base is in transformers'\n"
        "assert not {'torch', 'transformers', 'trl'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_versions() -> None:
    assert targets.version("transformers") == "5.24.0"
    with pytest.raises(KeyError):
        targets.version("numpy")


def test_the_libraries_of_the_generator_are_those_that_are_answered_for() -> None:
    assert tuple(sorted(generate.LIBRARIES)) == targets.LIBRARIES


def test_the_pinned_releases_are_those_described() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    for library, plan in generate.LIBRARIES.items():
        pin = re.search(rf'"{re.escape(plan.distribution)}==([^"]+)"', text)
        assert pin is not None, plan.distribution
        assert pin[1] == targets.version(library), (
            f"regenerate the index of {library}, or pin what it describes"
        )


@pytest.mark.parametrize("library", targets.LIBRARIES)
def test_the_index_is_that_of_the_installed_release(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    installed = generate.installed(library)
    assert installed == targets.version(library), f"run the generator for {library} {installed}"
    fresh = json.loads(generate.describe(library))
    kept = json.loads((Path(targets.__file__).parent / f"{library}.json").read_bytes())
    for part in ("modules", "definitions"):
        assert fresh[part].keys() == kept[part].keys(), f"run the generator for {library}"
        for name in fresh[part]:
            assert fresh[part][name] == kept[part][name], f"{name}: run the generator for {library}"


def test_the_stub_says_where_it_knows_each_name_from() -> None:
    assert re.fullmatch(r"20\d\d-\d\d", neuron.DATED)
    for name, known in neuron.NAMES.items():
        assert known.source.startswith(("docs", "source", "callers", "reports")), name
        owner = name.rpartition(".")[0]
        assert not owner or owner in neuron.NAMES or targets.exists(owner), name


def test_hand_written_keywords_are_for_classes_that_exist_and_open_callables() -> None:
    for each in keywords.OPEN:
        assert each.source
        assert targets._definition(each.owner) is not None, each.owner
        found = targets._parameters(each.owner, each.method)
        if found is not None:
            assert any(name.startswith("**") for name in found), f"{each.owner}.{each.method} is not open"
        assert not each.keywords & keywords.REFUSED or "pipeline" in each.owner, each.owner


def test_what_a_function_takes_out_of_its_keywords_is_found(tmp_path: Path) -> None:
    package = tmp_path / "sample"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from .inner import *\n"
        "from .inner import Base as Renamed\n"
        "def load(path, /, *more, strict=True, **kwargs):\n"
        "    kwargs.pop('dtype', None)\n"
        "    kwargs.get('_private')\n"
        "    return other.pop('not_ours')\n"
        "Alias = Renamed\n",
        "utf-8",
    )
    (package / "inner.py").write_text(
        "from dataclasses import dataclass, field\n"
        "import os\n"
        "__all__ = ['Base', 'Data']\n"
        "class Base:\n"
        "    limit = 3\n"
        "    def __init__(self, a, b=1): ...\n"
        "    @property\n"
        "    def size(self): ...\n"
        "    def _hidden(self): ...\n"
        "@dataclass\n"
        "class Data(Base):\n"
        "    x: int\n"
        "    y: int = field(default=1, init=False)\n"
        "def helper(): ...\n",
        "utf-8",
    )
    code = (
        "import json, sys\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "from neuronmigrate.targets import generate\n"
        "reader = generate.Reader('sample')\n"
        "assert reader.public('sample') == {\n"
        "    'Alias': 'sample.inner.Base', 'Base': 'sample.inner.Base', 'Data': 'sample.inner.Data',\n"
        "    'Renamed': 'sample.inner.Base', 'load': 'sample.load'\n"
        "} or print(reader.public('sample'))\n"
        "assert 'os' not in reader.public('sample.inner')\n"
        "assert reader.public('sample.inner')['helper'] == 'sample.inner.helper'\n"
        "load = reader.definition('sample.load')\n"
        "assert load.parameters == ['/path', '*more', 'strict', '~dtype', '**kwargs'], load\n"
        "base, data = (reader.definition(f'sample.inner.{n}') for n in ('Base', 'Data'))\n"
        "assert base.methods['__init__'].parameters == ['a', 'b']\n"
        "assert base.attributes == ['limit', 'size'] and '_hidden' not in base.methods\n"
        "assert data.fields == ['x'] and data.bases == ['sample.inner.Base']\n"
        "assert 'sample' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
