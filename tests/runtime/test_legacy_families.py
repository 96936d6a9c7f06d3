"""Stand-ins of sentence encoders, Whisper and diffusion against the libraries they are built on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.runtime.legacy_session import begin
from tests.tiny_models import save_classifier

if TYPE_CHECKING:
    import torch


def test_sentences_come_back_in_the_order_they_came_back_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from sentence_transformers import SentenceTransformer

    from neuronmigrate.runtime.legacy.optimum.sentences import NeuronSentenceTransformers

    session = begin(monkeypatch)
    folder = str(save_classifier(tmp_path))
    model = NeuronSentenceTransformers.from_pretrained(folder, export=True, batch_size=2, sequence_length=16)
    assert isinstance(model, NeuronSentenceTransformers)
    texts = ["good", "this long film was dull", "a fine film"]
    ours = model.encode(texts, normalize_embeddings=True, padding=True)
    plain = SentenceTransformer(folder, device="cpu").encode(
        texts, normalize_embeddings=True, convert_to_tensor=True
    )
    # Sorted by length the texts are 1, 2, 0; what stands there is put at 1, 2, 0 again, and so at 2, 0, 1.
    torch.testing.assert_close(ours, plain[[2, 0, 1]], rtol=1e-4, atol=1e-5)
    assert any("scrambled order" in note for note in session.notes)
    one = model.encode("a fine film")
    assert one.shape == (32,)
    with pytest.raises(ValueError, match="Unable to pad input_ids"):
        model.encode("film " * 30)


def test_whisper_is_transformers_own_generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    from neuronmigrate.runtime.legacy.optimum.seq2seq import NeuronWhisperForConditionalGeneration

    begin(monkeypatch)
    torch.manual_seed(0)
    config: Callable[..., WhisperConfig] = WhisperConfig
    plain = WhisperForConditionalGeneration(
        config(
            vocab_size=60,
            d_model=16,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_mel_bins=8,
            max_source_positions=10,
            max_target_positions=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            begin_suppress_tokens=None,
            init_std=0.3,
        )
    )
    plain.save_pretrained(tmp_path)
    model = NeuronWhisperForConditionalGeneration.from_pretrained(
        tmp_path, export=True, batch_size=1, sequence_length=12, auto_cast=None
    )
    assert isinstance(model, NeuronWhisperForConditionalGeneration)
    features = torch.linspace(-1, 1, 160).reshape(1, 8, 20)
    generate: Callable[..., torch.Tensor] = torch.nn.Module.eval(plain).generate
    assert torch.equal(model.generate(features), generate(features, max_length=12))
    with pytest.raises(ValueError, match=r"compiled for \(1, 8, 20\)"):
        model.generate(features[..., :10])


@pytest.mark.nightly
def test_diffusion_has_the_compiled_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from diffusers import StableDiffusionPipeline

    from neuronmigrate.runtime.legacy.optimum.diffusion import pipeline_class

    begin(monkeypatch)
    _save_diffusion(tmp_path)
    kind = pipeline_class("NeuronStableDiffusionPipeline")
    load: Callable[..., Callable[..., object]] = kind.from_pretrained
    load = functools.partial(load, tmp_path, export=True, auto_cast=None, batch_size=1, height=16, width=24)
    model = load()

    def image(pipe: Callable[..., object], **options: object) -> torch.Tensor:
        seed = torch.Generator().manual_seed(1)
        made = pipe("a cat", num_inference_steps=2, generator=seed, output_type="np", **options)
        return torch.from_numpy(getattr(made, "images"))  # noqa: B009 - of an output class

    loader: Callable[..., Callable[..., object]] = StableDiffusionPipeline.from_pretrained
    plain = loader(str(tmp_path))
    ours = image(model)
    assert ours.shape == (1, 16, 24, 3)
    torch.testing.assert_close(ours, image(plain, height=16, width=24), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="height=32: the pipeline is compiled for 16"):
        image(model, height=32)
    with pytest.raises(ValueError, match="2 prompts: compiled for a batch of 1"):
        model(["a", "b"])
    # Before 0.3.0 there was no guidance with this way of sharing the work.
    begin(monkeypatch, "0.2.0")
    alone = load(data_parallel_mode="none")
    unguided = image(plain, height=16, width=24, guidance_scale=1.0)
    torch.testing.assert_close(image(alone), unguided, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(unguided, ours, atol=1e-3)


def _save_diffusion(folder: Path) -> None:
    """A Stable Diffusion with three tiny models."""
    import torch
    from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(0)
    unet: Callable[..., object] = UNet2DConditionModel
    vae: Callable[..., object] = AutoencoderKL
    config: Callable[..., CLIPTextConfig] = CLIPTextConfig
    tokenizer: Callable[..., object] = CLIPTokenizer
    pipeline: Callable[..., object] = StableDiffusionPipeline
    scheduler: Callable[..., object] = PNDMScheduler
    entries = ["<|startoftext|>", "<|endoftext|>", *"act", *(f"{letter}</w>" for letter in "act")]
    made = pipeline(
        unet=unet(
            block_out_channels=(8, 16),
            layers_per_block=1,
            sample_size=16,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=16,
            norm_num_groups=4,
        ),
        vae=vae(
            block_out_channels=[8, 16],
            down_block_types=["DownEncoderBlock2D"] * 2,
            up_block_types=["UpDecoderBlock2D"] * 2,
            norm_num_groups=4,
        ),
        text_encoder=CLIPTextModel(
            config(
                vocab_size=len(entries),
                hidden_size=16,
                intermediate_size=32,
                num_attention_heads=2,
                num_hidden_layers=1,
                max_position_embeddings=16,
                pad_token_id=1,
                bos_token_id=0,
                eos_token_id=1,
            )
        ),
        tokenizer=tokenizer(
            vocab={entry: number for number, entry in enumerate(entries)}, merges=[], model_max_length=16
        ),
        scheduler=scheduler(skip_prk_steps=True, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    getattr(made, "save_pretrained")(folder)  # noqa: B009 - not of an object
