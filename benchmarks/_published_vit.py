"""ViT-giant (DINOv2), trained in bfloat16 with checkpoints and a fused AdamW, as a published table has it.

gapless check --dry --memory _published_vit.py
"""

from __future__ import annotations

import argparse

import timm
import torch
from torch.nn import functional


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224)
    options = parser.parse_args()
    model = timm.create_model("vit_giant_patch14_dinov2", num_classes=45, img_size=options.size)
    model.set_grad_checkpointing()
    model.bfloat16().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
    for _ in range(4):
        images = torch.randn(options.batch, 3, options.size, options.size).bfloat16()
        labels = torch.randint(45, (options.batch,))
        loss = functional.cross_entropy(model(images.cuda()), labels.cuda())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"{torch.cuda.max_memory_allocated() / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
