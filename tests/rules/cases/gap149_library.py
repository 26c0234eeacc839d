import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

device = "cuda"
net = nn.Linear(3, 2, device=device)
counted = AveragedModel(net, device=device)  # GAP121
own = copy.deepcopy(net)  # no wait

counted.update_parameters(net)  # GAP149 x2 (before torch 2.9: x3)
counted.update_parameters(net)  # GAP149 x3 (before torch 2.9: x4)
with torch.no_grad():
    for kept, new in zip(own.parameters(), net.parameters()):
        kept.lerp_(new, 0.1)  # no wait
