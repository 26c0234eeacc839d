"""diffusers: training a text-to-image UNet, as its example does, every part tiny and new."""
# By hand: 3 in each step: two copies of the batch, the loss.

import _tiny
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.optimization import get_scheduler
from diffusers.training_utils import EMAModel, compute_snr
from torch.utils.data import DataLoader
from transformers import CLIPTextConfig, CLIPTextModel

torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=1, cpu=_tiny.device() == "cpu")
noise_scheduler = DDPMScheduler(num_train_timesteps=100)
text_encoder = CLIPTextModel(
    CLIPTextConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
)
vae = AutoencoderKL(block_out_channels=(16,), norm_num_groups=8, latent_channels=4, sample_size=16)
unet = UNet2DConditionModel(
    sample_size=16,
    block_out_channels=(16, 32),
    layers_per_block=1,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    cross_attention_dim=16,
    attention_head_dim=4,
    norm_num_groups=8,
)
vae.requires_grad_(False)
text_encoder.requires_grad_(False)
unet.train()
unet.enable_gradient_checkpointing()
ema = EMAModel(unet.parameters(), model_cls=UNet2DConditionModel, model_config=unet.config)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
rows = [{"pixel_values": torch.randn(3, 16, 16), "input_ids": torch.randint(3, 64, (8,))} for _ in range(28)]
loader = DataLoader(rows, shuffle=True, batch_size=2)
schedule = get_scheduler("constant", optimizer=optimizer)
unet, optimizer, loader, schedule = accelerator.prepare(unet, optimizer, loader, schedule)
ema.to(accelerator.device)
weight_dtype = torch.bfloat16
text_encoder.to(accelerator.device, dtype=weight_dtype)
vae.to(accelerator.device, dtype=weight_dtype)

train_loss = 0.0
for step, batch in enumerate(loader):
    with accelerator.accumulate(unet):
        latents = vae.encode(batch["pixel_values"].to(weight_dtype)).latent_dist.sample()
        latents = latents * vae.config.scaling_factor
        noise = torch.randn_like(latents)
        size = latents.shape[0]
        timesteps = torch.randint(
            0, noise_scheduler.config.num_train_timesteps, (size,), device=latents.device
        )
        timesteps = timesteps.long()
        noisy = noise_scheduler.add_noise(latents, noise, timesteps)
        hidden = text_encoder(batch["input_ids"], return_dict=False)[0]
        predicted = unet(noisy, timesteps, hidden, return_dict=False)[0]
        snr = compute_snr(noise_scheduler, timesteps)
        weights = torch.stack([snr, 5.0 * torch.ones_like(timesteps)], dim=1).min(dim=1)[0] / snr
        loss = F.mse_loss(predicted.float(), noise.float(), reduction="none")
        loss = (loss.mean(dim=list(range(1, len(loss.shape)))) * weights).mean()
        train_loss += accelerator.gather(loss.repeat(2)).mean().item()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        ema.step(unet.parameters())
print(train_loss)
