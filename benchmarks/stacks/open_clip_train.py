"""open_clip: contrastive training of a small ViT and text tower with its loss, bf16."""
# By hand: 2 to 3 in each step: two copies that are not from pinned memory; every fifth step the loss.

import _tiny
import open_clip
import torch
from open_clip.loss import ClipLoss
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg

torch.manual_seed(0)
device = torch.device(_tiny.device())
model = CLIP(
    embed_dim=32,
    vision_cfg=CLIPVisionCfg(layers=2, width=64, head_width=16, patch_size=8, image_size=32),
    text_cfg=CLIPTextCfg(context_length=16, vocab_size=100, width=32, heads=4, layers=2),
).to(device)
model.set_grad_checkpointing()
loss_of = ClipLoss(local_loss=False, gather_with_grad=False, cache_labels=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-6)
for step in range(13):
    images = torch.randn(4, 3, 32, 32).to(device=device, non_blocking=True)
    texts = torch.randint(1, 99, (4, 16)).to(device=device, non_blocking=True)
    optimizer.zero_grad()
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = model(images, texts)
        image, text, scale = (
            out
            if isinstance(out, tuple)
            else (out["image_features"], out["text_features"], out["logit_scale"])
        )
        loss = loss_of(image, text, scale)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model.logit_scale.clamp_(0, 4.6052)
    if step % 5 == 0:
        print(step, loss.item(), open_clip.__name__)
