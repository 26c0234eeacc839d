"""Attributes of modules that are set from outside at each step, and lists that grow."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.temperature = 1.0
        self.losses = []

    def forward(self, x):
        y = torch.softmax(self.inner(x) / self.temperature, -1)
        self.losses.append(y.mean())
        return y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.warm = Router(), True
        self.seen = 0

    def forward(self, x):
        y = self.router(x)
        return y if self.warm else y * 2


net = Net().to(device)
forward = torch.compile(net)
for step in range(5):
    net.router.temperature = 1.0 + step
    net.warm = step < 2
    net.seen = step
    forward(torch.randn(4, 8, device=device)).sum().backward()
    if step % 2:
        net.router.losses.clear()
