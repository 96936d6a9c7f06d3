"""Diffusers: Stable Diffusion with its three models, saved, loaded, and run with guidance."""

from __future__ import annotations

import torch
from diffusers import AutoencoderKL, PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer


def run(device: str) -> dict[str, object]:
    unet = UNet2DConditionModel(
        block_out_channels=(16, 32),
        layers_per_block=1,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=8,
    )
    vae = AutoencoderKL(
        block_out_channels=[16, 32],
        in_channels=3,
        out_channels=3,
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=4,
        norm_num_groups=8,
    )
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=37,
            num_attention_heads=4,
            num_hidden_layers=2,
            max_position_embeddings=16,
            pad_token_id=1,
            bos_token_id=0,
            eos_token_id=1,
        )
    )
    StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=_tokenizer(),
        unet=unet,
        scheduler=PNDMScheduler(skip_prk_steps=True),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained("pipeline")
    pipeline = StableDiffusionPipeline.from_pretrained("pipeline").to(device)
    assert pipeline.device.type == device
    pipeline.set_progress_bar_config(disable=True)
    images = pipeline(
        "the cat sat on a mat",
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(1),
        output_type="np",
    ).images
    return {"images": torch.from_numpy(images), "weight": pipeline.unet.conv_in.weight}


def _tokenizer() -> CLIPTokenizer:
    letters = [chr(ord("a") + i) for i in range(26)]
    entries = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    return CLIPTokenizer(vocab={entry: i for i, entry in enumerate(entries)}, merges=[], model_max_length=16)
