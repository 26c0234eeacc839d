import torch
from torch import nn

device = "cuda"
net = nn.Linear(3, 2, device=device)
loss = torch.rand((), device=device)
usual = torch.optim.SGD(net.parameters(), lr=0.1)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(usual)
decay = torch.optim.lr_scheduler.StepLR(usual, 10)
adam = torch.optim.Adam(net.parameters())
fused = torch.optim.AdamW(net.parameters(), fused=True)

for optimizer in (usual, adam, fused):
    net(torch.ones(1, 3, device=device)).sum().backward()
    optimizer.step()  # no wait
    optimizer.zero_grad()  # no wait
plateau.step(loss)  # GAP151
plateau.step(0.5)  # no wait
decay.step()  # no wait
