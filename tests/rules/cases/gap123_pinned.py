import torch
from torch.utils.data import DataLoader, TensorDataset

device = "cuda"
pinned = torch.randn(4).pin_memory()
loader = DataLoader(TensorDataset(torch.randn(4, 2)), batch_size=2, pin_memory=True)

pinned.to(device)  # GAP123
pinned.cuda()  # GAP123
for (x,) in loader:
    x = x.to(device)  # GAP123 x2
pinned.to(device, non_blocking=True)  # no wait
for (x,) in loader:
    x = x.cuda(non_blocking=True)  # no wait
