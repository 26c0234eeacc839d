"""What a compiled function reads from its closure and its module changes between calls."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
net = nn.Linear(8, 8).to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
warm = True


def built():
    width = 2

    @torch.compile
    def loss_of(x):
        y = net(x) * width
        return y.sum() if warm else y.mean()

    def wider():
        nonlocal width
        width += 1

    return loss_of, wider


loss_of, wider = built()
for step in range(6):
    warm = step < 2
    if step == 4:
        wider()
    loss_of(torch.randn(4, 8, device=device)).backward()
    optimizer.step()
    optimizer.zero_grad()
