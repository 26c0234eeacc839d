"""A trainer whose step is a compiled method: numbers on the trainer, a model and a list in its attributes."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        self.step_number, self.warm = 0, True
        self.weights = [1.0]
        self.compute = torch.compile(self.loss)

    def loss(self, x):
        y = self.net(x)
        out = sum(weight * y.square().mean() for weight in self.weights)
        return self.scaled(out)

    def scaled(self, out):
        return out * 0.5 if self.warm else out

    def step(self, x):
        self.compute(x).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_number += 1
        self.warm = self.step_number < 2
        if self.step_number == 3:
            self.weights.append(0.5)


trainer = Trainer(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 2)).to(device))
for _ in range(5):
    trainer.step(torch.randn(4, 8, device=device))
