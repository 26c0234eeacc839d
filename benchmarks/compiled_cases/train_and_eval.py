"""One compiled model in training and in evaluation, several times, with BatchNorm and dropout."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4)).to(device)
compiled = torch.compile(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    compiled.train()
    for _ in range(3):
        compiled(torch.randn(6, 8, device=device)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    compiled.eval()
    with torch.inference_mode():
        compiled(torch.randn(9, 8, device=device))
