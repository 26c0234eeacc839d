"""`dynamic=False` with ten sizes: the limit of recompilations."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
compiled = torch.compile(net, dynamic=False)
for batch in range(2, 12):
    compiled(torch.randn(batch, 8, device=device)).sum().backward()
    optimizer.step()
