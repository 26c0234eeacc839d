import torch

device = "cuda"
x = torch.randn(6, device=device)
w = torch.randn(6, device=device, requires_grad=True)
mask = x > 0
host = torch.randn(6)

x[mask]  # GAP112
x[x > 1]  # GAP112
x.masked_select(mask)  # GAP112
torch.masked_select(x, mask)  # GAP112
x[mask].mean()  # GAP112
loss = w[mask].sum()  # GAP112 x2
loss.backward()
host[host > 0]  # no wait
x[torch.arange(3, device=device)]  # no wait
x[1:4], x[2], x[..., None]  # no wait
torch.where(mask, x, 0.0).sum() / mask.sum()  # no wait
x.masked_fill(mask, 0.0)  # no wait
x * mask  # no wait
