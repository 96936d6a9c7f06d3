"""Stand-ins of the inference classes against plain transformers, where the old class equals it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.runtime.legacy_session import begin
from tests.tiny_models import save_classifier

if TYPE_CHECKING:
    import torch


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        # Wide enough that greedy choices are not near ties.
        initializer_range=0.3,
        eos_token_id=63,
        pad_token_id=0,
    )
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _made(
    kind: Callable[..., torch.nn.Module], config: Callable[..., object], **fields: object
) -> torch.nn.Module:
    """A model with random weights, the same on every call."""
    import torch

    torch.manual_seed(0)
    return kind(config(**fields)).eval()


def _save(model: torch.nn.Module, folder: Path) -> None:
    save: Callable[[Path], object] = getattr(model, "save_pretrained")  # noqa: B009 - no method of a module
    save(folder)


def _texts(folder: Path, texts: list[str]) -> dict[str, torch.Tensor]:
    from transformers import AutoTokenizer

    return dict(AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt"))


def test_a_padded_classifier_gives_the_numbers_of_the_unpadded_one(
    classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import AutoModelForSequenceClassification

    from neuronmigrate.runtime.legacy.optimum.traced import NeuronModelForSequenceClassification

    begin(monkeypatch)
    model = NeuronModelForSequenceClassification.from_pretrained(
        classifier, export=True, batch_size=4, sequence_length=32
    )
    inputs = _texts(classifier, ["a fine film", "this long film was dull", "good"])
    logits = model(**inputs).logits  # type: ignore[attr-defined]
    with torch.no_grad():
        plain = AutoModelForSequenceClassification.from_pretrained(classifier)(**inputs).logits
    assert logits.shape == (3, 2)
    assert not logits.requires_grad
    torch.testing.assert_close(logits, plain, rtol=1e-5, atol=1e-6)


def test_the_graph_sees_the_compiled_shapes(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from neuronmigrate.runtime.legacy.optimum.traced import NeuronModelForSequenceClassification

    begin(monkeypatch)
    model = NeuronModelForSequenceClassification.from_pretrained(
        classifier, export=True, batch_size=2, sequence_length=8
    )
    padded = model._padded(_texts(classifier, ["a fine film"]))
    assert {name: tuple(tensor.shape) for name, tensor in padded.items()} == {
        "input_ids": (2, 8),
        "attention_mask": (2, 8),
        "token_type_ids": (2, 8),
    }
    # The tokenizer's pad id is 0 here; missing rows are ones, of ids and masks alike.
    assert padded["input_ids"][0].tolist() == [2, 5, 9, 8, 3, 0, 0, 0]
    assert padded["attention_mask"].tolist() == [[1] * 5 + [0] * 3, [1] * 8]
    assert torch.equal(padded["input_ids"][1], torch.ones(8, dtype=torch.int64))


def test_what_the_compiled_graph_refused_is_refused(
    classifier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from neuronmigrate.runtime.legacy.optimum.traced import NeuronModelForSequenceClassification as Model

    begin(monkeypatch)
    model = Model.from_pretrained(classifier, export=True, batch_size=1, sequence_length=6)
    inputs = _texts(classifier, ["this long film was dull"])
    with pytest.raises(ValueError, match=r"Unable to pad input_ids .* on dimension 1"):
        model(**inputs)
    with pytest.raises(ValueError, match=r"on dimension 0.*dynamic_batch_size"):
        model(**_texts(classifier, ["good", "dull"]))
    short = _texts(classifier, ["good"])
    with pytest.raises(RuntimeError, match="traced with input_ids, attention_mask, token_type_ids"):
        model(short["input_ids"], short["attention_mask"])
    with pytest.raises(TypeError, match="missing required argument: 'attention_mask'"):
        model(short["input_ids"])
    with pytest.raises(ValueError, match="sequence_length axis is missing"):
        Model.from_pretrained(classifier, export=True, batch_size=1)
    with pytest.raises(FileNotFoundError, match="any neuron model file"):
        Model.from_pretrained(classifier)
    with pytest.raises(TypeError, match="unexpected keyword argument 'device_map'"):
        Model.from_pretrained(classifier, export=True, batch_size=1, sequence_length=6, device_map="auto")


def test_arguments_are_those_of_the_release(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuronmigrate.runtime.legacy.optimum.traced import NeuronModelForSequenceClassification as Model

    begin(monkeypatch, "0.0.28")
    with pytest.raises(TypeError, match=r"'instance_type' \(optimum-neuron 0.0.28\)"):
        Model.from_pretrained(classifier, export=True, batch_size=1, sequence_length=6, instance_type="trn1")
    session = begin(monkeypatch)
    Model.from_pretrained(classifier, export=True, batch_size=1, sequence_length=6, instance_type="trn1")
    assert any("without effect here: instance_type" in note for note in session.notes)


def test_a_dynamic_batch_takes_any_number_of_rows(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from neuronmigrate.runtime.legacy.optimum.traced import NeuronModelForSequenceClassification

    begin(monkeypatch)
    model = NeuronModelForSequenceClassification.from_pretrained(
        classifier, export=True, batch_size=2, sequence_length=16, dynamic_batch_size=True
    )
    inputs = _texts(classifier, ["good", "dull", "a film"])
    assert model._padded(inputs)["input_ids"].shape == (4, 16)
    assert model(**inputs).logits.shape == (3, 2)  # type: ignore[attr-defined]


def test_a_saved_model_keeps_its_shapes(
    classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from neuronmigrate.runtime.legacy import LegacyProblem
    from neuronmigrate.runtime.legacy.optimum.traced import NeuronModelForSequenceClassification as Model

    begin(monkeypatch)
    model = Model.from_pretrained(classifier, export=True, batch_size=2, sequence_length=9)
    model.save_pretrained(tmp_path)
    again = Model.from_pretrained(tmp_path)
    assert again.shapes == {"batch_size": 2, "sequence_length": 9}
    inputs = _texts(classifier, ["good"])
    assert torch.equal(again(**inputs).logits, model(**inputs).logits)  # type: ignore[attr-defined]
    (tmp_path / "model.neuron").write_bytes(b"\0" * 2000)
    with pytest.raises(LegacyProblem, match="only a NeuronCore can run"):
        Model.from_pretrained(tmp_path)


def test_audio_sees_its_padding_and_images_keep_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers import ViTConfig, ViTForImageClassification, Wav2Vec2Config, Wav2Vec2ForCTC

    from neuronmigrate.runtime.legacy.optimum import traced

    begin(monkeypatch)
    speech = _made(
        Wav2Vec2ForCTC,
        Wav2Vec2Config,
        vocab_size=12,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        conv_dim=(8, 8),
        conv_stride=(5, 2),
        conv_kernel=(10, 3),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )
    _save(speech, tmp_path / "speech")
    model = traced.NeuronModelForCTC.from_pretrained(
        tmp_path / "speech", export=True, batch_size=1, audio_sequence_length=400
    )
    sound = torch.randn(1, 300)
    logits = model(sound).logits  # type: ignore[attr-defined]
    with torch.no_grad():
        plain = speech(torch.nn.functional.pad(sound, (0, 100))).logits
    torch.testing.assert_close(logits, plain, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert logits.shape[1] > speech(sound).logits.shape[1]

    vision = _made(
        ViTForImageClassification,
        ViTConfig,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        image_size=16,
        patch_size=8,
        num_labels=3,
    )
    _save(vision, tmp_path / "vision")
    seeing = traced.NeuronModelForImageClassification.from_pretrained(
        tmp_path / "vision", export=True, batch_size=2, height=16, width=16
    )
    pixels = torch.randn(1, 3, 16, 16)
    with torch.no_grad():
        plain = vision(pixels).logits
    torch.testing.assert_close(seeing(pixels).logits, plain, rtol=1e-5, atol=1e-6)  # type: ignore[attr-defined]


def test_greedy_decoding_equals_transformers(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig

    from neuronmigrate.runtime.legacy.optimum.decoder import NeuronModelForCausalLM

    begin(monkeypatch)
    config = NeuronModelForCausalLM.get_neuron_config(llama, batch_size=2, sequence_length=64)
    model = NeuronModelForCausalLM.export(llama, neuron_config=config, load_weights=True)
    assert isinstance(model, NeuronModelForCausalLM)
    # Padded on the right, as NxD wants it.
    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    ours = model.generate(ids, attention_mask=mask, max_new_tokens=8)
    plain = AutoModelForCausalLM.from_pretrained(llama)
    plain.generation_config = GenerationConfig.from_model_config(plain.config)
    left, left_mask = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]]), mask.flip(1)
    theirs = plain.generate(left, attention_mask=left_mask, max_new_tokens=8, do_sample=False)
    length = theirs.shape[1]
    assert torch.equal(ours[:, :4], ids)
    assert torch.equal(ours[:, 4:], theirs[:, 4:])
    assert ours.shape == (2, length)
    # 20 new tokens without a length, unless the end comes before.
    assert model.generate(ids[:1]).shape[1] <= 24


def test_decoders_refuse_what_theirs_did(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from neuronmigrate.runtime.legacy.optimum.decoder import NeuronModelForCausalLM as Model

    session = begin(monkeypatch)
    model = Model.export(llama, Model.get_neuron_config(llama, sequence_length=6), load_weights=True)
    assert isinstance(model, Model)
    with pytest.raises(ValueError, match="static sequence length"):
        model.generate(torch.ones(1, 7, dtype=torch.int64))
    with pytest.raises(ValueError, match="static batch size"):
        model.generate(torch.ones(2, 3, dtype=torch.int64))
    padded = torch.tensor([[0, 1, 1]])
    with pytest.raises(ValueError, match="Left padding"):
        model.generate(torch.tensor([[0, 5, 6]]), attention_mask=padded)
    with pytest.raises(ValueError, match="export it first"):
        Model.from_pretrained(llama, export=True)
    model.generate(torch.tensor([[5, 6]]), repetition_penalty=1.5, max_new_tokens=1)
    assert "ignored, as on the device: repetition_penalty" in session.notes


def test_decoders_of_each_era_have_their_dtype_and_length(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from neuronmigrate.runtime.legacy.optimum.decoder import NeuronModelForCausalLM as Model

    expected = {"0.0.28": torch.float32, "0.3.0": torch.bfloat16}
    for release, dtype in expected.items():
        begin(monkeypatch, release)
        model = Model.from_pretrained(llama, export=True, batch_size=1, sequence_length=32)
        assert isinstance(model, Model)
        assert model.model.dtype == dtype
    begin(monkeypatch, "0.1.0")
    model = Model.from_pretrained(llama, export=True, batch_size=1, sequence_length=12)
    assert isinstance(model, Model)
    prompt = torch.tensor([[5, 6, 7]])
    # 20 in all by default, clamped to what was compiled; sampling starts at seed 0 in each call.
    assert model.generate(prompt).shape[1] <= 12
    torch.manual_seed(1)
    first = model.generate(prompt, do_sample=True, max_new_tokens=6)
    assert torch.equal(first, model.generate(prompt, do_sample=True, max_new_tokens=6))


def test_t5_fills_up_to_the_compiled_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    from neuronmigrate.runtime.legacy.optimum.seq2seq import NeuronModelForSeq2SeqLM

    session = begin(monkeypatch)
    plain = _made(
        T5ForConditionalGeneration,
        T5Config,
        vocab_size=32,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
        initializer_factor=3.0,
    )
    _save(plain, tmp_path)
    generate: Callable[..., torch.Tensor] = getattr(plain, "generate")  # noqa: B009 - no method of a module
    model = NeuronModelForSeq2SeqLM.from_pretrained(
        tmp_path, export=True, batch_size=2, sequence_length=12, num_beams=1, auto_cast=None
    )
    assert isinstance(model, NeuronModelForSeq2SeqLM)
    ids = torch.tensor([[4, 5, 6, 1]])
    mask = torch.ones_like(ids)
    ours = model.generate(ids, attention_mask=mask, num_beams=3)
    assert ours.shape == (2, 12)
    theirs = generate(ids, attention_mask=mask, max_length=12, do_sample=False)
    assert torch.equal(ours[0, : theirs.shape[1]], theirs[0])
    assert ours[0, theirs.shape[1] :].eq(0).all()
    assert any("dropped, as before: num_beams" in note for note in session.notes)
    with pytest.raises(TypeError, match="attention_mask"):
        model.generate(ids)
    with pytest.raises(ValueError, match="Only greedy"):
        model.generate(ids, attention_mask=mask, do_sample=True)


def test_a_pipeline_pads_to_the_compiled_batch(classifier: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import pipeline as plain

    from neuronmigrate.runtime.legacy import LegacyProblem
    from neuronmigrate.runtime.legacy.optimum.pipelines import pipeline

    begin(monkeypatch)
    texts = ["a fine film", "dull"]
    ours = pipeline(
        "text-classification",
        model=str(classifier),
        export=True,
        input_shapes={"batch_size": 2, "sequence_length": 16},
    )
    assert callable(ours)
    theirs = plain("text-classification", model=str(classifier), device="cpu")
    for one, other in zip(ours(texts), theirs(texts), strict=True):
        assert one["label"] == other["label"]
        assert one["score"] == pytest.approx(other["score"], rel=1e-5)
    with pytest.raises(LegacyProblem, match="'translation' has no stand-in"):
        pipeline("translation", model="x")
