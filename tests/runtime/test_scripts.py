"""The after sides of `fixtures/scripts`, by `neuronmigrate run`: they end well, and say what they computed.

What the first three compute is held against plain code in tests/test_scripts.py, that of the others here.
"""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from tests.fixtures_lib import FOLDER
from tests.runtime.running import plain, run, script
from tests.tiny_models import (
    save_chat,
    save_classifier,
    save_llama,
    save_lora,
    save_recognizer,
    save_rows,
    save_sentence_encoder,
    save_stable_diffusion,
    save_stable_diffusion_xl,
    save_translator,
)
from tests.trees import HOME

SCRIPTS = FOLDER / "scripts"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("model"))


def test_classify(model_dir: Path) -> None:
    done = run(
        SCRIPTS / "classify" / "after" / "classify.py", "a fine film", env={"MODEL_DIR": str(model_dir)}
    )
    assert done.returncode == 0, done.stderr
    label, score, text = done.stdout.strip().split(maxsplit=2)
    assert label in ("NEGATIVE", "POSITIVE")
    assert 0.5 <= float(score) <= 1
    assert text == "a fine film"
    assert "emulated (CPU)" in done.stderr


def test_sentiment_service(model_dir: Path) -> None:
    folder = SCRIPTS / "sentiment_service" / "after"
    done = run(folder / "app.py", "--once", "a fine film", "good", env={"MODEL_DIR": str(model_dir)})
    assert done.returncode == 0, done.stderr
    assert {answer["label"] for answer in json.loads(done.stdout)} <= {"NEGATIVE", "POSITIVE"}


