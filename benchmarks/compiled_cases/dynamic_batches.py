"""Batches of many sizes: the second size makes the first dimension dynamic."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


@torch.compile
def loss_of(x, y):
    return nn.functional.cross_entropy(net(x), y)


for batch in (4, 5, 6, 7, 8, 9, 1):
    loss = loss_of(torch.randn(batch, 8, device=device), torch.zeros(batch, dtype=torch.long, device=device))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
