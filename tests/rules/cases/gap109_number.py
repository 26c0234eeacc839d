import torch

device = "cuda"
x = torch.randn(4, device=device)
rate = torch.full((), 0.5, device=device)
host = torch.tensor(0.5)

y = torch.add(x, x, alpha=rate)  # GAP109
filled = torch.full((3,), rate, device=device)  # GAP109
y = torch.add(x, x, alpha=0.5)  # no wait
y = torch.add(x, x, alpha=host)  # no wait
y = x + rate * x  # no wait
y = x.clamp(min=rate)  # no wait
y = x.masked_fill(x > 0, rate)  # GAP109
y = torch.where(x > 0, rate, x)  # no wait
y = x.masked_fill(x > 0, 0.5)  # no wait
y = x * host  # no wait
y = x.pow(rate)  # no wait
