"""A mixture of experts: rows chosen by masks and put back, with sizes that only the values tell."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Experts(nn.Module):
    def __init__(self, width=8, count=3):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x):
        weights = self.gate(x).softmax(-1)
        chosen = weights.argmax(-1)
        out = torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            rows = torch.where(chosen == at)[0]
            if rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, at, None])
        return out


net = torch.compile(Experts().to(device))
for _ in range(3):
    net(torch.randn(12, 8, device=device)).sum().backward()
