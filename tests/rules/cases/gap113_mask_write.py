import torch

device = "cuda"
x = torch.randn(6, device=device)
z = torch.randn(6, device=device)
mask = torch.arange(6, device=device) < 3
values = torch.randn(3, device=device)
host = torch.randn(6)

x[mask] = values  # GAP113
x[mask] = z[mask]  # GAP112, GAP113
x[mask] = 0.0  # no wait
x[mask] = torch.tensor(1.0)  # no wait
host[host > 0] = torch.ones(1)  # no wait
x.masked_fill_(mask, 0.0)  # no wait
x.masked_scatter_(mask, values)  # no wait
x = torch.where(mask, z, x)  # no wait
x[torch.arange(3, device=device)] = values  # no wait
x[1:4] = values  # no wait
