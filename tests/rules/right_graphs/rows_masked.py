"""A smaller batch fills some rows, and a mask leaves the others out."""

import torch
from torch import nn

B = 8
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=True)
x, y = torch.zeros(B, 8, device="cuda"), torch.zeros(B, dtype=torch.long, device="cuda")
keep = torch.ones(B, device="cuda")


def step():
    opt.zero_grad(set_to_none=True)
    losses = nn.functional.cross_entropy(net(x), y, reduction="none")
    loss = (losses * keep).sum() / keep.sum()
    loss.backward()
    opt.step()
    return loss.detach()


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    loss = step()
for n in (8, 8, 5, 8, 3):
    x[:n].copy_(torch.randn(n, 8, device="cuda"))
    y[:n].copy_(torch.randint(0, 4, (n,), device="cuda"))
    keep[:n] = 1
    keep[n:] = 0
    g.replay()
