"""Context managers: autocast, no_grad, a profiler's range, and one of the script's own."""

import contextlib

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


@contextlib.contextmanager
def timed(name):
    begun = [name]
    yield begun
    begun.append("done")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        with torch.autocast(device, dtype=torch.bfloat16), torch.profiler.record_function("a"):
            h = self.a(x)
        with torch.no_grad():
            scale = h.float().abs().max()
        with timed("b"):
            torch._dynamo.graph_break()
            h = h.float() / scale
        return self.b(h)


net = torch.compile(Net().to(device))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    with torch.autocast(device, dtype=torch.bfloat16, enabled=step > 1):
        loss = net(torch.randn(4, 8, device=device)).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
