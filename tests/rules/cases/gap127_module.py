import torch
from torch import nn

device = "cuda"
net = nn.Linear(3, 2)

net.to(device)  # GAP127 x2
net.to(device)  # no wait
net.cuda()  # no wait
net.double()  # no wait
net.cpu()  # GAP127 x2
with torch.device(device):
    layer = nn.Linear(3, 2)  # no wait
nn.Linear(3, 2, device=device)  # no wait
layer.eval(), layer.zero_grad()  # no wait
