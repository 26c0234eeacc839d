"""Blocks as graphed callables, gradients of micro-batches added up, evaluation, a mean of the weights."""

import copy

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.norm, self.up, self.down, self.drop = (
            nn.LayerNorm(d),
            nn.Linear(d, 2 * d),
            nn.Linear(2 * d, d),
            nn.Dropout(0.1),
        )

    def forward(self, x):
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


net = nn.Sequential(*(Block() for _ in range(3))).cuda()
ema = copy.deepcopy(net)
head = nn.Linear(16, 1).cuda()
sample = torch.randn(4, 16, device="cuda", requires_grad=True)
graphed = torch.cuda.make_graphed_callables(
    tuple(net), tuple((sample.detach().clone().requires_grad_(),) for _ in net)
)
opt = torch.optim.AdamW([*net.parameters(), *head.parameters()], lr=1e-3)
sched = torch.optim.lr_scheduler.LinearLR(opt)
for _step in range(6):
    opt.zero_grad(set_to_none=True)
    for _micro in range(2):
        x = torch.randn(4, 16, device="cuda")
        for block in graphed:
            x = block(x)
        (head(x).square().mean() / 2).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    sched.step()
    with torch.no_grad():
        for a, b in zip(ema.parameters(), net.parameters(), strict=False):
            a.lerp_(b, 0.1)
net.eval()
with torch.no_grad():
    print(head(net(torch.randn(4, 16, device="cuda"))).mean().item())
