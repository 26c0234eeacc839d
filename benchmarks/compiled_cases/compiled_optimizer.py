"""A compiled optimizer whose learning rate a schedule changes at each step."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=20)


@torch.compile(fullgraph=False)
def update():
    optimizer.step()


for _ in range(6):
    net(torch.randn(4, 8, device=device)).sum().backward()
    update()
    schedule.step()
    optimizer.zero_grad()
