"""A Python number that changes at each call."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


@torch.compile
def loss_of(x, weight, power):
    return weight * net(x).abs().pow(power).mean()


for step in range(6):
    loss_of(torch.randn(4, 8, device=device), 1.0 / (step + 1), step + 2).backward()
    optimizer.step()
    optimizer.zero_grad()
