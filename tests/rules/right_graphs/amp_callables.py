"""A part as a graphed callable under autocast, with a scaler and a schedule outside."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.LayerNorm(32))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x))


net = Net().cuda()
x = torch.randn(16, 32, device="cuda")
with torch.autocast("cuda", cache_enabled=False):
    net.body = torch.cuda.make_graphed_callables(net.body, (x,))
opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
scaler = torch.amp.GradScaler("cuda")
for _step in range(10):
    x = torch.randn(16, 32, device="cuda")
    y = torch.randint(0, 4, (16,), device="cuda")
    opt.zero_grad(set_to_none=True)
    with torch.autocast("cuda", cache_enabled=False):
        loss = nn.functional.cross_entropy(net(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(opt)
    scaler.update()
    sched.step()
