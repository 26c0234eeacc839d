"""DistributedDataParallel around a compiled model, with another compiled loss."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29534")
dist.init_process_group("gloo", rank=0, world_size=1)
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.b(self.norm(self.a(x)).relu())


@torch.compile
def loss_of(out, target):
    return nn.functional.mse_loss(out, target)


model = DistributedDataParallel(torch.compile(Net().to(device)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in (4, 4, 6):
    out = model(torch.randn(batch, 8, device=device))
    loss_of(out, torch.randn(batch, 4, device=device)).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
