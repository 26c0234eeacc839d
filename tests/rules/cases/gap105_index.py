import torch
from torch.utils.checkpoint import checkpoint

device = "cuda"
x = torch.randn(8, 4, device=device)
n = torch.tensor(3).to(device, non_blocking=False)  # GAP120
host = torch.tensor(2)
values = list(range(8))

part = x[:n]  # GAP105
row = x[n]  # GAP105
x[n] = 0.0  # GAP105 x0 (before torch 2.15: x1)
x[n] = x[0]  # GAP105
for i in range(n):  # GAP105
    pass
empty = torch.zeros(n, device=device)  # GAP105
value = values[n]  # GAP105
wide = x.view(n + 5, -1)  # GAP105
part = x[:3]  # no wait
row = x[2]  # no wait
row = x[host]  # no wait
part = x[:host]  # no wait
row = x.index_select(0, n.reshape(1))  # no wait
row = x[n.reshape(1)]  # no wait
inside = torch.arange(8, device=device) < n  # no wait
counts = torch.bincount(torch.randint(0, 4, (9,), device=device))  # GAP116 x2


def masked(factor):  # in backward, a sum's node computes it again
    kept = torch.arange(n, device=device).sum() * factor  # GAP105 x2
    return (factor * factor).sum() + kept.sum()


factor = torch.ones(3, device=device, requires_grad=True)
checkpoint(masked, factor, use_reentrant=False).backward()
