"""Twenty denoising steps of CogVideoX-2b by diffusers' own pipeline: 49 frames of 480×720, random weights."""

from __future__ import annotations

import torch
from diffusers import CogVideoXDDIMScheduler, CogVideoXPipeline, CogVideoXTransformer3DModel
from diffusers.models import AutoencoderKLCogVideoX

STEPS, PROMPT, WIDTH = 20, 226, 4096


def main() -> None:
    with torch.device("cuda"):
        transformer = CogVideoXTransformer3DModel().half()
    scheduler = CogVideoXDDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", prediction_type="v_prediction",
        rescale_betas_zero_snr=True, snr_shift_scale=3.0, timestep_spacing="trailing",
    )  # fmt: skip
    pipeline = CogVideoXPipeline(None, None, AutoencoderKLCogVideoX(), transformer, scheduler)
    pipeline.set_progress_bar_config(disable=True)
    prompts = [torch.randn(1, PROMPT, WIDTH, device="cuda", dtype=torch.float16) for _ in range(2)]
    pipeline(
        prompt_embeds=prompts[0], negative_prompt_embeds=prompts[1], height=480, width=720, num_frames=49,
        num_inference_steps=STEPS, use_dynamic_cfg=True, output_type="latent",
    )  # fmt: skip


if __name__ == "__main__":
    main()
