import torch

device = "cuda"
x = torch.zeros(4, 4, device=device)
rows = torch.arange(2, device=device)

x[rows] = 1.0  # GAP125 x0 (before torch 2.15: x1)
x[0, 0] = 1.0  # GAP125 x0 (before torch 2.15: x1)
x[rows, rows] = 1.0  # GAP125 x0 (before torch 2.15: x1)
x[rows] = torch.ones(())  # GAP125
x[0] = 1.0  # no wait
x[1:3] = 2.0  # no wait
x[0, 0].fill_(1.0)  # no wait
x[x > 0] = 0.0  # no wait
x[rows] = torch.ones((), device=device)  # no wait
x.index_fill_(0, rows, 1.0)  # no wait
x.scatter_(0, rows.unsqueeze(0), 1.0)  # no wait
x[:] = 0  # no wait
