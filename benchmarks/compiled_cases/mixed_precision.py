"""Autocast inside and around compiled code, with a gradient scaler and clipped gradients."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


@torch.compile
def inside(x, y):
    with torch.autocast(device, dtype=torch.bfloat16):
        return nn.functional.mse_loss(net(x).float(), y)


around = torch.compile(net)
for step in range(4):
    x, y = torch.randn(4, 8, device=device), torch.randn(4, 4, device=device)
    if step % 2:
        loss = inside(x, y)
    else:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=step > 0):
            loss = nn.functional.mse_loss(around(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
