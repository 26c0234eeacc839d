"""Two compiled networks that take turns, one of them with gradients switched off, in channels-last memory."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
make = nn.Sequential(nn.ConvTranspose2d(4, 8, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4))
judge = nn.Sequential(nn.Conv2d(1, 8, 3), nn.LeakyReLU(0.2), nn.Flatten(), nn.LazyLinear(1))
make, judge = make.to(device), judge.to(device)
judge(torch.randn(2, 1, 7, 7, device=device))
make_c, judge_c = torch.compile(make), torch.compile(judge)
first, second = (torch.optim.Adam(net.parameters(), lr=2e-4) for net in (make, judge))
for step in range(3):
    z = torch.randn(4, 4, 1, 1, device=device)
    with torch.no_grad():
        fake = make_c(z)
    real = torch.randn(4, 1, 7, 7, device=device)
    if step == 2:
        real = real.to(memory_format=torch.channels_last)
    loss = judge_c(fake).mean() - judge_c(real).mean()
    loss.backward()
    second.step()
    second.zero_grad()
    judge.requires_grad_(False)
    (-judge_c(make_c(z)).mean()).backward()
    judge.requires_grad_(True)
    first.step()
    first.zero_grad()
