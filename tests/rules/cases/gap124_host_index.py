import torch

device = "cuda"
x = torch.randn(8, 4, device=device)
order = torch.randperm(8)
indices = torch.randperm(8, device=device)

x[[0, 2]]  # GAP124
x[order]  # GAP124
x[order.numpy()]  # GAP124
x[indices]  # no wait
x[0:4:2], x[3], x[:, 1]  # no wait
x.index_select(0, indices)  # no wait
torch.stack([x[0], x[2]])  # no wait
