"""A branch on values of the GPU in the middle of a model."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        h = self.a(x).relu()
        if h.sum() > 5:  # noqa: SIM108
            h = h * 0.5
        else:
            h = self.a(h)
        out = self.b(h)
        while out.abs().max() > 3:
            out = out / 2
        return out


net = torch.compile(Gate().to(device))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for scale in (1.0, 1.0, 20.0, 0.1):
    x = scale * torch.ones(4, 8, device=device)
    net(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