def test_mnist_torchrun(tmp_path: Path) -> None:
    folder = SCRIPTS / "mnist_torchrun" / "after"
    done = run(folder / "train.py", "--epochs", "1", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("epoch 0: loss ")
    assert (tmp_path / "digits.pt").exists()


def _run_in(folder: Path, *arguments: str | Path, **variables: str) -> str:
    """What `neuronmigrate run ARGUMENTS` prints, with the folder as the working directory."""
    done = run(*arguments, cwd=folder, env={"PYTHONPATH": str(HOME), **variables})
    assert done.returncode == 0, done.stderr
    assert "emulated (CPU)" in done.stderr
    return done.stdout


@pytest.fixture
def chat_folder(tmp_path: Path) -> Path:
    """A working directory with the models of `chat` below the names that its files read."""
    for name in ("model", "chat-neuron", "Qwen/Qwen2.5-0.5B-Instruct"):
        save_chat(tmp_path / name)
    return tmp_path


def test_chat(chat_folder: Path) -> None:
    questions = ["a fine film", "good"]
    folder = SCRIPTS / "chat" / "after"
    first, second, streamed = _run_in(
        chat_folder, folder / "chat.py", *questions, MODEL_DIR="model"
    ).splitlines()
    _check_greedy(chat_folder / "model", questions[0], first, penalty=1.1)
    _check_greedy(chat_folder / "model", questions[1], second, penalty=1.1)
    _check_greedy(chat_folder / "model", questions[0], streamed)


@pytest.mark.nightly
def test_chat_batch(chat_folder: Path) -> None:
    lines = ["a fine film\n", "good\n"]
    (chat_folder / "lines.txt").write_text("".join(lines))
    program = SCRIPTS / "chat" / "after" / "batch.py"
    printed = _run_in(chat_folder, "--devices", "2", program, "lines.txt").splitlines(keepends=True)
    # Each of the two processes holds half of the heads, and prints the whole answers.
    assert len(printed) == 8
    for prompt in lines:
        (answer,) = {answer for line, answer in itertools.pairwise(printed) if line == prompt}
        _check_greedy(chat_folder / "chat-neuron", prompt, answer.rstrip("\n"))


def _check_greedy(folder: Path, prompt: str, answer: str, penalty: float = 1.0) -> None:
    """Whether each of 64 tokens has the greatest logit, by a forward in float32 without cache and padding.

    The script's logits are of bfloat16, so that of two close ones it may take the lesser.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    start = len(tokenizer(prompt).input_ids)
    ids = tokenizer(prompt + answer, return_tensors="pt").input_ids
    assert ids.shape[1] == start + 64
    with torch.inference_mode():
        logits = AutoModelForCausalLM.from_pretrained(folder)(ids).logits[0]
    for position in range(start, ids.shape[1]):
        scores = logits[position - 1].clone()
        seen = ids[0, :position].unique()
        scores[seen] = torch.where(scores[seen] < 0, scores[seen] * penalty, scores[seen] / penalty)
        short = (scores.max() - scores[ids[0, position]]) / scores.std()
        assert short < 0.1, (position, answer)


def test_text_and_speech(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCTC, AutoModelForSeq2SeqLM, AutoTokenizer, BertModel

    translator = save_translator(tmp_path / "google-t5" / "t5-small")
    encoder = save_sentence_encoder(tmp_path / "BAAI" / "bge-small-en-v1.5")
    speech = save_recognizer(tmp_path / "speech")
    printed = _run_in(tmp_path, SCRIPTS / "text_and_speech" / "after" / "app.py", "speech")
    text, arrays = printed.split("\n", 1)
    ids, similar, shape, means, frames = re.findall(r"\[\[.*?\]\]|torch\.Size\(.*?\)", arrays, re.DOTALL)

    tokenizer = AutoTokenizer.from_pretrained(translator)
    prompt = tokenizer("translate English to German: a fine film", return_tensors="pt")
    model = AutoModelForSeq2SeqLM.from_pretrained(translator, dtype=torch.bfloat16)
    plain = model.generate(**prompt, num_beams=4, max_length=64, do_sample=False)
    assert _numbers(ids) == plain[0].tolist()
    assert text == tokenizer.decode(plain[0], skip_special_tokens=True)
    assert len(set(text.split())) > 1

    bert = BertModel.from_pretrained(encoder)
    words = AutoTokenizer.from_pretrained(encoder)(["a fine film", "a dull film"], return_tensors="pt")
    with torch.inference_mode():
        vectors = torch.nn.functional.normalize(bert(**words).last_hidden_state[:, 0])
        tokens = bert(**prompt).last_hidden_state
        letters = AutoModelForCTC.from_pretrained(speech)(torch.zeros(1, 800)).logits.argmax(-1)
    assert _numbers(similar) == pytest.approx((vectors @ vectors.T).flatten().tolist(), rel=1e-4)
    assert shape == "torch.Size([1, 32])"
    assert _numbers(means) == pytest.approx(tokens.mean(1)[0].tolist(), rel=1e-3, abs=1e-4)
    assert _numbers(frames) == letters[0].tolist()


def _numbers(printed: str) -> list[float]:
    """The numbers of a printed array, row after row."""
    return [float(number) for number in re.findall(r"[-+.\de]+", printed)]


@pytest.fixture(scope="module")
def poster_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with the models of `poster_service`, two LoRAs and a sketch."""
    import numpy as np
    from PIL import Image
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("posters")
    save_stable_diffusion_xl(folder / "stabilityai" / "stable-diffusion-xl-base-1.0")
    sketches = save_stable_diffusion(folder / "stable-diffusion-v1-5" / "stable-diffusion-v1-5")
    ink = save_lora(folder / "me" / "ink", "ink.safetensors", sketches, seed=1)
    paper = save_lora(folder / "me" / "paper", "paper.safetensors", sketches, seed=2)
    added = {name: 0.5 * ink[name] + 0.7 * paper[name] for name in ink}
    save_file(added, folder / "added.safetensors")
    # Of another size and shape than the pipeline's, and pale: Diffusers takes a tensor with nothing below
    # zero for one that was not normalized.
    pixels = np.arange(160, 250, dtype=np.uint8).repeat(52)[: 32 * 48 * 3].reshape(32, 48, 3)
    Image.fromarray(pixels).save(folder / "sketch.png")
    return folder


@pytest.mark.nightly
def test_poster_service(poster_folder: Path) -> None:
    import numpy as np
    import torch
    from PIL import Image
    from safetensors.torch import load_file

    folder = SCRIPTS / "poster_service" / "after"
    _run_in(poster_folder, folder / "compile.py")
    name = Path("unet", "diffusion_pytorch_model.safetensors")
    saved = load_file(poster_folder / "compiled" / "posters" / name)
    given = load_file(poster_folder / "stabilityai" / "stable-diffusion-xl-base-1.0" / name)
    assert saved.keys() == given.keys()
    assert all(torch.equal(saved[key], given[key].bfloat16()) for key in saved)

    _run_in(poster_folder, folder / "app.py")
    _run_in(poster_folder, script(poster_folder, ASK), folder)
    done = plain(script(poster_folder, PLAIN, "plain.py"), cwd=poster_folder)
    assert done.returncode == 0, done.stderr

    def pixels(name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        with Image.open(poster_folder / name) as image:
            return np.asarray(image, dtype=np.int64)

    def difference(one: str, other: str) -> float:
        return float(np.abs(pixels(one) - pixels(other)).mean())

    assert pixels("poster.png").shape == (1024, 768, 3)
    assert difference("poster.png", "plain_poster.png") < 0.3
    # The script draws this one from no seed.
    assert pixels("coloured.png").shape == (512, 512, 3)
    assert pixels("coloured.png").std() > 10
    assert difference("seeded.png", "plain_seeded.png") < 0.3
    fused = load_file(poster_folder / "fused.safetensors")
    loaded = load_file(poster_folder / "stable-diffusion-v1-5" / "stable-diffusion-v1-5" / name)
    for key, added in load_file(poster_folder / "added.safetensors").items():
        # Two sums of bfloat16, one for each LoRA.
        torch.testing.assert_close(fused[key].float(), loaded[key] + added, rtol=2**-7, atol=2**-9)


ASK = """\
# What the running service holds, and a sketch from a seed.
import sys

import torch

sys.path.insert(0, sys.argv[1])
import app
from safetensors.torch import save_file

unet = app.models.sketcher.unet
assert {weight.device.type for weight in unet.parameters()} == {"neuron"}
weights = {name.replace(".base_layer", ""): weight.cpu() for name, weight in unet.state_dict().items()}
save_file({name: weight for name, weight in weights.items() if "lora" not in name}, "fused.safetensors")
torch.manual_seed(0)
app.colour("an oil painting", "sketch.png").save("seeded.png")
"""

PLAIN = """\
# The same images on the CPU, from the weights that the service has fused.
import torch
from diffusers import StableDiffusionImg2ImgPipeline, StableDiffusionXLPipeline
from PIL import Image
from safetensors.torch import load_file

options = {"generator": torch.Generator().manual_seed(0), "guidance_scale": 1.0}
posters = StableDiffusionXLPipeline.from_pretrained(
    "stabilityai/stable-diffusion-xl-base-1.0", dtype=torch.bfloat16
)
posters("a lighthouse", height=1024, width=768, **options).images[0].save("plain_poster.png")

sketcher = StableDiffusionImg2ImgPipeline.from_pretrained(
    "stable-diffusion-v1-5/stable-diffusion-v1-5", dtype=torch.bfloat16
)
weights = load_file("fused.safetensors")
assert weights.keys() == sketcher.unet.state_dict().keys()
sketcher.unet.load_state_dict(weights)
picture = Image.open("sketch.png").convert("RGB").resize((512, 512), Image.Resampling.LANCZOS)
torch.manual_seed(0)
sketcher("an oil painting", image=picture, strength=0.7).images[0].save("plain_seeded.png")
"""


TRAINING = {
    "accelerate_loop": ("train.py --model_name_or_path {classifier} --output_dir out", "epoch 1: loss"),
    "finetune_classifier": ("train.py --model_id {classifier} --output_dir out", "8 updates"),
    "train_over_files": (
        "main.py --output_dir out --max_steps 2 --logging_steps 1 --save_strategy no --report_to none",
        "train_loss",
    ),
    "orpo": ("align.py --model_id {llama} --output_dir out", "train_loss"),
    "weighted_loss": ("train.py", "train_loss"),
}
"""Command lines of the training projects, and what they print at the end."""
ELSEWHERE = {
    "pair_25": "tests/test_pairs.py runs it on two processes",
    "sft_lora": "tests/test_scripts.py runs it",
    "traced_embedder": "tests/test_scripts.py runs its two scripts",
    "train_language_model": "tests/test_training_scripts.py runs it as its launcher does",
}


@pytest.mark.nightly
@pytest.mark.parametrize("project", TRAINING)
def test_training_projects_end_well(project: str, tmp_path: Path, model_dir: Path) -> None:
    line, last = TRAINING[project]
    # What some find by these names in the working directory.
    llama = save_llama(tmp_path / "meta-llama" / "Llama-3.2-1B")
    save_rows(tmp_path / "rows")
    name, *words = line.format(classifier=model_dir, llama=llama).split()
    env = {
        "MODEL_DIR": str(model_dir),
        "OUTPUT_DIR": str(tmp_path),
        "HF_DATASETS_CACHE": str(tmp_path / "cache"),
        "PYTHONPATH": str(HOME),
    }
    done = run(SCRIPTS / project / "after" / name, *words, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert last in done.stdout


def test_every_project_is_run() -> None:
    run_here = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    projects = {folder.name for folder in SCRIPTS.iterdir() if folder.name[0] != "."}
    assert projects <= run_here | TRAINING.keys() | ELSEWHERE.keys()
