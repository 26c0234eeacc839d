import torch

values = torch.arange(5, device="cuda")
host = torch.arange(5)

torch.combinations(values)  # GAP119 x0 (before torch 2.14: x2)
torch.isin(values, torch.arange(40, device="cuda"))  # GAP119 x3
torch.isin(values, values[:2])  # no wait
torch.combinations(host)  # no wait
torch.cartesian_prod(values, values)  # no wait
torch.triu_indices(5, 5, offset=1, device="cuda")  # no wait
