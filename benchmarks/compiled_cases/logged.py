"""Printing and logging inside of a compiled model."""

import logging

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
log = logging.getLogger("training")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.a(x)
        print("hidden", tuple(h.shape))
        h = h.relu()
        log.info("activated %s", h.dtype)
        return self.b(h)


net = torch.compile(Net().to(device))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    net(torch.randn(4, 8, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
