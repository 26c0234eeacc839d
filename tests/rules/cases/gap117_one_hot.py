import torch
import torch.nn.functional as F

y = torch.arange(8, device="cuda") % 3
host = torch.arange(8) % 3

F.one_hot(y)  # GAP117
F.one_hot(y, num_classes=3)  # no wait
F.one_hot(y, 3)  # no wait
F.one_hot(host)  # no wait
