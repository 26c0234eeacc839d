import torch

y = torch.arange(8, device="cuda") % 3
host = torch.arange(8) % 3

torch.unique(y)  # GAP114
y.unique()  # GAP114
torch.unique_consecutive(y)  # GAP114
host.unique()  # no wait
ordered = y.sort().values  # no wait
1 + (ordered[1:] != ordered[:-1]).sum()  # no wait
torch.zeros(3, dtype=torch.bool, device="cuda").index_fill_(0, y, True)  # no wait
