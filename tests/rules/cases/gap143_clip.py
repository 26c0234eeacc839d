import torch
from torch import nn

net = nn.Linear(4, 2, device="cuda")
net(torch.randn(3, 4, device="cuda")).sum().backward()

nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)  # GAP143
norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # no wait
nn.utils.clip_grad_value_(net.parameters(), 1.0)  # no wait
norm.item()  # GAP101
