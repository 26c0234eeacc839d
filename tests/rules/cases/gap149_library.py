import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

net = nn.Linear(3, 2, device="cuda")
counted = AveragedModel(net, device="cuda")  # GAP121
usual = AveragedModel(net)  # no wait

counted.update_parameters(net)  # GAP149 x2
counted.update_parameters(net)  # GAP149 x2
usual.update_parameters(net)  # no wait
usual.update_parameters(net)  # no wait
