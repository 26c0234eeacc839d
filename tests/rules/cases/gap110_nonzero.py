import torch

mask = torch.rand(6, device="cuda") > 0.5
host = torch.rand(6) > 0.5

torch.nonzero(mask)  # GAP110
mask.nonzero()  # GAP110
torch.nonzero(mask, as_tuple=True)  # GAP110
torch.argwhere(mask)  # GAP110
torch.where(mask)  # GAP110
host.nonzero()  # no wait
torch.where(mask, 1.0, 0.0)  # no wait
torch.nonzero_static(mask, size=6)  # no wait
torch.count_nonzero(mask)  # no wait
mask.sum()  # no wait
