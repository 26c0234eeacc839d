"""A whole step: capturable AdamW, its rate as a tensor, a padded last batch, losses summed on the GPU."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
B = 16
data = TensorDataset(torch.randn(70, 32), torch.randint(0, 4, (70,)))
loader = DataLoader(data, batch_size=B, shuffle=True, pin_memory=True)
net = nn.Sequential(
    nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 4)
).cuda()
lr = torch.tensor(1e-3, device="cuda")
opt = torch.optim.AdamW(net.parameters(), lr=lr, capturable=True, foreach=True)
x = torch.zeros(B, 32, device="cuda")
y = torch.zeros(B, dtype=torch.long, device="cuda")
weight = torch.ones(B, device="cuda")
total = torch.zeros((), device="cuda")
ema = [p.detach().clone() for p in net.parameters()]


def step():
    opt.zero_grad(set_to_none=True)
    losses = nn.functional.cross_entropy(net(x), y, reduction="none")
    loss = (losses * weight).sum() / weight.sum()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    total.add_(loss.detach())
    torch._foreach_lerp_(ema, [p.detach() for p in net.parameters()], 0.01)


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        step()
torch.cuda.current_stream().wait_stream(s)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
total.zero_()
steps = 0
for epoch in range(2):
    for bx, by in loader:
        n = len(bx)
        if n < B:
            bx = nn.functional.pad(bx, (0, 0, 0, B - n))
            by = nn.functional.pad(by, (0, B - n))
        x.copy_(bx, non_blocking=True)
        y.copy_(by, non_blocking=True)
        weight.zero_()
        weight[:n].fill_(1)
        graph.replay()
        steps += 1
        lr.fill_(1e-3 / (1 + steps))
    print(epoch, (total / steps).item())
