"""`optimizer.step` compiled, with a learning rate as a tensor and one as a number that a schedule changes."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


def trained(lr, steps):
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=lr, foreach=False)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    @torch.compile(fullgraph=False)
    def step():
        optimizer.step()

    for _ in range(steps):
        net(torch.randn(4, 8, device=device)).sum().backward()
        step()
        schedule.step()
        optimizer.zero_grad()


trained(torch.tensor(0.01), 3)
trained(0.01, 4)
