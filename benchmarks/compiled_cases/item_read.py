"""`.item()` in a compiled step, whose value is used and logged."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
history = []


def forward(x):
    y = net(x)
    norm = y.norm().item()
    history.append(norm)
    return y / 2


step = torch.compile(forward)
for _ in range(5):
    step(torch.randn(4, 8, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
