"""The names of the inputs are used again for batches, which are copied in."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(32, 8), torch.randn(32, 1)), batch_size=8, drop_last=True)
net = nn.Linear(8, 1).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = next(iter(loader))
x, y = x.cuda(), y.cuda()
static_x, static_y = x, y


def train_step():
    opt.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(net(static_x), static_y)
    loss.backward()
    opt.step()
    return loss


s = torch.cuda.Stream()
s.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(s):
    for _ in range(3):
        train_step()
torch.cuda.current_stream().wait_stream(s)
g = torch.cuda.CUDAGraph()
with torch.cuda.graph(g):
    loss = train_step()
for epoch in range(2):
    running = 0.0
    for i, (x, y) in enumerate(loader):
        x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
        static_x.copy_(x)
        static_y.copy_(y)
        g.replay()
        if i % 2 == 1:
            running += loss.item()
    print(epoch, running)
    net.eval()
    with torch.no_grad():
        net(x)
    net.train()
