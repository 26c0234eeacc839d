"""Keyword arguments, options that are left out, strings and flags."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, *, mask=None, scale=1, reduction="mean"):
        y = self.layer(x) * scale
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        return y.mean() if reduction == "mean" else y.sum()


net = torch.compile(Net().to(device))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(4, 8, device=device)
mask = torch.zeros(4, 8, dtype=torch.bool, device=device)
for kwargs in (
    {},
    {"mask": mask},
    {"mask": mask, "scale": 2},
    {"reduction": "sum"},
    {"mask": mask, "scale": 3},
):
    net(x, **kwargs).backward()
    optimizer.step()
    optimizer.zero_grad()
