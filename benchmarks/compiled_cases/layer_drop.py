"""Layers that are left out at random, by Python's random numbers, and a checkpointed one."""

import random

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
random.seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        for layer in self.layers:
            if self.training and random.random() < 0.3:
                continue
            x = layer(x).relu()
        return checkpoint(self.last, x, use_reentrant=False)


net = torch.compile(Net().to(device))
for _ in range(4):
    net(torch.randn(4, 8, device=device)).sum().backward()
