"""A class that captures a step once and gives copies of its outputs, with a count in Python for the log."""

import torch
from torch import nn


class Graphed:
    def __init__(self, net, optimizer, sample):
        self.net, self.optimizer = net, optimizer
        self.x, self.y = (tensor.clone() for tensor in sample)
        self.steps, self.history = 0, []
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.compute()
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        self.optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            self.loss = self.compute()

    def compute(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def __call__(self, x, y):
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        self.steps += 1
        if self.steps % 5 == 0:
            self.history.append(self.loss.item())
        return self.loss.clone()


net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).cuda()
step = Graphed(
    net,
    torch.optim.Adam(net.parameters(), capturable=True),
    (torch.randn(4, 8, device="cuda"), torch.randn(4, 1, device="cuda")),
)
for _ in range(10):
    loss = step(torch.randn(4, 8, device="cuda"), torch.randn(4, 1, device="cuda"))
net.eval()
with torch.no_grad():
    print(net(torch.randn(4, 8, device="cuda")).mean().item(), loss.item())
