import torch
from torch import nn

device = "cuda"
net = nn.Linear(4, 2, device=device)
x = torch.randn(3, 4, device=device)
scaler = torch.amp.GradScaler("cuda")
plain = torch.optim.SGD(net.parameters(), lr=0.1)
fused = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)

for _ in range(2):
    scaler.scale(net(x).sum()).backward()
    scaler.step(plain)  # GAP140 x2
    scaler.update()  # no wait
for _ in range(2):
    scaler.scale(net(x).sum()).backward()
    scaler.unscale_(plain)  # no wait
    scaler.step(plain)  # GAP140 x2
    scaler.update()
scaler.get_scale()  # GAP140
for _ in range(2):
    scaler.scale(net(x).sum()).backward()
    scaler.step(fused)  # no wait
    scaler.update()
