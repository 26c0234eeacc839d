"""Parts that are kept out of the compiler, in three ways."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@torch.compiler.disable
def logged(x):
    return float(x.detach().mean())


@torch.compiler.disable(recursive=False)
def outer(x):
    return inner(x) + 1


def inner(x):
    return x.sin() * 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.stats = []

    def forward(self, x):
        x = self.a(x)
        self.note(x)
        x = outer(x)
        return self.b(x).relu()

    @torch.compiler.disable()
    def note(self, x):
        self.stats.append(logged(x))


net = torch.compile(Net().to(device))
for _ in range(3):
    net(torch.randn(4, 8, device=device)).sum().backward()
with torch.compiler.set_stance("force_eager"):
    net(torch.randn(5, 8, device=device))
