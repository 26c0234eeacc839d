"""Sizes that are marked as dynamic, and one that is marked as fixed."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = torch.compile(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device))


@torch.compile
def pooled(x, mask):
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


@torch.compile
def fixed(x):
    return x.softmax(0)


for batch in (4, 7, 9, 12):
    x = torch.randn(batch, 8, device=device)
    torch._dynamo.mark_dynamic(x, 0)
    net(x).sum().backward()
for length in (5, 6, 9):
    x, mask = torch.randn(3, length, 4, device=device), torch.ones(3, length, device=device)
    torch._dynamo.maybe_mark_dynamic(x, 1)
    torch._dynamo.maybe_mark_dynamic(mask, 1)
    pooled(x, mask)
for length in (3, 4, 5):
    x = torch.randn(length, 4, device=device)
    torch._dynamo.mark_static(x, 0)
    fixed(x)
