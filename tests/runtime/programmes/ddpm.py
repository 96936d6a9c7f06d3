"""Diffusers: an unconditional pipeline, its noise drawn on the CPU."""

from __future__ import annotations

import torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel


def run(device: str) -> dict[str, object]:
    unet = UNet2DModel(
        sample_size=16,
        in_channels=3,
        out_channels=3,
        layers_per_block=1,
        block_out_channels=(16, 32),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=8,
    )
    pipeline = DDPMPipeline(unet, DDPMScheduler(num_train_timesteps=10)).to(device)
    assert pipeline.device.type == device
    pipeline.set_progress_bar_config(disable=True)
    images = pipeline(
        num_inference_steps=4, generator=torch.Generator().manual_seed(1), output_type="np"
    ).images
    return {"images": torch.from_numpy(images), "weight": unet.conv_in.weight}
