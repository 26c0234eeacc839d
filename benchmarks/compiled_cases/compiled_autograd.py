"""Compiled autograd: the backward pass of a compiled step is compiled as well."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
torch._dynamo.config.compiled_autograd = True
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


@torch.compile
def train(x):
    loss = net(x).square().mean()
    loss.backward()
    return loss


for batch in (4, 4, 6):
    train(torch.randn(batch, 8, device=device))
    optimizer.step()
    optimizer.zero_grad()
