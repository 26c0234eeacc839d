import torch

x = torch.arange(6, device="cuda")
host = torch.arange(6)
lists = []

values = x.tolist()  # GAP106
lists.append(x[:2].tolist())  # GAP106
number = x[0].tolist()  # GAP106
parts = x.split(x[1:4].tolist())  # GAP106
values = host.tolist()  # no wait
for element in x:  # no wait
    element + 1  # no wait
for element in x:
    element.item()  # GAP101 x6
rows = list(x)  # no wait
first, *rest = x  # no wait
