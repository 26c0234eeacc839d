"""Detection: DETR of transformers with a tiny ResNet, Hungarian matching in its loss."""
# By hand: 43 to 51 in each step: a copy of the images and four of labels; indices on the CPU in 5 places for
# each of two layers' losses (2 + 2 + 2 + 2 there, and 2 in backward); 2 costs to the CPU, 8 checks of boxes,
# 2 lengths, 2 mask checks, the number of boxes made and read, the weights moved, a finite check; every fifth
# step 8 losses printed.

import _tiny
import torch
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

torch.manual_seed(0)
device = torch.device(_tiny.device())
backbone = ResNetConfig(
    embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", out_features=["stage2"]
)
config = DetrConfig(
    use_timm_backbone=False,
    use_pretrained_backbone=False,
    backbone=None,
    backbone_config=backbone,
    num_queries=6,
    d_model=32,
    encoder_layers=1,
    decoder_layers=2,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    auxiliary_loss=True,
    num_labels=4,
)
model = DetrForObjectDetection(config).to(device)
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
for step in range(13):
    pixels = torch.randn(2, 3, 64, 64).to(device)
    labels = [
        {
            "class_labels": torch.randint(0, 4, (2,)).to(device),
            "boxes": (torch.rand(2, 4) * 0.4 + 0.3).to(device),
        }
        for _ in range(2)
    ]
    outputs = model(pixel_values=pixels, labels=labels)
    optimizer.zero_grad()
    outputs.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    if step % 5 == 0:
        print(step, {name: value.item() for name, value in outputs.loss_dict.items()})
