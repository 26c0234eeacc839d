"""A default device, factories without a device in compiled code, and a data loader around it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(10, 8), torch.randint(0, 3, (10,))), batch_size=4)
torch.set_default_device(device)
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@torch.compile
def loss_of(x, y):
    noise = torch.zeros(x.shape) + torch.arange(x.shape[1])
    return nn.functional.cross_entropy(net(x + 0.1 * noise), y)


optimizer = torch.optim.AdamW(net.parameters())
for _ in range(2):
    for x, y in data:
        loss_of(x.to(device), y.to(device)).backward()
        optimizer.step()
        optimizer.zero_grad()
