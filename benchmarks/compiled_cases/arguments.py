"""What is changed between calls is in the arguments: lists, settings, and the object that has the method."""

from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Settings:
    scale, kind = 2.0, "a"


class Trainer:
    def __init__(self):
        self.net, self.epoch = nn.Linear(4, 4).to(device), 0
        self.settings, self.data, self.itself = Settings(), [(at, at) for at in range(100_000)], self

    @torch.compile
    def loss(self, x):
        loss = self.net(x).square().mean() * self.settings.scale
        return loss if self.epoch < 3 else loss * 2

    def fit(self):
        for self.epoch in range(8):
            self.settings.scale = 2.0 if self.epoch < 2 else 0.5
            self.loss(torch.randn(4, 4, device=device)).backward()


@torch.compile
def scaled(x, sizes, latest, options):
    x = x * sum(sizes) * len(latest)
    return x * options["settings"].scale if options["settings"].kind == "a" else x


Trainer().fit()
settings, options, sizes, latest = Settings(), {}, [], deque(maxlen=2)
options["settings"] = settings
for at in range(4):
    sizes.append(at)
    latest.append(at)
    settings.kind = "a" if at < 2 else "b"
    scaled(torch.randn(4, device=device), sizes, latest, options)
