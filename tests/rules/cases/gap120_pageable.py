# example: dataset = torch.utils.data.TensorDataset(torch.zeros(8, 40_000), torch.zeros(8))
import torch
from torch.utils.data import DataLoader, TensorDataset

device = "cuda"
host = torch.randn(4)
pinned = host.pin_memory()
large = torch.zeros(40_000)
rows = torch.zeros(400, 200).pin_memory()
dataset = TensorDataset(torch.zeros(4, 40_000))
on_device = torch.empty(4, device=device)

host.to(device)  # GAP120
host.cuda()  # GAP120
host.to(device, non_blocking=True)  # no wait: its call takes it along
large.to(device, non_blocking=True)  # GAP120
rows[:, :100].to(device, non_blocking=True)  # GAP120
rows[:200].to(device, non_blocking=True)  # no wait
rows.t().to(device, non_blocking=True)  # no wait
on_device.copy_(host)  # GAP120
host.to(on_device)  # GAP120
torch.from_numpy(host.numpy()).to(device)  # GAP120
for (x,) in DataLoader(dataset, batch_size=2):
    x = x.to(device, non_blocking=True)  # GAP120 x2
for (x,) in DataLoader(dataset, batch_size=2, pin_memory=True):
    x = x.to(device, non_blocking=True)  # no wait
pinned.to(device, non_blocking=True)  # no wait
pinned.cuda(non_blocking=True)  # no wait
on_device.copy_(pinned, non_blocking=True)  # no wait
on_device.to(device)  # no wait
host.to(torch.float64)  # no wait
on_device + torch.tensor(1.0)  # no wait
