"""A module that counts its calls, and one whose temperature the loop changes."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0
        self.temperature = 1.0

    def forward(self, x):
        self.calls += 1
        y = self.layer(x) / self.temperature
        return y * 2 if self.calls % 2 else y


net = Net().to(device)
compiled = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(5):
    net.temperature = 1.0 if step < 3 else 0.5
    compiled(torch.randn(4, 8, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
