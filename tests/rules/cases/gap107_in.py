import torch

y = torch.arange(5, device="cuda")
host = torch.arange(5)

if 3 in y:  # GAP107
    pass
is_missing = 7 not in y  # GAP107
3 in host  # no wait
3 in [1, 2, 3]  # no wait
(y == 3).any()  # no wait
torch.isin(y, y[:2])  # no wait
