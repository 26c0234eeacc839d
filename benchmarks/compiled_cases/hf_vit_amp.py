"""A tiny vision transformer of Hugging Face's under autocast, with a frozen encoder after the first steps."""

import torch
from transformers import ViTConfig, ViTForImageClassification

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = ViTConfig(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    image_size=16,
    patch_size=8,
    num_labels=3,
)
model = ViTForImageClassification(config).to(device)
compiled = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(4):
    if step == 2:
        for parameter in model.vit.parameters():
            parameter.requires_grad_(False)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = compiled(
            pixel_values=torch.randn(2, 3, 16, 16, device=device), labels=torch.tensor([0, 2], device=device)
        )
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
