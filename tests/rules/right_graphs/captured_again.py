"""A graph of each learning rate, made anew where it changes; and one for training, one for evaluation."""

import torch
from torch import nn

net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 1)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.zeros(4, 8, device="cuda"), torch.zeros(4, 1, device="cuda")


def train():
    opt.zero_grad(set_to_none=True)
    loss = nn.functional.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    return loss.detach()


def captured(function):
    s = torch.cuda.Stream()
    s.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(s):
        function()
    torch.cuda.current_stream().wait_stream(s)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        out = function()
    return g, out


sched = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
net.eval()
with torch.no_grad():
    evaluate, scores = captured(lambda: net(x))
for _epoch in range(3):
    net.train()
    g, loss = captured(train)
    for _ in range(4):
        x.copy_(torch.randn(4, 8, device="cuda"))
        y.copy_(torch.randn(4, 1, device="cuda"))
        g.replay()
    sched.step()
    net.eval()
    kept = []
    for _ in range(2):
        x.copy_(torch.randn(4, 8, device="cuda"))
        evaluate.replay()
        kept.append(scores.clone())
    print(loss.item(), torch.cat(kept).mean().item())
