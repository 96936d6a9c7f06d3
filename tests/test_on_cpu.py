"""The harness that runs migrated scripts: it must find what is broken, not only pass what is well."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.on_cpu import Completed, run_on_cpu

SPELLINGS = """\
import os
import sys
import threading

import torch
from torch.utils.data import DataLoader

device = torch.device("neuron")
rows = torch.arange(6, dtype=torch.float32, device="neuron:0").reshape(2, 3)
moved = torch.ones(3).to(device) + rows.to("neuron").sum(0)

torch.manual_seed(7)
drawn = torch.randn(3, device=torch.accelerator.current_accelerator(check_available=True))
generator = torch.Generator(device="neuron").manual_seed(7)
drawn_again = torch.randn(3, generator=generator, device=device)

accelerator = torch.accelerator.current_accelerator().type
count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
torch.accelerator.synchronize()
torch.accelerator.empty_cache()

model = torch.nn.Linear(3, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weight_before = model.weight.detach().clone()
with torch.autocast("neuron", dtype=torch.bfloat16):
    cast = model(rows)
with torch.autocast("neuron"):
    cast_by_default = model(rows)
cast.float().sum().backward()
optimizer.step()
weight_after = model.weight
dtypes = [str(cast.dtype), str(cast_by_default.dtype)]

with torch.device("neuron"):
    made_inside = torch.ones(2)
torch.set_default_device("neuron")
made_by_default = torch.ones(2)
torch.set_default_device(None)

in_thread = {}
thread = threading.Thread(target=lambda: in_thread.update(made=torch.zeros(2, device="neuron")))
thread.start()
thread.join()

loaded = list(DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True))
torch.save(rows, "rows.pt")
read_back = torch.load("rows.pt", map_location="neuron")
array = moved.cpu().numpy()

arguments = sys.argv[1:]
offline = os.environ["HF_HUB_OFFLINE"]
_hidden = 1
a_function = thread.start
print("said", file=sys.stdout)
sys.exit(0)
"""


@pytest.fixture(scope="module")
def spellings(tmp_path_factory: pytest.TempPathFactory) -> Completed:
    script = tmp_path_factory.mktemp("spellings") / "spellings.py"
    script.write_text(SPELLINGS)
    return run_on_cpu(script, "--rate", "0.5")


def test_every_spelling_of_the_device_computes(spellings: Completed) -> None:
    import torch

    assert spellings.tensor("moved").tolist() == [4.0, 6.0, 8.0]
    for name in ("made_inside", "made_by_default"):
        assert spellings.tensor(name).tolist() == [1.0, 1.0]
    assert torch.equal(spellings.tensor("read_back"), spellings.tensor("rows"))
    assert torch.equal(spellings.tensor("array"), spellings.tensor("moved"))
    assert not torch.equal(spellings.tensor("weight_after"), spellings.tensor("weight_before"))


def test_the_accelerator_is_there(spellings: Completed) -> None:
    assert spellings.values["accelerator"] == "neuron"
    assert spellings.values["count"] == 1


def test_random_numbers_are_those_of_the_cpu(spellings: Completed) -> None:
    import torch

    expected = torch.randn(3, generator=torch.Generator().manual_seed(7))
    assert torch.equal(spellings.tensor("drawn"), expected)
    assert torch.equal(spellings.tensor("drawn_again"), expected)


def test_autocast_casts(spellings: Completed) -> None:
    assert spellings.values["dtypes"] == ["torch.bfloat16", "torch.float16"]


def test_results_and_arguments_pass_through(spellings: Completed) -> None:
    assert spellings.stdout == "said\n"
    assert spellings.values["arguments"] == ["--rate", "0.5"]
    assert spellings.values["offline"] == "1"
    assert "_hidden" not in spellings.values
    assert "a_function" not in spellings.values
    with pytest.raises(TypeError, match="count is int"):
        spellings.tensor("count")


def test_other_devices_and_errors_still_fail(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text('import torch\n\ntorch.ones(2, device="neurone")\n')
    with pytest.raises(RuntimeError, match=r"exit code 1(.|\n)*neurone"):
        run_on_cpu(script)
    script.write_text('import sys\n\nsys.exit("no model there")\n')
    with pytest.raises(RuntimeError, match=r"exit code 1(.|\n)*no model there"):
        run_on_cpu(script)


def test_processes_meet_in_a_group(tmp_path: Path) -> None:
    script = tmp_path / "group.py"
    script.write_text(
        "import torch\n"
        "import torch.distributed as dist\n"
        "\n"
        'dist.init_process_group("neuron")\n'
        'total = torch.full((2,), dist.get_rank() + 1.0, device="neuron")\n'
        "dist.all_reduce(total)\n"
        "dist.barrier()\n"
        "world = dist.get_world_size()\n"
        "dist.destroy_process_group()\n"
    )
    done = run_on_cpu(script, processes=2)
    assert done.values["world"] == 2
    assert done.tensor("total").tolist() == [3.0, 3.0]


def test_a_classifier_computes_what_it_does_on_the_cpu(tmp_path: Path) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config)
    model.save_pretrained(tmp_path / "model")
    ids = torch.arange(14).reshape(2, 7)
    with torch.no_grad():
        expected = model(input_ids=ids).logits

    script = tmp_path / "classify.py"
    script.write_text(
        "import sys\n"
        "\n"
        "import torch\n"
        "from transformers import AutoModelForSequenceClassification\n"
        "\n"
        "model = AutoModelForSequenceClassification.from_pretrained(\n"
        '    sys.argv[1], dtype=torch.float32, device_map="neuron"\n'
        ")\n"
        'ids = torch.arange(14).reshape(2, 7).to("neuron")\n'
        "with torch.no_grad():\n"
        "    logits = model(input_ids=ids).logits.cpu()\n"
        "print(logits.tolist())\n"
    )
    done = run_on_cpu(script, str(tmp_path / "model"))
    assert torch.equal(done.tensor("logits"), expected)
    assert done.stdout == f"{expected.tolist()}\n"


def test_the_command_prints_what_the_script_prints(tmp_path: Path) -> None:
    script = tmp_path / "hello.py"
    script.write_text(
        'import sys\n\nimport torch\n\nprint(torch.ones(2, device="neuron").tolist(), sys.argv[1:])\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "tests.on_cpu", str(script), "--flag"],
        cwd=Path(__file__).parent.parent,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[1.0, 1.0] ['--flag']\n"
